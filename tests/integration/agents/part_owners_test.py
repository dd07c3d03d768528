# SPDX-License-Identifier: Apache-2.0
"""Write ownership by the manager of processes on further hosts: their agents say which of them have ended.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/agents/part_owners_test.py [TestClass[.test]]
"""

import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "owners"))
import fabric as fabric_module  # noqa: E402
from fabric import Fabric, harness, wait_until  # noqa: E402
from owners_test import Holder  # noqa: E402

WHY_NOT = fabric_module.why_not()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class OwnersOnHosts(unittest.TestCase):
    def setUp(self):
        self.fabric = Fabric(host_lease="20s")
        self.fabric.__enter__()
        self.addCleanup(self.fabric.__exit__)
        self.manager = self.fabric.manager()
        self.manager.create_pool("p")
        self.b = self.fabric.agent("hostb")

    def holder(self, *command):
        holder = Holder(self.b)
        self.addCleanup(holder.close)
        self.assertEqual(holder.first, "ready", self.b.log_tail())
        self.assertTrue(holder.ask(*(command or ("attach", "space"))).isdigit())
        return holder

    def owners(self):
        lease = self.manager.cli("lease", "show", "space").json["leases"][0]
        return {owner["part"]: owner for owner in lease["owners"]}

    def refused(self, answer, code, *words):
        self.assertEqual(answer.split()[:2], ["error", code], answer)
        for word in words:
            self.assertIn(str(word), answer)

    def back(self, *holders):
        for holder in holders:
            wait_until(lambda h=holder: h.ask("connected") == "yes", 60, "the session's return")

    def test_a_part_goes_to_the_next_process_of_the_host_when_its_owner_is_dead(self):
        first, second = self.holder("grant-fixed", "space"), self.holder()
        self.assertEqual(first.ask("own", 2), "2 noncoherent")
        self.refused(second.ask("claim", 2, 7), "busy", "part 2", first.pid, "hostb")
        self.assertEqual(second.ask("dead", 2, 1), "no")
        owner = self.owners()[2]
        self.assertEqual((owner["epoch"], owner["owned"], owner["pid"], owner["host"]), (1, True, first.pid, "hostb"))
        self.assertIn(f"process {first.pid} on host hostb", self.manager.cli("lease", "show", "space", json=False).out)
        first.kill()
        wait_until(lambda: second.ask("dead", 2, 1) == "yes", 60, "the owner's end")
        self.assertEqual(second.ask("own", 2), "2 noncoherent")
        self.assertEqual((self.owners()[2]["epoch"], self.owners()[2]["pid"]), (2, second.pid))
        self.assertEqual(second.ask("leave"), "ok")
        self.assertFalse(self.owners()[2]["owned"])
        self.assertEqual(self.holder().ask("claim", 2, 9), "3")
        self.manager.check_invariants()

    def test_owners_outlive_agent_and_manager_and_who_ends_meanwhile_is_found_out(self):
        first, second = self.holder("grant-fixed", "space"), self.holder()
        self.assertEqual(first.ask("own", 0).split()[0], "0")
        self.assertEqual(second.ask("own", 1).split()[0], "1")
        before = self.owners()
        for host in (self.b, self.manager):
            host.kill()
            host.start()
            self.back(first, second)
            wait_until(lambda: self.owners() == before, 60, "the owners")
            wait_until(lambda: "busy" in second.ask("claim", 0, 5), 60, "the refusal")
        self.b.kill()
        first.kill()
        self.b.start()
        self.back(second)
        wait_until(lambda: second.ask("dead", 0, 1) == "yes", 60, "the owner's end")
        self.assertEqual(second.ask("claim", 0, 6), "2")
        self.manager.check_invariants()

    # What its own clients ask does not reach the manager meanwhile: an error is no death either.
    def test_while_the_agent_is_stopped_nobody_is_dead(self):
        first, second = self.holder("grant-fixed", "space"), self.holder()
        self.assertEqual(first.ask("claim", 0, 5), "1")
        first.kill()
        os.kill(self.b.pid, signal.SIGSTOP)
        self.addCleanup(lambda: os.kill(self.b.pid, signal.SIGCONT))
        self.assertNotEqual(second.ask("dead", 0, 1), "yes")
        os.kill(self.b.pid, signal.SIGCONT)
        wait_until(lambda: second.ask("dead", 0, 1) == "yes", 60, "the owner's end")

    def test_a_movable_lease_has_no_owners_there(self):
        self.refused(self.holder("grant", "space").ask("claim", 0, 5), "unsupported", "movable", "hostb")

    def test_a_kv_space_in_a_lease_of_a_further_host(self):
        self.b.cli("lease", "grant", "--pool", "p", "--size", "16M", "--mode", "shared_coherent", "--label", "space",
                   "--persistent")
        self.b.cli("kv", "format", "space", "--block", "64K", "--parts", "2")
        block, out = self.b.runtime / "block", self.b.runtime / "out"
        block.write_bytes(bytes(range(256)) * 200)
        socket = self.b.runtime / "kv.sock"
        served = self.b.popen(self.b.terrace, "kv", "serve", "space", "--listen", f"unix:{socket}", stdout=subprocess.PIPE)
        for end in (served.stdout.close, served.wait, served.kill):
            self.addCleanup(end)
        wait_until(socket.exists, 60, "the server")
        self.b.cli("kv", "put", "space", "--key", "first", block)
        served.kill()
        served.wait()
        for key in ("second", "third", "fourth"):  # in the part of the dead one, or beside it
            self.b.cli("kv", "put", "space", "--key", key, block)
        for key in ("first", "second", "third", "fourth"):
            self.b.cli("kv", "get", "space", "--key", key, "--output", out, json=False)
            self.assertEqual(out.read_bytes(), block.read_bytes())
        self.b.cli("kv", "verify", "space")
        parts = self.b.cli("kv", "stat", "space").json["parts"]
        self.assertEqual(sum(part["blocks"] for part in parts), 4, parts)
        self.assertNotIn("owned", [part["state"] for part in parts], parts)


if __name__ == "__main__":
    harness.main()
