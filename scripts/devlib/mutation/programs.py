# SPDX-License-Identifier: Apache-2.0
"""The changed copies of files, and a test program that is made with them: for `scripts/dev mutate`.

One mutant at a time, or many in one build: then each function that has mutants has the body of each of them beside its own,
and TERRACE_MUTANT in the environment says which one runs.
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess

from devlib.commands import ROOT, build_dir, build_environment, need
from devlib.mutants import Mutant
from devlib.output import Failure


def mutated(mutant: Mutant, text: str) -> str:
    for function, old, new in ((mutant.function, mutant.old, mutant.new), *mutant.more):
        text = _replaced(mutant, text, function, old, new)
    return text


def together(mutants: dict, text: str) -> str:
    """The text of a file with all of its mutants, each under its number."""
    functions = {}  # where a body begins and ends -> the bodies of its mutants
    for number, mutant in mutants.items():
        changed = mutated(mutant, text)
        begin, end = _body(mutant, text)
        functions.setdefault((begin, end), []).append((number, mutant, changed[begin:end + len(changed) - len(text)]))
    for (begin, end), bodies in sorted(functions.items(), reverse=True):
        chain = "".join(f" if (terrace_mutant() == {number}) {{  // {mutant.name}{body}\n}} else" for number, mutant, body in bodies)
        text = f"{text[:begin]}{chain} {{{text[begin:end]}\n}}{text[end:]}"
    return _CHOSEN + text


_CHOSEN = """#ifndef TERRACE_MUTANT_CHOSEN
#define TERRACE_MUTANT_CHOSEN
#include <cstdlib>
inline int terrace_mutant() {
  static const int chosen = [] {
    const char* number = std::getenv("TERRACE_MUTANT");
    return number == nullptr ? 0 : std::atoi(number);
  }();
  return chosen;
}
#endif
"""


def _body(mutant: Mutant, text: str) -> tuple:
    """Behind the brace that opens the function's body, and where its last line ends."""
    begin, end = _bounds(mutant, text, mutant.function)
    opens = text.find("{\n", begin) + 1
    if not begin < opens < end or mutant.more:
        raise Failure(f"{mutant.path}: mutant '{mutant.name}' is of no function with a body")
    return opens, end


def _bounds(mutant: Mutant, text: str, function: str) -> tuple:
    begin = text.find(function)
    line = text.rfind("\n", 0, begin) + 1
    indent = re.match(r" *", text[line:]).group()
    end = text.find(f"\n{indent}}}", begin)
    if begin < 0 or end < 0:
        raise Failure(f"{mutant.path}: mutant '{mutant.name}' is stale: there is no '{function}'")
    return begin, end


def _replaced(mutant: Mutant, text: str, function: str, old: str, new: str) -> str:
    begin, end = _bounds(mutant, text, function)
    at = [index for index in range(begin, end) if not text[index].isspace()]
    dense, piece = "".join(text[index] for index in at), "".join(old.split())
    first = dense.find(piece)
    if first < 0 or dense.find(piece, first + 1) >= 0:
        raise Failure(f"{mutant.path}: mutant '{mutant.name}' is stale: '{function}' has not exactly one '{old}'")
    if not new and piece.endswith(";"):
        new = ";"  # so that what follows is not the body of an `if` or a `for` instead
    return text[:at[first]] + new + text[at[first + len(piece) - 1] + 1:]


class Program:
    """How a test program is made: its compile commands with the files that each reads, and its link."""

    def __init__(self, preset: str, name: str) -> None:
        self.name = name
        self.folder = build_dir(preset)
        lines = _output([need("ninja"), "-t", "commands", name], self.folder).splitlines()
        self.link = lines[-1].removeprefix(": && ").removesuffix(" && :")
        self.compiles = {}
        for line in lines[:-1]:
            found = re.search(r" -o (\S+\.o) -c ", line)
            if found:
                self.compiles[found.group(1)] = line
        self.sources, current = {}, ""
        for line in _output([need("ninja"), "-t", "deps", *self.compiles], self.folder).splitlines():
            if line.endswith("(VALID)"):
                current = line.split(": #deps")[0]
            elif current and line.strip():
                self.sources.setdefault(current, set()).add(os.path.normpath(self.folder / line.strip()))

    def reads(self, path: str) -> bool:
        return any(str(ROOT / path) in read for read in self.sources.values())

    def make(self, overlay: pathlib.Path, paths: list, jobs: int = 1) -> pathlib.Path:
        """The program with the overlay's files at `paths`; what reads none of these is taken from the build. An object
        that an earlier program of this overlay had made is taken again."""
        changed = {str(ROOT / path) for path in paths}
        stale = [made for made in self.compiles if changed & self.sources.get(made, set())]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            objects = dict(zip(stale, pool.map(lambda made: self._compiled(overlay, changed, made), stale)))
        words = shlex.split(self.link)
        program = overlay / self.name
        words[words.index("-o") + 1] = str(program)
        known = [str(objects.pop(word)) if word in objects else word for word in words]
        # An object of a library goes before it: the library's own is not taken then.
        first = next(index for index, word in enumerate(known) if word.endswith(".a"))
        _checked([*known[:first], *map(str, objects.values()), *known[first:]], self.folder, "linking")
        return program

    def _compiled(self, overlay: pathlib.Path, changed: set, made: str) -> pathlib.Path:
        compiled = overlay / made.replace("/", "+")
        if compiled.exists():
            return compiled
        # Little optimisation and no debugging information: most of a mutant's time is the compiler's.
        words = shlex.split(re.sub(r" -g1| -MD -MT \S+ -MF \S+", "", self.compiles[made]))
        words[words.index("-o") + 1] = str(compiled)
        # A source that is compiled by itself is named; any other the compiler finds in the overlay first.
        words = [str(overlay / pathlib.Path(word).relative_to(ROOT)) if word in changed else word for word in words]
        at = next(index for index, word in enumerate(words) if word.startswith("-I"))
        _checked([*words[:at], f"-I{overlay}", *words[at:], "-O1", "-w"], self.folder, "compiling")
        return compiled


def _output(command: list, folder: pathlib.Path) -> str:
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


def _checked(command: list, folder: pathlib.Path, what: str) -> None:
    done = subprocess.run(command, cwd=folder, env=build_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise Failure(f"mutate: {what} failed\n{done.stdout[-4000:]}")
