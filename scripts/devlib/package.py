# SPDX-License-Identifier: Apache-2.0
"""`package`: the Debian packages of debian/, built from a clean export of the tree, looked at by lintian, unpacked and
started. Nothing is installed on this machine."""

import os
import pathlib
import re
import shutil
import subprocess
import time

from devlib import packages
from devlib.commands import ROOT, build_dir, build_environment, describe_exit, job_count, need
from devlib.lint import tree_files
from devlib.output import Failure, Heartbeat, duration, say, table

SECTIONS = ("building", "libraries", "the Python package", "the plug-in for Slurm", "packages")
EXPECTED = ("terraced", "terrace-cli", "terrace-preload", "terrace-slurm", "libterrace0", "libterrace-dev",
            "python3-terrace", "terrace-doc")
# Of each of these programs and libraries there is a package of symbols.
WITH_SYMBOLS = ("terraced", "terrace-cli", "terrace-preload", "terrace-slurm", "libterrace0", "python3-terrace")


def package() -> None:
    missing = packages.missing(SECTIONS)
    if missing:
        raise Failure(f"packages are built with {', '.join(missing)}; run `scripts/dev setup`", 3)
    begin = time.monotonic()
    folder = build_dir("packages")
    shutil.rmtree(folder, ignore_errors=True)
    tree = folder / "tree"
    _export(tree)
    _build(tree, folder)
    made = {path.name.partition("_")[0]: path for path in folder.glob("*.deb")}
    absent = [name for name in (*EXPECTED, *(f"{name}-dbgsym" for name in WITH_SYMBOLS)) if name not in made]
    if absent:
        raise Failure(f"package: the build did not make {', '.join(absent)}; see {folder / 'build.log'}")
    _check_scripts(made["terraced"])
    rows = [(name, f"{path.stat().st_size / 2**10:.0f}", _field(path, "Installed-Size"), str(_file_count(path)))
            for name, path in sorted(made.items())]
    table(["package", "KiB", "KiB installed", "files"], rows)
    _lint(folder)
    _start(made, folder / "root")
    shutil.rmtree(tree)
    say(f"package: {len(made)} packages in {folder.relative_to(ROOT)}, {duration(time.monotonic() - begin)}")


def _export(tree: pathlib.Path) -> None:
    for name in tree_files():
        place = tree / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place)


def _commit() -> str:
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    head = git("rev-parse", "--short=12", "HEAD").stdout.strip()
    return head + (" changed" if git("status", "--porcelain").stdout.strip() else "") if head else ""


def _build(tree: pathlib.Path, folder: pathlib.Path) -> None:
    """The objects have the same flags and the same paths, seen from the tree, as the release preset's: the compiler
    cache knows those that it has built."""
    environment = {**build_environment(), "CCACHE_BASEDIR": str(tree), "DEB_BUILD_OPTIONS": f"nocheck parallel={job_count()}"}
    environment.pop("NINJA_STATUS")
    if _commit():
        environment["TERRACE_COMMIT"] = _commit()
    log = folder / "build.log"
    say(f"package: dpkg-buildpackage ({job_count()} jobs), {log.relative_to(ROOT)}")
    with Heartbeat("dpkg-buildpackage"), log.open("w", encoding="utf-8") as out:
        code = subprocess.run([need("dpkg-buildpackage"), "--build=binary", "--no-sign"], cwd=tree, env=environment,
                              stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    if code != 0:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])
        raise Failure(f"package: dpkg-buildpackage {describe_exit(code)}\n{end}")


def _output(*command, **options) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise Failure(f"package: {' '.join(map(str, command))} {describe_exit(done.returncode)}: {done.stdout}{done.stderr}")
    return done.stdout


def _field(path: pathlib.Path, name: str) -> str:
    return _output("dpkg-deb", "-f", path, name).strip()


def _file_count(path: pathlib.Path) -> int:
    return sum(not line.startswith("d") for line in _output("dpkg-deb", "-c", path).splitlines())


def _check_scripts(path: pathlib.Path) -> None:
    """No script of the manager's package stops the mount: an upgrade would take the memory of all leases away."""
    scripts = subprocess.run(f"dpkg-deb --ctrl-tarfile {path} | tar -xO ./preinst ./prerm ./postinst ./postrm", shell=True,
                             capture_output=True, text=True, check=False).stdout
    if "terraced.conf" not in scripts:
        raise Failure(f"package: {path.name} has no scripts that can be read")
    if "objects.mount" in scripts or "stop" in scripts.replace("deb-systemd-invoke stop terraced.service terrace-agent.service", ""):
        raise Failure(f"package: a script of {path.name} stops more than the services at a removal:\n{scripts}")


def _lint(folder: pathlib.Path) -> None:
    # As root lintian warns of that, and looks all the same.
    command = [need("lintian"), "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]
    done = subprocess.run([*command, *sorted(map(str, folder.glob("*.changes")))], capture_output=True, text=True, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        if not line.startswith("N:"):
            print(f"   {line}")
    if done.returncode != 0:
        raise Failure(f"package: lintian {describe_exit(done.returncode)}")
    say("package: lintian has no error and no warning")


def _start(made: dict, root: pathlib.Path) -> None:
    """Unpacks all but the symbols into one folder, and starts what has come there."""
    for name in EXPECTED:
        _output("dpkg-deb", "-x", made[name], root)
    library = next(root.glob("usr/lib/*/libterrace.so.0")).parent
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    version = _field(made["terraced"], "Version")
    for program in ("terrace", "terraced"):
        path = root / "usr/bin" / program
        shown = _output(path, "--version").strip()
        if not re.match(rf"(terrace )?{re.escape(version)} \(.*release\)$", shown):
            raise Failure(f"package: {program} --version says {shown!r}, the package is version {version}")
        say(f"package: {program} --version: {shown}")
        if ".debug_info" in _output("readelf", "-S", "-W", path):
            raise Failure(f"package: {program} has its symbols inside")
        build_id = re.search(r"Build ID: ([0-9a-f]{40})", _output("readelf", "-n", path))
        symbols = made[f"{'terrace-cli' if program == 'terrace' else program}-dbgsym"]
        if build_id is None or f"{build_id[1][2:]}.debug" not in _output("dpkg-deb", "-c", symbols):
            raise Failure(f"package: {symbols.name} has no symbols of {program}")
    _output(root / "usr/bin/terraced", "--check-config", "--config", root / "etc/terrace/terraced.toml")
    run = subprocess.run([str(root / "usr/bin/terrace"), "run", "--socket", str(root / "none"), "--", "true"],
                         capture_output=True, text=True, check=False)
    if run.returncode != 0 or "no manager listens" not in run.stderr:
        raise Failure(f"package: `terrace run` exits {run.returncode}: {run.stderr.strip()}")
    python = _output("/usr/bin/python3", "-B", "-c", "import terrace; print(terrace.__version__)",
                     env={**environment, "PYTHONPATH": str(root / "usr/lib/python3/dist-packages")}).strip()
    if python != version:
        raise Failure(f"package: the Python package is {python}, not {version}")
