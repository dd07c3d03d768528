# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed between any two steps of composing a region; afterwards the region is whole or not there, and can
be made, leased from and taken apart again."""

import real_pool
import terrace_harness as harness
from guestlib import listed
from lease_crash_test import KILLED, points
from terrace_harness import wait_until

SERIAL = "0xc0"


class RegionCrash(real_pool.RealTest):
    kind = real_pool.Pmem

    def regions(self):
        return [region for region in listed("cxl", "list", "-R") if "region" in region]

    def one_point(self, point):
        self.t.restart(failpoints=f"{point}=crash")
        self.t.cli("region", "create", SERIAL, check=False)
        wait_until(lambda: self.t.process.poll() is not None, 60, f"the crash at {point}")
        self.assertEqual(self.t.wait_dead(), KILLED)
        self.t.start()
        self.t.clean()
        there = self.t.devices_of("pmem")
        self.assertLessEqual(len(there), 1)
        serial = there[0]["serial"] if there else \
            self.t.cli("region", "create", SERIAL).json["region"]["serial"]
        self.assertEqual(len(self.regions()), 1)
        self.t.compose(serial)
        tenant = self.tenant()
        self.granted(tenant, point)
        tenant.expect("zeros", "zeros")
        tenant.expect("ok", "stamp", 1)
        tenant.expect("intact", "verify", 1)
        tenant.expect("ok", "release")
        self.t.wait_free("p", timeout=240)
        self.t.cli("pool", "delete", "p")
        self.t.cli("device", "remove", serial, "--yes")
        self.t.cli("region", "destroy", serial, "--yes")
        self.assertEqual(self.regions(), [])
        self.assertEqual(self.t.devices_of("pmem"), [])

    def test_every_point(self):
        wanted = points("region_")
        self.assertTrue(wanted)
        for point in wanted:
            with self.subTest(point):
                self.one_point(point)
                print(f"{point}: recovered", flush=True)


if __name__ == "__main__":
    harness.main()
