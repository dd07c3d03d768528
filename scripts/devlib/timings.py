# SPDX-License-Identifier: Apache-2.0
"""`build --timings`: what a build from nothing costs, in processor time, and where it goes."""

import collections
import os
import pathlib
import resource
import shutil
import subprocess
import time

from devlib.commands import PRESETS, ROOT, build_environment, job_count, need, run_ninja
from devlib.output import Failure, duration, say, table

SLOWEST = 20


class Step:
    """One line of Ninja's log: what was made, and how long that took by the clock."""

    def __init__(self, output: str, seconds: float) -> None:
        self.output, self.seconds = output, seconds
        # allocator/preload and tests/unit/rpc are rooms; CMakeFiles and what lies below are not.
        parts = output.split("/CMakeFiles/")[0].split("/")
        deep = 3 if parts[0] == "tests" else 2
        self.folder = "/".join(parts[:deep]) if output.endswith(".o") else "(links and generated files)"


def read_log(text: str) -> list:
    """The steps of a log of Ninja's; of an output made twice the last time counts."""
    steps = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 5 and not line.startswith("#"):
            begin, end, _, output, _ = fields
            steps[output] = Step(output, (int(end) - int(begin)) / 1000)
    return list(steps.values())


def by_folder(steps: list) -> list:
    """(folder, steps, seconds), the most expensive first."""
    seconds, count = collections.Counter(), collections.Counter()
    for step in steps:
        seconds[step.folder] += step.seconds
        count[step.folder] += 1
    return [(folder, count[folder], spent) for folder, spent in seconds.most_common()]


def timings(preset: str, targets: list) -> None:
    """Builds in a folder of its own, without the compiler cache, and prints what it took."""
    if preset not in PRESETS:
        raise Failure(f"no preset '{preset}'; there are {', '.join(PRESETS)}", 2)
    folder = ROOT / "build" / f"timings-{preset}"
    shutil.rmtree(folder, ignore_errors=True)
    environment = {**build_environment(), "CCACHE_DISABLE": "1"}
    say(f"build {preset} from nothing, without the compiler cache ({job_count()} jobs)")
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    made = subprocess.run([need("cmake"), "--preset", preset, "-B", str(folder)], cwd=ROOT, env=environment,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise Failure(f"configuring the {preset} preset failed\n{made.stdout}{made.stderr}")
    run_ninja([need("ninja"), "-C", str(folder), f"-j{job_count()}", *targets], environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begin
    _show(read_log((folder / ".ninja_log").read_text(encoding="utf-8")))
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say(f"build {preset}: {spent:.0f} s of processor time, {duration(wall)} by the clock; "
        f"load average {os.getloadavg()[0]:.1f}; {pathlib.Path(folder).relative_to(ROOT)} can be removed")


def _show(steps: list) -> None:
    print("by the clock, with the other jobs beside:")
    table(["folder", "steps", "seconds"], [(name, str(count), f"{spent:.0f}") for name, count, spent in by_folder(steps)])
    slowest = sorted(steps, key=lambda step: -step.seconds)[:SLOWEST]
    table(["slowest", "seconds"], [(step.output, f"{step.seconds:.1f}") for step in slowest])
