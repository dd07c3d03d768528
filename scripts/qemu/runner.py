# SPDX-License-Identifier: Apache-2.0
"""Runs tests of tests/guest/catalog.py: groups them into boots, two guests at a time, and makes a table of what they gave."""

import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import importlib
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import time

from devlib.build import build
from devlib.commands import ROOT, build_dir
from devlib.output import Failure, Heartbeat, duration, note, say, table
from qemu import boot, initramfs, kernel, warm
from qemu.guest import TOPOLOGIES
from qemu.machine import Job, RunFolder
from qemu.skip import EXIT_SKIPPED, Skip, need_busybox, need_emulator

sys.path.insert(0, str(ROOT / "tests/guest"))
from catalog import TESTS, GuestTest  # noqa: E402

TARGETS = ("terraced", "terrace", "terrace_malloc", "terrace_heap_preload", "lease_load", "stubborn_holder", "session_client", "handler_client", "shim_torture",
           "shim_fork_cases", "shim_fake_run", "guest_tenant", "guest_node_range", "shared_space_host", "kv_soak")
CI_TARGETS = ("terraced", "terrace", "guest_tenant", "session_client", "handler_client", "shared_space_host", "kv_soak")  # what CI's selection starts
PRESET = "sim"  # optimised, with failpoints; no sanitizers, which emulation would make ten times slower
CI_LIMIT_S = 1800  # of the whole selection: three to four times what it takes on two idle processors
GUESTS_AT_A_TIME = 2  # a guest alone keeps one processor busy and a bit of a second, and takes up to 3 GiB of memory
SHOWN_LINES = 40


@dataclasses.dataclass
class Row:
    """What one test gave."""

    name: str
    topology: str
    result: str = "not run"
    seconds: float = 0.0
    retries: int = 0
    reason: str = ""


def select(patterns: list, only_ci: bool, tests=TESTS) -> list:
    """Tests by name or shell pattern; all (or CI's selection) without any."""
    if not patterns:
        return [test for test in tests if test.ci or not only_ci]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(test.name, pattern) for test in tests):
            raise Failure(f"no guest test '{pattern}'; `scripts/dev qemu --list` shows them", 2)
    return [test for test in tests if any(fnmatch.fnmatchcase(test.name, pattern) for pattern in patterns)]


def groups(tests: list) -> list:
    """Lists of tests that share a boot, in the catalogue's order."""
    shared, result = {}, []
    for test in tests:
        if test.alone or test.boots > 1 or TOPOLOGIES[test.topology].hosts > 1:
            result.append([test])
        elif test.topology in shared:
            shared[test.topology].append(test)
        else:
            shared[test.topology] = [test]
            result.append(shared[test.topology])
    return result


def show_list() -> None:
    table(["test", "topology", "limit", "CI", "boot"],
          [(test.name, test.topology, f"{test.limit_s} s", "yes" if test.ci else "", "its own" if test.alone else "")
           for test in TESTS])
    print()
    table(["topology", "", "hosts"], [(name, topology.summary, topology.hosts) for name, topology in TOPOLOGIES.items()])


class Runner:
    """Boots what a list of tests needs, GUESTS_AT_A_TIME of them. A topology of several hosts has the machine for itself."""

    def __init__(self, preset: str = PRESET, kernel_folder: str = "", keep: bool = False, fresh_build: bool = True,
                 folder: str = "", targets: tuple = TARGETS):
        need_emulator()
        need_busybox()
        self.kernel = kernel.find(kernel_folder)
        self.keep = keep
        self.show_output = False  # of the programs, while they run
        self._until = math.inf
        self.patience = float(os.environ.get("TERRACE_QEMU_PATIENCE") or 1)  # multiplies every limit
        self.build = pathlib.Path(folder).resolve() if folder else build_dir(preset)
        if fresh_build and not folder:
            build(preset, list(targets))
        self.initramfs = initramfs.build(self.kernel, warm.archive(warm.files(self.build, self.kernel)))

    def environment(self) -> dict:
        found = {"TERRACE_BUILD_DIR": str(self.build), "PYTHONDONTWRITEBYTECODE": "1",
                 "PYTHONUNBUFFERED": "1",  # what a test prints lies where it was printed, also between its failures
                 "PYTHONPATH": f"{ROOT}/tests/support:{ROOT}/tests/guest",
                 "PATH": f"{self.build}/cli:{self.build}/daemon/main:{self.build}/daemon:/usr/local/sbin:/usr/local/bin:"
                         "/usr/sbin:/usr/bin:/sbin:/bin"}
        for name in ("TERRACE_TEST_KEEP", "TERRACE_QEMU_ARGUMENTS"):
            if os.environ.get(name):
                found[name] = os.environ[name]
        return found

    def command(self, test: GuestTest, argv: tuple) -> dict:
        return {"name": test.name, "cwd": "/tmp", "limit_s": test.limit_s * self.patience,
                "argv": [part.replace("{tree}", str(ROOT)).replace("{build}", str(self.build)) for part in argv]}

    def run(self, tests: list, limit_s: float = math.inf) -> list:
        """`limit_s`: of all of them together. What did not get its turn by then is in the rows as "not run"."""
        self._until = time.monotonic() + limit_s * self.patience
        rows = {test.name: Row(test.name, test.topology, reason=boot.OUT_OF_TIME) for test in tests}
        waiting = groups(tests)
        begun, free = {}, GUESTS_AT_A_TIME  # begun: future -> its group
        with concurrent.futures.ThreadPoolExecutor(GUESTS_AT_A_TIME) as pool, self._heartbeat():
            try:
                while begun or (waiting and time.monotonic() < self._until):
                    while waiting and _guests(waiting[0]) <= free and time.monotonic() < self._until:
                        group = waiting.pop(0)
                        free -= _guests(group)
                        begun[pool.submit(self._run_group, group, rows)] = group
                    done, _ = concurrent.futures.wait(begun, return_when=concurrent.futures.FIRST_COMPLETED)
                    for future in done:
                        group, left = begun.pop(future), future.result()
                        free += _guests(group)
                        if left and len(left) < len(group):  # the guest was lost in the middle: the others get a new one
                            waiting.insert(0, left)
            except BaseException:
                self._until = -math.inf  # those beside end now
                raise
        return list(rows.values())

    def _heartbeat(self):
        return contextlib.nullcontext() if self.show_output else Heartbeat("guests")

    def _run_group(self, group: list, rows: dict) -> list:
        """Returns the tests that did not get their turn."""
        topology = TOPOLOGIES[group[0].topology]
        say(f"qemu: {group[0].topology} ({topology.summary}): {', '.join(test.name for test in group)}")
        with RunFolder(topology, self.keep) as folder:
            for number in range(group[0].boots):
                left = self._one_boot(group, number, folder, rows)
                if left or any(rows[test.name].result == "failed" for test in group):
                    break
            return left

    def _one_boot(self, group: list, number: int, folder: RunFolder, rows: dict) -> list:
        topology = folder.topology
        forwards, ports = _forwards(group[0])
        environment = {**self.environment(), **ports, "TERRACE_QEMU_BOOT": str(number)}
        jobs = [Job(tuple(self.command(test, test.commands[host]) for test in group), (),
                    tuple(environment.items())) for host in range(topology.hosts)]
        result = self._boot(group, folder, jobs, forwards, number == 0)
        if result.retries:
            note(f"{group[0].name}: the guest was booted once more: " + result.died.replace("\n", "\n   | "))
        note(f"{group[0].name}: booted in {duration(result.boot_s)}, {duration(result.wall_s)} in all; "
             f"{duration(result.processor_s)} of processor time")
        if result.broken:
            note(f"{group[0].name}: " + result.broken.replace("\n", "\n   | "))
        left = []
        for test in group:
            row = rows[test.name]
            row.retries += result.retries
            outcomes = [outcome for outcome in result.outcomes if outcome.name == test.name]
            if not outcomes:
                left.append(test)
                row.result = "not run"
                row.reason = result.broken.splitlines()[0] if result.broken else "the guest did not run it"
            else:
                self._judge(test, row, outcomes, folder)
        return left

    def _boot(self, group: list, folder: RunFolder, jobs: list, forwards: list, first: bool) -> boot.BootResult:
        if not self.show_output:
            return boot.run(folder, self.kernel, self.initramfs, jobs, forwards, _announce, first=first,
                            patience=self.patience, until=lambda: self._until)
        tails = [_Tail(folder.share(host) / "out" / f"{test.name}.log", f"{host}| " if len(jobs) > 1 else "")
                 for test in group for host in range(len(jobs))]
        try:
            return boot.run(folder, self.kernel, self.initramfs, jobs, forwards, _announce,
                            lambda: [tail.show() for tail in tails], first, self.patience, lambda: self._until)
        finally:
            for tail in tails:
                tail.show()

    def _judge(self, test: GuestTest, row: Row, outcomes: list, folder: RunFolder) -> None:
        row.seconds += max(outcome.seconds for outcome in outcomes)
        row.reason = "; ".join(f"host {outcome.host}: {outcome.reason}" if len(test.commands) > 1 else outcome.reason
                               for outcome in outcomes if outcome.reason)
        codes = [outcome.code for outcome in outcomes]
        if len(outcomes) < len(test.commands):
            row.result, row.reason = "failed", row.reason or "a host did not report"
        elif row.reason or any(code not in (0, EXIT_SKIPPED) for code in codes):
            row.result = "failed"
            row.reason = row.reason or f"exit {', '.join(map(str, codes))}"
        elif EXIT_SKIPPED in codes:
            row.result, row.reason = "skipped", _skip_reason(folder.share(0) / "out" / f"{test.name}.log")
        else:
            row.result = "passed"
            if test.outside:
                self._look_from_outside(test, row, folder)
        if row.result == "failed" and not self.show_output:
            for host in range(len(test.commands)):
                _show_end(folder.share(host) / "out" / f"{test.name}.log", f"{test.name}, host {host}")

    @staticmethod
    def _look_from_outside(test: GuestTest, row: Row, folder: RunFolder) -> None:
        check = getattr(importlib.import_module("outside"), test.outside)
        try:
            note(f"outside: {check(folder.media, folder.share(0) / 'out')}")
        except (AssertionError, OSError, ValueError, KeyError) as error:
            row.result, row.reason = "failed", f"outside: {type(error).__name__}: {error}"


class _Tail:
    """Shows what a file grows by."""

    def __init__(self, path: pathlib.Path, prefix: str):
        self._path, self._prefix, self._read = path, prefix, 0

    def show(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[:text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            print(f"{self._prefix}{line}", flush=True)


def _guests(group: list) -> int:
    """How many of GUESTS_AT_A_TIME a boot is. Several hosts keep all processors busy."""
    return 1 if TOPOLOGIES[group[0].topology].hosts == 1 else GUESTS_AT_A_TIME


def _forwards(test: GuestTest) -> tuple:
    """Ports of this machine for the guests' ports, and the environment that names them (TERRACE_QEMU_PORT_<host>_<guest
    port>): from one guest, another is 10.0.2.2 at that port."""
    forwards, names = [], {}
    for host, guest_ports in enumerate(test.forwards):
        pairs = []
        for port in guest_ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                pairs.append((probe.getsockname()[1], port))
            names[f"TERRACE_QEMU_PORT_{host}_{port}"] = str(pairs[-1][0])
        forwards.append(tuple(pairs))
    return forwards, names


def _announce(outcome: boot.Outcome) -> None:
    said = {0: "passed", EXIT_SKIPPED: "skipped"}.get(outcome.code, f"exit {outcome.code}")
    note(f"{said:8} {outcome.name} ({duration(outcome.seconds)}){' ' + outcome.reason if outcome.reason else ''}")


def _skip_reason(log: pathlib.Path) -> str:
    for line in reversed(log.read_text("utf-8", "replace").splitlines()):
        if "skipped" in line:
            return line.strip()[:100]
    return ""


def _show_end(log: pathlib.Path, title: str) -> None:
    if log.is_file():
        print(f"--- {title}: the end of its output")
        for line in log.read_text("utf-8", "replace").splitlines()[-SHOWN_LINES:]:
            print(f"   | {line}")
        sys.stdout.flush()


def conclude(rows: list, began: float, json_file: str) -> None:
    """The table; Failure when a test failed or was not run."""
    print()
    table(["guest test", "topology", "result", "wall time", "retries", ""],
          [(row.name, row.topology, row.result, duration(row.seconds), row.retries or "", row.reason) for row in rows])
    passed = sum(row.result == "passed" for row in rows)
    skipped = [row.name for row in rows if row.result == "skipped"]
    bad = [row.name for row in rows if row.result in ("failed", "not run")]
    retries = sum(row.retries for row in rows)
    print(f"{passed} passed, {len(skipped)} skipped, {len(bad)} failed in {duration(time.monotonic() - began)}"
          + (f"; {retries} retries of a boot" if retries else ""), flush=True)
    if json_file:
        document = {"wall_s": round(time.monotonic() - began, 1), "tests": [dataclasses.asdict(row) for row in rows]}
        pathlib.Path(json_file).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    if bad:
        raise Failure(f"qemu: {', '.join(bad)}")
    if rows and not passed:
        raise Skip("no guest test applied")
