# SPDX-License-Identifier: Apache-2.0
"""`mutate`: changes one piece of the code after the other, in a copy of the file that the compiler finds first, and says which
test notices. A mutant that no test notices fails the run, as one does whose place is gone."""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import time

from devlib.build import build
from devlib.commands import ROOT, job_count
from devlib.mutants import Mutant
from devlib.mutation.programs import Program, mutated, together
from devlib.mutation.suites import SUITES, Judge, Suite, first_complaint
from devlib.output import Failure, duration, note, say, table
from devlib.runs import find_program

OPERATIONS = 4_000_000  # of the emulator, from seed 1
SEEDS = 1500  # of the simulator, from seed 1


def add_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--suite", choices=SUITES, default="coherence", help="coherence: the protocol of tensor spaces; kv: KV spaces and their "
                      "spills; manager: its state machine, engine and store (default %(default)s)")
    verb.add_argument("--list", action="store_true", help="the mutants, and why some are not run; runs nothing")
    verb.add_argument("--only", default="", metavar="TEXT", help="mutants whose name or file has TEXT")
    verb.add_argument("--hard", action="store_true", help="a few of the kinds that only slow readers, other threads or late reads show")
    verb.add_argument("--seconds", type=float, default=0, metavar="S", help="begin no mutant after S seconds, the run without mutants counted in")
    verb.add_argument("--operations", type=int, default=OPERATIONS, metavar="N", help="of the emulator, for coherence and kv (default %(default)s)")
    verb.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="of the simulator, for manager (default %(default)s)")
    verb.add_argument("--all", action="store_true", help="also the tests behind the one that noticed it first")
    verb.add_argument("--judge", default="", metavar="TEXT", help="only tests whose name has TEXT")
    verb.add_argument("--jobs", type=int, default=job_count(), metavar="N", help="mutants at once (default %(default)s)")
    verb.add_argument("--json", default="", metavar="FILE", help="write the results here")


def places(suites=tuple(SUITES.values())) -> list:
    """What is wrong with the tables: mutants whose piece is not there exactly once, names that are there twice."""
    problems, seen, texts = [], set(), {}
    for suite in suites:
        for mutant in suite.mutants:
            try:
                text = texts.setdefault(mutant.path, (ROOT / mutant.path).read_text(encoding="utf-8"))
                together({1: mutant}, text) if suite.together else mutated(mutant, text)
            except FileNotFoundError:
                problems.append(f"{mutant.path}: mutant '{mutant.name}' is stale: there is no such file")
            except Failure as failure:
                problems.append(str(failure))
            if mutant.name in seen:
                problems.append(f"{mutant.name}: there are two of this name")
            seen.add(mutant.name)
        problems += [f"{name}: hard, and no mutant" for name in suite.hard if name not in seen]
    return problems


def _notices(judge: Judge, program: pathlib.Path, arguments: argparse.Namespace, number: int = 0) -> str:
    """What the test says against it; nothing when it passes."""
    environment = {**os.environ, "TERRACE_MUTANT": str(number), "TERRACE_COHERENCE_OPERATIONS": str(arguments.operations), "TERRACE_COHERENCE_SEED": "1"}
    limited = ["prlimit", f"--cpu={judge.cpu_s}", "--core=0", "--", str(program), *judge.arguments]
    try:
        done = subprocess.run(limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False, timeout=judge.wall_s, env=environment)
    except subprocess.TimeoutExpired:
        return "hangs"
    return "" if done.returncode == 0 else first_complaint(done.stdout, done.returncode)


class _Built:
    """The programs of one mutant, or of many: made when a test asks for them."""

    def __init__(self, programs: dict, mutants: dict, chosen_when_run: bool = False, jobs: int = 1) -> None:
        self._programs, self._jobs, self._made = programs, jobs, {}
        self._folder = tempfile.TemporaryDirectory(prefix="terrace-mutant-")
        self._overlay = pathlib.Path(self._folder.name)
        self._paths = sorted({mutant.path for mutant in mutants.values()})
        for path in self._paths:
            own = {number: mutant for number, mutant in mutants.items() if mutant.path == path}
            text = (ROOT / path).read_text(encoding="utf-8")
            changed = self._overlay / path
            changed.parent.mkdir(parents=True, exist_ok=True)
            changed.write_text(together(own, text) if chosen_when_run else mutated(*own.values(), text), encoding="utf-8")

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._folder.cleanup()

    def program(self, name: str) -> pathlib.Path:
        if name not in self._made:
            self._made[name] = self._programs[name].make(self._overlay, self._paths, self._jobs)
        return self._made[name]


def _judge(programs: dict, judges: list, number: int, mutant: Mutant, built, arguments: argparse.Namespace) -> dict:
    """Runs one mutant, which is built here unless it is in `built` with others; `caught` says by which tests."""
    begin = time.monotonic()
    caught = {}
    with contextlib.nullcontext(built) if built else _Built(programs, {number: mutant}) as own:
        for judge in judges:
            if not programs[judge.program].reads(mutant.path):
                continue
            try:
                program = own.program(judge.program)
            except Failure as failure:
                print(f"{mutant.name}: {failure}", flush=True)
                return {"mutant": mutant.name, "file": mutant.path, "result": "DOES NOT COMPILE", "caught": {}, "seconds": 0}
            complaint = _notices(judge, program, arguments, number)
            if complaint:
                caught[judge.name] = complaint
                if not arguments.all:
                    break
    return {"mutant": mutant.name, "file": mutant.path, "result": "caught" if caught else "SURVIVED", "caught": caught,
            "seconds": round(time.monotonic() - begin, 1)}


def _why_not(mutant: Mutant) -> str:
    if mutant.same:
        return f"equivalent: {mutant.same}"
    if mutant.unseen:
        return f"not observable here: {mutant.unseen}"
    return "known to survive: a test is missing" if mutant.survives else ""


def _selection(suite: Suite, arguments: argparse.Namespace) -> list:
    chosen = [mutant for mutant in suite.mutants
              if (arguments.only in mutant.name or arguments.only in mutant.path) and not _why_not(mutant) and
              (mutant.name in suite.hard or not arguments.hard)]
    if not chosen:
        raise Failure(f"mutate: no mutant has '{arguments.only}' in its name, or none that have it are run (--list says why)", 2)
    return chosen


def mutate(arguments: argparse.Namespace) -> None:
    suite = SUITES[arguments.suite]
    problems = places((suite,))
    if problems:
        raise Failure(f"mutate: the table ({suite.table}) does not fit the code\n" + "\n".join(problems))
    if arguments.list:
        table(["mutant", "file", "not run, because it is"], [(each.name, each.path, _why_not(each)) for each in suite.mutants])
        return
    begin = time.monotonic()
    chosen = _selection(suite, arguments)
    judges = [judge for judge in suite.judges(arguments) if arguments.judge in judge.name]
    if not judges:
        raise Failure(f"mutate: no test of the suite {suite.name} has '{arguments.judge}' in its name", 2)
    names = list(dict.fromkeys(judge.program for judge in judges))
    build(suite.preset, names)
    say(f"mutate: {len(chosen)} mutants of the suite {suite.name}")
    programs = {name: Program(suite.preset, name) for name in names}
    if not suite.together:
        _pass_without(judges, lambda name: find_program(suite.preset, name), arguments)
        note(f"without a mutant all of them pass; {duration(time.monotonic() - begin)}")
    results, over = [], begin + arguments.seconds
    numbers = dict(enumerate(chosen, start=1))
    with contextlib.ExitStack() as stack:
        built = None
        if suite.together:
            built = stack.enter_context(_Built(programs, numbers, True, arguments.jobs))
            _pass_without(judges, built.program, arguments)
            note(f"all are built, and without a mutant all tests pass; {duration(time.monotonic() - begin)}")
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(arguments.jobs))
        begun = [pool.submit(lambda number=number, mutant=mutant: None if arguments.seconds and time.monotonic() > over
                             else _judge(programs, judges, number, mutant, built, arguments)) for number, mutant in numbers.items()]
        try:
            for done in concurrent.futures.as_completed(begun):
                if done.result():
                    results.append(done.result())
                    _tell(results, len(chosen))
                    _keep(suite, arguments, results)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _report(suite, judges, results, len(chosen), time.monotonic() - begin)


def _pass_without(judges: list, program, arguments: argparse.Namespace) -> None:
    for judge in judges:
        complaint = _notices(judge, program(judge.program), arguments)
        if complaint:
            raise Failure(f"mutate: {judge.name} fails without any mutant: {complaint}")


def _tell(results: list, chosen: int) -> None:
    last = results[-1]
    by = "; ".join(f"{judge}: {what}" for judge, what in last["caught"].items())
    note(f"{len(results)}/{chosen} {last['result']} {last['mutant']} ({last['seconds']} s){': ' + by if by else ''}")


def _keep(suite: Suite, arguments: argparse.Namespace, results: list) -> None:
    if not arguments.json:
        return
    rest = [{"mutant": each.name, "file": each.path, "result": "not run", "reason": _why_not(each)} for each in suite.mutants
            if _why_not(each)]
    size = {"seeds": arguments.seeds} if suite.name == "manager" else {"operations": arguments.operations}
    pathlib.Path(arguments.json).write_text(json.dumps({**size, "mutants": results + rest}, indent=1) + "\n", encoding="utf-8")


def _report(suite: Suite, judges: list, results: list, chosen: int, seconds: float) -> None:
    survivors = [f"{each['mutant']} ({each['result']})" for each in results if each["result"] != "caught"]
    caught = {judge.name: sum(judge.name in each["caught"] for each in results) for judge in judges}
    print(f"{len(results) - len(survivors)} of {len(results)} mutants caught ({', '.join(f'{count} by {name}' for name, count in caught.items())}), "
          f"{sum(bool(each.same) for each in suite.mutants)} equivalent, {sum(bool(each.unseen) for each in suite.mutants)} not observable here, "
          f"{sum(each.survives for each in suite.mutants)} known to survive, "
          f"{chosen - len(results)} not run; {duration(seconds)}", flush=True)
    if survivors:
        raise Failure("mutate: not caught: " + "; ".join(survivors))
