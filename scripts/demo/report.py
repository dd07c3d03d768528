# SPDX-License-Identifier: Apache-2.0
"""What the demo shows: lines while it runs, and a table of checks at the end."""

import time

from devlib.output import duration, note, say, table


def mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


class Report:
    """Collects checks. A check that fails does not end the demo; it makes it fail at the end."""

    def __init__(self):
        self._rows = []
        self._begin = time.monotonic()

    def part(self, title: str) -> None:
        say(f"[{time.monotonic() - self._begin:5.1f} s] {title}")

    def note(self, text: str) -> None:
        note(text)

    def check(self, what: str, measured, passed: bool) -> None:
        self._rows.append((what, str(measured), "ok" if passed else "FAILED"))
        note(f"{'ok    ' if passed else 'FAILED'}  {what}: {measured}")

    @property
    def failures(self) -> int:
        return sum(1 for row in self._rows if row[2] != "ok")

    def conclude(self) -> None:
        print()
        table(["shown", "measured", "result"], self._rows)
        print(f"{len(self._rows)} checks in {duration(time.monotonic() - self._begin)}, {self.failures} failed",
              flush=True)


class Ticker:
    """Progress of a loop that may take longer than two seconds: a line every two."""

    def __init__(self, what: str, total: int):
        self._what, self._total = what, total
        self._spoken = time.monotonic()

    def at(self, done: int) -> None:
        now = time.monotonic()
        if now - self._spoken > 2:
            self._spoken = now
            note(f"{self._what} {mib(done)} of {mib(self._total)}")
