#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks coherence.pml with spin: the protocol holds over all interleavings, and each fault that is planted is found.

    run_model.py [--long] [--only NAME]    --long: two publications before the take-over (minutes)
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

MODEL = pathlib.Path(__file__).resolve().parent / "coherence.pml"
SKIPPED = 77

# name, defines. EARLY: the error is found before an optimising compiler has paid for itself.
WHOLE = (
    ("one slot, copied", ("SLOTS=1",)),
    ("two slots, copied", ("SLOTS=2",)),
    ("one slot, in place", ("SLOTS=1", "PINS")),
    ("two slots, in place", ("SLOTS=2", "PINS")),
)
FAULTS = (
    ("the mark is not written back", ("SLOTS=1", "NO_MARK_FLUSH", "EARLY")),
    ("the data are not written back", ("SLOTS=2", "NO_DATA_FLUSH", "EARLY")),
    ("the new version is not written back", ("SLOTS=2", "NO_FLIP_FLUSH", "EARLY")),
    ("the record is not invalidated", ("SLOTS=2", "NO_REC_DROP", "EARLY")),
    ("the data are not invalidated", ("SLOTS=2", "NO_DATA_DROP", "EARLY")),
    ("no second look", ("SLOTS=1", "NO_RECHECK", "EARLY")),
    ("a second look at the old line", ("SLOTS=1", "NO_RECHECK_DROP", "EARLY")),
    ("no look at the pins", ("SLOTS=2", "PINS", "NO_PIN_CHECK")),
    ("an old look at the pins", ("SLOTS=1", "PINS", "NO_PIN_DROP")),
    ("the pin is not written back", ("SLOTS=1", "PINS", "NO_PIN_FLUSH")),
    ("no second look after pinning", ("SLOTS=1", "PINS", "NO_PIN_RECHECK")),
    ("no roll back", ("SLOTS=2", "NO_ROLL_BACK")),
    ("a take-over from old lines", ("SLOTS=2", "NO_TAKE_OVER_DROP")),
    ("a take-over from one who lives", ("SLOTS=2", "NO_DEATH_CHECK", "BREADTH_FIRST", "EARLY")),
)


def check(name: str, defines: tuple, compressed: bool) -> tuple:
    """Returns name, the verifier's verdict ("holds", "fails", or what went wrong), states, seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="t-spin-") as folder:
        # An error that is a few steps away, in a direction that a search into the depth takes last.
        search = ["-DBFS"] if "BREADTH_FIRST" in defines else []
        flags = [f"-D{define}" for define in defines]
        subprocess.run(["spin", "-a", *flags, str(MODEL)], cwd=folder, check=True, capture_output=True, timeout=60)
        # States as they are take up to 1.3 GB here, and a quarter less time than compressed ones.
        search += ["-DCOLLAPSE"] if compressed else []
        # Over states that are found in seconds, -O2 takes longer to compile than it saves.
        optimise = "-O0" if "EARLY" in defines else "-O2" if compressed else "-O1"
        compiler = ["gcc", optimise, "-w", "-DSAFETY", "-DMEMLIM=4000", *search, "-o", "pan", "pan.c"]
        subprocess.run(compiler, cwd=folder, check=True, capture_output=True, timeout=120)
        text = subprocess.run(["./pan", "-m1000000"], cwd=folder, check=True, capture_output=True, text=True,
                              timeout=1800).stdout
    errors = re.search(r"errors: (\d+)", text)
    states = re.search(r"(\d+) states, stored", text)
    seconds = time.monotonic() - begin
    verdict = text
    if errors and "assertion violated" in text:
        verdict = "fails"
    elif errors and errors.group(1) == "0" and "max search depth too small" not in text and "out of memory" not in text:
        verdict = "holds"
    return name, verdict, int(states.group(1)) if states else 0, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if not shutil.which("spin") or not shutil.which("gcc"):
        print("skipped: spin is not installed (scripts/dev setup)")
        return SKIPPED
    size = ("PUBLICATIONS=2",) if arguments.long else ("PUBLICATIONS=1",)
    runs = [(name, (*defines, *size), "holds") for name, defines in WHOLE]
    runs += [(name, (*defines, *size), "fails") for name, defines in FAULTS]
    runs = [run for run in runs if arguments.only in run[0]]
    wrong = 0
    workers = max(1, min(2, len(os.sched_getaffinity(0))))  # some have more than a gigabyte
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for (name, verdict, states, seconds), (_, _, expected) in zip(
                pool.map(lambda run: check(run[0], run[1], arguments.long), runs), runs):
            good = verdict == expected
            wrong += not good
            print(f"{'ok' if good else 'WRONG':5} {name:36} {verdict[-3000:]:6} {states:>10} states {seconds:6.1f} s",
                  flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
