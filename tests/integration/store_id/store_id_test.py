# SPDX-License-Identifier: Apache-2.0
"""Starts whose state file is not the memory's: none, another one, an older copy. Nothing may be destroyed by them.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/store_id/store_id_test.py [TestClass[.test]]
"""

import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from session_tenant import Tenant  # noqa: E402

MIB = 1 << 20
S = 10**9


class Case(unittest.TestCase):
    def setUp(self):
        self.t = self.enterContext(harness.Harness(name="store-id"))
        self.state = self.t.state
        self.t.start()
        self.t.create_pool("p")
        self.id = self.status()["store_id"]
        self.objects = pathlib.Path(self.status()["object_directory"])

    def enterContext(self, manager):
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def status(self):
        return self.t.cli("status").json["server"]

    def holder(self, label):
        """A program that has a lease of 8 MiB, full of 17."""
        tenant = self.enterContext(Tenant(self.t))
        self.assertEqual(tenant.first, "ready", self.t.log_tail())
        self.assertEqual(tenant.ask("grant", 8 * MIB, 300 * S, label).split()[-1], str(8 * MIB))
        self.assertEqual(tenant.ask("fill", 17), "ok")
        return tenant

    def files(self, pattern="*.obj"):
        return sorted(path.name for path in self.objects.glob(pattern))

    def start_refused(self, *arguments, state=None):
        """The message of a start that is refused and changes nothing."""
        before = self.files(), self.files("store-id"), [path.stat().st_blocks for path in self.objects.glob("*.obj")]
        self.t.state = state or self.state
        log_bytes = self.t.log.stat().st_size
        self.t.start(*arguments, wait=False)
        self.assertEqual(self.t.wait_dead(), 1, self.t.log_tail())
        self.t.state = self.state
        self.assertEqual((self.files(), self.files("store-id"),
                          [path.stat().st_blocks for path in self.objects.glob("*.obj")]), before)
        return self.t.log.read_text(errors="replace")[log_bytes:]

    def copy_state(self, name):
        """A copy of the state of a stopped daemon, as a backup makes it."""
        folder = self.t.directory / name
        folder.mkdir()
        for path in self.state.parent.glob(self.state.name + "*"):
            if path.is_file():
                shutil.copy2(path, folder / path.name)
        return folder

    def restore_state(self, folder):
        for path in self.state.parent.glob(self.state.name + "*"):
            path.unlink()
        for path in folder.iterdir():
            shutil.copy2(path, self.state.parent / path.name)


class OtherStores(Case):
    def test_a_store_has_an_id_that_status_and_fsck_show_and_a_restart_keeps(self):
        self.assertRegex(self.id, "^[0-9a-f]{32}$")
        self.assertIn(self.id, self.t.cli("status", json=False).out)
        owner = (self.objects / "store-id").read_text()
        self.assertIn(self.id, owner)
        self.assertIn(str(self.state), owner)
        self.t.restart(hard=True)
        self.assertEqual(self.status()["store_id"], self.id)
        self.t.stop()
        command = [*self.t.daemon_command(), "--fsck"]
        self.assertIn(self.id, self.t.run(*command, check=False).out)
        self.assertEqual(self.t.run(*command, "--json", check=False, want_json=True).json["store"], self.id)

    def test_a_start_with_an_empty_state_destroys_nothing_and_leaves_no_state_behind(self):
        holder = self.holder("x")
        self.t.kill()
        other = self.t.directory / "other" / "state.db"
        said = self.start_refused(state=other)
        for words in (str(self.objects), self.id, str(self.state), str(other), "--destroy-orphans", "--state"):
            self.assertIn(words, said)
        self.assertEqual([path.name for path in other.parent.glob("*")], [])
        # A vanished state file (its file system is not mounted) is the same.
        hidden = self.copy_state("hidden")
        for path in self.state.parent.glob(self.state.name + "*"):
            path.unlink()
        self.assertIn(self.id, self.start_refused())
        self.assertEqual(list(self.state.parent.glob(self.state.name + "*")), [])
        self.restore_state(hidden)
        self.t.start()
        self.assertEqual(holder.ask("check", 17), "same")
        self.assertEqual(holder.ask("resize", 16 * MIB), str(16 * MIB))

    def test_another_managers_store_is_refused_and_the_operators_word_takes_over(self):
        self.holder("x")
        self.t.kill()
        with harness.Harness(name="store-id-other") as other:
            other.start()
            other.create_pool("q")
            other.stop()
            foreign = self.t.directory / "foreign.db"
            shutil.copy2(other.state, foreign)
        said = self.start_refused(state=foreign)
        self.assertIn(self.id, said)
        self.assertTrue(foreign.exists())
        self.t.state = foreign
        self.t.start("--destroy-orphans")
        self.assertEqual(self.files(), [])
        self.assertNotEqual(self.status()["store_id"], self.id)
        self.assertIn(self.status()["store_id"], (self.objects / "store-id").read_text())

    def test_a_directory_of_before_goes_on_with_its_store_and_is_refused_to_a_new_one(self):
        holder = self.holder("x")
        self.t.kill()
        (self.objects / "store-id").unlink()
        said = self.start_refused(state=self.t.directory / "other.db")
        self.assertIn("belong to another store", said)
        self.assertFalse((self.objects / "store-id").exists())
        self.t.start()
        self.assertIn(self.id, (self.objects / "store-id").read_text())
        self.assertEqual(holder.ask("check", 17), "same")

    def test_a_clean_end_without_leases_leaves_a_directory_for_anybody(self):
        self.t.stop()
        self.assertFalse((self.objects / "store-id").exists())
        self.t.state = self.t.directory / "other.db"
        self.t.start()
        self.assertNotEqual(self.status()["store_id"], self.id)


class OlderCopies(Case):
    def older(self):
        """The state as it was before two leases: of a program that lives, and of one that ended."""
        self.t.stop()
        backup = self.copy_state("backup")
        self.t.start()
        living = self.holder("living")
        ended = self.t.grant("4M", "p", "--ttl", "1h", "--label", "ended")
        self.t.kill()
        self.restore_state(backup)
        return living, ended

    def test_what_an_older_copy_does_not_know_is_quarantined_and_reported(self):
        living, _ = self.older()
        before = self.files()
        self.assertEqual(len(before), 2)
        self.t.start()
        self.assertEqual(self.files(), before)
        recovered = self.status()["recovered"]
        self.assertIn("(is used by process", recovered)
        self.assertIn("(a tenant had it)", recovered)
        self.assertEqual(living.ask("check", 17), "same")
        self.assertEqual([lease["phase"] for lease in self.t.leases().values()], ["quarantined"] * 2)
        self.t.check_invariants()
        found = str(self.t.cli("fsck", check=False).json)
        self.assertIn("found after a restore", found)
        self.assertIn("until an administrator releases the lease", found)
        # They are in nobody's way, and stay over further starts.
        self.assertNotIn(f"lease-{self.t.grant('2M')['id']}.obj", before)
        self.t.restart(hard=True)
        self.assertEqual([name for name in self.files() if name in before], before)
        self.assertEqual(living.ask("check", 17), "same")

    def test_the_operators_word_destroys_it(self):
        living, _ = self.older()
        self.t.start("--destroy-orphans")
        self.assertEqual(self.files(), [])
        harness.wait_until(lambda: living.ask("state") == "lost", 30, "the holder's loss of its lease")


class Unacknowledged(Case):
    def test_a_grant_that_was_never_acknowledged_leaves_nothing_behind(self):
        for point in ("carve_after_reserve", "journal_before_append"):
            self.t.restart(failpoints=f"{point}=crash")
            self.t.cli("lease", "grant", "--pool", "p", "--size", "4M", check=False)
            self.t.wait_dead()
            self.assertEqual(len(self.files()), 1, point)
            self.t.start()
            self.assertEqual(self.files(), [], point)


if __name__ == "__main__":
    harness.main()
