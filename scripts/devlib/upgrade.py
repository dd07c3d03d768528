# SPDX-License-Identifier: Apache-2.0
"""`upgrade`: the programs of a released version beside those of this tree, over one store and one memory."""

import os
import pathlib
import shutil
import subprocess

from devlib.build import build
from devlib.commands import ROOT, build_dir, build_environment, job_count, need, run, run_ninja
from devlib.output import Failure, Skipped, say

RELEASES = ROOT / "scripts" / "releases.txt"
# Of both versions. session_client is linked with its version's client library.
TARGETS = ("terraced", "terrace", "terrace_heap_preload", "session_client")
PRESET = "sim"  # failpoints allow the short host leases of tests; crash and sim runs have built most of it


def last_release() -> tuple:
    """(version, commit) of the last line of scripts/releases.txt."""
    lines = [line.split() for line in RELEASES.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return tuple(lines[-1])


def upgrade(older: str = "") -> None:
    """Builds the last release, or the commit `older`, and runs tests/upgrade with it as the older version. Skipped where the
    clone does not reach back to it, and without root: agents are in network namespaces."""
    if os.geteuid() != 0:
        raise Skipped("the upgrade run needs root: its hosts are network namespaces")
    name, commit = (older, older) if older else last_release()
    found = subprocess.run([need("git"), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True,
                           text=True, check=False)
    if found.returncode != 0:
        if older:
            raise Failure(f"upgrade: this clone has no commit '{older}'", 2)
        raise Skipped(f"this clone does not reach back to {name} ({commit})")
    commit = found.stdout.strip()
    build(PRESET, list(TARGETS))
    tree = _checked_out(commit)
    say(f"upgrade: from {name} ({commit[:12]})")
    run(["/usr/bin/python3", "-B", str(ROOT / "tests/upgrade/upgrade_test.py"), "--build-dir", str(build_dir(PRESET)),
         "--older", str(_built(tree, name))], what="the upgrade run")


def _checked_out(commit: str) -> pathlib.Path:
    """The files of a commit in a folder of their own; one that is there already is taken as it is."""
    tree = build_dir("upgrade") / commit[:12]
    if not (tree / "CMakeLists.txt").is_file():
        fresh = tree.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        archive = subprocess.Popen([need("git"), "archive", "--format=tar", commit], cwd=ROOT, stdout=subprocess.PIPE)
        run([need("tar"), "-x", "-C", str(fresh)], what=f"unpacking {commit[:12]}", stdin=archive.stdout)
        if archive.wait() != 0:
            raise Failure(f"upgrade: git archive {commit[:12]} failed")
        fresh.rename(tree)
    return tree


def _built(tree: pathlib.Path, name: str) -> pathlib.Path:
    """The build folder of the older tree. Objects whose sources are the same come from the compiler cache, if there is one."""
    say(f"build {PRESET} of {name} ({job_count()} jobs)")
    environment = {**build_environment(), "CCACHE_BASEDIR": str(tree)}
    done = subprocess.run([need("cmake"), "--preset", PRESET], cwd=tree, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"upgrade: configuring {name} failed\n{done.stdout}{done.stderr}")
    folder = tree / "build" / PRESET
    run_ninja([need("ninja"), "-C", str(folder), f"-j{job_count()}", *TARGETS], environment)
    return folder
