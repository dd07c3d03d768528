"""`mutate`: changes one piece of the protocol of tensor spaces after the other, in a copy of the file that the compiler finds
first, and says which test notices. A mutant that no test notices fails the run, as one does whose place is gone."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import time

from devlib.build import build
from devlib.commands import ROOT, build_dir, build_environment, job_count, need
from devlib.mutants import HARD, MUTANTS, Mutant
from devlib.output import Failure, duration, note, say, table
from devlib.runs import find_program

TARGETS = ("unit_coherence_steps", "coherence_emulator", "unit_coherence")
OPERATIONS = 4_000_000  # of the emulator, from seed 1


def add_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--list", action="store_true", help="the mutants, and why some are not run; runs nothing")
    verb.add_argument("--only", default="", metavar="TEXT", help="mutants whose name has TEXT")
    verb.add_argument("--hard", action="store_true", help="a few of the kinds that only slow readers, other threads or late reads show")
    verb.add_argument("--seconds", type=float, default=0, metavar="S", help="begin no mutant after S seconds, the run without mutants counted in")
    verb.add_argument("--operations", type=int, default=OPERATIONS, metavar="N", help="of the emulator (default %(default)s)")
    verb.add_argument("--all", action="store_true", help="also the tests behind the one that noticed it first")
    verb.add_argument("--jobs", type=int, default=job_count(), metavar="N", help="mutants at once (default %(default)s)")
    verb.add_argument("--json", default="", metavar="FILE", help="write the results here")


def places() -> list:
    """What is wrong with the table: mutants whose piece is not there exactly once, names that are there twice."""
    problems, seen, texts = [], set(), {}
    for mutant in MUTANTS:
        text = texts.setdefault(mutant.path, (ROOT / mutant.path).read_text(encoding="utf-8"))
        try:
            _mutated(mutant, text)
        except Failure as failure:
            problems.append(str(failure))
        if mutant.name in seen:
            problems.append(f"{mutant.name}: there are two of this name")
        seen.add(mutant.name)
    return problems + [f"{name}: hard, and no mutant" for name in HARD if name not in seen]


def _mutated(mutant: Mutant, text: str) -> str:
    for function, old, new in ((mutant.function, mutant.old, mutant.new), *mutant.more):
        text = _replaced(mutant, text, function, old, new)
    return text


def _replaced(mutant: Mutant, text: str, function: str, old: str, new: str) -> str:
    begin = text.find(function)
    line = text.rfind("\n", 0, begin) + 1
    indent = re.match(r" *", text[line:]).group()
    end = text.find(f"\n{indent}}}", begin)
    if begin < 0 or end < 0:
        raise Failure(f"{mutant.path}: mutant '{mutant.name}' is stale: there is no '{function}'")
    at = [index for index in range(begin, end) if not text[index].isspace()]
    dense, piece = "".join(text[index] for index in at), "".join(old.split())
    first = dense.find(piece)
    if first < 0 or dense.find(piece, first + 1) >= 0:
        raise Failure(f"{mutant.path}: mutant '{mutant.name}' is stale: '{function}' has not exactly one '{old}'")
    return text[:at[first]] + new + text[at[first + len(piece) - 1] + 1:]


class _Target:
    """How a test program of the release build is made: its compile commands with the headers that each reads, and its link."""

    def __init__(self, name: str) -> None:
        self.name = name
        folder = build_dir("release")
        lines = _output([need("ninja"), "-t", "commands", name], folder).splitlines()
        self.link = lines[-1].removeprefix(": && ").removesuffix(" && :")
        self.compiles = {}
        for line in lines[:-1]:
            found = re.search(r" -o (\S+\.o) -c ", line)
            if found:
                self.compiles[found.group(1)] = line
        self.sources, current = {}, ""
        for line in _output([need("ninja"), "-t", "deps", *self.compiles], folder).splitlines():
            if line.endswith("(VALID)"):
                current = line.split(": #deps")[0]
            elif current and line.strip():
                self.sources.setdefault(current, set()).add(os.path.normpath(folder / line.strip()))

    def make(self, overlay: pathlib.Path, path: str) -> pathlib.Path:
        """The program with the overlay's file at `path`; what does not read that file is taken from the build."""
        objects = {}
        for index, (made, command) in enumerate(self.compiles.items()):
            if str(ROOT / path) not in self.sources.get(made, ()):
                continue
            objects[made] = overlay / f"{self.name}-{index}.o"
            # Little optimisation and no debugging information: most of a mutant's time is the compiler's.
            words = shlex.split(re.sub(r" -g1| -MD -MT \S+ -MF \S+", "", command))
            words[words.index("-o") + 1] = str(objects[made])
            at = next(index for index, word in enumerate(words) if word.startswith("-I"))
            _checked([*words[:at], f"-I{overlay}", *words[at:], "-O1", "-w"], build_dir("release"), "compiling")
        words = shlex.split(self.link)
        program = overlay / self.name
        words[words.index("-o") + 1] = str(program)
        known = [str(objects.pop(word)) if word in objects else word for word in words]
        # An object of a library goes before it: the library's own is not taken then.
        first = next(index for index, word in enumerate(known) if word.endswith(".a"))
        _checked([*known[:first], *map(str, objects.values()), *known[first:]], build_dir("release"), "linking")
        return program


def _notices(program: pathlib.Path, operations: int) -> str:
    """What the test says against it; nothing when it passes."""
    arguments, limit = [], 600.0
    if program.name == "coherence_emulator":
        arguments, limit = ["-tc=*no stale*,*own no part*"], 600 + operations / 2_000
    environment = {**os.environ, "TERRACE_COHERENCE_OPERATIONS": str(operations), "TERRACE_COHERENCE_SEED": "1"}
    # A mutant that never ends is caught by the processor time that it takes: the machine may be busy.
    limited = ["prlimit", f"--cpu={60 + operations // 20_000}", "--", str(program), *arguments]
    try:
        done = subprocess.run(limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return "hangs"
    return "" if done.returncode == 0 else _first_complaint(done.stdout, done.returncode)


def _output(command: list, folder: pathlib.Path) -> str:
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


def _checked(command: list, folder: pathlib.Path, what: str) -> None:
    done = subprocess.run(command, cwd=folder, env=build_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise Failure(f"mutate: {what} failed\n{done.stdout[-4000:]}")


def _first_complaint(text: str, code: int) -> str:
    emulator = re.search(r"CHECK\( (stale|torn|lost|moved|twice|blocked|corrupt): .*\(seed (\d+), after (\d+)", text)
    if emulator:
        return f"{emulator.group(1)}, seed {emulator.group(2)}"
    case = re.search(r"^TEST CASE:\s+(.*)$", text, re.MULTILINE)
    return case.group(1).strip() if case else f"exit code {code}"


def _judge(targets: list, mutant: Mutant, arguments: argparse.Namespace) -> dict:
    """Builds and runs one mutant; `caught` says by which tests."""
    begin = time.monotonic()
    caught = {}
    with tempfile.TemporaryDirectory(prefix="terrace-mutant-") as folder:
        overlay = pathlib.Path(folder)
        changed = overlay / mutant.path
        changed.parent.mkdir(parents=True)
        changed.write_text(_mutated(mutant, (ROOT / mutant.path).read_text(encoding="utf-8")), encoding="utf-8")
        for target in targets:
            if not any(str(ROOT / mutant.path) in read for read in target.sources.values()):
                continue
            try:
                complaint = _notices(target.make(overlay, mutant.path), arguments.operations)
            except Failure as failure:
                print(f"{mutant.name}: {failure}", flush=True)
                return {"mutant": mutant.name, "file": mutant.path, "result": "DOES NOT COMPILE", "caught": {}, "seconds": 0}
            if complaint:
                caught[target.name] = complaint
                if not arguments.all:
                    break
    return {"mutant": mutant.name, "file": mutant.path, "result": "caught" if caught else "SURVIVED", "caught": caught,
            "seconds": round(time.monotonic() - begin, 1)}


def _why_not(mutant: Mutant) -> str:
    if mutant.same:
        return f"equivalent: {mutant.same}"
    return f"not observable here: {mutant.unseen}" if mutant.unseen else ""


def _selection(arguments: argparse.Namespace) -> list:
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.name and not _why_not(mutant) and
              (mutant.name in HARD or not arguments.hard)]
    if not chosen:
        raise Failure(f"mutate: no mutant has '{arguments.only}' in its name, or none that have it are run (--list says why)", 2)
    return chosen


def mutate(arguments: argparse.Namespace) -> None:
    problems = places()
    if problems:
        raise Failure("mutate: the table (scripts/devlib/mutants.py) does not fit the code\n" + "\n".join(problems))
    if arguments.list:
        table(["mutant", "file", "not run, because it is"], [(each.name, each.file, _why_not(each)) for each in MUTANTS])
        return
    begin = time.monotonic()
    chosen = _selection(arguments)
    build("release", list(TARGETS))
    say(f"mutate: {len(chosen)} mutants, {arguments.operations} operations each")
    targets = [_Target(name) for name in TARGETS]
    for target in targets:
        complaint = _notices(find_program("release", target.name), arguments.operations)
        if complaint:
            raise Failure(f"mutate: {target.name} fails without any mutant: {complaint}")
    note(f"without a mutant all of them pass; {duration(time.monotonic() - begin)}")
    results, over = [], begin + arguments.seconds
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        begun = [pool.submit(lambda mutant=mutant: None if arguments.seconds and time.monotonic() > over
                             else _judge(targets, mutant, arguments)) for mutant in chosen]
        try:
            for done in concurrent.futures.as_completed(begun):
                if done.result():
                    results.append(done.result())
                    _tell(results, len(chosen))
                    _keep(arguments, results)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _report(results, len(chosen), time.monotonic() - begin)


def _tell(results: list, chosen: int) -> None:
    last = results[-1]
    by = "; ".join(f"{target}: {what}" for target, what in last["caught"].items())
    note(f"{len(results)}/{chosen} {last['result']} {last['mutant']} ({last['seconds']} s){': ' + by if by else ''}")


def _keep(arguments: argparse.Namespace, results: list) -> None:
    if not arguments.json:
        return
    same = [{"mutant": each.name, "file": each.path, "result": "not run", "reason": _why_not(each)} for each in MUTANTS if _why_not(each)]
    pathlib.Path(arguments.json).write_text(json.dumps({"operations": arguments.operations, "mutants": results + same}, indent=1)
                                            + "\n", encoding="utf-8")


def _report(results: list, chosen: int, seconds: float) -> None:
    survivors = [f"{each['mutant']} ({each['result']})" for each in results if each["result"] != "caught"]
    caught = {target: sum(target in each["caught"] for each in results) for target in TARGETS}
    print(f"{len(results) - len(survivors)} of {len(results)} mutants caught ({', '.join(f'{count} by {name}' for name, count in caught.items())}), "
          f"{sum(bool(each.same) for each in MUTANTS)} equivalent, {sum(bool(each.unseen) for each in MUTANTS)} not observable here, {chosen - len(results)} not run; {duration(seconds)}", flush=True)
    if survivors:
        raise Failure("mutate: not caught: " + "; ".join(survivors))
