# SPDX-License-Identifier: Apache-2.0
"""Damaged, torn, missing, older and newer stores, and a full disk, under the real daemon: it recovers exactly what was
acknowledged, or refuses with a text that names the file and the cure. Never an empty pool, never a touched file.

    TERRACE_BUILD_DIR=build/sim python3 tests/crash/store_faults_test.py [TestClass[.test]]
"""

import pathlib
import shutil
import sqlite3
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import terrace_harness  # noqa: E402
from terrace_harness import Harness, HarnessError, can_mount, wait_until  # noqa: E402

RECORD_MAGIC = b"TRCJREC1"  # daemon/store/journal/journal_segment.cc
CURE = r"(?i)restore|put .*back|copy|newer|fix|free|room|choose"


def records(path):
    """(sequence, offset, bytes) of every journal record in a file, oldest first."""
    data, found, at = path.read_bytes(), [], -1
    while (at := data.find(RECORD_MAGIC, at + 1)) >= 0:
        payload = int.from_bytes(data[at + 8:at + 12], "little")
        found.append((int.from_bytes(data[at + 24:at + 32], "little"), at, 32 + payload))
    return sorted(found)


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


class StoreFaults(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="store", devices={"a": "64M"})
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        for _ in range(3):
            self.t.grant("2M", "p", "--persistent")
        self.told = self.seen()

    def seen(self):
        return {lease_id: (lease["epoch"], lease["extents"]) for lease_id, lease in self.t.leases().items()}

    def files(self):
        return {path.name: path for path in self.t.directory.glob("state.db*")}

    def save(self):
        """Copies of the store's files, of a daemon that is dead."""
        saved = self.t.directory / "saved"
        saved.mkdir(exist_ok=True)
        for path in self.files().values():
            shutil.copy(path, saved)
        return saved

    def restore(self, saved):
        for path in self.files().values():
            path.unlink()
        for path in saved.iterdir():
            shutil.copy(path, self.t.directory)

    def log_since(self, begin):
        return self.t.log.read_bytes()[begin:].decode(errors="replace")

    def expect_refused(self, names="state.db", cure=CURE):
        """terraced ends with 1, says which file and what to do, and leaves the files as they were."""
        before = {name: path.read_bytes() for name, path in self.files().items()}
        begin = self.t.log.stat().st_size
        self.t.start(wait=False)
        self.assertEqual(self.t.wait_dead(60), 1)
        said = self.log_since(begin)
        self.assertIn(names, said)
        self.assertRegex(said, cure, "no cure is named")
        after = {name: path.read_bytes() for name, path in self.files().items()}
        for name, data in before.items():
            self.assertIn(name, after)
            if not name.endswith(("-shm", "-mark")):
                self.assertTrue(after[name] == data, f"{name} was changed by a start that was refused")
        return said

    def expect_recovered(self, *arguments):
        """Everything that was acknowledged is there and nothing else; new leases are disjoint from it."""
        self.t.start(*arguments)
        self.assertEqual(self.seen(), self.told)
        self.t.check_invariants()
        fresh = self.t.grant("2M")
        self.assertNotIn(fresh["extents"][0]["offset_bytes"],
                         [extents[0]["offset_bytes"] for _, extents in self.told.values()])

    def expect_refused_or_recovered(self):
        begin = self.t.log.stat().st_size
        self.t.start(wait=False)
        try:
            self.t.wait_ready()
        except HarnessError:
            self.assertEqual(self.t.wait_dead(1), 1)
            self.assertRegex(self.log_since(begin), CURE)
            return "refused"
        self.assertEqual(self.seen(), self.told)
        self.t.check_invariants()
        return "recovered"

    # -- the journal

    def newest_record(self):
        found = [(*record, path) for name, path in self.files().items() if "-journal-" in name
                 for record in records(path)]
        self.assertTrue(found, "no journal has a record")
        return max(found)

    def die_unacknowledged(self, point):
        """The daemon dies in a grant's commit; the client is not answered."""
        self.t.restart(failpoints=f"{point}=crash", hard=True)
        self.t.cli("lease", "grant", "--size", "2M", "--persistent", "--timeout", "5s", check=False)
        self.assertEqual(self.t.wait_dead(), -9)

    def test_a_torn_tail_that_nobody_was_told_of_is_dropped(self):
        self.die_unacknowledged("journal_after_append")
        _, offset, size, path = self.newest_record()
        saved = self.save()
        for cut in (1, size // 2, size - 8):
            with self.subTest(cut=cut):
                self.restore(saved)
                overwrite(self.t.directory / path.name, offset + cut, bytes(size - cut))
                # The round before granted a lease, which this older copy of the store does not know.
                self.expect_recovered("--destroy-orphans")
                self.t.kill()

    def test_an_acknowledged_record_that_was_garbled_is_refused(self):
        self.t.restart(hard=True)
        lease = self.t.grant("2M", "p", "--persistent")
        self.t.kill()
        saved = self.save()
        _, offset, size, path = self.newest_record()
        overwrite(path, offset + size // 2, b"\xff" * 8)
        self.expect_refused()
        self.restore(saved)
        self.told[lease["id"]] = (lease["epoch"], lease["extents"])
        self.expect_recovered()

    def test_missing_journals_are_refused_while_they_held_something(self):
        self.t.restart(hard=True)
        lease = self.t.grant("2M", "p", "--persistent")
        self.told[lease["id"]] = (lease["epoch"], lease["extents"])
        self.t.kill()
        saved = self.save()
        for name, path in self.files().items():
            if "-journal-" in name:
                path.unlink()
        self.expect_refused()
        self.restore(saved)
        self.expect_recovered()

    def test_a_garbled_log_tail_is_recovered_or_refused(self):
        wal = self.t.directory / "state.db-wal"
        wait_until(lambda: wal.exists() and wal.stat().st_size > 8192, 20, "a fold into the log")
        self.t.kill()
        saved = self.save()
        size = wal.stat().st_size
        for what, damage in (("truncated", lambda: subprocess.run(["truncate", "-s", str(size - 100), wal], check=True)),
                             ("garbled", lambda: overwrite(wal, size - 600, b"\x5a" * 512)),
                             ("gone", wal.unlink)):
            with self.subTest(what):
                self.restore(saved)
                damage()
                if self.expect_refused_or_recovered() == "recovered":
                    self.t.kill()

    # -- the database and the mark

    def test_a_corrupted_page_is_refused(self):
        lease = self.t.grant("2M", "p", "--persistent", "--label", "left-here")
        self.told[lease["id"]] = (lease["epoch"], lease["extents"])
        self.assertEqual(self.t.stop(), 0, "SIGTERM is a clean end")
        database = self.t.directory / "state.db"
        saved = self.save()
        data = database.read_bytes()
        self.assertIn(b"left-here", data)  # in the lease's row, and in the audit log's, which may be damaged
        database.write_bytes(data.replace(b"left-here", b"left-home"))
        self.expect_refused()
        self.restore(saved)
        overwrite(database, 4096 + 3, b"\xee" * 64)
        self.expect_refused()
        self.restore(saved)
        self.expect_recovered()

    def test_a_store_of_a_newer_version_is_refused(self):
        self.assertEqual(self.t.stop(), 0, "SIGTERM is a clean end")
        saved = self.save()
        with sqlite3.connect(self.t.directory / "state.db") as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
        self.assertIn("99", self.expect_refused())
        self.restore(saved)
        self.expect_recovered()

    def test_an_older_copy_of_the_database_loses_nothing(self):
        self.assertEqual(self.t.stop(), 0, "SIGTERM is a clean end")
        older = (self.t.directory / "state.db").read_bytes()
        self.t.start()
        lease = self.t.grant("2M", "p", "--persistent")
        self.told[lease["id"]] = (lease["epoch"], lease["extents"])
        self.assertEqual(self.t.stop(), 0, "SIGTERM is a clean end")
        saved = self.save()
        (self.t.directory / "state.db").write_bytes(older)
        if self.expect_refused_or_recovered() == "recovered":  # the journal still had what was missing
            self.t.kill()
        self.restore(saved)
        for name, path in self.files().items():
            if "-journal-" in name:
                path.unlink()
        (self.t.directory / "state.db").write_bytes(older)
        self.expect_refused()
        self.restore(saved)
        self.expect_recovered()

    def test_a_database_that_is_gone_or_empty_is_refused(self):
        self.assertEqual(self.t.stop(), 0, "SIGTERM is a clean end")
        saved = self.save()
        database = self.t.directory / "state.db"
        for damage in (database.unlink, lambda: database.write_bytes(b"")):
            self.restore(saved)
            damage()
            self.expect_refused()
        self.restore(saved)
        self.expect_recovered()

    def test_a_missing_mark_never_loses_a_lease(self):
        self.t.restart(hard=True)
        lease = self.t.grant("2M", "p", "--persistent")
        self.told[lease["id"]] = (lease["epoch"], lease["extents"])
        self.t.kill()
        (self.t.directory / "state.db-mark").unlink()
        self.expect_refused_or_recovered()


@unittest.skipUnless(can_mount(), "needs the right to mount a small disk")
class FullDisk(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="full", devices={"a": "64M"})
        self.addCleanup(self.t.close)
        self.disk = self.t.directory / "disk"
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24M", "none", self.disk], check=True)
        self.t.state = self.disk / "state.db"
        self.ballast = self.disk / "ballast"

    def fill(self):
        with open(self.ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65536))
            except OSError:
                pass

    def test_a_first_start_says_so_and_leaves_nothing_half_made(self):
        self.fill()
        self.t.start(wait=False)
        self.assertEqual(self.t.wait_dead(60), 1)
        self.assertIn(str(self.t.state), self.t.log_tail())
        self.ballast.unlink()
        self.t.start()
        self.t.create_pool("p")

    def test_a_disk_that_fills_up_costs_no_lease(self):
        self.t.start()
        self.t.create_pool("p")
        kept = self.t.grant("2M", "p", "--persistent")
        self.fill()
        told = {kept["id"]: kept["extents"]}
        for _ in range(30):  # the journal has its room: this may go on for long, or be refused; both are right
            result = self.t.cli("lease", "grant", "--size", "2M", "--persistent", check=False)
            self.assertIn(result.code, (0, 1, 4, 5), result)
            if result.code == 0:
                told[result.json["lease"]["id"]] = result.json["lease"]["extents"]
        self.assertIsNotNone(self.t.pid, "the daemon died of a full disk")
        self.t.kill()
        begin = self.t.log.stat().st_size
        self.t.start(wait=False)
        try:  # serving what it has, or refusing in words
            self.t.wait_ready()
            self.t.kill()
        except HarnessError:
            self.assertEqual(self.t.wait_dead(1), 1)
            said = self.t.log.read_bytes()[begin:].decode(errors="replace")
            self.assertIn(str(self.t.state), said)
        self.ballast.unlink()
        self.t.start()
        self.assertEqual({lease_id: lease["extents"] for lease_id, lease in self.t.leases().items()}, told)
        self.t.check_invariants()
        self.t.grant("2M")


if __name__ == "__main__":
    terrace_harness.main()
