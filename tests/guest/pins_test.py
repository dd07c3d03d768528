# SPDX-License-Identifier: Apache-2.0
"""Pages that a holder has beyond its fence: what they hold never becomes another's, the memory waits until they end,
and then it is free by itself. Leases are dax devices or namespaces: --kind."""

import os
import pathlib
import subprocess
import sys
import time

import guestlib
import real_pool
import terrace_harness as harness
from guestlib import MIB, first_byte
from terrace_harness import wait_until

PAGE = 4096
KINDS = {"devdax": real_pool.Devdax, "pmem": real_pool.Pmem}


class Pins(real_pool.RealTest):
    def setUp(self):
        super().setUp()
        pool = self.compose()
        self.assertEqual((pool["isolation"], pool["trust"]), ("verified", "none"))
        detail = next(one["detail"] for one in self.t.devices_of(self.kind.name) if one["serial"] == self.serial)
        self.assertIn("pages pinned beyond a fence are counted", detail)

    def phase(self, lease):
        return self.t.leases().get(lease, {}).get("phase", "gone")

    def revoke(self, lease):
        self.t.cli("lease", "revoke", lease, "--grace", "0s")

    def assert_kept(self, lease, holder):
        wait_until(lambda: self.phase(lease) == "quarantined", 60, f"lease {lease} being kept")
        reason = self.t.leases()[lease]["reason"]
        self.assertIn("pages of this memory", reason)
        found = self.t.cli("fsck", check=False).json["findings"]
        self.assertIn(f"process {holder.pid} ", " ".join(finding["subject"] for finding in found))
        time.sleep(2.5)  # looked at again, more than once
        self.assertEqual(self.phase(lease), "quarantined")

    def assert_let_go(self, lease):
        wait_until(lambda: self.phase(lease) == "gone", 60, f"lease {lease} leaving quarantine, and its end")
        self.t.wait_free("p", timeout=60)
        self.t.clean()

    def others(self):
        """Leases of another tenant, stamped: where the memory was granted again one of them would have it."""
        others = [self.tenant() for _ in range(2)]
        for number, tenant in enumerate(others):
            self.granted(tenant, f"other-{number}")
            tenant.expect("zeros", "zeros")
            tenant.expect("ok", "stamp", 9)
        return others

    def assert_only_the_holder_saw_it(self, lease, where, others):
        """The pins have ended: others have what they wrote, and the next tenant of that memory finds zeros."""
        for other in others:
            other.expect("intact", "verify", 9)
            other.expect("ok", "release")
        self.assert_let_go(lease)
        self.assert_no_oops()
        fresh = self.tenant()
        self.granted(fresh, "again")
        self.assertEqual(fresh.ask("extents"), where)
        fresh.expect("zeros", "zeros")

    def kernel_log(self):
        return subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout

    def assert_no_oops(self):
        self.assertNotIn("BUG: ", self.kernel_log())
        self.assertNotIn("Oops", self.kernel_log())

    def test_a_page_in_a_pipe_shows_its_old_bytes_and_keeps_the_memory(self):
        holder = self.tenant()
        lease = self.granted(holder, "first")
        where = holder.ask("extents")
        holder.expect("ok", "stamp", 1)
        holder.expect("ok", "fill", 4 * PAGE, PAGE, 5)
        holder.expect("ok", "pin", 4 * PAGE, 4)  # of one block, which has one count
        before = self.t.cli("pool", "show", "p").json["pool"]["free_bytes"]
        self.revoke(lease)
        self.assert_kept(lease, holder)
        holder.expect("SIGBUS", "verify", 1)
        pool = self.t.cli("pool", "show", "p").json["pool"]
        self.assertEqual((pool["quarantined_bytes"], pool["free_bytes"]), (self.kind.lease_bytes, before))
        others = self.others()
        self.assertEqual(int(holder.ask("unpin")), first_byte(5), "a page in a pipe has another's bytes")
        wait_until(lambda: self.phase(lease) == "quarantined", 60, "its being kept")
        self.t.cli("lease", "release", lease, check=False)  # tried at once, and kept again
        wait_until(lambda: "3 of 4 pages" in self.t.leases()[lease]["reason"], 60, "what is left being told")
        for _ in range(3):
            holder.ask("unpin")
        self.assert_only_the_holder_saw_it(lease, where, others)

    def test_a_write_that_is_held_up_reaches_nobody(self):
        holder = self.tenant()
        lease = self.granted(holder, "first")
        where = holder.ask("extents")
        holder.expect("ok", "stamp", 1)
        holder.expect("ok", "begin-write", 0)
        self.revoke(lease)
        self.assert_kept(lease, holder)
        others = self.others()
        holder.ask("finish-write", 0x5A)
        self.assert_only_the_holder_saw_it(lease, where, others)

    def test_direct_input_under_way_ends_before_the_fence(self):
        guestlib.command("modprobe", "-C", "/nonexistent", "brd", "rd_nr=1", "rd_size=4096")
        disk = pathlib.Path("/dev/ram0")
        wait_until(disk.exists, 10, "a disk")
        holder = self.tenant()
        for _ in range(3):
            lease = self.granted(holder, "first")
            holder.expect("ok", "read-directly", 0, MIB, disk)
            wait_until(lambda: int(holder.ask("reads").split()[-1]) > 3, 60, "direct reads")
            self.revoke(lease)
            wait_until(lambda: not holder.ask("reads").startswith("reading"), 60, "the end of direct reads")
            self.assert_let_go(lease)
            holder.close()
            holder = self.tenant()
        self.assert_no_oops()

    def test_it_is_kept_over_a_kill_of_the_daemon_and_let_go_after_it(self):
        holder = self.tenant()
        lease = self.granted(holder, "first")
        holder.expect("ok", "stamp", 1)
        holder.expect("ok", "pin", 0)
        self.revoke(lease)
        self.assert_kept(lease, holder)
        self.t.kill()
        self.t.start()
        time.sleep(2.5)
        self.assertEqual(self.phase(lease), "quarantined")
        self.t.check_invariants()
        self.t.cli("lease", "release", lease, check=False)  # tried at once, and kept again
        wait_until(lambda: self.phase(lease) == "quarantined", 60, "its being kept again")
        holder.ask("unpin")
        self.assert_let_go(lease)
        self.assert_no_oops()

    def test_the_end_of_the_holder_is_the_end_of_its_pins(self):
        holder = self.tenant()
        lease = self.granted(holder, "first")
        holder.expect("ok", "pin", 0)
        self.revoke(lease)
        self.assert_kept(lease, holder)
        os.kill(holder.pid, 9)
        self.assert_let_go(lease)
        self.assert_no_oops()


    def back_after(self, lease):
        begin = time.monotonic()
        self.revoke(lease)
        wait_until(lambda: self.phase(lease) == "gone", 60, f"lease {lease} being back")
        return time.monotonic() - begin

    def test_a_holder_that_agreed_is_ended_and_the_memory_is_back_at_once(self):
        holder = self.tenant()
        lease = int(holder.ask("grant-kill", "p", self.kind.lease_bytes, "first").split()[0])
        where = holder.ask("extents")
        holder.expect("ok", "stamp", 1)
        holder.expect("ok", "pin", 4 * PAGE, 4)
        took = self.back_after(lease)
        holder.process.wait(30)
        events = self.t.cli("events").json["events"]
        self.assertNotIn("lease_quarantined", [event["kind"] for event in events])
        ended = [event["message"] for event in events if event["kind"] == "lease_holder_ended"]
        self.assertEqual(len(ended), 1)
        self.assertIn(f"[{holder.pid}]", ended[0])
        fresh = self.tenant()
        self.granted(fresh, "again")
        self.assertEqual(fresh.ask("extents"), where)
        fresh.expect("zeros", "zeros")
        plain = self.tenant()
        beside = self.granted(plain, "plain")
        self.assert_no_oops()
        print(f"from the revoke to free memory: {took:.2f} s with pins of a holder that is ended, "
              f"{self.back_after(beside):.2f} s without pins of one that goes on", flush=True)


if __name__ == "__main__":
    if "--kind" in sys.argv:
        at = sys.argv.index("--kind")
        Pins.kind = KINDS[sys.argv[at + 1]]
        del sys.argv[at:at + 2]
    harness.main()
