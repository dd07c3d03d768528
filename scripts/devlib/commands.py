# SPDX-License-Identifier: Apache-2.0
"""Running programs: where the tree is, how many jobs fit, and a build output that stays readable."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

from devlib.output import Failure, note

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRESETS = ("dev", "tsan", "sim", "fuzz", "release")


def build_dir(preset: str) -> pathlib.Path:
    return ROOT / "build" / preset


def job_count() -> int:
    """Cores, but no more than memory allows: one optimised translation unit with sanitizers takes about 1 GiB."""
    cores = len(os.sched_getaffinity(0))
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(cores, int(gib / 1.2)))


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Failure(f"'{program}' is not installed; run `scripts/dev setup` first", 3)
    return found


def build_environment() -> dict:
    """Lets ccache share objects between clones of the tree: paths relative, working directory not hashed."""
    environment = dict(os.environ)
    environment["CCACHE_NOHASHDIR"] = "1"
    environment["CCACHE_BASEDIR"] = str(ROOT)
    if "CCACHE_DIR" not in environment:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        environment["CCACHE_DIR"] = os.path.join(cache, "ccache")
    # debhelper sets a locale of its own, and in no locale are the objects other ones.
    sloppiness = environment.get("CCACHE_SLOPPINESS", "")
    environment["CCACHE_SLOPPINESS"] = ",".join(filter(None, (sloppiness, "locale")))
    environment["NINJA_STATUS"] = "[%f/%t] "
    return environment


def run(command: list, *, what: str = "", **options) -> None:
    """Runs a command whose output goes straight through; a failure becomes a Failure that names it."""
    options.setdefault("cwd", ROOT)
    options.setdefault("stdin", subprocess.DEVNULL)
    try:
        code = subprocess.run([str(part) for part in command], check=False, **options).returncode
    except FileNotFoundError as error:
        raise Failure(f"{error.filename} is not there; run `scripts/dev setup`, then build") from None
    if code != 0:
        raise Failure(f"{what or shlex.join(str(part) for part in command)}: {describe_exit(code)}")


# As Python's unittest says it of a case.
CASE_FAILED = re.compile(r"(?:FAIL|ERROR): (\S+) \(")


def names_of(failed: list) -> str:
    """"3 failed: a, b, c", each once; empty: none."""
    names = list(dict.fromkeys(failed))
    return f"{len(names)} failed: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else ""


def run_cases(command: list, *, what: str) -> None:
    """As run(), of a program of Python's unittest: the Failure names the cases that failed."""
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT, stdin=subprocess.DEVNULL, text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    failed = []
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            if CASE_FAILED.match(line):
                failed.append(CASE_FAILED.match(line).group(1))
    except BaseException:
        process.kill()
        raise
    code = process.wait()
    if code != 0:
        raise Failure(f"{what}: {names_of(failed) or describe_exit(code)}")


def describe_exit(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"failed with exit code {code}"


_STEP = re.compile(r"^\[(\d+)/(\d+)\] ")


def run_ninja(command: list, environment: dict) -> None:
    """Ninja as it is on a terminal; elsewhere a step line every two seconds and everything that is no step
    (warnings, errors)."""
    if sys.stdout.isatty():
        run(command, what="the build", env=environment)
        return
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, text=True,
                               errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    shown = time.monotonic()
    try:
        for line in process.stdout:
            step = _STEP.match(line)
            last = step and step.group(1) == step.group(2)
            if not step or last or time.monotonic() - shown > 2:
                shown = time.monotonic()
                note(line.rstrip())
    finally:
        process.stdout.close()
        code = process.wait()
    if code != 0:
        raise Failure(f"the build: {describe_exit(code)}")
