# SPDX-License-Identifier: Apache-2.0
"""`sim`, `crash`, `hostile`, `fuzz`, `tsan` and `bench`: the runs that are longer than a unit test, at a size of choice."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

from devlib.build import build, configure, test
from devlib.commands import ROOT, build_dir, describe_exit, need, run, run_cases
from devlib.output import Failure, Heartbeat, Skipped, note, say


def sim(seeds: int, seed) -> None:
    """Drives the real state machine, the real engine, and that on the real store, through seeded schedules of commands, faults
    and crashes. Few seeds of the last: it costs ten times as much."""
    build("sim", ["terrace_sim"])
    say(f"sim: seed {seed}" if seed is not None else f"sim: {seeds} seeds")
    arguments, few = [["--seed", str(seed)]] * 2 if seed is not None else (["--seeds", str(seeds)], ["--seeds", str(max(1, seeds // 10))])
    with Heartbeat("simulating"):
        run([find_program("sim", "terrace_sim"), *arguments], what="the simulation")
        run([find_program("sim", "terrace_sim"), "--engine", *arguments], what="the simulation of the engine")
        run([find_program("sim", "terrace_sim"), "--store", *few], what="the simulation of the store")


def hostile() -> None:
    """A tenant that behaves beside attackers of another uid, with bounds on its times: those of an optimised build."""
    if os.geteuid() != 0:
        raise Skipped("the hostile run needs root: its attackers are of another uid")
    build("sim", ["terraced", "terrace", "attacker", "latency_probe", "stubborn_holder"])
    say("hostile: each attack alone, and all at once")
    run_cases(["/usr/bin/python3", "-B", str(ROOT / "tests/integration/hostile/hostile_test.py"), "--build-dir",
               str(build_dir("sim"))], what="the hostile run")


def crash(points: list, size: str, soak_seconds: float, seed) -> None:
    """Kills the daemon and clients at every failpoint and at random moments, and checks what is left."""
    build("sim", ["terraced", "terrace", "lease_load", "stubborn_holder"])
    say("crash: " + (" ".join(points) if points else f"every declared failpoint, and a soak of {soak_seconds:g} s"))
    command = ["/usr/bin/python3", "-B", str(ROOT / "tests/crash/crash_run.py"), "--build-dir", str(build_dir("sim")),
               "--size", size, "--soak-seconds", f"{soak_seconds:g}"]
    if seed is not None:
        command += ["--seed", str(seed)]
    run([*command, *points], what="the crash run")


def pins(seconds: int) -> None:
    """Runs the stress of pinned pages for `seconds`, in each kind of memory, and then with the planted defect."""
    build("release", ["terrace_malloc", "terrace_heap_preload", "shim_fake_run", "shim_pin_stress",
                      "shim_pin_stress_static"])
    say(f"pins: {seconds} s")
    run(["/usr/bin/python3", "-B", str(ROOT / "tests/integration/shim/pin_test.py"), "--build-dir",
         str(build_dir("release")), "--seconds", str(seconds)], what="the stress of pinned pages")


_SOAKS = {"coherent": [], "noncoherent": ["--hosts", "2", "--noncoherent"], "emulated": ["--emulated"]}


def soak(kinds: list, reads: float, json_file: str) -> None:
    """KV spaces under processes that are killed and stopped, each kind of memory until `reads` blocks were read and compared."""
    unknown = sorted(set(kinds) - set(_SOAKS))
    if unknown:
        raise Failure(f"no soak '{unknown[0]}': there are {', '.join(_SOAKS)}", 2)
    build("release", ["kv_soak"])
    results = {}
    for kind in kinds or _SOAKS:
        say(f"soak {kind}: {reads:g} reads")
        # A minute's stop in each run that lasts for some, and a kill every half a second.
        longer = ["--kill-every", "500", "--stop", "60000", "--stop-every", "10000", "--stops", "3"] if reads >= 1e7 else []
        with Heartbeat(kind):
            done = subprocess.run([str(find_program("release", "kv_soak")), "--reads", f"{reads:.0f}", "--limit-s", "86400", *longer,
                                   *_SOAKS[kind]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, end="", flush=True)
        results[kind] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
        if done.returncode != 0:
            raise Failure(f"soak {kind} {describe_exit(done.returncode)}: {results[kind].get('why', '')}")
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        note(f"results in {json_file}")


def fuzz(target: str, seconds: int) -> None:
    """Replays the corpus of each fuzz target, then searches for `seconds` (0: replay only)."""
    for program in _build_programs("fuzz", "fuzz", target):
        name = program.name.removeprefix("fuzz_")
        corpus = ROOT / "tests/fuzz/corpus" / name
        seeds = [str(corpus)] if corpus.is_dir() else []
        if seeds:
            say(f"fuzz {name}: replaying {sum(1 for _ in corpus.iterdir())} inputs")
            _fuzzer(program, "-runs=0", *seeds)
        if seconds > 0:
            say(f"fuzz {name}: searching for {seconds} s")
            # New inputs go to a folder of their own: the corpus in the tree changes by decision only.
            with tempfile.TemporaryDirectory(prefix="terrace-fuzz-") as found:
                told = _fuzzer(program, found, *seeds, f"-max_total_time={seconds}", "-max_len=65536", "-timeout=10",
                               "-rss_limit_mb=2048")
            figures = dict(re.findall(r"^stat::(\w+):\s+(\d+)", told, re.MULTILINE))
            note(f"{figures.get('number_of_executed_units', '?')} inputs, "
                 f"{figures.get('new_units_added', '?')} reached something new")


def _fuzzer(program: pathlib.Path, *arguments: str) -> str:
    """Runs a libFuzzer program and returns what it said; when it fails, shows the end of that, and keeps the input."""
    command = [str(program), *arguments, "-print_final_stats=1", f"-artifact_prefix={program}-"]
    with Heartbeat(program.name):
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if done.returncode != 0:
        print(done.stdout[-20000:], flush=True)
        raise Failure(f"{program.name} {describe_exit(done.returncode)}; the input is kept as {program}-*")
    return done.stdout


def tsan(pattern: str) -> None:
    test(pattern, preset="tsan")


# What a bench's question needs beside the program of its name: further programs, and scripts that run Terrace's own.
_BENCH_ALSO = {"tiering": (["tiersim"], ["bench/redis_tiering.py"]), "kv": (["kv_space", "tiersim"], [])}
_SCRIPT_NEEDS = ["terrace", "terraced", "terrace_malloc", "terrace_heap_preload"]


def bench(name: str, json_file: str, smoke: bool) -> None:
    """Runs benches of the release build, one after the other."""
    also, scripts = _BENCH_ALSO.get(name.removeprefix("bench_"), ([], []))
    if not name:
        scripts = [script for _, more in _BENCH_ALSO.values() for script in more]
    programs = _build_programs("release", "bench", name)
    for more in also:
        programs += _build_programs("release", "bench", more)
    results = {}
    for program in programs:
        _bench_one(program.name, [program, *(["--smoke"] if smoke else [])], bool(json_file), smoke, results)
    if scripts:
        build("release", _SCRIPT_NEEDS)
    for script in scripts:
        os.environ["TERRACE_BUILD_DIR"] = str(build_dir("release"))
        size = ["--pairs", "1", "--seconds", "2", "--ddr-mib", "16"] if smoke else []
        _bench_one(pathlib.Path(script).stem, ["/usr/bin/python3", "-B", str(ROOT / script), *size], bool(json_file), smoke,
                   results)
    if json_file:
        pathlib.Path(json_file).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        note(f"results in {json_file}")


def _bench_one(name: str, command: list, keep: bool, smoke: bool, results: dict) -> None:
    say(f"{name}{' (smoke size)' if smoke else ''}")
    with tempfile.NamedTemporaryFile(prefix="terrace-bench-", suffix=".json") as out:
        run([*command, "--json", out.name], what=name)
        text = pathlib.Path(out.name).read_text("utf-8")
        if keep and text:
            results[name] = json.loads(text)


def programs_of(preset: str, kind: str) -> list:
    """The names of the programs that a preset registers as KIND_* tests."""
    configure(preset)
    listed = subprocess.run([need("ctest"), "--test-dir", str(build_dir(preset)), "--show-only=json-v1", "-L", f"^{kind}$"],
                            cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
    return sorted(test["name"] for test in json.loads(listed)["tests"])


def _build_programs(preset: str, kind: str, wanted: str) -> list:
    """Builds those programs (or the one that is wanted); returns their paths."""
    names = programs_of(preset, kind)
    if wanted:
        names = [name for name in names if wanted in (name, name.removeprefix(f"{kind}_"))]
    if not names:
        raise Failure(f"no {kind} target {wanted or 'in the tree'}", 2)
    build(preset, names)
    return [find_program(preset, name) for name in names]


def find_program(preset: str, name: str) -> pathlib.Path:
    """A built program by name, wherever its module's folder is."""
    for path in sorted(build_dir(preset).rglob(name)):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise Failure(f"{name} is not in the {preset} build; `scripts/dev build {preset} {name}` builds it")
