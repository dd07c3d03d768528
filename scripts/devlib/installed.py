# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` lays down from a release build of the demo's and the benches' targets: it is complete, is
stripped, can be moved, and its programs start."""

import pathlib
import subprocess
import tempfile

from devlib.commands import build_dir, need
from devlib.output import Failure, say

PROGRAMS = ("terrace", "terraced")
SERVICE_FILES = ("lib/systemd/system/terraced.service", "lib/systemd/system/terrace-agent.service",
                 "lib/systemd/system/run-terrace-objects.mount", "lib/sysusers.d/terraced.conf", "lib/tmpfiles.d/terraced.conf",
                 "etc/terrace/terraced.toml", "share/terrace/further-hosts.conf", "share/doc/terrace/operations/install.md")
LIBRARIES = ("libterrace.so", "libterrace_malloc.so", "libterrace_heap.so")


def check_installed(preset: str = "release") -> None:
    with tempfile.TemporaryDirectory(prefix="terrace-installed-") as folder:
        first, moved = pathlib.Path(folder) / "first", pathlib.Path(folder) / "moved"
        _output([need("cmake"), "--install", str(build_dir(preset)), "--prefix", str(first)])
        first.rename(moved)
        for name in PROGRAMS:
            _check_stripped(moved / "bin" / name)
            say(f"installed: {_output([str(moved / 'bin' / name), '--version']).strip()}")
        for name in SERVICE_FILES:
            if not (moved / name).is_file():
                raise Failure(f"cmake --install did not install {name}")
        for name in LIBRARIES:
            found = sorted(moved.glob(f"lib*/**/{name}"))
            if not found:
                raise Failure(f"cmake --install did not install {name}")
            _check_stripped(found[0].resolve())
        # `terrace run` finds its library by where it lies itself. Without a manager it runs the program all the same.
        run = subprocess.run([str(moved / "bin/terrace"), "run", "--socket", f"{folder}/none", "--", "true"],
                             capture_output=True, text=True, check=False)
        if run.returncode != 0 or "no manager listens" not in run.stderr:
            raise Failure(f"an installed `terrace run` exits {run.returncode}: {run.stderr.strip()}")


def _check_stripped(program: pathlib.Path) -> None:
    if ".debug_info" in _output(["readelf", "-S", "-W", str(program)]):
        raise Failure(f"{program.name} is installed with its symbols")


def _output(command: list) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)} exits {done.returncode}: {(done.stdout + done.stderr).strip()}")
    return done.stdout
