# SPDX-License-Identifier: Apache-2.0
"""`ci`: everything that must hold before a change goes in, one stage after the other, at a size for two cores."""

import os
import sys
import time
import traceback

from devlib import lint, runs, static
from devlib.build import build, test
from devlib.console import console
from devlib.installed import check_installed
from devlib.kubernetes import kubernetes
from devlib.output import Failure, Skipped, duration, say, table
from devlib.package import package
from devlib.site import build_site

SIM_SEEDS = 5000
SOAK_SECONDS = 20
FUZZ_SECONDS = 5
# Under CI a job has 90 minutes. A machine on which the stages before took this long ends in time, and says what it
# has not looked at: stages that may be left out, which can take 25 minutes.
LAST_START_SECONDS = 60 * 60


def _demo() -> None:
    from demo.main import demo  # the demo's modules are not needed by any other verb

    demo()


def _build_release() -> None:
    """What is installed, shown and measured. The tests were built once already, with more checks."""
    from demo.main import TARGETS

    build("release", [*TARGETS, *runs.programs_of("release", "bench")])


def _qemu() -> None:
    from qemu.main import ci_selection  # nor are those of the guests

    ci_selection()


def _engines() -> None:
    from devlib.engines.main import test_all

    test_all()


# What is left out when time is short: the rest of the stages has looked at the same code in other ways.
LEFT_OUT_WHEN_LATE = ("qemu", "engines", "kubernetes", "bench smoke", "fuzz")

# name, what it needs to have passed, what it does. A stage whose need failed is not run; all others are.
STAGES = (
    ("check", (), lint.check),
    ("docs", (), build_site),  # a few seconds; skipped where mkdocs-material is not installed
    ("console", (), console),
    ("build dev", (), lambda: build("dev")),
    ("static", ("build dev",), static.static),  # reads headers that the build makes
    ("test", ("build dev",), test),
    ("build release", (), _build_release),
    ("install", ("build release",), check_installed),
    ("package", ("build release",), package),  # of the same objects
    ("demo", ("build release",), _demo),
    ("crash", (), lambda: runs.crash([], "ci", SOAK_SECONDS, None)),
    ("hostile", (), runs.hostile),
    ("sim", (), lambda: runs.sim(SIM_SEEDS, None)),
    ("qemu", (), _qemu),  # in the preset that crash and sim have built
    ("engines", ("build release",), _engines),  # skipped where no package index answers
    ("kubernetes", ("build dev",), kubernetes),  # skipped without Go, or its modules
    ("bench smoke", ("build release",), lambda: runs.bench("", "", True)),
    ("fuzz", (), lambda: runs.fuzz("", FUZZ_SECONDS)),
)


def _run(action) -> tuple:
    """Why it failed and why it was skipped; both empty: it passed."""
    try:
        action()
    except Skipped as skip:
        print(skip, flush=True)
        return "", skip.reason
    except Failure as failure:
        print(failure, flush=True)
        return str(failure).splitlines()[0], ""
    except Exception as defect:  # a defect in the script must not hide the other stages' results
        traceback.print_exc(file=sys.stdout)
        return f"{type(defect).__name__}: {defect}", ""
    return "", ""


def ci() -> None:
    """Runs the stages, none beside another (some measure time); prints a table, and fails if any stage did. A failed
    stage stands there as ctest writes it, so that one search finds both."""
    rows, results = [], {}
    begin = time.monotonic()
    for name, needs, action in STAGES:
        lacking = [need for need in needs if not results.get(need)]
        if lacking:
            results[name] = False
            rows.append((name, "not run", "-", f"needs {', '.join(lacking)}"))
            continue
        if name in LEFT_OUT_WHEN_LATE and os.environ.get("CI") and time.monotonic() - begin > LAST_START_SECONDS:
            results[name] = True
            rows.append((name, "skipped", "-", f"{duration(time.monotonic() - begin)} were over"))
            continue
        say(f"ci: {name}")
        stage_begin = time.monotonic()
        reason, skipped = _run(action)
        results[name] = not reason
        rows.append((name, "***Failed" if reason else "skipped" if skipped else "passed",
                     duration(time.monotonic() - stage_begin), reason or skipped))
        say(f"ci: {name} {rows[-1][1]} in {rows[-1][2]}, {duration(time.monotonic() - begin)} in all")
    say(f"ci: {duration(time.monotonic() - begin)} in all")
    table(["stage", "result", "wall time", ""], rows)
    failed = [name for name, passed in results.items() if not passed]
    skips = sum(row[1] == "skipped" for row in rows)
    print(f"{len(results) - len(failed) - skips} passed, {skips} skipped, {len(failed)} failed", flush=True)
    if failed:
        raise Failure(f"ci: {', '.join(failed)}")
