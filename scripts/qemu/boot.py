# SPDX-License-Identifier: Apache-2.0
"""Boots guests for a list of commands and follows them to the end, with a limit on every step.

A guest that ends, or hangs, before its first program reported is booted once more, and that is part of the result:
under emulation with several threads a kernel may die in its first second.
"""

import dataclasses
import math
import time

from qemu.machine import Machine, RunFolder

BOOT_LIMIT_S = 120     # to the first report, seldom more than 6 on an idle machine
READY_LIMIT_S = 60     # from there until modules are loaded and devices are there
SLACK_S = 30           # after a command's own limit, which the guest keeps; and between commands
BOOT_TRIES = 2
OUT_OF_TIME = "the time for all tests together was over"


@dataclasses.dataclass
class Outcome:
    """Of one command on one host. `reason` says what went wrong, besides the exit code."""

    name: str
    host: int
    code: int = -1
    seconds: float = 0.0
    reason: str = ""


@dataclasses.dataclass
class BootResult:
    outcomes: list
    retries: int = 0
    boot_s: float = 0.0   # from the start of QEMU to the last guest's being ready
    wall_s: float = 0.0
    processor_s: float = 0.0  # of QEMU
    died: str = ""        # how the guest that was booted first came to its end before init
    broken: str = ""      # why it ended early; commands without an outcome were not run


class _Follower:
    """What one guest does, by its reports. `start_again(cuts, name)` makes the machine that follows when its power is cut in the
    middle of command `name`."""

    def __init__(self, machine: Machine, on_end, patience: float = 1, start_again=None):
        self.machine = machine
        self.earlier_s = 0.0  # processor time of the machines before this one
        self.cuts = 0
        self._start_again = start_again
        self._cut_at = None
        self._patience = patience
        self.outcomes = []
        self.initialised = self.ready_at = self.first_ready_at = None
        self.finished = False
        self.broken = ""
        self._running = ""
        self._deadline = machine.began + BOOT_LIMIT_S * patience
        self._on_end = on_end

    def step(self) -> None:
        if self.finished or self.broken:
            return
        alive = self.machine.alive  # asked before the events: what it reported last is read below
        for event in self.machine.events():
            self._take(event)
        now = time.monotonic()
        if self._cut_at is not None and now >= self._cut_at and self._running:
            self._cut_power()
            return
        if not self.finished and not self.broken and (not alive or now > self._deadline):
            where = f"during {self._running}" if self._running else "between tests" if self.ready_at else \
                "before its devices were there" if self.initialised else "before init"
            self.broken = f"guest {self.machine.host} {'hung' if alive else 'ended'} {where}"
        self._settle()

    def _cut_power(self) -> None:
        """QEMU is killed in the middle of whatever the guest does. The media keep what was stored; the rest is gone."""
        self.machine.close()
        self.earlier_s += self.machine.processor_s
        self.cuts += 1
        self.machine = self._start_again(self.cuts, self._running)
        self.initialised = self.ready_at = self._cut_at = None
        self._running, self._deadline = "", self.machine.began + BOOT_LIMIT_S * self._patience

    def give_up(self, reason: str) -> None:
        if not self.finished and not self.broken:
            self.broken = reason
            self._settle()

    def _settle(self) -> None:
        """What runs while the guest is lost has failed."""
        if self.broken and self._running:
            self.outcomes.append(Outcome(self._running, self.machine.host, reason=self.broken))
            self._running = ""

    def _take(self, event: dict) -> None:
        kind, now = event["event"], time.monotonic()
        if kind == "init":
            self.initialised, self._deadline = now, now + READY_LIMIT_S * self._patience
        elif kind == "ready":
            self.ready_at, self._deadline = now, now + SLACK_S * self._patience
            self.first_ready_at = self.first_ready_at or now
        elif kind == "start":
            self._running, self._deadline = event["name"], now + event["limit_s"] + SLACK_S * self._patience
        elif kind == "end":
            self._running, self._deadline = "", now + SLACK_S * self._patience
            reasons = [f"kernel: {text}" for text in event["kernel"]]
            if event["code"] == 124:
                reasons.append("time limit")
            outcome = Outcome(event["name"], self.machine.host, event["code"], event["seconds"], "; ".join(reasons))
            self.outcomes.append(outcome)
            self._on_end(outcome)
        elif kind == "cut":
            self._cut_at = now + event["after_s"]
        elif kind == "failed":
            self.broken = f"guest {self.machine.host}: {event['reason']}"
        elif kind == "quit":
            self.finished = True


def run(folder: RunFolder, kernel, initramfs, jobs: list, forwards: list = (), on_end=lambda outcome: None,
        on_tick=lambda: None, first: bool = True, patience: float = 1, until=lambda: math.inf) -> BootResult:
    """One boot of as many guests as there are jobs. The guests are gone when this returns or raises. A boot that is
    not the first over its media keeps them when it is tried again. `patience` multiplies the limits here; those of
    the commands are the caller's. Once until() (time.monotonic()) is over the guests are ended, whatever they do."""
    begin = time.monotonic()
    died, processor_s = "", 0.0
    for attempt in range(BOOT_TRIES):
        if attempt and first:
            folder.reset()
        followers = []
        result = _boot(followers, folder, kernel, initramfs, jobs, forwards, on_end, on_tick, patience, until)
        processor_s += sum(follower.earlier_s + follower.machine.processor_s for follower in followers)
        result.retries, result.died = attempt, died
        if "before init" not in result.broken:
            break
        died = result.broken
    result.wall_s, result.processor_s = time.monotonic() - begin, processor_s
    return result


def _boot(followers: list, folder: RunFolder, kernel, initramfs, jobs: list, forwards: list, on_end, on_tick, patience: float,
          until) -> BootResult:
    """Fills `followers`, whose machines are closed when this returns or raises."""
    began = time.monotonic()
    try:
        for host, job in enumerate(jobs):
            ports = forwards[host] if host < len(forwards) else ()

            def start(cuts=0, name="", host=host, job=job, ports=ports):
                return Machine(folder, host, kernel, initramfs, _after_cuts(job, cuts, name), ports)
            followers.append(_Follower(start(), on_end, patience, start))
        while not all(follower.finished for follower in followers):
            for follower in followers:
                follower.step()
                if time.monotonic() > until():
                    follower.give_up(OUT_OF_TIME)
            broken = next((follower for follower in followers if follower.broken), None)
            if broken:
                break
            on_tick()
            time.sleep(0.05)
        broken = next((follower for follower in followers if follower.broken), None)
        ready = [follower.first_ready_at for follower in followers if follower.first_ready_at]
        for follower in followers:
            if not broken:
                _let_end(follower.machine)
        return BootResult([outcome for follower in followers for outcome in follower.outcomes],
                          boot_s=max(ready) - began if ready else 0.0,
                          broken=f"{broken.broken}\n{broken.machine.log_tail()}" if broken else "")
    finally:
        for follower in followers:
            follower.machine.close()


def _after_cuts(job, cuts: int, name: str):
    """The job of a guest whose power was cut so often, the last time during command `name`: that one and those behind it."""
    if cuts == 0:
        return job
    names = [command["name"] for command in job.commands]
    return dataclasses.replace(job, commands=job.commands[names.index(name):],
                               environment=(*job.environment, ("TERRACE_QEMU_CUTS", str(cuts))))


def _let_end(machine: Machine) -> None:
    """It reported its end; what it still does is leave QEMU."""
    deadline = time.monotonic() + 10
    while machine.alive and time.monotonic() < deadline:
        time.sleep(0.02)
