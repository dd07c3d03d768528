# SPDX-License-Identifier: Apache-2.0
"""The guests are what they claim to be, shown without Terrace: what is written reads back, and lies where the hardware
should put it."""

import json
import mmap
import unittest

import guestlib
import terrace_harness as harness
from guestlib import MIB, create_namespace, create_region
from pattern import pattern

LENGTH = 256 << 10
SEED = 5
TOPOLOGY = guestlib.topology() if guestlib.in_guest() else ""


def on(topology):
    return unittest.skipUnless(TOPOLOGY == topology, f"is about {topology}")


def write_and_read(device):
    """Whether the bytes come back through a new mapping."""
    data = pattern(SEED, LENGTH)
    with open(f"/dev/{device.name}", "r+b", buffering=0) as file:
        with mmap.mmap(file.fileno(), 2 * MIB) as memory:
            memory[:LENGTH] = data
        with mmap.mmap(file.fileno(), 2 * MIB) as memory:
            return memory[:LENGTH] == data


def tell_placement(media, ways, granularity, offset):
    document = {"media": media, "ways": ways, "granularity": granularity, "offset": offset, "length": LENGTH,
                "seed": SEED}
    (guestlib.OUT / "placement.json").write_text(json.dumps(document), "utf-8")


class Hardware(unittest.TestCase):
    @on("standard")
    def test_two_independent_regions_and_a_dynamic_one(self):
        for number, serial in enumerate((0xC0, 0xC1)):
            region, start = self.region_below_any_window(serial)
            device = create_namespace(region, "64M")
            self.assertTrue(write_and_read(device), f"memdev {serial:#x}")
            if number == 0:
                tell_placement([f"mem-{serial:x}.raw"], 1, 4096, guestlib.physical_start(device) - start)
        hmem = guestlib.dax_devices(dynamic=True)
        self.assertEqual([device.size for device in hmem.values()], [1 << 30])
        self.assertTrue(write_and_read(next(iter(hmem.values()))))
        self.assertFalse((guestlib.NODES / "node1").exists(), "no node before memory of it is online")

    @staticmethod
    def region_below_any_window(serial):
        for decoder in ("decoder0.0", "decoder0.1"):
            try:
                return create_region([serial], decoder)
            except AssertionError:
                continue
        raise AssertionError(f"no window takes memdev {serial:#x}")

    @unittest.skipUnless(TOPOLOGY in ("interleave", "two-bridges", "switch"), "is about interleaving")
    def test_two_ways(self):
        serials = [0xC0, 0xC1]
        try:
            region, start = create_region(serials)
        except AssertionError:  # across bridges only one order is right
            serials.reverse()
            region, start = create_region(serials)
        device = create_namespace(region, "64M")
        self.assertTrue(write_and_read(device))
        tell_placement([f"mem-{serial:x}.raw" for serial in serials], 2, 256,
                       guestlib.physical_start(device) - start)

    @on("one-port")
    def test_one_root_port_loses_everything_silently(self):
        """The trap that doctor looks for; should this fail, the kernel or QEMU was fixed, and the check can go."""
        region, _ = create_region([0xC0])
        self.assertFalse(write_and_read(create_namespace(region, "64M")))


if __name__ == "__main__":
    harness.main()
