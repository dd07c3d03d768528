# SPDX-License-Identifier: Apache-2.0
"""`build` and `test`: CMake presets, Ninja, ctest."""

import os
import re
import resource
import subprocess
import time

from devlib import schedule, skips
from devlib.commands import (CASE_FAILED, PRESETS, ROOT, build_dir, build_environment, describe_exit, job_count, names_of, need,
                             run, run_ninja)
from devlib.output import Failure, duration, say


def configure(preset: str, definitions: tuple = ()) -> None:
    need("ninja")
    command = [need("cmake"), "--preset", preset, *definitions]
    result = subprocess.run(command, cwd=ROOT, env=build_environment(), stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Failure(f"configuring the {preset} preset failed. Missing packages are installed by `scripts/dev "
                      f"setup`; a stale cache goes away with `scripts/dev clean`.\n{result.stdout}{result.stderr}")


def build(preset: str, targets: list = (), definitions: tuple = ()) -> None:
    """Configures and builds a preset, or some targets of it. `definitions`: further words for CMake, which it remembers."""
    if preset not in PRESETS:
        raise Failure(f"no preset '{preset}'; there are {', '.join(PRESETS)}", 2)
    begin = time.monotonic()
    say(f"build {preset}{': ' + ' '.join(targets) if targets else ''} ({job_count()} jobs)")
    configure(preset, definitions)
    run_ninja([need("ninja"), "-C", str(build_dir(preset)), f"-j{job_count()}", *targets], build_environment())
    say(f"build {preset}: done in {duration(time.monotonic() - begin)}")


_CLOSING = re.compile(r"^\d+% tests passed, .*out of \d+")
_SKIPPED = re.compile(r"^\s*\d+ - (\S+) \((Skipped|Not Run|Disabled)\)")
_FAILED = re.compile(r" *\d+/\d+ Test +#\d+: (\S+) \.*\*\*\*(?!Skipped)")  # Failed, Timeout, Exception


def test(pattern: str = "", preset: str = "dev") -> None:
    """Builds a preset and runs its tests; the last line is ctest's own summary."""
    build(preset)
    command = [need("ctest"), "--test-dir", str(build_dir(preset)), *schedule.options(build_dir(preset), job_count()),
               "--output-on-failure", "--no-tests=error"]
    if pattern:
        command += ["-R", pattern]
    say(f"test {preset}{' ' + pattern if pattern else ''}")
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    # ASan keeps the call chain of each allocation, of up to 30 calls: a third of a busy `terrace run`'s time.
    environment = {"ASAN_OPTIONS": "malloc_context_size=6", **os.environ}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    closing, skipped, failed = "", [], []
    for line in process.stdout:
        print(line, end="", flush=True)
        if _CLOSING.match(line):
            closing = line.strip()
        found = _SKIPPED.match(line)
        if found:
            skipped.append(f"{found.group(1)} ({found.group(2).lower()})")
        if _FAILED.match(line):
            failed.append(_FAILED.match(line).group(1))
        elif CASE_FAILED.match(line):
            failed.append(CASE_FAILED.match(line).group(1))
    code = process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say(f"test {preset}: {spent:.0f} s of processor time, {duration(time.monotonic() - begin)} by the clock")
    if skipped:
        print(f"skipped, not passed: {', '.join(skipped)}")
    log = build_dir(preset) / "Testing/Temporary/LastTest.log"
    could_run = skips.report(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
    for skip in could_run:
        print(f"skipped, although this machine has what it needs: {skip.name}: {skip.reason}")
    if closing:
        print(closing, flush=True)
    if code != 0:
        raise Failure(f"tests: {names_of(failed) or 'ctest ' + describe_exit(code)}")
    if could_run and os.environ.get("CI"):
        raise Failure(f"tests: {len(could_run)} cases were skipped that this machine could run")


def clean() -> None:
    """Removes the build folder; ccache keeps what it has."""
    say(f"clean: removing {build_dir('').relative_to(ROOT)}")
    run([need("cmake"), "-E", "rm", "-rf", str(ROOT / "build")])
