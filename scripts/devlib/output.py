# SPDX-License-Identifier: Apache-2.0
"""Talking to the person (or log) that started a verb: steps, progress, errors, the table of stages."""

import sys
import threading
import time


class Failure(Exception):
    """Something the user should read and fix; printed without a traceback."""

    def __init__(self, text: str, exit_code: int = 1):
        super().__init__(text)
        self.exit_code = exit_code


class Skipped(Failure):
    """What was asked for cannot be done on this machine: neither passed nor failed."""

    def __init__(self, reason: str):
        super().__init__(f"skipped: {reason}", 77)
        self.reason = reason


def say(text: str) -> None:
    """Announces a step."""
    print(f"== {text}", flush=True)


def note(text: str) -> None:
    """A line that belongs to the current step."""
    print(f"   {text}", flush=True)


def complain(text: str) -> None:
    sys.stdout.flush()
    print(f"scripts/dev: {text}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


class Heartbeat:
    """Shows that something silent is still running: nothing for two seconds, then a line every ten (on a
    terminal one line, redrawn every second)."""

    def __init__(self, what: str):
        self._what = what
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._drawn = False

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._over.set()
        self._thread.join()
        if self._drawn:
            sys.stdout.write("\r\033[K")
            sys.stdout.flush()

    def _beat(self) -> None:
        begin = time.monotonic()
        terminal = sys.stdout.isatty()
        pause = 2.0
        while not self._over.wait(pause):
            elapsed = duration(time.monotonic() - begin)
            if terminal:
                sys.stdout.write(f"\r\033[K   {self._what} … {elapsed}")
                sys.stdout.flush()
                self._drawn = True
            else:
                note(f"{self._what} … {elapsed}")
            pause = 1.0 if terminal else 10.0


def table(titles: list, rows: list) -> None:
    """Prints rows of text under titles, columns padded."""
    cells = [[str(cell) for cell in row] for row in [titles, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    for index, row in enumerate(cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        if index == 0:
            print("  ".join("-" * width for width in widths))
    sys.stdout.flush()
