# SPDX-License-Identifier: Apache-2.0
"""The console: TypeScript of daemon/web/console/src made into the few files that terraced serves.

CMake calls this file by itself, with the sources and a folder, and compiles what it writes there. `scripts/dev console`
checks types and runs the tests of what needs no browser, too. No package of npm is used.
"""

import argparse
import gzip
import hashlib
import os
import pathlib
import subprocess
import sys

PACKED_BYTES_MAX = 150_000
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".svg": "image/svg+xml"}


def bundle(esbuild: str, sources: pathlib.Path) -> dict:
    """{path behind /console/: bytes}."""
    files = {"": (sources / "index.html").read_bytes(), "icon.svg": (sources / "icon.svg").read_bytes()}
    for name, source in (("app.js", "main.ts"), ("app.css", "app.css")):
        command = [esbuild, str(sources / source), "--bundle", "--minify", "--target=es2020", "--charset=utf8",
                   "--log-level=warning"]
        files[name] = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
    return files


def _array(name: str, content: bytes) -> str:
    rows = (", ".join(map(str, content[at:at + 32])) for at in range(0, len(content), 32))
    return f"constexpr uint8_t {name}[] = {{\n" + ",\n".join(rows) + "};\n"


def source_of(files: dict) -> str:
    """C++ that has the files, plain and packed."""
    arrays, rows = [], []
    for number, (path, content) in enumerate(files.items()):
        packed = gzip.compress(content, 9, mtime=0)
        arrays.append(_array(f"plain_{number}", content) + _array(f"packed_{number}", packed))
        tag = hashlib.sha256(content).hexdigest()[:16]
        kind = TYPES[pathlib.PurePath(path).suffix or ".html"]
        rows.append(f'    {{"{path}", "{kind}", "\\"{tag}\\"", plain_{number}, packed_{number}}},\n')
    return ("// Made by scripts/devlib/console.py.\n#include \"daemon/web/console_files.h\"\n\nnamespace terrace::daemon {\n"
            "namespace {\n" + "".join(arrays) + "constexpr ConsoleFile files[] = {\n" + "".join(rows) + "};\n}  // namespace\n\n"
            "std::span<const ConsoleFile> console_files() {\n  return files;\n}\n\n}  // namespace terrace::daemon\n")


def packed_bytes(files: dict) -> int:
    return sum(len(gzip.compress(content, 9, mtime=0)) for content in files.values())


def write(files: dict, folder: pathlib.Path) -> None:
    """At once, since two builds may write here."""
    if packed_bytes(files) > PACKED_BYTES_MAX:
        raise SystemExit(f"console: {packed_bytes(files)} bytes packed, at most {PACKED_BYTES_MAX}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (*((name or "index.html", content) for name, content in files.items()),
                          ("console_files.cc", source_of(files).encode())):
        new = folder / f".{name}.{os.getpid()}"
        new.write_bytes(content)
        new.replace(folder / name)


def console() -> None:
    """The verb: types, tests, sizes. The build bundles by itself; what it puts into terraced is what is written here."""
    from devlib.commands import ROOT, build_dir, need, run
    from devlib.output import say, table

    folder, out = ROOT / "daemon/web/console", build_dir("generated") / "console"
    esbuild = need("esbuild")
    run([need("tsc"), "-p", folder], what="console: the types")
    say("console: types are right")
    tests = out / "tests.js"
    out.mkdir(parents=True, exist_ok=True)
    run([esbuild, folder / "test/all.ts", "--bundle", "--platform=node", f"--outfile={tests}", "--log-level=warning"])
    run([need("node"), tests], what="console: the tests")
    files = bundle(esbuild, folder / "src")
    write(files, out)
    rows = [(name or "index.html", str(len(content)), str(len(gzip.compress(content, 9, mtime=0)))) for name, content in files.items()]
    table(["file", "bytes", "packed"], rows)
    say(f"console: {packed_bytes(files)} bytes packed, at most {PACKED_BYTES_MAX}, in {out.relative_to(ROOT)}; terraced has it after "
        "the next build")


def main() -> int:
    parser = argparse.ArgumentParser(description="Bundles the console and writes it as C++.")
    parser.add_argument("--esbuild", default="esbuild")
    parser.add_argument("sources", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    asked = parser.parse_args()
    try:
        write(bundle(asked.esbuild, asked.sources), asked.folder)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
