# SPDX-License-Identifier: Apache-2.0
"""The guest loses power with leases held, and boots again over the same media and label areas: what is persistent is
there again, what is not is taken back, and nobody reads another's bytes. Two boots (catalog.py). Which memory: --kind.
"""

import os
import shutil
import sys
import unittest

import guestlib
import real_pool
import terrace_harness as harness
from guestlib import listed
from terrace_harness import wait_until

KINDS = {"devdax": real_pool.Devdax, "pmem": real_pool.Pmem}
BOOT = int(os.environ.get("TERRACE_QEMU_BOOT", "0"))
KEPT = guestlib.OUT / "state"


class Reboot(real_pool.RealTest):
    def setUp(self):
        self.t = real_pool.Service(name=self.kind.name)
        self.addCleanup(self.t.close)
        if BOOT == 1:  # the store was on a disk
            for path in KEPT.iterdir():
                shutil.copy(path, self.t.directory)
        self.t.start("--host", "guest")

    def tearDown(self):
        """What the first boot leaves is for the second one."""

    @unittest.skipUnless(BOOT == 0, "is for the first boot")
    def test_first_boot(self):
        self.compose()
        lease = self.t.cli("lease", "grant", "--pool", "p", "--size", self.kind.lease_bytes, "--label", "kept",
                           "--persistent").json["lease"]
        kept, brief = self.tenant(), self.tenant()
        self.assertRegex(kept.ask("attach", lease["id"]), r"^\d+ \d+$")
        kept.expect("ok", "stamp", 1)
        self.granted(brief, "brief", ttl_s=3600)
        brief.expect("ok", "stamp", 2)
        self.assert_objects(2)
        self.t.kill()
        KEPT.mkdir()
        for path in self.t.directory.glob("state.db*"):
            shutil.copy(path, KEPT)
        os.sync()

    @unittest.skipUnless(BOOT == 1, "is for the second boot")
    def test_second_boot(self):
        leases = {lease["label"]: lease for lease in self.t.leases().values()}
        if self.kind is real_pool.Pmem:
            self.assertEqual(len([region for region in listed("cxl", "list", "-R") if region]), 1,
                             "the region is made again")
            kept = self.tenant()
            self.assertEqual(leases["kept"]["phase"], "active")
            self.assertRegex(kept.ask("attach", leases["kept"]["id"]), r"^\d+ \d+$")
            kept.expect("intact", "verify", 1)
            kept.expect("ok", "release")
        for lease in self.t.leases().values():
            if lease["phase"] == "active":
                self.t.cli("lease", "revoke", lease["id"], "--grace", "100ms", check=False)
        wait_until(lambda: not self.t.leases(), 120, "the end of the old leases", interval=0.2)
        self.t.wait_free("p", timeout=240)
        tenant = self.tenant()
        self.granted(tenant, "both", 2 * self.kind.lease_bytes)  # where the two leases were
        tenant.expect("zeros", "zeros")
        tenant.expect("ok", "release")
        self.t.clean()


if __name__ == "__main__":
    if "--kind" in sys.argv:
        at = sys.argv.index("--kind")
        Reboot.kind = KINDS[sys.argv[at + 1]]
        del sys.argv[at:at + 2]
    harness.main()
