# SPDX-License-Identifier: Apache-2.0
"""The suites of `scripts/dev mutate`: which mutants, and which tests have to notice each, the cheapest first."""

import argparse
import dataclasses
import re

from devlib.commands import ROOT
from devlib.mutants import HARD, MUTANTS
from devlib.mutation.engine import ENGINE
from devlib.mutation.kv import KV
from devlib.mutation.kv_spill import KV_SPILL
from devlib.mutation.state import STATE
from devlib.mutation.state_changes import CHANGES
from devlib.mutation.store import STORE


@dataclasses.dataclass(frozen=True)
class Judge:
    """One run of a test program that says whether a mutant is noticed."""
    name: str
    program: str
    arguments: tuple = ()
    cpu_s: int = 120  # a mutant that never ends is caught by the processor time that it takes: the machine may be busy
    wall_s: float = 600


@dataclasses.dataclass(frozen=True)
class Suite:
    name: str
    preset: str
    mutants: tuple
    hard: tuple
    table: str  # where the mutants are
    together: bool  # in one build of each test

    def judges(self, arguments: argparse.Namespace) -> list:
        if self.name == "manager":
            return _manager(arguments.seeds)
        return _coherence(arguments.operations) if self.name == "coherence" else _kv(arguments.operations)


def _coherence(operations: int) -> list:
    cpu_s = 60 + operations // 20_000
    return [Judge("unit_coherence_steps", "unit_coherence_steps", (), cpu_s),
            Judge("coherence_emulator", "coherence_emulator", ("-tc=*no stale*,*own no part*",), cpu_s, 600 + operations / 2_000),
            Judge("unit_coherence", "unit_coherence", (), cpu_s)]


def _kv(operations: int) -> list:
    """By sanitizers, so that a place outside the memory is noticed."""
    first = ("--abort-after=1",)
    return [Judge("fuzz_policy", "fuzz_policy", (str(ROOT / "tests/fuzz/corpus/policy"),), 10),
            Judge("kv_emulator", "kv_emulator", ("-tc=*no block is torn*",), 60 + operations // 10_000, 600 + operations / 2_000),
            *(Judge(name, name, first, 60) for name in ("unit_kv", "unit_kv_spill"))]


def _manager(seeds: int) -> list:
    """A few seeds first: they are the cheapest. Half as many for the engine, which takes twice as long."""
    few, first = min(20, seeds), ("--abort-after=1",)
    return [Judge("terrace_sim, a few seeds", "terrace_sim", ("--seeds", str(few)), 15),
            Judge("terrace_sim --engine, a few seeds", "terrace_sim", ("--engine", "--seeds", str(few // 2 + 1)), 15),
            Judge("terrace_sim --store, a few seeds", "terrace_sim", ("--store", "--seeds", str(few)), 30),
            *(Judge(name, name, first) for name in ("unit_model", "unit_state", "model_state", "sim_disk", "unit_store", "unit_event_loop")),
            Judge("terrace_sim", "terrace_sim", ("--seeds", str(seeds)), 120 + seeds // 5),
            Judge("terrace_sim --engine", "terrace_sim", ("--engine", "--seeds", str(seeds // 2 + 1)), 120 + seeds // 5),
            Judge("terrace_sim --store", "terrace_sim", ("--store", "--seeds", str(seeds // 2 + 1)), 120 + seeds)]


def first_complaint(text: str, code: int) -> str:
    """What a test that failed says against the mutant."""
    emulator = re.search(r"CHECK\( (stale|torn|lost|moved|twice|blocked|corrupt): .*\(seed (\d+), after (\d+)", text)
    if emulator:
        return f"{emulator.group(1)}, seed {emulator.group(2)}"
    seed = re.search(r"^seed (\d+) failed at step \d+: (.*)$", text, re.MULTILINE)
    if seed:
        return f"{seed.group(2)[:80]} (seed {seed.group(1)})"
    wrong = re.search(r"(FATAL )?ERROR:", text)  # what comes before is said by cases that passed
    case = [*re.finditer(r"^TEST CASE:\s+(.*)$", text[:wrong.start()] if wrong else "", re.MULTILINE)]
    broken = re.search(r"[A-Z]\d+: [^\n]*", text) if code < 0 else None
    return case[-1].group(1).strip() if case else broken.group(0)[:80] if broken else f"exit code {code}"


SUITES = {
    "kv": Suite("kv", "dev", (*KV, *KV_SPILL), (), "scripts/devlib/mutation/kv.py, kv_spill.py", True),
    "coherence": Suite("coherence", "release", MUTANTS, HARD, "scripts/devlib/mutants.py", False),
    "manager": Suite("manager", "sim", (*STATE, *CHANGES, *ENGINE, *STORE), (), "scripts/devlib/mutation", True),
}
