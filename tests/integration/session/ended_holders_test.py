# SPDX-License-Identifier: Apache-2.0
"""Leases go back when every process that held them has ended, long before their TTL is over; and not before.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/session/ended_holders_test.py [TestClass[.test]]
"""

import os
import pathlib
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from session_tenant import Tenant  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

MIB = 1 << 20
LONG = 600 * 10**9  # a TTL that no test waits for
A_WHILE = 1.5       # in which a lease that may go back would have gone


class EndedHolders(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "64M"}, name="ended")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")

    def tenant(self):
        tenant = Tenant(self.t)
        self.addCleanup(tenant.close)
        self.assertEqual(tenant.first, "ready")
        return tenant

    def holder(self, label="one", detached=0):
        tenant = self.tenant()
        lease = int(tenant.ask("grant", 2 * MIB, LONG, label, 0, 0, detached).split()[0])
        self.assertEqual(tenant.ask("fill", 7), "ok")
        return tenant, lease

    def stays(self, lease):
        time.sleep(A_WHILE)
        self.assertEqual(self.t.leases()[lease]["phase"], "active")

    def test_a_clean_end(self):
        for _ in range(3):  # the label is free again, as the next run finds
            tenant, _ = self.holder()
            self.assertEqual(tenant.close(), 0)
            self.t.wait_free(timeout=20)
        self.t.check_invariants()

    def test_a_killed_process(self):
        tenant, lease = self.holder()
        tenant.kill()
        self.t.wait_free(timeout=20)
        entries = self.t.cli("audit", "--subject", f"lease {lease}").json["entries"]
        self.assertIn("has ended", str(entries))
        self.t.check_invariants()

    # The first lease's file of each manager has the same inode number, each on a file system of its own.
    def test_a_killed_process_beside_another_manager(self):
        with Harness(devices={"a": "64M"}, name="ended-other") as other:
            other.start()
            other.create_pool("p")
            theirs = Tenant(other)
            self.addCleanup(theirs.close)
            theirs.ask("grant", 2 * MIB, LONG, "one", 0, 0, 0)
            self.assertEqual(theirs.ask("fill", 7), "ok")
            ours, _ = self.holder()
            ours.kill()
            self.t.wait_free(timeout=20)
            self.assertEqual([lease["phase"] for lease in other.leases().values()], ["active"])

    def test_many_leases_of_a_process(self):
        tenant = self.tenant()
        self.assertEqual(tenant.ask("hold", 16, 2 * MIB, LONG), "16 of 16")
        tenant.kill()
        self.t.wait_free(timeout=20)

    def test_a_detached_lease_stays(self):
        tenant, lease = self.holder(detached=1)
        tenant.kill()
        self.stays(lease)
        other = self.tenant()
        self.assertEqual(other.ask("attach", "one", "rw").split()[0], str(lease))
        self.assertEqual(other.ask("check", 7), "same")
        other.kill()  # who attaches it does not change what was asked for
        self.stays(lease)

    def test_a_lease_of_the_command_line_stays(self):
        self.t.cli("lease", "grant", "--pool", "p", "--size", "2M", "--ttl", "10m", "--label", "cli")
        [lease] = self.t.leases()
        self.stays(lease)
        other = self.tenant()
        other.ask("attach", "cli", "rw")
        other.kill()
        self.stays(lease)

    def test_another_holder_keeps_it(self):
        tenant, lease = self.holder()
        tenant.process.send_signal(signal.SIGSTOP)
        self.addCleanup(tenant.kill)
        self.stays(lease)  # stopped is not ended
        tenant.process.send_signal(signal.SIGCONT)
        child = int(tenant.ask("fork"))
        tenant.kill()
        self.stays(lease)  # a forked child has its descriptor
        os.kill(child, signal.SIGKILL)
        self.t.wait_free(timeout=20)

    def test_a_holder_that_comes_back(self):
        tenant, lease = self.holder()
        for _ in range(2):
            self.t.kill()
            self.t.start()
            wait_until(lambda: tenant.ask("connected") == "yes", what="the session's return")
        self.stays(lease)
        self.assertEqual(tenant.ask("check", 7), "same")
        tenant.kill()  # what it had asked for was said again to the new manager
        self.t.wait_free(timeout=20)

    # Nobody watches then; the next manager knows the processes from the one before.
    def test_holders_that_end_while_no_manager_runs(self):
        for hard in (True, False):
            dies, _ = self.holder("dies")
            lives, lease = self.holder("lives")
            left, left_lease = self.holder("left", detached=1)
            self.t.kill() if hard else self.t.stop()
            dies.kill()
            left.kill()
            self.t.start()
            wait_until(lambda: {row["label"] for row in self.t.leases().values()} == {"lives", "left"},
                       what="the lease of the process that ended", timeout=20)
            self.assertEqual(lives.ask("check", 7), "same")
            self.t.kill()
            lives.kill()  # it may not have been back yet
            self.t.start()
            wait_until(lambda: lease not in self.t.leases(), what="the other one", timeout=20)
            self.stays(left_lease)
            self.t.cli("lease", "release", left_lease)
            self.t.wait_free(timeout=20)

    def test_what_was_written_of_holders_may_be_damaged(self):
        file = pathlib.Path(f"{self.t.state}-holders")
        for text in (b"", b"held\nheld 1\nforgotten x\n\xff\x00" + b"held 1 2 3" * 4000, None):
            tenant, lease = self.holder()
            self.t.kill()
            self.assertTrue(file.exists(), list(file.parent.iterdir()))
            file.unlink() if text is None else file.write_bytes(text)
            self.t.start()
            wait_until(lambda: tenant.ask("connected") == "yes", what="the session's return")
            self.stays(lease)
            tenant.kill()
            self.t.wait_free(timeout=20)

    def test_one_given_to_another_tenant_stays(self):
        tenant, lease = self.holder()
        self.assertEqual(tenant.ask("transfer", "other"), "ok")
        tenant.kill()
        self.stays(lease)

    def test_processes_that_come_and_go(self):
        """Grants, ends and kills at once, with a label that only one can have: each ends in a free pool."""
        end = time.monotonic() + 10
        runs = 0
        while time.monotonic() < end:
            tenants = [self.tenant() for _ in range(4)]
            for i, tenant in enumerate(tenants):
                self.assertNotIn("error", tenant.ask("grant", 2 * MIB, LONG, f"label-{i}"))
            for i, tenant in enumerate(tenants):
                tenant.kill() if (runs + i) % 2 else tenant.close()
            self.t.wait_free(timeout=20)
            runs += 1
        self.t.check_invariants()


if __name__ == "__main__":
    harness.main()
