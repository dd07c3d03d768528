# SPDX-License-Identifier: Apache-2.0
"""The numa backend in a guest: dax memory becomes a pool of node 1 and a dax device again; the pages of leases are where
they should be, as the kernel tells their holder; what stands in the way is said; a daemon that dies between two steps
finds its way."""

import ctypes
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import guestlib  # noqa: E402
from guestlib import MIB, NODES, Tenant, dax_devices, first_byte, read  # noqa: E402
from terrace_harness import Harness, HarnessError, main, wait_until  # noqa: E402

AUTO_ONLINE = pathlib.Path("/sys/devices/system/memory/auto_online_blocks")
NODE = "numa:node1"
PAGE = 4096
FILLED = 5  # the seed of what a holder wrote into the page that it keeps
KILLED = -9

# Takes memory of node 1 and keeps it there: the pages are also in a pipe, from which the kernel cannot move them.
HOG = r"""
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
size = int(sys.argv[1])
memory = mmap.mmap(-1, size)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
mask = (ctypes.c_ulong * 16)(2)
assert libc.syscall(237, ctypes.c_void_p(address), ctypes.c_ulong(size), 2, mask, 1024, 0) == 0, "mbind"
for at in range(0, size, 4096):
    memory[at] = 1
if sys.argv[2] == "pin":
    read_end, write_end = os.pipe()
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    vector = Vector(address, 4096)
    assert libc.vmsplice(write_end, ctypes.byref(vector), 1, 0) == 4096, "vmsplice"
print("ready", flush=True)
sys.stdin.readline()
"""


def online_blocks():
    """The memory blocks of node 1 that are online, with their zones."""
    return {path.name: read(path / "valid_zones") for path in NODES.glob("node1/memory[0-9]*")
            if read(path / "state") == "online"}


def dax_modes():
    return {device.mode for device in dax_devices(dynamic=True).values() if device.size}


def oom_kills():
    for line in pathlib.Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


class NumaTest(unittest.TestCase):
    def setUp(self):
        self.tenants = []
        self.t = Harness(devices={}, name="numa")
        self.addCleanup(self.restore)
        self.t.start()

    def restore(self):
        """The region is a dax device for the next test, however this one ended."""
        for tenant in self.tenants:
            tenant.close()
        if self.t.process is not None:
            self.t.kill()
        self.t.close()
        for device in dax_devices(dynamic=True).values():
            if device.size and device.mode == "system-ram":
                guestlib.command("daxctl", "reconfigure-device", "--mode=devdax", "--force", device.name, check=False)
        AUTO_ONLINE.write_text("offline")

    def region(self):
        """The serial of the soft-reserved memory."""
        found = [device["serial"] for device in self.t.cli("device", "list").json["devices"]
                 if device["backend"] == "devdax"]
        self.assertEqual(len(found), 1, self.t.cli("device", "list", json=False).out)
        return found[0]

    def device(self, serial=NODE):
        for device in self.t.cli("device", "list").json["devices"]:
            if device["serial"] == serial:
                return device
        return None

    def create(self, *arguments):
        return self.t.cli("pool", "create", "far", "--system-ram", "--yes", *arguments, timeout=180).json["pool"]

    def tenant(self):
        tenant = Tenant(self.t)
        self.tenants.append(tenant)
        return tenant

    def granted(self, tenant, size):
        told = tenant.ask("grant", "far", size)
        self.assertRegex(told, rf"^\d+ {size}$")
        return int(told.split()[0])

    def hog(self, size, how):
        process = subprocess.Popen([sys.executable, "-c", HOG, str(size), how], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    # --- a pool and back

    def test_pool_and_back(self):
        self.assertEqual(dax_modes(), {"devdax"})
        before = sorted((device.size, device.target_node) for device in dax_devices(dynamic=True).values())
        pool = self.create()
        self.assertEqual(pool["devices"], [NODE])
        self.assertEqual(dax_modes(), {"system-ram"})
        self.assertEqual(len(online_blocks()), 8)
        self.assertEqual(set(online_blocks().values()), {"Movable"})
        device = self.device()
        self.assertEqual((device["backend"], device["pool"], device["granule_bytes"]), ("numa", "far", 2 * MIB))
        self.assertEqual((device["figures"]["numa_node"], device["figures"]["numa_distance"]), (1, 20))
        if (NODES / "node1/access0/initiators/read_latency").exists():
            self.assertEqual(device["figures"]["latency_ns"], 300)
            self.assertEqual(device["figures"]["bandwidth_bytes_per_s"], 8 << 30)
            self.assertEqual(device["figures"]["source"], "hmat")
        else:  # kernel 6.1 tells the HMAT's figures of a node only the first time that it comes online in a boot
            self.assertEqual(device["figures"]["source"], "measured")
            self.assertGreater(device["figures"]["latency_ns"], 0)
        print(self.t.cli("device", "list", json=False).out)
        print(self.t.cli("device", "show", NODE, json=False).out)
        print(self.t.cli("pool", "show", "far", json=False).out)

        self.t.cli("pool", "delete", "far", "--offline", timeout=180)
        self.assertEqual(dax_modes(), {"devdax"})
        self.assertEqual(online_blocks(), {})
        self.assertIsNone(self.device())
        after = sorted((device.size, device.target_node) for device in dax_devices(dynamic=True).values())
        self.assertEqual(before, after)
        self.assertFalse((self.t.runtime / "node1").exists())
        self.create("--device", self.region())  # and once more, by name
        self.t.cli("pool", "delete", "far", "--offline", timeout=180)

    def test_lease(self):
        self.create()
        holder = self.tenant()
        size = 16 * MIB
        lease = self.granted(holder, size)
        holder.expect("zeros", "zeros")
        holder.expect("ok", "stamp", 7)
        holder.expect(f"1:{size // 4096}", "nodes")
        maps = [line for line in pathlib.Path(f"/proc/{holder.pid}/numa_maps").read_text().splitlines()
                if "node1/lease" in line]
        self.assertEqual(len(maps), 1)
        self.assertIn("bind:1", maps[0])
        self.assertNotIn(" N0=", maps[0])
        shown = self.t.cli("lease", "show", lease).json["leases"][0]
        self.assertEqual(shown["object"], f"numa:lease-{lease}")
        print(self.t.cli("lease", "show", lease, json=False).out)

        # Grown, it is still of that node, and nobody else may have it meanwhile.
        self.t.cli("lease", "resize", lease, "24M")
        heir = self.tenant()
        self.assertIn("held by process", heir.ask("attach", lease))
        holder.expect(f"{lease} {24 * MIB}", "attach", lease)
        holder.expect("ok", "stamp", 8)
        holder.expect(f"1:{24 * MIB // 4096}", "nodes")

        # Whoever has it next finds the bytes where they were, until he is shut out.
        holder.kill()
        wait_until(lambda: heir.ask("attach", lease) == f"{lease} {24 * MIB}", 60, "the dead holder's being noticed")
        heir.expect("intact", "verify", 8)
        heir.expect(f"1:{24 * MIB // 4096}", "nodes")
        self.t.cli("lease", "revoke", lease, "--grace", "0s")
        wait_until(lambda: heir.ask("verify", 8) == "SIGBUS", 30, "the fence")
        heir.expect("SIGBUS", "remap")
        self.t.wait_free("far")
        other = self.tenant()
        self.granted(other, size)
        other.expect("zeros", "zeros")
        other.expect(f"1:{size // 4096}", "nodes")
        other.expect("ok", "release")

        # With leases on it neither the pool nor its memory goes.
        self.granted(other, size)
        refused = self.t.cli("pool", "delete", "far", "--offline", check=7)
        self.assertIn("lease", refused.json["error"]["message"])
        self.assertEqual(dax_modes(), {"system-ram"})
        other.expect("ok", "stamp", 3)
        other.expect("ok", "release")

    def test_what_a_fenced_holder_has_pinned_is_nobody_elses(self):
        """The kernel gives a file's page to nobody while it is pinned: a page in a pipe keeps its old bytes, and a write that
        was under way at the fence reaches no other tenant, whatever of the node is granted meanwhile."""
        pool = self.create()
        holders = []
        for number, kind in enumerate(("pin", "begin-write")):
            holder = self.tenant()
            lease = self.granted(holder, 16 * MIB)
            holder.expect("ok", "stamp", 1 + number)
            holder.expect("ok", "fill", 4 * PAGE, PAGE, FILLED)
            holder.expect("ok", kind, 4 * PAGE)
            holders.append(holder)
            self.t.cli("lease", "revoke", lease, "--grace", "0s")
        self.t.wait_free("far")  # erased, and free for others although pages of it are held
        for holder in holders:
            holder.expect("SIGBUS", "verify", 1)
        free = self.t.cli("pool", "show", "far").json["pool"]["free_bytes"]
        self.assertEqual(free, pool["free_bytes"])
        others = []
        for _ in range(4):
            other = self.tenant()
            self.granted(other, free // 8 // (2 * MIB) * 2 * MIB)
            other.expect("zeros", "zeros")
            other.expect("ok", "stamp", 9)
            others.append(other)
        spliced, writer = holders
        self.assertEqual(int(spliced.ask("unpin")), first_byte(FILLED), "a page in a pipe has another's bytes")
        writer.ask("finish-write", 0x5A)
        for other in others:
            other.expect("intact", "verify", 9)
            other.expect("ok", "release")
        self.t.wait_free("far")
        last = self.tenant()
        self.granted(last, 16 * MIB)
        last.expect("zeros", "zeros")

    def test_all_of_it(self):
        """The whole capacity can be leased at once, and the kernel kills nobody for it."""
        pool = self.create()
        kills = oom_kills()
        holder = self.tenant()
        self.granted(holder, pool["capacity_bytes"])
        free = int(next(line.split()[3] for line in read(NODES / "node1/meminfo").splitlines() if "MemFree" in line))
        print(f"capacity {pool['capacity_bytes'] // MIB} MiB leased, {free // 1024} MiB of the node are free")
        other = self.tenant()
        self.assertIn("capacity_exhausted", other.ask("grant", "far", 2 * MIB))
        holder.expect("ok", "stamp", 1)
        holder.expect("intact", "verify", 1)
        holder.expect("ok", "release")
        self.assertEqual(oom_kills(), kills)
        self.t.wait_free("far")

        # Memory that other programs have taken is not leased, nor taken from them.
        hog = self.hog(600 * MIB, "use")
        told = other.ask("grant", "far", pool["capacity_bytes"])
        self.assertIn("capacity_exhausted", told)
        self.assertIn("processes that are no tenants", told)
        self.assertIsNone(hog.poll())
        self.assertEqual(oom_kills(), kills)
        self.granted(other, 300 * MIB)

    # --- what goes wrong

    def test_in_use(self):
        """Pages that can go elsewhere do; pages that cannot keep the memory online, and who has them is named."""
        self.create()
        hog = self.hog(64 * MIB, "use")
        self.t.cli("pool", "delete", "far", "--offline", timeout=180)
        self.assertEqual(dax_modes(), {"devdax"})
        self.assertIsNone(hog.poll())
        self.create()
        pinned = self.hog(8 * MIB, "pin")
        refused = self.t.cli("pool", "delete", "far", "--offline", check=7, timeout=300)
        message = refused.json["error"]["message"]
        print(message)
        self.assertIn("in use", message)
        self.assertIn(f"[{pinned.pid}]", message)
        self.assertIn("terrace device offline numa:node1", message)
        self.assertEqual(len(online_blocks()), 8)
        self.assertEqual(set(online_blocks().values()), {"Movable"})
        pinned.kill()
        pinned.wait()
        self.t.cli("device", "offline", NODE, timeout=180)
        self.assertEqual(dax_modes(), {"devdax"})

    def test_auto_online(self):
        """What the kernel brings online by itself in the wrong zone is put right."""
        for policy in ("online", "online_kernel", "online_movable"):
            AUTO_ONLINE.write_text(policy)
            self.create()
            self.assertEqual(set(online_blocks().values()), {"Movable"}, policy)
            self.t.cli("pool", "delete", "far", "--offline", timeout=180)
            self.assertEqual(dax_modes(), {"devdax"}, policy)

    # --- the daemon dies

    def test_killed(self):
        """Leases, their mounts and their bytes are found again."""
        self.create()
        holder = self.tenant()
        self.granted(holder, 8 * MIB)
        holder.expect("ok", "stamp", 5)
        self.t.restart(hard=True)
        holder.expect("intact", "verify", 5)
        self.assertEqual(self.device()["leases"], 1)
        wait_until(lambda: holder.ask("renew") == "ok", 60, "the session's return")
        holder.expect("ok", "release")
        self.t.wait_free("far")
        self.t.check_invariants()

    def test_dies_online(self):
        self.t.kill()
        self.t.start(failpoints="online_after_bind=crash")
        self.t.cli("device", "online", self.region(), "--yes", check=False)
        self.assertEqual(self.t.wait_dead(), KILLED)
        self.assertEqual(dax_modes(), {"system-ram"})
        self.assertEqual(online_blocks(), {})
        self.t.start()
        self.assertEqual(set(online_blocks().values()), {"Movable"})
        self.assertIsNotNone(self.device())
        self.t.cli("pool", "create", "far", "--adopt", "--device", NODE)
        self.t.cli("pool", "delete", "far", "--offline", timeout=180)

    def test_dies_offline(self):
        self.create()
        self.t.restart(failpoints="offline_after_offline=crash")
        self.t.cli("pool", "delete", "far", "--offline", check=False, timeout=180)
        self.assertEqual(self.t.wait_dead(), KILLED)
        self.assertEqual(dax_modes(), {"system-ram"})
        self.t.start()
        self.assertEqual(dax_modes(), {"devdax"})
        self.assertIsNone(self.device())

    def test_after_a_reboot(self):
        """As after a reboot: the memory is a dax device again, what lay in it is gone, the pool is to come back."""
        self.create()
        holder = self.tenant()
        self.granted(holder, 8 * MIB)
        self.t.kill()
        holder.close()
        guestlib.command("umount", self.t.runtime / "node1")
        for device in dax_devices(dynamic=True).values():
            if device.size:
                guestlib.command("daxctl", "reconfigure-device", "--mode=devdax", "--force", device.name)
        self.t.start("--accept-lost-objects")
        self.assertEqual(dax_modes(), {"system-ram"})
        self.t.wait_free("far")
        again = self.tenant()
        self.granted(again, 8 * MIB)
        again.expect("zeros", "zeros")
        again.expect(f"1:{8 * MIB // 4096}", "nodes")


if __name__ == "__main__":
    main()
