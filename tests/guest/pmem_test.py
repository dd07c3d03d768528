# SPDX-License-Identifier: Apache-2.0
"""Regions of persistent memory: composed, refused in words, tried before they are offered, made whole after the daemon
was killed at any step of it, and taken over with what somebody else left on them."""

import unittest

import guestlib
import real_pool
import terrace_harness as harness
from guestlib import MIB, listed
from terrace_harness import HarnessError

KILLED = -9
C0, C1 = "0xc0", "0xc1"


def memdevs():
    return {f"{memdev['serial']:#x}" for memdev in listed("cxl", "list", "-M")}


def regions():
    """The kernel's regions, as cxl lists them: whole or not."""
    found = []
    for entry in listed("cxl", "list", "-R", "-i"):
        nested = [value for key, value in entry.items() if key.startswith("regions")]
        found += [region for group in nested for region in group] if nested else [entry]
    return [region for region in found if "region" in region]


def free_dram():
    for line in guestlib.read("/proc/meminfo").splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no MemFree")


class PmemTest(unittest.TestCase):
    def setUp(self):
        self.t = real_pool.Service(name="pmem")
        self.addCleanup(self.t.close)
        self.t.start()
        self.addCleanup(self.clear)

    def clear(self):
        if not self.t.pid:
            self.t.start()
        for pool in self.t.cli("pool", "list").json["pools"]:
            for lease in self.t.leases().values():
                self.t.cli("lease", "release", lease["id"], check=False)
            self.t.wait_free(pool["name"], timeout=120)
            self.t.cli("pool", "delete", pool["name"])
        for region in self.t.cli("region", "list").json["regions"]:
            if region["adopted"]:
                self.t.cli("device", "remove", region["serial"], "--yes")
            self.t.cli("region", "destroy", region["serial"], "--yes")
        self.assertEqual(regions(), [])

    def refused(self, *words):
        told = self.t.cli(*words, check=False)
        self.assertNotEqual(told.code, 0, told.out)
        return told.json["error"]["message"]


@unittest.skipUnless(guestlib.topology() == "one-port", "shows the trap of one root port")
class OnePort(PmemTest):
    def test_a_region_that_reads_as_zeros_is_refused_with_the_reason(self):
        message = self.refused("pool", "create", "p", "--memdev", C0, "--yes")
        self.assertIn("reads back as zeros", message)
        self.assertIn("second root port", message)
        self.assertEqual(regions(), [])
        self.assertEqual(self.t.cli("region", "list").json["regions"], [])
        self.assertEqual(self.t.cli("pool", "list").json["pools"], [])


@unittest.skipUnless(guestlib.topology() == "interleave", "needs two memdevs below one host bridge")
class OneBridge(PmemTest):
    def test_a_second_region_below_one_bridge_is_refused_with_the_reason(self):
        self.t.cli("region", "create", C0)
        message = self.refused("region", "create", C1)
        self.assertIn("one region per host bridge on this platform", message)
        self.assertEqual(len(regions()), 1)

    def test_granularity_is_what_was_asked_for(self):
        self.t.cli("region", "create", C0, C1, "--granularity", "256")
        self.assertEqual(listed("cxl", "list", "-R")[0]["interleave_granularity"], 256)


@unittest.skipUnless(guestlib.topology() == "two-bridges", "needs a window over two host bridges")
class TwoBridges(PmemTest):
    def test_the_order_that_the_window_wants_is_found(self):
        for order in ((C1, C0), (C0, C1)):
            made = self.t.cli("region", "create", *order).json["region"]
            self.assertIn(made["serial"], ("pmem:0xc0.0xc1", "pmem:0xc1.0xc0"))
            self.assertEqual(len(regions()), 1)
            self.t.cli("region", "destroy", made["serial"], "--yes")
            self.assertEqual(regions(), [])

    def test_one_of_its_memdevs_alone_is_refused_with_the_reason(self):
        self.assertIn("interleaves over 2 host bridges", self.refused("region", "create", C0))


@unittest.skipUnless(guestlib.topology() == "standard", "needs two windows")
class Standard(PmemTest):
    def test_what_cannot_be_is_refused_in_words(self):
        self.assertEqual(memdevs(), {C0, C1})
        self.assertIn("there is no memdev 0xc7; there are: 0xc", self.refused("region", "create", "0xc7"))
        self.assertIn("does not lead to memdev", self.refused("region", "create", C0, C1))
        self.assertIn("multiple of 256 MiB", self.refused("region", "create", C0, "--size", "100M"))
        self.assertIn("granularity", self.refused("region", "create", C0, "--granularity", "300"))
        self.assertEqual(regions(), [])

    def test_a_pool_of_two_regions_that_cannot_be_made_leaves_none(self):
        self.t.cli("pool", "create", "p", "--memdev", C0, "--yes")
        self.refused("pool", "create", "p", "--memdev", C1, "--yes")  # the name is taken
        self.assertEqual(len(regions()), 1)
        self.assertEqual(len([d for d in self.t.devices_of("pmem")]), 1)

    def test_what_is_on_a_region_is_told_and_removed_by_adopting_it(self):
        made = self.t.cli("region", "create", C0).json["region"]
        guestlib.command("ndctl", "create-namespace", "-m", "devdax", "-s", "32M", "-a", "2M", "-n", "precious")
        self.t.restart()
        self.assertEqual(len(listed("ndctl", "list", "-N")), 1, "nobody adopted it")
        self.t.cli("pool", "create", "p", "--device", made["serial"], "--adopt", "--yes")
        self.assertEqual([one for one in listed("ndctl", "list", "-N") if one.get("size")], [])

    def test_leases_have_all_their_bytes_and_cost_little_dram(self):
        self.t.cli("pool", "create", "p", "--memdev", C0, "--yes")
        before = free_dram()
        self.t.cli("lease", "grant", "--pool", "p", "--size", "64M", "--label", "wide")
        used = before - free_dram()
        device = next(iter(real_pool.Pmem.objects().values()))
        self.assertGreaterEqual(device.size, 64 * MIB)
        self.assertLess(used, 16 * MIB, "DRAM for page structures, and whatever else the machine did")

    def test_killed_at_any_step_of_a_region_the_next_start_leaves_it_whole_or_nothing(self):
        for point in ("region_after_record", "region_after_create", "region_after_commit"):
            with self.subTest(point=point):
                self.t.stop()
                self.t.start(failpoints=f"{point}=crash")
                self.t.cli("region", "create", C0, check=False)
                self.assertEqual(self.t.wait_dead(), KILLED, self.t.log_tail())
                self.t.start()
                self.assertEqual(regions(), [], "it was never acknowledged")
                made = self.t.cli("region", "create", C0).json["region"]
                self.t.cli("region", "destroy", made["serial"], "--yes")

    def test_the_region_comes_back_when_somebody_else_takes_it_apart(self):
        self.t.cli("pool", "create", "p", "--memdev", C0, "--yes")
        self.t.stop()
        for region in regions():  # as somebody with the tools would, while no manager runs
            guestlib.command("cxl", "disable-region", region["region"], check=False)
            guestlib.command("cxl", "destroy-region", "-f", region["region"], check=False)
        self.assertEqual(regions(), [])
        self.t.start()
        self.assertEqual(len(regions()), 1)
        try:
            self.t.cli("lease", "grant", "--pool", "p", "--size", "16M", "--label", "again")
        except HarnessError as error:
            self.fail(f"{error}\n{self.t.log_tail()}")


if __name__ == "__main__":
    harness.main()
