# SPDX-License-Identifier: Apache-2.0
"""Pins memory of programs in every way that pin_stress.cc knows, while granules go to and fro all the time, and fails
when a byte was lost; then takes the question for pins out and fails when nothing is lost. Run by ctest and by
`scripts/dev pins`; by hand:
    tests/integration/shim/pin_test.py --build-dir build/release --seconds 600 [--way NAME...]
Exit code 77 where nothing moves: no userfaultfd for this user, or a kernel that cannot be asked.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# library, program (liburing dynamic or static), memory of the leases
RUNS = (("heap", "pin_stress_static", ()),
        ("heap", "pin_stress", ("--huge-leases",)),
        ("malloc", "pin_stress_static", ("--huge-leases",)),
        ("malloc", "pin_stress", ()))
# Without the question a move may also end the registration of a userfaultfd of the program's own, whose waiting threads
# nobody wakes then: such a run would not end.
PLANTED_WAYS = ("direct", "posix_aio", "kernel_aio", "uring", "pipes", "foreign")
PLANTED_TRIES = 6
PLANTED_SECONDS = 8
# Where others have the processors a run of this length may show nothing; each further one is twice as long.
LIVELY_TRIES = 4


class Failed(Exception):
    pass


def stress(build, library, program, options, seconds, ways, planted=False):
    """One run: its lines by way, and the supervisor's numbers."""
    here = build / "tests/integration/shim"
    environment = dict(os.environ, TERRACE_MALLOC_LIBRARY=str(build / f"allocator/libterrace_{library}.so"))
    for name in ("LD_PRELOAD", "TERRACE_SUPPLY", "TERRACE_MIN_SIZE", "TERRACE_TEST_HOLD_NOTHING", "TERRACE_TEST_ASK_NOTHING"):
        environment.pop(name, None)
    if planted:
        environment["TERRACE_TEST_ASK_NOTHING"] = "1"
    with tempfile.TemporaryDirectory(prefix="terrace-pins-") as folder:
        stats = pathlib.Path(folder, "stats.json")
        command = [str(here / "shim_fake_run"), "--stats", str(stats), "--ddr", "16M", "--cxl", "128M", "--policy", "churn",
                   "--round", "1", *options, "--", str(here / f"shim_{program}"), str(seconds), *ways]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
                              env=environment, start_new_session=True) as process:
            try:
                out, err = process.communicate(timeout=seconds + 120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.communicate()
                raise Failed(f"{' '.join(command)} does not end") from None
        if process.returncode not in (0, 1):
            raise Failed(f"{' '.join(command)}: exit code {process.returncode}\n{out}\n{err}")
        lines = {line["way"]: line for line in map(json.loads, out.splitlines())}
        return lines, json.loads(stats.read_text())


def dull(moved, stats, ways):
    """Why a run without losses shows nothing; empty: it shows something."""
    if moved < 10:
        return "hardly anything moved"
    return "no move ever met a pin" if not ways and stats["moves_skipped"] == 0 else ""


def show(title, lines, stats):
    moved = stats["promotions"] + stats["demotions"]
    print(f"{title}: {moved} granules moved, {stats['moves_skipped']} not moved as they were pinned or busy", flush=True)
    for way, line in lines.items():
        print(f"  {way:14} {line['operations']:9} operations, {line['lost']} lost{', skipped' if line['skipped'] else ''}",
              flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--build-dir", type=pathlib.Path, required=True)
    arguments.add_argument("--seconds", type=int, default=40)
    arguments.add_argument("--way", action="append", default=[])
    given = arguments.parse_args()
    build = given.build_dir.resolve()
    sums = {}
    for library, program, options in RUNS:
        title = f"{library} {program} {' '.join(options)}".strip()
        seconds = max(given.seconds // len(RUNS), 1)
        for attempt in range(LIVELY_TRIES):
            lines, stats = stress(build, library, program, options, seconds << attempt, given.way)
            show(title, lines, stats)
            moved = stats["promotions"] + stats["demotions"]
            if moved == 0 and stats["processes_moved"] == 0:
                print("skipped: nothing moves on this machine (no userfaultfd, or no answer about pins)")
                return 77
            for way, line in lines.items():
                if line["lost"] > 0:
                    raise Failed(f"{title}: {way} lost {line['lost']} of {line['operations']}")
                sums[way] = sums.get(way, 0) + line["operations"]
            why = dull(moved, stats, given.way)
            if not why:
                break
        else:
            raise Failed(f"{title}: {why}")
    if not all(sums.values()):
        skipped = [way for way, operations in sums.items() if operations == 0]
        print(f"not on this machine: {', '.join(skipped)}")
    for _ in range(PLANTED_TRIES):
        lines, stats = stress(build, *RUNS[0], PLANTED_SECONDS, given.way or PLANTED_WAYS, planted=True)
        show("without the question", lines, stats)
        if any(line["lost"] > 0 for line in lines.values()):
            print("no byte lost with the question, and without it the defect is found")
            return 0
    raise Failed("the planted defect was not found")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(failure, file=sys.stderr)
        sys.exit(1)
