# SPDX-License-Identifier: Apache-2.0
"""Backups of the state with real daemons: made while it serves, restored over newer memory, nothing destroyed.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/backup/backup_test.py [TestClass[.test]]
"""

import pathlib
import shutil
import stat
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from session_tenant import Tenant  # noqa: E402

MIB = 1 << 20
S = 10**9
JUMP = 1 << 36


class Case(unittest.TestCase):
    def setUp(self):
        self.t = self.enterContext(harness.Harness(name="backup"))
        self.t.start()
        self.t.create_pool("p")
        self.file = self.t.directory / "backup.db"
        self.objects = pathlib.Path(self.status()["object_directory"])

    def enterContext(self, manager):
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def status(self):
        return self.t.cli("status").json["server"]

    def holder(self, label, byte, size=8 * MIB):
        """A program that has a lease full of `byte`."""
        tenant = self.enterContext(Tenant(self.t))
        self.assertEqual(tenant.first, "ready", self.t.log_tail())
        self.assertEqual(tenant.ask("grant", size, 300 * S, label).split()[-1], str(size))
        self.assertEqual(tenant.ask("fill", byte), "ok")
        return tenant

    def backup(self, *arguments, check=True):
        return self.t.cli("state", "backup", self.file, *arguments, check=check)

    def restore(self, file=None, check=True, **options):
        return self.t.cli("state", "restore", file or self.file, "--state", self.t.state, check=check, **options)


class Backups(Case):
    def test_a_serving_manager_writes_one_private_verified_file(self):
        self.holder("a", 17)
        made = self.backup().json
        self.assertEqual(made["backup"]["store_id"], self.status()["store_id"])
        self.assertEqual((made["backup"]["leases"], made["backup"]["pools"]), (1, 1))
        self.assertEqual(made["backup"]["bytes"], self.file.stat().st_size)
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        self.assertEqual([path.name for path in self.t.directory.glob("backup.db*")], ["backup.db"])
        self.assertEqual(list(self.t.state.parent.glob("*-backup*")), [])
        verified = self.t.cli("state", "verify", self.file)
        self.assertEqual(verified.json["backup"], made["backup"])
        self.assertIn("whole", self.t.cli("state", "verify", self.file, json=False).out)
        # One that is there is not replaced without the word.
        before = self.file.read_bytes()
        refused = self.backup(check=False)
        self.assertEqual(refused.code, 7, refused)
        self.assertIn("--force", str(refused.json))
        self.assertEqual(self.file.read_bytes(), before)
        self.t.grant("2M")
        self.assertEqual(self.backup("--force").json["backup"]["leases"], 2)

    def test_a_stopped_managers_state_is_backed_up_from_its_files(self):
        self.t.grant("2M", "p", "--persistent")
        self.t.kill()
        before = {path.name: path.read_bytes() for path in self.t.state.parent.glob(self.t.state.name + "*")}
        made = self.backup("--state", self.t.state).json["backup"]
        self.assertEqual((made["leases"], made["pools"]), (1, 1))
        after = {path.name: path.read_bytes() for path in self.t.state.parent.glob(self.t.state.name + "*")}
        self.assertEqual(before, after)
        self.assertEqual(self.t.cli("state", "verify", self.file).json["backup"], made)

    def test_a_damaged_backup_is_refused_and_restores_nothing(self):
        self.t.grant("2M", "p", "--persistent")
        self.backup()
        self.t.stop()
        data = bytearray(self.file.read_bytes())
        at = data.find(b"lease-1")
        self.assertGreater(at, 0)
        data[at + 6] ^= 1
        self.file.write_bytes(bytes(data))
        before = self.t.state.read_bytes()
        for said in (self.t.cli("state", "verify", self.file, check=False), self.restore(check=False)):
            self.assertEqual(said.code, 8, said)
            self.assertIn(str(self.file), str(said.json))
        self.assertEqual(self.t.state.read_bytes(), before)
        self.t.start()
        self.assertEqual(len(self.t.leases()), 1)


class Salvages(Case):
    """A bit that flipped in the journal: a start is refused, and the only way on gave up 20 of 20 leases."""

    def test_a_flipped_bit_costs_the_lease_that_it_hit(self):
        tenant = self.holder("used", 17)
        self.t.restart(hard=True)  # what was before is in the database then; the rest is in the journal
        leases = {n: self.t.grant("2M", "p", "--persistent", "--label", f"lease-of-{n}") for n in range(20)}
        self.t.kill()
        journals = [path for path in self.t.state.parent.glob(f"{self.t.state.name}-journal-?")
                    if b"lease-of-7" in path.read_bytes()]
        self.assertEqual(len(journals), 1)
        data = bytearray(journals[0].read_bytes())
        data[data.find(b"lease-of-7") + 3] ^= 4
        journals[0].write_bytes(bytes(data))
        before = {path.name: path.read_bytes() for path in self.t.state.parent.glob(self.t.state.name + "*")}

        self.t.fails_to_start()
        self.assertIn("terrace state salvage", self.t.log.read_text())
        made = self.t.cli("state", "salvage", self.file, "--state", self.t.state).json
        self.assertEqual(made["salvaged"]["leases"], 20)
        self.assertEqual(len(made["lost"]), 1, made)
        self.assertRegex(made["lost"][0], r"^commit \d+$")
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        self.assertEqual({path.name: path.read_bytes() for path in self.t.state.parent.glob(self.t.state.name + "*")},
                         before)
        self.assertIn("lost: commit", self.t.cli("state", "salvage", self.file, "--force", "--state", self.t.state,
                                                 json=False).out)
        self.restore()
        self.t.start()

        after = self.t.leases()
        self.assertEqual(len(after), 21)  # the one that was hit is there as well: its memory was found
        for n, lease in leases.items():
            found = after[lease["id"]]
            self.assertEqual(found["phase"], "quarantined" if n == 7 else "active", found)
        self.assertEqual(tenant.ask("check", 17), "same")
        self.t.check_invariants()
        newest = max(lease["epoch"] for lease in leases.values())
        self.assertGreater(self.t.grant("2M", "p", "--persistent")["epoch"], newest + JUMP // 2)

    def test_what_cannot_be_salvaged_is_refused_in_words(self):
        self.t.grant("2M", "p", "--persistent")
        salvage = ("state", "salvage", self.file, "--state", self.t.state)
        self.assertEqual(self.t.cli(*salvage, check=False).code, 7)  # it serves
        self.t.stop()
        self.t.state.write_bytes(b"no store at all")
        refused = self.t.cli(*salvage, check=False)
        self.assertNotEqual(refused.code, 0)
        self.assertIn(str(self.t.state), str(refused.json))
        self.assertFalse(self.file.exists())


class Restores(Case):
    def test_newer_leases_are_quarantined_byte_for_byte_and_epochs_do_not_go_back(self):
        """3 newer leases of 3 were destroyed, and the next LeaseEpoch went from 6 to 2."""
        older = [self.holder(f"old-{n}", 10 + n) for n in range(3)]
        self.backup()
        newer = [self.holder(f"new-{n}", 20 + n) for n in range(3)]
        idle = self.t.grant("2M", "p", "--persistent", "--label", "idle")  # nobody ever attached it
        leases = {lease["label"]: lease for lease in self.t.leases().values()}
        epochs = [lease["epoch"] for lease in leases.values()]
        contents = {path.name: path.read_bytes() for path in self.objects.glob("*.obj")}
        self.assertEqual(len(contents), 7)
        self.t.kill()
        done = self.restore().json["restored"]
        self.assertTrue(pathlib.Path(done["set_aside"], self.t.state.name).exists())
        self.t.start()
        self.assertEqual({path.name: path.read_bytes() for path in self.objects.glob("*.obj")}, contents)
        after = self.t.leases()
        for n, tenant in enumerate(older):
            self.assertEqual(after[leases[f"old-{n}"]["id"]]["phase"], "active")
            self.assertEqual(tenant.ask("check", 10 + n), "same")
        for label in ("new-0", "new-1", "new-2", "idle"):
            found = after[leases[label]["id"]]
            self.assertEqual((found["phase"], found["bytes"]), ("quarantined", leases[label]["bytes"]), label)
            self.assertIn("restore", found["reason"])
        for n, tenant in enumerate(newer):
            self.assertEqual(tenant.ask("check", 20 + n), "same")  # mapped as before
        self.t.check_invariants()
        fresh = self.t.grant("2M", "p", "--persistent")
        self.assertGreater(fresh["epoch"], max(epochs) + JUMP // 2)
        self.assertGreater(fresh["id"], idle["id"] + JUMP // 2)
        # They stay over further starts, and leave by an administrator's word alone.
        self.t.restart(hard=True)
        self.assertEqual(self.t.leases()[leases["new-0"]["id"]]["phase"], "quarantined")
        self.t.cli("lease", "release", str(leases["new-0"]["id"]))
        harness.wait_until(lambda: leases["new-0"]["id"] not in self.t.leases(), 30, "the end of the quarantine")
        self.assertFalse((self.objects / f"lease-{leases['new-0']['id']}.obj").exists())
        self.t.check_invariants()

    def test_restoring_twice_goes_on_from_the_backup_and_epochs_rise_again(self):
        self.backup()
        first = self.t.grant("2M", "p", "--persistent")
        epochs = [first["epoch"]]
        for _ in range(2):
            self.t.kill()
            self.restore()
            self.t.start()
            self.assertEqual(self.t.leases()[first["id"]]["phase"], "quarantined")
            epochs.append(self.t.grant("2M", "p", "--persistent")["epoch"])
        self.assertEqual(len(set(epochs)), 3)
        phases = sorted(lease["phase"] for lease in self.t.leases().values())
        self.assertEqual(phases, ["active", "quarantined", "quarantined"])

    def test_the_names_of_further_hosts_come_back(self):
        hosts = pathlib.Path(f"{self.t.state}.hosts")
        hosts.write_text("hosta\n!hostb\n")
        made = self.backup().json["backup"]
        self.assertEqual(made["bytes"], self.file.stat().st_size)
        self.assertEqual(self.t.cli("state", "verify", self.file).json["backup"], made)
        self.t.stop()
        stopped = self.t.directory / "stopped.db"
        self.t.cli("state", "backup", stopped, "--state", self.t.state)
        for file in (self.file, stopped):
            hosts.write_text("hostb\n")
            done = self.restore(file).json["restored"]
            self.assertEqual(hosts.read_text(), "hosta\n!hostb\n")
            self.assertEqual((pathlib.Path(done["set_aside"]) / hosts.name).read_text(), "hostb\n")
        self.t.start()

    def test_a_resize_after_the_backup_is_kept(self):
        tenant = self.holder("grows", 17)
        self.backup()
        self.assertEqual(tenant.ask("resize", 16 * MIB), str(16 * MIB))
        self.assertEqual(tenant.ask("fill", 18), "ok")
        self.t.kill()
        self.restore()
        self.t.start()
        self.assertEqual([lease["bytes"] for lease in self.t.leases().values()], [16 * MIB])
        self.assertEqual(tenant.ask("check", 18), "same")
        self.t.check_invariants()

    def test_a_serving_manager_is_busy_and_another_store_is_refused_over_present_memory(self):
        self.holder("x", 17)
        self.backup()
        busy = self.restore(check=False)
        self.assertEqual(busy.code, 7, busy)
        with harness.Harness(name="backup-other") as other:
            other.start()
            other.create_pool("q")
            foreign = self.t.directory / "foreign.db"
            other.cli("state", "backup", foreign)
        self.t.kill()
        self.restore(foreign)
        self.t.start(wait=False)
        self.assertEqual(self.t.wait_dead(), 1, self.t.log_tail())
        self.assertEqual(len(list(self.objects.glob("*.obj"))), 1)
        self.restore()
        self.t.start()
        self.assertEqual(len(self.t.leases()), 1)

    def test_a_restore_that_is_killed_anywhere_leaves_the_old_state_or_the_restored_one(self):
        self.t.grant("2M", "p", "--persistent")
        self.backup()
        self.t.grant("2M", "p", "--persistent")
        self.t.kill()
        for point, phases in (("restore_before_switch", ["active", "active"]),
                              ("restore_after_switch", ["active", "quarantined"]),
                              ("restore_after_aside", ["active", "quarantined"]),
                              ("restore_after_place", ["active", "quarantined"])):
            with self.subTest(point):
                killed = self.restore(check=False, env={"TERRACE_FAILPOINTS": f"{point}=crash"})
                self.assertNotEqual(killed.code, 0)
                self.t.start()
                self.assertEqual(sorted(lease["phase"] for lease in self.t.leases().values()), phases)
                self.t.kill()

    def test_an_older_state_by_hand_is_known_by_the_mark_where_no_newer_memory_is_left(self):
        self.t.grant("2M", "p", "--persistent")
        self.t.stop()
        copy = self.t.directory / "copy.db"
        shutil.copy2(self.t.state, copy)
        self.t.start()
        ended = self.t.grant("2M", "p", "--persistent")
        self.t.cli("lease", "release", str(ended["id"]))
        harness.wait_until(lambda: ended["id"] not in self.t.leases(), 30, "the end of the lease")
        self.t.kill()
        for path in self.t.state.parent.glob(self.t.state.name + "*"):
            path.unlink()
        shutil.copy2(copy, self.t.state)
        self.t.start()
        self.assertIn("older copy", self.t.log.read_text(errors="replace"))
        fresh = self.t.grant("2M", "p", "--persistent")
        self.assertGreater(fresh["epoch"], ended["epoch"] + JUMP // 2)
        self.t.restart(hard=True)  # once
        self.assertLess(self.t.grant("2M", "p", "--persistent")["epoch"], fresh["epoch"] + 10)

    def test_a_first_start_that_is_killed_anywhere_begins_anew(self):
        self.t.grant("2M", "p", "--persistent")
        self.backup()
        newer = self.t.grant("2M", "p", "--persistent")
        data = (self.objects / f"lease-{newer['id']}.obj").read_bytes()
        self.t.kill()
        for point in ("recover_before_orphans", "recover_after_orphans", "journal_before_append",
                      "journal_after_append", "journal_after_sync", "recover_before_serve"):
            with self.subTest(point):
                self.restore()
                self.t.start(failpoints=f"{point}=crash", wait=False)
                self.assertEqual(self.t.wait_dead(), -9, self.t.log_tail())
                self.t.start()
                leases = self.t.leases()
                self.assertEqual(sorted(lease["phase"] for lease in leases.values()), ["active", "quarantined"])
                self.assertEqual((self.objects / f"lease-{newer['id']}.obj").read_bytes(), data)
                self.assertGreater(leases[newer["id"]]["epoch"], newer["epoch"])
                self.t.check_invariants()
                self.t.kill()

    def test_an_older_state_that_was_copied_back_by_hand_is_known_by_the_memory(self):
        self.t.stop()
        copy = self.t.directory / "copy.db"
        shutil.copy2(self.t.state, copy)
        self.t.start()
        tenant = self.holder("newer", 23)
        epoch = next(iter(self.t.leases().values()))["epoch"]
        self.t.kill()
        for path in self.t.state.parent.glob(self.t.state.name + "*"):
            path.unlink()
        shutil.copy2(copy, self.t.state)
        self.t.start()
        self.assertEqual([lease["phase"] for lease in self.t.leases().values()], ["quarantined"])
        self.assertEqual(tenant.ask("check", 23), "same")
        self.assertGreater(self.t.grant("2M", "p", "--persistent")["epoch"], epoch + JUMP // 2)


class Configurations(Case):
    def test_what_was_exported_is_applied_to_an_empty_manager_and_then_there_is_nothing_to_do(self):
        self.t.cli("quota", "set", "alice", "--bytes", "32M", "--leases", "7")
        self.t.cli("reserve", "create", "p", "alice", "16M")
        file = self.t.directory / "config.json"
        text = self.t.cli("state", "export", json=False).out
        self.t.cli("state", "export", file)
        self.assertEqual(file.read_text(), text)
        self.assertEqual(self.t.cli("state", "export", file, check=False).code, 7)
        self.assertEqual(self.t.cli("state", "apply", file).json["plan"]["steps"], [])
        with harness.Harness(name="backup-empty") as other:
            other.start()
            planned = other.cli("state", "apply", "--dry-run", file).json["plan"]
            self.assertTrue(planned["steps"])
            self.assertEqual(other.cli("state", "export", json=False).out.count("emu:"), 0)
            done = other.cli("state", "apply", file).json["plan"]
            self.assertEqual([step["step"] for step in done["steps"]], [step["step"] for step in planned["steps"]])
            self.assertTrue(all(step["done"] for step in done["steps"]))
            self.assertEqual(other.cli("state", "export", json=False).out, text)
            self.assertIn("nothing to do", other.cli("state", "apply", file, json=False).out)
            # What the manager has besides stays.
            other.cli("quota", "set", "bob", "--leases", "1")
            left = other.cli("state", "apply", file).json["plan"]
            self.assertEqual((left["steps"], left["left"]), ([], ["the quota of tenant bob"]))

    def test_what_cannot_be_is_said_before_anything_is_done(self):
        file = self.t.directory / "config.json"
        file.write_text(self.t.cli("state", "export", json=False).out.replace(
            '"quotas": []', '"quotas": [{"tenant": "a", "leases_max": 1}]').replace(
                '"devices": [', '"devices": [{"serial": "emu:nowhere"},', 1))
        refused = self.t.cli("state", "apply", file, check=False)
        self.assertEqual(refused.code, 7, refused)
        self.assertIn("emu:nowhere", str(refused.json["error"]))
        self.assertEqual(self.t.cli("quota", "list").json["quotas"], [])
        file.write_text(file.read_text().replace("emu:nowhere", "emu:a").replace('"linear"', '"liner"'))
        wrong = self.t.cli("state", "apply", file, check=False)
        self.assertEqual(wrong.code, 2, wrong)
        self.assertIn("pools[0].placement", str(wrong.json))


if __name__ == "__main__":
    harness.main()
