# SPDX-License-Identifier: Apache-2.0
"""Crash runs: every declared failpoint, and kill -9 at random moments. `scripts/dev crash` starts this.

    crash_run.py --build-dir build/sim [--size smoke|ci|full] [--soak-seconds S] [--seed S] [--jobs N] [POINT...|soak]

The list of points comes from `terraced --list-failpoints`. A run over all of them fails unless each declared
point was hit and every promise held afterwards. Each run has a service of its own and mostly waits, for its clients or for
a fold, so `--jobs` of them go on at a time, the longest first. The soak has the machine for itself.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from checks import Broken  # noqa: E402
from scenarios import ONCE, Programs, scenario_of, workloads_of  # noqa: E402
from soak import soak  # noqa: E402
from terrace_harness import HarnessError, find_binary  # noqa: E402

# At which passes of a point the process dies, by size, under the workload that reaches it most easily. Under the
# others it dies once: all of them in a full run, one chosen by the seed in CI.
HITS = {"smoke": (1,), "ci": (1, 4), "full": (1, 2, 3, 7)}
OTHER_HIT = 2
LONGEST = ("calm", "drain", "unplug")  # of the workloads: these wait for a fold, or for all leases of a device
SMOKE_POINTS = ("carve_after_reserve", "journal_before_append", "journal_after_sync", "reply_before_send",
                "scrub_before_unlink", "recover_after_orphans")


def declared_points(build_dir):
    """(name, process) of every failpoint that this run is for, as the daemon of this build declares them."""
    listed = subprocess.run([find_binary("terraced", build_dir), "--list-failpoints"], capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, check=True, timeout=30)
    points = [tuple(line.split("\t")[:2]) for line in listed.stdout.splitlines()]
    return [point for point in points if point[1] in ("daemon", "client")]


def say(text):
    print(text, flush=True)


def run_one(what, action):
    """Runs one scenario; returns what went wrong, or None, and how long it took in seconds."""
    begin = time.monotonic()
    try:
        action()
        problem = None
    except (Broken, HarnessError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    seconds = time.monotonic() - begin
    told = f"  {what:<40} {'ok' if problem is None else 'FAILED'}  {seconds:5.1f} s"
    say(told if problem is None else told + "\n    " + problem.replace("\n", "\n    "))  # at once: others talk beside it
    return problem, seconds


def runs_of(point, size, chance):
    """(workload, pass) of each run of a point."""
    first, *others = workloads_of(point)
    runs = [(first, hit) for hit in ((1,) if first in ONCE else HITS[size])]
    if size == "ci" and others:
        others = [chance.choice(others)]
    if size != "smoke":
        runs += [(workload, 1 if workload in ONCE else OTHER_HIT) for workload in others]
    return runs


def run_point(programs, point, workload, hit, seed):
    """One run of a point, as a job of its own process. Returns what run_one() does."""
    return run_one(f"{point} @{hit} {workload}", lambda: scenario_of(workload)(programs, point, hit, seed + hit, workload))


def run_points(programs, runs, seed, jobs):
    """Each (point, workload, pass) of `runs`, `jobs` at a time; returns what run_point() said of each, in their order."""
    first = sorted(range(len(runs)), key=lambda at: LONGEST.index(runs[at][1]) if runs[at][1] in LONGEST else len(LONGEST))
    # Processes, since a service ends with the thread that started it; made before this one has threads.
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        begun = {at: pool.submit(run_point, programs, *runs[at], seed) for at in first}
        return [begun[at].result() for at in range(len(runs))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", nargs="*", help="only these; 'soak' for the random kills. Default: all")
    parser.add_argument("--build-dir", required=True)
    parser.add_argument("--size", choices=tuple(HITS), default="full")
    parser.add_argument("--soak-seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of the clients and of the soak; default: random")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 1, metavar="N",
                        help="runs at a time (default: one more than there are cores)")
    arguments = parser.parse_args()

    programs = Programs(arguments.build_dir)
    declared = declared_points(arguments.build_dir)
    unknown = set(arguments.points) - {name for name, _ in declared} - {"soak"}
    if unknown:
        parser.error(f"no failpoint {', '.join(sorted(unknown))}; declared are: "
                     f"{' '.join(name for name, _ in declared)}")
    everything = not arguments.points and arguments.size != "smoke"
    chosen = arguments.points or (SMOKE_POINTS if arguments.size == "smoke" else [name for name, _ in declared])
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000
    say(f"crash run, size {arguments.size}, seed {seed}")

    rows, broken = [], []
    points = {name: runs_of(name, arguments.size, random.Random(f"{seed} {name}")) for name, _ in declared if name in chosen}
    runs = [(name, workload, hit) for name, its_runs in points.items() for workload, hit in its_runs]
    results = dict(zip(runs, run_points(programs, runs, seed, max(1, arguments.jobs))))
    for name, process in declared:
        if name not in chosen:
            continue
        its = {(workload, hit): results[name, workload, hit] for workload, hit in points[name]}
        problems = {run: problem for run, (problem, _) in its.items() if problem}
        broken += [f"{name} @{hit} {workload}: {problem}" for (workload, hit), problem in problems.items()]
        rows.append((name, process, " ".join(f"{workload}@{hit}" for workload, hit in its),
                     "FAILED" if problems else "ok", f"{sum(seconds for _, seconds in its.values()):.1f} s"))

    soaked = []
    if everything or "soak" in arguments.points:
        problem, seconds = run_one(f"soak of {arguments.soak_seconds:g} s", lambda: soaked.extend(
            soak(programs, arguments.soak_seconds, seed, lambda text: say(f"    {text}"))))
        broken += [f"soak: {problem}"] if problem else []
        measured = f"{soaked[0]} kills, {soaked[1]} operations acknowledged" if soaked else "-"
        rows.append(("soak", "daemon", measured, "FAILED" if problem else "ok", f"{seconds:.1f} s"))
    return conclude(rows, broken, declared, everything, seed)


def conclude(rows, broken, declared, everything, seed):
    """Prints the table, what went wrong once more (the end of a long log is what is kept of it), and whether everything
    declared was covered. Returns the exit code."""
    titles = ("point", "process", "died under workload@pass", "result", "time")
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
    for row in [titles, tuple("-" * width for width in widths), *rows]:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    failed = [row[0] for row in rows if row[3] != "ok"]
    covered = [row[0] for row in rows if row[0] != "soak" and row[3] == "ok"]
    say(f"failpoints declared {len(declared)}, covered {len(covered)}")
    for problem in broken:
        say(problem[:4000])
    if failed:
        say(f"FAILED: {', '.join(failed)} (seed {seed})")
        return 1
    if everything and len(covered) != len(declared):
        say("a declared failpoint was not reached")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
