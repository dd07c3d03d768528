#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leases as dax devices, on a real kernel: the soft-reserved node of a guest (scripts/dev qemu devdax)."""

import os
import pathlib
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from guestlib import MIB, Tenant, dax_devices, harness, in_guest, overlaps  # noqa: E402

LEASE = 16 * MIB
LEASES = 20  # each a run of the command line on an emulated processor
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def first_device():
    return next(device for device in dax_devices(dynamic=True).values() if device.name.endswith(".0"))


def carved():
    """The devices that are not a region's first: those of leases, when the daemon is at rest."""
    return {name: device for name, device in dax_devices(dynamic=True).items() if not name.endswith(".0")}


def region_driver():
    """The platform device of the soft-reserved node, and its driver's folder: to unplug it and plug it in."""
    folder = pathlib.Path(first_device().real).parent
    return folder.name, pathlib.Path(os.path.realpath(folder / "driver"))


@unittest.skipUnless(in_guest(), "skipped: needs the soft-reserved memory of a guest: scripts/dev qemu devdax")
class DevdaxCase(unittest.TestCase):
    def setUp(self):
        self.service = harness.Harness(devices={}, name="devdax")
        self.addCleanup(self.service.close)
        self.tenants = []
        self.service.start()
        self.serial = next(device["serial"] for device in self.devices() if device["serial"].startswith("dax:hmem@"))

    def tearDown(self):
        for tenant in self.tenants:
            tenant.kill()

    @staticmethod
    def replug():
        """The region as it is after a boot."""
        name, driver = region_driver()
        (driver / "unbind").write_text(name)
        (driver / "bind").write_text(name)

    def devices(self):
        return self.service.cli("device", "list").json["devices"]

    def device(self):
        return next(device for device in self.devices() if device["serial"] == self.serial)

    def adopt(self, check=True):
        sure = ["--yes"] if "--yes" in self.service.cli("device", "adopt", "--help", json=False).out else []
        return self.service.cli("device", "adopt", self.serial, *sure, check=check)

    def make_pool(self):
        self.adopt()
        self.service.cli("pool", "create", "p", "--device", self.serial, "--trust", "mutual")

    def tenant(self, *name):
        tenant = Tenant(self.service, *name)
        self.tenants.append(tenant)
        return tenant

    def lease(self, tenant, size=LEASE, label=""):
        told = tenant.ask("grant", "p", size, *([label] if label else []))
        number, _, mapped = told.partition(" ")
        self.assertTrue(number.isdigit(), told)
        self.assertEqual(int(mapped), size)
        return int(number)

    def revoke(self, lease, check=True):
        return self.service.cli("lease", "revoke", lease, "--grace", "0s", check=check)

    def pool(self):
        return self.service.cli("pool", "show", "p").json["pool"]

    def findings(self):
        return self.service.cli("fsck", check=False).json["findings"]

    def sound(self):
        """The manager's own check, its fsck, and what the kernel has: one device for each lease, no two on one byte."""
        self.service.cli("check")
        bad = [finding for finding in self.findings() if finding["severity"] != "note"]
        # Who still has what was taken from him is named; here that is meant.
        self.assertEqual([finding for finding in bad if not finding["subject"].startswith("process")], [])
        sizes = sorted(lease["bytes"] for lease in self.service.leases().values() if lease["phase"] == "active")
        devices = carved()
        self.assertEqual(sorted(device.size for device in devices.values()), sizes, devices)
        self.assertEqual(overlaps([extent for device in devices.values() for extent in device.ranges]), [])
        self.assertEqual(first_device().size, 0)


class Life(DevdaxCase):
    def test_adopting_says_what_is_lost_and_refuses_while_it_is_held(self):
        self.replug()
        seen = harness.wait_until(lambda: self.device() if self.device()["present"] else None, 20, "the region")
        self.assertFalse(seen["adopted"])
        self.assertIn("dax", seen.get("contents", "dax"))
        name = first_device().name
        holder = subprocess.Popen(["/usr/bin/python3", "-c", "import mmap,os,sys; fd=os.open(sys.argv[1],os.O_RDWR); "
                                   "memory=mmap.mmap(fd,2<<20); memory[:4]=b'mine'; print('held',flush=True); "
                                   "sys.stdin.read(); print(bytes(memory[:4]).decode(),flush=True)", f"/dev/{name}"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline().strip(), "held")
        refused = self.adopt(check=False)
        self.assertNotEqual(refused.code, 0)
        self.assertIn(f"process {holder.pid} (python3)", refused.err + refused.out)
        self.assertFalse(self.device()["adopted"])
        self.assertGreater(first_device().size, 0)
        self.assertEqual(holder.communicate()[0].strip(), "mine")
        self.adopt()
        self.assertEqual(first_device().size, 0)

    def test_a_fence_shuts_the_holder_out_for_good_and_the_next_one_reads_zeros(self):
        self.make_pool()
        holder = self.tenant()
        lease = self.lease(holder)
        self.assertTrue(holder.ask("object").startswith("device "))
        holder.expect("ok", "fill", 0, LEASE, 7)
        holder.expect("same", "check", 0, LEASE, 7)
        holder.expect("ok", "keep")
        where = list(carved().values())[0].ranges
        holder.expect("ok", "spin")
        begin = time.monotonic()
        self.revoke(lease)
        harness.wait_until(lambda: any("SIGBUS" in notice for notice in holder.notices), 30, "SIGBUS in the holder")
        print(f"revoke until SIGBUS: {time.monotonic() - begin:.3f} s")
        self.assertEqual(holder.ask("remap-kept"), "ENXIO")
        self.service.wait_free()
        other = self.tenant()
        self.lease(other)
        self.assertEqual(list(carved().values())[0].ranges, where)
        other.expect("zeros", "zeros")
        other.expect("ok", "fill", 0, LEASE, 9)
        self.assertEqual(holder.ask("remap-kept"), "ENXIO")
        other.expect("same", "check", 0, LEASE, 9)
        self.sound()
        self.assertIn(f"process {holder.pid} ", " ".join(finding["subject"] for finding in self.findings()))

    def test_a_lease_of_several_extents_is_one_contiguous_mapping(self):
        self.make_pool()
        free = self.pool()["free_bytes"]
        holders = [self.tenant() for _ in range(4)]
        leases = [self.lease(holder, size) for holder, size in zip(holders, (LEASE, LEASE, LEASE, free - 3 * LEASE))]
        for index in (0, 2):
            holders[index].expect("ok", "release")
        harness.wait_until(lambda: self.pool()["free_bytes"] == 2 * LEASE, 60, "both pieces being free")
        tenant = self.tenant()
        self.lease(tenant, 2 * LEASE)
        tenant.expect("zeros", "zeros")
        device = next(device for device in carved().values() if len(device.ranges) == 2)
        self.assertEqual([size for _, size in device.ranges], [LEASE, LEASE])
        self.assertEqual(abs(device.ranges[1][0] - device.ranges[0][0]), 2 * LEASE)
        tenant.expect("ok", "fill", LEASE - 4096, 8192, 5)
        tenant.expect("same", "check", LEASE - 4096, 8192, 5)
        holders[1].expect("zeros", "zeros")
        self.sound()
        self.assertEqual(len(leases), 4)

    def test_a_reader_cannot_map_it_writable(self):
        self.make_pool()
        writer, reader = self.tenant(), self.tenant()
        lease = self.lease(writer)
        writer.expect("ok", "fill", 0, 4096, 3)
        writer.kill()  # the lease stays until it expires
        told = harness.wait_until(lambda: (lambda answer: None if "busy" in answer else answer)(
            reader.ask("attach-read", lease)), 30, "the lease being let go")
        self.assertEqual(told, f"{lease} {LEASE}")
        reader.expect("write EACCES protect EACCES", "try-write")

    def test_a_hand_over_keeps_the_bytes_and_not_the_holder(self):
        self.make_pool()
        holder = self.tenant()
        lease = self.lease(holder)
        holder.expect("ok", "fill", 0, LEASE, 11)
        holder.expect("ok", "keep")
        self.service.cli("quota", "set", "next", "--bytes", "1G")  # so that it is known
        self.service.cli("lease", "transfer", lease, "--to-tenant", "next", "--yes")
        self.assertEqual(holder.ask("remap-kept"), "ENXIO")
        other = self.tenant("next")
        told = other.ask("attach", lease)
        self.assertEqual(told, f"{lease} {LEASE}")
        other.expect("same", "check", 0, LEASE, 11)
        self.sound()

    def test_growing_is_refused_and_changes_nothing(self):
        self.make_pool()
        holder = self.tenant()
        lease = self.lease(holder)
        refused = self.service.cli("lease", "resize", lease, 2 * LEASE, check=False)
        self.assertNotEqual(refused.code, 0)
        self.assertIn("dax device", refused.err + refused.out)
        holder.expect("ok", "fill", 0, 4096, 3)
        self.sound()

    def test_many_leases_come_and_go(self):
        self.make_pool()
        begin = time.monotonic()
        leases = [self.service.grant("2M", "p", "--ttl", "1h")["id"] for _ in range(LEASES)]
        granted = time.monotonic()
        self.assertEqual(len(carved()), LEASES)
        self.sound()
        checked = time.monotonic()
        for lease in leases:
            self.service.cli("lease", "release", lease)
        self.service.wait_free(timeout=120)
        print(f"{LEASES} leases of 2 MiB: granted in {granted - begin:.1f} s, checked in {checked - granted:.1f} s, "
              f"released and erased in {time.monotonic() - checked:.1f} s")
        self.assertEqual(carved(), {})

    def test_the_memory_says_how_fast_it_is(self):
        self.make_pool()
        figures = self.device()["figures"]
        print(f"how fast it is: {figures}")
        self.assertIn(figures["source"], ("hmat", "measured"))
        self.assertGreater(figures["latency_ns"], 0)
        self.assertGreater(figures["bandwidth_bytes_per_s"], 0)


class Restarts(DevdaxCase):
    """The daemon dies between any two steps of the kernel's; whoever starts after it finds everything sound."""

    CARVE = ("dax_after_create", "dax_after_size", "dax_after_enable")
    DISMANTLE = ("dax_after_disable", "dax_after_shrink", "dax_after_destroy")

    def crash(self, failpoint, action):
        self.service.stop()
        self.service.start(failpoints=failpoint)
        action()
        self.service.wait_dead()
        self.service.process = None
        self.service.start()

    def test_in_the_middle_of_a_grant(self):
        self.make_pool()
        keeper = self.tenant()
        self.lease(keeper)
        keeper.expect("ok", "fill", 0, LEASE, 1)
        for failpoint in self.CARVE:
            with self.subTest(failpoint):
                self.crash(f"{failpoint}=crash", lambda: self.service.grant("4M", check=False))
                self.sound()
                keeper.expect("same", "check", 0, LEASE, 1)
                self.assertEqual(self.pool()["leased_bytes"], LEASE)

    def test_in_the_middle_of_a_fence_and_of_erasing(self):
        self.make_pool()
        keeper = self.tenant()
        self.lease(keeper)
        keeper.expect("ok", "fill", 0, LEASE, 1)
        points = [f"{name}=crash" for name in (*self.CARVE, "dax_during_erase", *self.DISMANTLE)]
        points += [f"{name}=crash@2" for name in self.DISMANTLE]
        for failpoint in points:
            with self.subTest(failpoint):
                holder = self.tenant()
                lease = self.lease(holder, 4 * MIB)
                holder.expect("ok", "fill", 0, 4 * MIB, 2)
                holder.expect("ok", "keep")
                self.crash(failpoint, lambda number=lease: self.revoke(number, check=False))
                harness.wait_until(lambda: self.pool()["leased_bytes"] == LEASE and
                                   self.pool().get("scrubbing_bytes", 0) == 0, 60, "the lease being gone")
                self.assertEqual(holder.ask("remap-kept"), "ENXIO")
                self.sound()
                holder.kill()
                keeper.expect("same", "check", 0, LEASE, 1)
                fresh = self.tenant()
                again = self.lease(fresh, 4 * MIB)
                fresh.expect("zeros", "zeros")
                fresh.expect("ok", "release")
                self.assertGreater(again, lease)
                fresh.close()

    def test_in_the_middle_of_a_hand_over(self):
        self.make_pool()
        self.service.cli("quota", "set", "next", "--bytes", "1G")  # so that it is known
        for failpoint in (*self.DISMANTLE, *self.CARVE):
            with self.subTest(failpoint):
                holder = self.tenant()
                lease = self.lease(holder, 4 * MIB)
                holder.expect("ok", "fill", 0, 4 * MIB, 2)
                holder.expect("ok", "keep")
                self.crash(f"{failpoint}=crash", lambda number=lease: self.service.cli(
                    "lease", "transfer", number, "--to-tenant", "next", "--yes", check=False))
                harness.wait_until(lambda number=lease: self.service.leases()[number]["phase"] == "active", 60,
                                   "the hand-over being done")
                self.assertEqual(holder.ask("remap-kept"), "ENXIO")
                self.sound()
                other = self.tenant("next")
                self.assertEqual(other.ask("attach", lease), f"{lease} {4 * MIB}")
                other.expect("same", "check", 0, 4 * MIB, 2)
                other.expect("ok", "release")
                self.service.wait_free(timeout=60)

    def test_a_restart_keeps_a_mapping_that_is_in_use(self):
        self.make_pool()
        holder = self.tenant()
        self.lease(holder)
        holder.expect("ok", "spin")
        self.service.kill()
        self.service.process = None
        self.service.start()
        holder.expect("ok", "renew")
        self.assertEqual([notice for notice in holder.notices if "SIGBUS" in notice], [])
        self.sound()

    def test_fsck_without_a_manager_sees_the_leases_and_changes_nothing(self):
        self.make_pool()
        holder = self.tenant()
        self.lease(holder)
        holder.expect("ok", "fill", 0, 4096, 6)
        self.service.stop()
        devices = {name: device.ranges for name, device in carved().items()}
        record = next((self.service.runtime / "dax").iterdir())
        remembered = record.read_text()
        done = self.service.run(*self.service.daemon_command(), "--fsck", "--json", want_json=True)
        self.assertEqual(done.json["objects"], 1)
        self.assertEqual(done.json["errors"] + done.json["warnings"], 0, done.json)
        self.assertEqual({name: device.ranges for name, device in carved().items()}, devices)
        self.assertEqual(record.read_text(), remembered)
        subprocess.run(["daxctl", "disable-device", next(iter(devices))], check=True, capture_output=True)
        done = self.service.run(*self.service.daemon_command(), "--fsck", "--json", want_json=True, check=False)
        self.assertGreater(done.json["errors"], 0, done.json)
        self.service.start()
        self.service.wait_free(timeout=60)
        self.assertEqual(carved(), {})

    def test_after_a_reboot_the_leases_are_lost_and_their_memory_is_erased(self):
        self.make_pool()
        holder = self.tenant()
        lease = self.lease(holder)
        holder.expect("ok", "fill", 0, LEASE, 4)
        where = list(carved().values())[0].ranges[0][0]
        self.service.kill()
        self.service.process = None
        holder.kill()
        # What a reboot makes of it: another boot id, and the region as the kernel finds it.
        self.replug()
        other = self.service.directory / "boot_id"
        other.write_text("11111111-2222-3333-4444-555555555555\n")
        subprocess.run(["mount", "--bind", str(other), BOOT_ID], check=True)
        self.addCleanup(subprocess.run, ["umount", BOOT_ID], check=False)
        self.assertGreater(first_device().size, 0)
        self.service.start()
        self.service.wait_free(timeout=60)
        self.assertNotIn(lease, self.service.leases())
        self.sound()
        tenant = self.tenant()
        self.lease(tenant)
        self.assertEqual(list(carved().values())[0].ranges[0][0], where)
        tenant.expect("zeros", "zeros")

    def test_a_region_that_is_unplugged_takes_its_leases_and_comes_back_empty(self):
        self.make_pool()
        holder = self.tenant()
        self.lease(holder)
        holder.expect("ok", "fill", 0, LEASE, 4)
        name, driver = region_driver()
        (driver / "unbind").write_text(name)
        self.addCleanup(lambda: (driver / "bind").write_text(name) if not (driver / name).exists() else None)
        harness.wait_until(lambda: holder.ask("state") == "lost", 30, "the lease being lost")
        self.assertEqual(holder.ask("check", 0, 4096, 4), "SIGBUS")
        harness.wait_until(lambda: not self.device()["present"], 30, "the device being absent")
        (driver / "bind").write_text(name)
        self.service.wait_free(timeout=60)
        tenant = self.tenant()
        self.lease(tenant)
        tenant.expect("zeros", "zeros")
        self.sound()


if __name__ == "__main__":
    harness.main()
