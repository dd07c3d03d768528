"""The line that names the licence, at the top of each source. `scripts/dev check` looks for it, `scripts/dev format` writes it."""

import pathlib

LINE = "SPDX-License-Identifier: Apache-2.0"

_SLASHES = (".h", ".cc", ".cc.in", ".c", ".cpp", ".hpp")
_HASHES = (".py", ".pyi", ".capnp", ".cmake", ".toml", ".sh", "CMakeLists.txt", ".service.in", ".mount", ".sysusers", ".tmpfiles",
           "debian/rules", "scripts/dev", ".ci/run")

# Where each source must have it: what others compile into their programs, and what is installed as it is. ("",) is the whole
# tree; `scripts/dev format` then writes what lacks.
FOLDERS = ("libclient/include/", "bindings/", "deploy/", "debian/",
           *(f"core/base/{name}.h" for name in ("check", "error", "ids", "result", "unique_fd", "units")))


def comment_mark(name: str) -> str:
    """How a comment begins in the file; "" for what is no source."""
    if name.endswith(_SLASHES):
        return "//"
    return "#" if name.endswith(_HASHES) else ""


def lacks_line(name: str, text: str) -> bool:
    """The line is the first, or follows the one that names the interpreter."""
    return bool(comment_mark(name)) and not any(LINE in line for line in text.splitlines()[:2])


def with_line(name: str, text: str) -> str:
    line = f"{comment_mark(name)} {LINE}\n"
    if text.startswith("#!"):
        interpreter, _, rest = text.partition("\n")
        return f"{interpreter}\n{line}{rest}"
    return line + text


def in_scope(names: list) -> list:
    return [name for name in names if name.startswith(FOLDERS) and comment_mark(name)]


def without_line(root: pathlib.Path, names: list) -> list:
    return [name for name in in_scope(names) if lacks_line(name, (root / name).read_text(encoding="utf-8"))]


def add_lines(root: pathlib.Path, names: list) -> list:
    """Writes the line where it lacks; which files those were."""
    lacking = without_line(root, names)
    for name in lacking:
        path = root / name
        path.write_text(with_line(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return lacking
