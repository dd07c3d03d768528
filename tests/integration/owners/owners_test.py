# SPDX-License-Identifier: Apache-2.0
"""Write ownership by the manager: processes that claim parts of a tensor space, and die; and a manager that dies.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/owners/owners_test.py [TestClass[.test]]
"""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402


class Holder:
    """owner_client as a process."""

    def __init__(self, service):
        program = harness.find_binary("tests/integration/owners/owner_client", service.build_dir)
        self.process = service.popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self.process.stdout.readline().strip()

    @property
    def pid(self):
        return self.process.pid

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def close(self):
        if self.process.stdout.closed:
            return
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class OwnersTest(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "64M"}, name="owners")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")

    def holder(self, command="attach"):
        holder = Holder(self.t)
        self.addCleanup(holder.close)
        self.assertEqual(holder.first, "ready")
        self.assertTrue(holder.ask(command, "space").isdigit())
        return holder

    def owners(self):
        lease = self.t.cli("lease", "show", "space").json["leases"][0]
        return {owner["part"]: owner for owner in lease["owners"]}

    def assertRefused(self, answer, code, *words):
        self.assertEqual(answer.split()[:2], ["error", code], answer)
        for word in words:
            self.assertIn(str(word), answer)

    def test_a_part_is_one_process_s_and_goes_to_the_next_when_that_is_dead(self):
        first, second = self.holder("grant"), self.holder()
        self.assertEqual(first.ask("own", 2), "2 noncoherent")  # nobody said what the pool's memory is
        self.assertRefused(second.ask("claim", 2, 7), "busy", "part 2 of lease 1", first.pid)
        self.assertEqual(second.ask("own", 2).split()[:2], ["error", "busy"])
        self.assertEqual(second.ask("dead", 2, 1), "no")
        owner = self.owners()[2]
        self.assertEqual((owner["epoch"], owner["owned"], owner["ended"], owner["pid"]), (1, True, False, first.pid))
        self.assertIn(f"2, epoch 1: owner_client[{first.pid}]",
                      self.t.cli("lease", "show", "space", json=False).out)
        first.kill()
        self.assertEqual(second.ask("dead", 2, 1), "yes")
        self.assertTrue(self.owners()[2]["ended"])
        self.assertEqual(second.ask("own", 2), "2 noncoherent")
        owner = self.owners()[2]
        self.assertEqual((owner["epoch"], owner["pid"]), (2, second.pid))
        self.assertEqual(second.ask("leave"), "ok")
        self.assertFalse(self.owners()[2]["owned"])
        self.assertEqual(self.holder().ask("claim", 2, 9), "3")
        self.t.check_invariants()

    def test_owners_outlive_the_manager(self):
        first, second = self.holder("grant"), self.holder()
        self.assertEqual(first.ask("own", 0).split()[0], "0")
        self.assertEqual(second.ask("own", 1).split()[0], "1")
        before = self.owners()
        for _ in range(3):
            self.t.kill()
            self.t.start()
            self.assertEqual(self.owners(), before)
            for holder in (first, second):
                wait_until(lambda h=holder: h.ask("connected") == "yes", timeout=60, what="the session's return")
            self.assertRefused(second.ask("claim", 0, 5), "busy", first.pid)
        # It ends while nobody looks: found out from its number and when it was started.
        self.t.kill()
        first.kill()
        self.t.start()
        wait_until(lambda: second.ask("connected") == "yes", timeout=60, what="the session's return")
        self.assertEqual(second.ask("dead", 0, 1), "yes")
        self.assertEqual(second.ask("claim", 0, 6), "2")
        self.assertRefused(self.holder().ask("claim", 1, 5), "busy", second.pid)
        self.t.check_invariants()

    def test_a_reader_is_told_that_the_writer_died(self):
        self.t.cli("pool", "set", "p", "--coherence", "coherent")
        writer, reader = self.holder("grant"), self.holder()
        self.assertEqual(writer.ask("own"), "0 coherent")
        self.assertEqual(reader.ask("watch"), "reads coherent")
        self.assertEqual(writer.ask("create", "double"), "ok")
        self.assertEqual(writer.ask("create-single", "single"), "ok")
        for name in ("double", "single"):
            self.assertEqual(writer.ask("publish", name, 17), "ok")
            self.assertEqual(reader.ask("read", name), "17")
        self.assertEqual(writer.ask("begin", "single"), "ok")
        writer.kill()
        self.assertRefused(reader.ask("read", "single"), "unavailable")
        self.assertEqual(reader.ask("read", "double"), "17")
        heir = self.holder()
        self.assertEqual(heir.ask("own"), "0 coherent")
        self.assertEqual(heir.ask("publish", "single", 18), "ok")
        self.assertEqual(reader.ask("read", "single"), "18")
        self.assertEqual(self.owners()[0]["epoch"], 2)

    def test_who_gives_back_what_it_does_not_own_keeps_its_lease(self):
        first, second = self.holder("grant"), self.holder()
        self.assertEqual(first.ask("claim", 0, 5), "1")
        self.assertRefused(second.ask("release", 1, 1), "invalid_argument", "part 1 of lease 1")
        self.assertRefused(second.ask("release", 0, 7), "invalid_argument")
        self.assertRefused(second.ask("release", 0, 1), "permission_denied")
        self.assertEqual(second.ask("claim", 1, 6), "1")  # its lease lives on
        self.assertEqual(first.ask("release", 0, 1), "ok")
        self.assertEqual(second.ask("claim", 0, 7), "2")

    def test_who_attached_read_only_owns_nothing(self):
        self.holder("grant")
        reader = self.holder("attach-read")
        self.assertRefused(reader.ask("claim", 0, 1), "permission_denied", "read-only")
        self.assertRefused(reader.ask("own"), "permission_denied", "read-only")
        self.assertEqual(self.owners(), {})

    def test_the_coherence_of_a_pool_is_said_and_kept(self):
        self.assertEqual(self.t.cli("pool", "show", "p").json["pool"]["coherence"], "unknown")
        self.assertIn("treated as noncoherent", self.t.cli("pool", "show", "p", json=False).out)
        said = self.t.cli("pool", "set", "p", "--coherence", "noncoherent").json["pool"]
        self.assertEqual(said["coherence"], "noncoherent")
        self.t.kill()
        self.t.start()
        self.assertEqual(self.t.cli("pool", "list").json["pools"][0]["coherence"], "noncoherent")
        self.assertIn("noncoherent", self.t.cli("pool", "list", json=False).out)
        self.assertNotEqual(self.t.cli("pool", "set", "p", "--coherence", "maybe", check=False).code, 0)

    def test_whether_tenants_trust_each_other_is_said_and_kept(self):
        self.assertEqual(self.t.cli("pool", "show", "p").json["pool"]["trust"], "none")
        said = self.t.cli("pool", "set", "p", "--trust", "mutual", "--coherence", "noncoherent").json["pool"]
        self.assertEqual((said["trust"], said["coherence"], said["isolation"]), ("mutual", "noncoherent", "verified"))
        self.t.restart(hard=True)
        self.assertEqual(self.t.cli("pool", "list").json["pools"][0]["trust"], "mutual")
        self.t.restart()  # from the database, not the journal
        self.assertEqual(self.t.cli("pool", "set", "p", "--trust", "none").json["pool"]["trust"], "none")
        self.assertEqual(self.t.cli("pool", "show", "p").json["pool"]["coherence"], "noncoherent")
        nothing = self.t.cli("pool", "set", "p", check=False)
        self.assertEqual(nothing.code, 2, nothing)
        self.assertIn("--coherence or --trust", str(nothing))
        self.assertNotEqual(self.t.cli("pool", "set", "p", check=False).code, 0)
        self.assertNotEqual(self.t.cli("pool", "set", "q", "--coherence", "coherent", check=False).code, 0)
        self.t.cli("pool", "delete", "p")
        made = self.t.cli("pool", "create", "q", "--device", "emu:a", "--coherence", "coherent").json["pool"]
        self.assertEqual(made["coherence"], "coherent")


if __name__ == "__main__":
    harness.main()
