# SPDX-License-Identifier: Apache-2.0
"""What doctor and the inventory say of a guest's devices, compared with what the kernel's own tools say; and a dax
device that came up as system-ram, fixed by `terrace doctor --fix`."""

import pathlib
import subprocess
import unittest

import guestlib
import real_pool
import terrace_harness as harness
from guestlib import dax_devices, listed, modprobe

AUTO_ONLINE = pathlib.Path("/sys/devices/system/memory/auto_online_blocks")
USAGE = 2


def doctor(*arguments, check=0):
    """terrace doctor needs no daemon; its JSON."""
    terrace = harness.find_binary("terrace")
    done = subprocess.run([terrace, "--json", "doctor", *arguments], capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, check=False)
    if check is not None and done.returncode != check:
        raise AssertionError(f"terrace doctor {arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return guestlib.json.loads(done.stdout)


def check_of(name):
    return next(check for check in doctor()["checks"] if check["name"] == name)


@unittest.skipUnless(guestlib.in_guest() and guestlib.topology() == "hmem", "is for the topology hmem")
class WrongMode(unittest.TestCase):
    def setUp(self):
        modprobe("kmem")
        AUTO_ONLINE.write_text("offline")
        self.name = next(name for name, device in dax_devices(dynamic=True).items() if device.size)

    def as_system_ram(self, *arguments):
        guestlib.command("daxctl", "reconfigure-device", "-m", "system-ram", *arguments, self.name)
        self.assertEqual(self.mode(), "system-ram")

    def mode(self):
        return dax_devices()[self.name].mode

    def test_a_device_that_is_right_is_left_alone(self):
        self.assertEqual(check_of("dax_mode")["state"], "ok")
        doctor("--fix", "--yes", check=None)
        self.assertEqual(self.mode(), "devdax")

    def test_system_ram_becomes_devdax_with_consent_only(self):
        self.as_system_ram()
        check = check_of("dax_mode")
        self.assertNotEqual(check["state"], "ok")
        self.assertIn(self.name, check["found"])
        self.assertIn("doctor --fix", check["fix"])
        doctor("--fix", check=USAGE)
        self.assertEqual(self.mode(), "system-ram", "nothing is done without being told so")
        told = doctor("--fix", "--yes")
        print(told)
        self.assertEqual(self.mode(), "devdax")
        self.assertEqual(check_of("dax_mode")["state"], "ok")
        self.assertFalse((guestlib.NODES / "node1/meminfo").exists() and
                         any(path.name.startswith("memory") for path in (guestlib.NODES / "node1").iterdir()),
                         "no memory of it is left with the kernel")

    def test_a_fixed_device_can_be_leased(self):
        self.as_system_ram()
        doctor("--fix", "--yes")
        service = real_pool.Service(name="doctor")
        self.addCleanup(guestlib.plug_again)
        self.addCleanup(service.close)
        service.start()
        service.compose(real_pool.Devdax.prepare(service))
        tenant = guestlib.Tenant(service)
        self.addCleanup(tenant.close)
        self.assertRegex(tenant.ask("grant", "p", real_pool.Devdax.lease_bytes), r"^\d+ \d+$")
        tenant.expect("zeros", "zeros")
        tenant.expect("ok", "release")
        service.wait_free("p", timeout=120)


@unittest.skipUnless(guestlib.in_guest() and guestlib.topology() == "standard", "is for the topology standard")
class Inventory(unittest.TestCase):
    def setUp(self):
        self.service = real_pool.Service(name="inventory")
        self.addCleanup(self.service.close)

    def test_the_inventory_says_what_the_kernel_says_and_changes_nothing(self):
        before = [listed("cxl", "list", "-MDP"), listed("daxctl", "list", "-RD")]
        self.service.start()
        print(self.service.cli("device", "list", json=False).out, flush=True)
        seen = self.service.cli("device", "list").json["inventory"]
        memdevs = {int(memdev["serial"], 0): memdev for memdev in seen["memdevs"]}
        for known in listed("cxl", "list", "-M"):
            self.assertEqual(memdevs[known["serial"]]["name"], known["memdev"])
            self.assertEqual(memdevs[known["serial"]]["pmem_bytes"], known["pmem_size"])
            self.assertTrue(memdevs[known["serial"]]["enabled"])
        self.assertEqual(set(memdevs), {0xC0, 0xC1})
        roots = [decoder for decoder in seen["decoders"] if decoder["kind"] == "root"]
        self.assertEqual(sorted(decoder["bytes"] for decoder in roots), [4 << 30, 4 << 30])
        self.assertEqual(sum(region["bytes"] for region in seen["dax_regions"]), 1 << 30)
        self.assertEqual([device["mode"] for device in seen["dax_devices"]], ["devdax"])
        self.assertEqual([listed("cxl", "list", "-MDP"), listed("daxctl", "list", "-RD")], before)

    def test_doctor_finds_nothing_wrong_with_two_ports_a_bridge(self):
        self.assertEqual(check_of("cxl")["state"], "ok")
        self.assertEqual(check_of("cxl_ports")["state"], "ok")


@unittest.skipUnless(guestlib.in_guest() and guestlib.topology() == "one-port", "is for the topology one-port")
class OnePort(unittest.TestCase):
    def test_doctor_warns_of_silent_zeros(self):
        check = check_of("cxl_ports")
        self.assertEqual(check["state"], "missing")
        self.assertIn("zeros", check["meaning"])
        self.assertIn("second root port", check["fix"])


if __name__ == "__main__":
    harness.main()
