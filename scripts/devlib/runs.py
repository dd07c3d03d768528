"""`sim`, `crash`, `fuzz`, `tsan` and `bench`: the runs that are longer than a unit test, at a size of choice."""

import json
import os
import pathlib
import tempfile

from devlib.build import build, test
from devlib.commands import ROOT, build_dir, run
from devlib.output import Failure, note, say


def sim(seeds: int, seed) -> None:
    """Drives the real state machine and store through seeded schedules of commands, faults and crashes."""
    build("sim", ["terrace_sim"])
    say(f"sim: seed {seed}" if seed is not None else f"sim: {seeds} seeds")
    arguments = ["--seed", str(seed)] if seed is not None else ["--seeds", str(seeds)]
    run([find_program("sim", "terrace_sim"), *arguments], what="the simulation")


def crash(points: list, size: str, soak_seconds: float, seed) -> None:
    """Kills the daemon and clients at every failpoint and at random moments, and checks what is left."""
    build("sim", ["terraced", "terrace", "lease_load"])
    say("crash: " + (" ".join(points) if points else f"every declared failpoint, and a soak of {soak_seconds:g} s"))
    command = ["/usr/bin/python3", "-B", str(ROOT / "tests/crash/crash_run.py"), "--build-dir", str(build_dir("sim")),
               "--size", size, "--soak-seconds", f"{soak_seconds:g}"]
    if seed is not None:
        command += ["--seed", str(seed)]
    run([*command, *points], what="the crash run")


def fuzz(target: str, seconds: int) -> None:
    """Replays the corpus of each fuzz target, then searches for `seconds` (0: replay only)."""
    build("fuzz", ["fuzz_targets"])
    programs = sorted(path for path in build_dir("fuzz").rglob("fuzz_*") if path.is_file()
                      and os.access(path, os.X_OK) and path.suffix == "")
    if target:
        programs = [path for path in programs if path.name in (target, f"fuzz_{target}")]
    if not programs:
        raise Failure(f"no fuzz target {target or 'was built'}; tests/fuzz has them", 2)
    for program in programs:
        corpus = ROOT / "tests/fuzz/corpus" / program.name.removeprefix("fuzz_")
        seeds = [str(corpus)] if corpus.is_dir() else []
        if seeds:
            note(f"{program.name}: replaying {sum(1 for _ in corpus.iterdir())} inputs")
            run([program, "-runs=0", *seeds], what=program.name)
        if seconds > 0:
            note(f"{program.name}: searching for {seconds} s")
            # New inputs go to a folder of their own: the corpus in the tree changes by decision only.
            with tempfile.TemporaryDirectory(prefix="terrace-fuzz-") as found:
                artifacts = build_dir("fuzz") / f"{program.name}-"
                run([program, found, *seeds, f"-max_total_time={seconds}", "-max_len=65536", "-timeout=10",
                     "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={artifacts}"],
                    what=f"{program.name} (the input is kept beside {artifacts})")


def tsan(pattern: str) -> None:
    test(pattern, preset="tsan")


def bench(name: str, json_file: str, smoke: bool) -> None:
    """Runs benches of the release build, one after the other."""
    build("release", ["benches"])
    programs = sorted(path for path in (build_dir("release") / "bench").glob("bench_*") if path.is_file()
                      and os.access(path, os.X_OK))
    if name:
        programs = [path for path in programs if path.name in (name, f"bench_{name}")]
    if not programs:
        raise Failure(f"no bench {name or 'was built'}; bench/ has them", 2)
    results = {}
    for program in programs:
        say(f"bench {program.name.removeprefix('bench_')}{' (smoke size)' if smoke else ''}")
        with tempfile.NamedTemporaryFile(prefix="terrace-bench-", suffix=".json") as out:
            run([program, *(["--smoke"] if smoke else []), "--json", out.name], what=program.name)
            if json_file:
                results[program.name.removeprefix("bench_")] = json.loads(pathlib.Path(out.name).read_text("utf-8"))
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        note(f"results in {json_file}")


def find_program(preset: str, name: str) -> pathlib.Path:
    """A built program by name, wherever its module's folder is."""
    for path in sorted(build_dir(preset).rglob(name)):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise Failure(f"{name} is not in the {preset} build; `scripts/dev build {preset} {name}` builds it")
