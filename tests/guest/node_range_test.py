# SPDX-License-Identifier: Apache-2.0
"""Tiered ranges over memory nodes in a guest: dax memory becomes node 1, and guest_node_range moves granules between it
and node 0."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import guestlib  # noqa: E402
from guestlib import dax_devices, harness  # noqa: E402


class NodeRangeTest(unittest.TestCase):
    def test_moves(self):
        device = next(device for device in dax_devices(dynamic=True).values() if device.size)
        guestlib.modprobe("kmem")
        guestlib.command("daxctl", "reconfigure-device", "--mode=system-ram", "--force", device.name)
        self.addCleanup(guestlib.command, "daxctl", "reconfigure-device", "--mode=devdax", "--force", device.name,
                        check=False)
        program = harness.find_binary("tests/guest/guest_node_range", None)
        done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240,
                              check=False)
        print(done.stdout)
        self.assertEqual(done.returncode, 0)
        self.assertNotIn("skipped: there is no", done.stdout)


if __name__ == "__main__":
    harness.main()
