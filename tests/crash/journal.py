# SPDX-License-Identifier: Apache-2.0
"""What clients were told: the acknowledged operations of a run, against which the daemon is held after a crash."""

import dataclasses
import threading


@dataclasses.dataclass
class Granted:
    """A lease as it was acknowledged last; extents are (device, offset, length) or None when never asked for."""
    epoch: int
    bytes: int
    extents: tuple = None
    movable: bool = False  # the manager may move it by itself: the epoch steps, the extents change
    open: tuple = ()       # changes that were asked for and whose outcome is not known: resize, move, transfer


class Journal:
    """Acknowledged and open operations of one client or of several. Threads: methods may be called from any."""

    def __init__(self):
        self._lock = threading.Lock()
        self.granted = {}          # id -> Granted
        self.releasing = set()     # a release was asked for
        self.released = set()      # ... and acknowledged
        self.revoking = set()      # a revocation was asked for
        self.revoked = set()       # ... and acknowledged
        self.lost = set()          # the client found its memory or lease gone
        self.open_grants = 0       # grants whose outcome the client never learned
        self.stamped = set()       # tests/support/stubborn_holder --leave stamped them
        self.settings = {}         # (kind, name) -> values that are right now: one, or two while a change is open
        self.broken = []           # promises that a client itself saw broken
        self.acknowledged = 0      # operations of any kind
        self.answers = 0           # of the manager, refusals included (load clients only)

    def grant_asked(self):
        with self._lock:
            self.open_grants += 1

    def grant_refused(self):
        with self._lock:
            self.open_grants -= 1

    def grant_acknowledged(self, lease_id, granted):
        with self._lock:
            self.open_grants -= 1
            if lease_id in self.granted:
                self.broken.append(f"lease {lease_id} was granted twice")
            self.granted[lease_id] = granted
            self.acknowledged += 1

    def change_asked(self, operation, lease_id):
        with self._lock:
            if lease_id in self.granted:
                self.granted[lease_id].open += (operation,)

    def change_refused(self, lease_id):
        """The one that was asked for last; what became of those before it, nobody has said by that."""
        with self._lock:
            if lease_id in self.granted:
                self.granted[lease_id].open = self.granted[lease_id].open[:-1]

    def change_acknowledged(self, lease_id, epoch, size, extents=None):
        with self._lock:
            before = self.granted[lease_id]
            if epoch < before.epoch:
                self.broken.append(f"the LeaseEpoch of lease {lease_id} went back from {before.epoch} to {epoch}")
            self.granted[lease_id] = Granted(epoch, size, extents, before.movable)
            self.acknowledged += 1

    def setting_asked(self, key, value):
        """A quota, reservation or device state; None: that there is none."""
        with self._lock:
            self.settings[key] = self.settings.get(key, {None}) | {value}

    def setting_acknowledged(self, key, value):
        with self._lock:
            self.settings[key] = {value}
            self.acknowledged += 1

    def add(self, kind, lease_id):
        """Records `lease_id` under one of the sets above."""
        with self._lock:
            getattr(self, kind).add(lease_id)
            if kind in ("released", "revoked"):
                self.acknowledged += 1

    def live(self):
        """Leases that were granted and that nobody asked to end."""
        with self._lock:
            return sorted(set(self.granted) - self.releasing - self.revoking - self.lost)

    def merge(self, other):
        for lease_id in set(self.granted) & set(other.granted):
            self.broken.append(f"lease {lease_id} was granted to two clients")
        self.granted.update(other.granted)
        for kind in ("releasing", "released", "revoking", "revoked", "lost", "stamped"):
            getattr(self, kind).update(getattr(other, kind))
        self.settings.update(other.settings)
        self.open_grants += other.open_grants
        self.broken += other.broken
        self.acknowledged += other.acknowledged
        self.answers += other.answers


def parse_extents(text):
    """'emu:a:0:2097152,emu:b:...' -> ((serial, offset, length), ...)"""
    extents = []
    for part in text.split(","):
        device, offset, length = part.rsplit(":", 2)
        extents.append((device, int(offset), int(length)))
    return tuple(extents)


CHANGES = {"resizing": "resize", "moving": "move", "transferring": "transfer"}


def read_load(path):
    """The Journal of a tests/support/lease_load whose output is in `path`; it may still be running."""
    journal = Journal()
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:  # an unfinished line has not happened
        word, *rest = line.split(" ")
        journal.answers += word in ("granted", "changed", "renewed", "released", "refused", "lost")
        if word == "granting":
            journal.grant_asked()
        elif word == "granted":
            lease_id, epoch, size = map(int, rest[:3])
            journal.grant_acknowledged(lease_id, Granted(epoch, size, movable=rest[3:] == ["movable"]))
        elif word == "extents":
            journal.granted[int(rest[0])].extents = parse_extents(rest[1])
        elif word in CHANGES:
            journal.change_asked(CHANGES[word], int(rest[0]))
        elif word == "changed":
            journal.change_acknowledged(*map(int, rest))
        elif word == "refused" and rest[0] in CHANGES.values() and rest[1] != "busy":  # that may be this very change
            journal.change_refused(int(rest[2]))
        elif word == "releasing":
            journal.add("releasing", int(rest[0]))
        elif word == "released":
            journal.add("released", int(rest[0]))
        elif word == "renewed":
            journal.acknowledged += 1
        elif word == "lost" and rest:
            journal.add("lost", int(rest[0]))
        elif word in ("refused", "lost") and rest[:1] in (["grant"], []):
            journal.grant_refused()
        elif word == "broken":
            journal.broken.append(line)
    return journal
