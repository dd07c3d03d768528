# SPDX-License-Identifier: Apache-2.0
"""The peak of resident memory of process trees, seen from outside: the sum over a tree, sampled.

Pages that processes share are counted in each of them, on both sides of a comparison alike. The supervisor of a run
is left out: it is no part of the program.
"""

import os
import pathlib
import threading

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PAUSE_S = 0.02


def children_of(pid: int) -> list:
    """All descendants of a process, parents before children."""
    found, at = [], [pid]
    while at:
        parent = at.pop()
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            try:
                text = pathlib.Path(f"/proc/{parent}/task/{task}/children").read_text(encoding="ascii")
            except OSError:
                continue
            for word in text.split():
                found.append(int(word))
                at.append(int(word))
    return found


def _resident(pid: int) -> int:
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return 0


class MemorySampler:
    """Samples what is being watched from enter to exit. Threads: watch() and forget() from any."""

    def __init__(self):
        self.peak_bytes = 0
        self._lock = threading.Lock()
        self._watched = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "MemorySampler":
        self._thread.start()
        return self

    def __exit__(self, *_exception) -> None:
        self._over.set()
        self._thread.join()

    def watch(self, pid: int, supervised: bool) -> None:
        with self._lock:
            self._watched[pid] = supervised

    def forget(self, pid: int) -> None:
        with self._lock:
            self._watched.pop(pid, None)

    def _sample(self) -> None:
        while not self._over.wait(_PAUSE_S):
            with self._lock:
                watched = dict(self._watched)
            total = 0
            for pid, supervised in watched.items():
                total += sum(_resident(child) for child in children_of(pid)) + (0 if supervised else _resident(pid))
            self.peak_bytes = max(self.peak_bytes, total)
