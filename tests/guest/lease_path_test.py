# SPDX-License-Identifier: Apache-2.0
"""A lease of real memory from discovery to re-use, seen by its holders and from outside. Which memory: --kind."""

import subprocess
import sys
import time

import real_pool
import terrace_harness as harness
from terrace_harness import wait_until

USER, OTHER = 65534, 65533
# Opens the path twice, maps one descriptor and writes through it when told to; tries the other in all ways when told to.
BY_PATH = """
import mmap, os, sys
kept, used = os.open(sys.argv[1], os.O_RDWR), os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(used, int(sys.argv[2]))
memory[:6] = b"theirs"
print("mapped", flush=True)
sys.stdin.readline()
for name in (sys.argv[1], f"/proc/self/fd/{kept}", f"/proc/self/fd/{used}"):
    try:
        again = os.open(name, os.O_RDWR)
        mmap.mmap(again, int(sys.argv[2]))
        print("reached", name)
    except OSError as error:
        print(error.strerror)
try:
    mmap.mmap(kept, int(sys.argv[2]))
    print("mapped again")
except OSError as error:
    print(error.strerror, flush=True)
memory[0] = 1
print("stored")
"""

KINDS = {"devdax": real_pool.Devdax, "pmem": real_pool.Pmem}


class LeasePath(real_pool.RealTest):
    def test_looking_changes_nothing_and_adopting_needs_consent(self):
        before = self.kind.picture()
        serials = {device["serial"]: device for device in self.t.cli("device", "list").json["devices"]}
        self.assertTrue(serials or self.kind is real_pool.Pmem, "no device is seen")
        self.assertFalse([serial for serial, device in serials.items() if device["adopted"]])
        self.t.restart()
        self.t.cli("device", "list")
        self.t.restart(hard=True)
        self.t.cli("device", "list")
        self.assertEqual(self.kind.picture(), before)

    def test_from_grant_to_fence_to_the_next_holder(self):
        pool = self.compose()
        self.assertGreater(pool["free_bytes"], 4 * self.kind.lease_bytes)
        first, second = self.tenant(), self.tenant()
        lease = self.granted(first, "first")
        self.assertTrue(first.ask("object").startswith("device "), "the descriptor is a device of its own")
        self.assertIn(first.ask("granularity"), ("cache line", "byte"))
        first.expect("zeros", "zeros")
        first.expect("ok", "stamp", 1)
        first.expect("intact", "verify", 1)
        first.expect("ok", "keep")
        self.granted(second, "second")
        second.expect("zeros", "zeros")
        second.expect("ok", "stamp", 2)
        first.expect("intact", "verify", 1)
        self.assert_objects(2)
        where = first.ask("extents")

        first.expect("ok", "spin")  # it writes while it is fenced
        self.t.cli("lease", "revoke", lease, "--grace", "100ms")
        wait_until(lambda: self.told_sigbus(first), 60, "the holder's SIGBUS")
        first.expect("SIGBUS", "verify", 1)
        first.expect("ENXIO", "remap-kept")
        second.expect("intact", "verify", 2)
        wait_until(lambda: lease not in self.t.leases(), 120, "the end of the scrub")
        self.assert_objects(1)

        third = self.tenant()
        self.granted(third, "third")
        self.assertEqual(third.ask("extents"), where, "the same memory is granted again")
        third.expect("zeros", "zeros")
        third.expect("ok", "stamp", 3)
        first.expect("SIGBUS", "verify", 1)
        first.expect("ENXIO", "remap-kept")
        third.expect("intact", "verify", 3)
        second.expect("intact", "verify", 2)
        first.close()  # fsck names who still maps what was fenced
        self.t.clean()
        for tenant in (second, third):
            tenant.expect("ok", "release")
        self.t.wait_free("p", timeout=120)
        self.assert_objects(0)
        self.t.clean()

    def granted_to(self, user, label):
        lease = self.t.grant(self.kind.lease_bytes, "p", "--persistent", "--label", label, "--tenant", f"uid-{user}")
        path = self.t.cli("lease", "path", label, "--tenant", f"uid-{user}", "--user", user).json
        self.assertTrue(path["device"], "the memory is a device node")
        return lease["id"], path["path"]

    def run_as(self, user, path):
        process = subprocess.Popen(["/usr/bin/python3", "-c", BY_PATH, path, str(self.kind.lease_bytes)], user=user, group=user,
                                   extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_a_path_is_one_users_and_reaches_no_later_lease(self):
        self.compose()
        lease, path = self.granted_to(USER, "first")
        refused = self.run_as(OTHER, path)
        self.assertIn("Permission denied", refused.communicate(timeout=120)[1])
        holder = self.run_as(USER, path)
        self.assertEqual(holder.stdout.readline(), "mapped\n")
        described = self.t.cli("lease", "cdi", "first", "--tenant", f"uid-{USER}", "--directory", "/tmp/cdi", check=False)
        self.assertIn("--tenant-socket", described.json["error"]["message"], "no container keeps a device's number")
        self.t.cli("lease", "revoke", lease, "--grace", "0s")
        wait_until(lambda: lease not in self.t.leases(), 120, "the end of the scrub")
        # The next tenant's device may have the name and the number of the first.
        _, next_path = self.granted_to(OTHER, "next")
        next_holder = self.run_as(OTHER, next_path)
        self.assertEqual(next_holder.stdout.readline(), "mapped\n")
        said, errors = holder.communicate("go\n", timeout=120)
        self.assertEqual(holder.returncode, -7, f"SIGBUS at the old mapping: {said}{errors}")
        self.assertNotIn("reached", said)
        self.assertNotIn("mapped again", said)
        self.assertEqual(len(said.splitlines()), 4, said)
        next_holder.kill()

    def test_a_killed_daemon_costs_no_holder_its_memory(self):
        self.compose()
        tenant = self.tenant()
        lease = self.granted(tenant, "kept")
        tenant.expect("ok", "stamp", 7)
        device = self.assert_objects(1)
        self.t.kill()
        tenant.expect("intact", "verify", 7)
        self.t.start()
        self.assertEqual(self.t.leases()[lease]["phase"], "active")
        self.assertEqual(list(self.assert_objects(1)), list(device), "the device is the one that it was")
        wait_until(lambda: tenant.ask("renew") == "ok", 60, "the tenant's being connected again")
        tenant.expect("intact", "verify", 7)
        other = self.tenant()
        self.granted(other, "other")
        other.expect("zeros", "zeros")
        tenant.expect("intact", "verify", 7)
        self.t.clean()

    def test_what_a_dead_holder_had_is_free_after_its_expiry(self):
        self.compose()
        tenant = self.tenant()
        self.granted(tenant, "brief", ttl_s=3)
        tenant.expect("ok", "stamp", 9)
        tenant.kill()
        begin = time.monotonic()
        self.t.wait_free("p", timeout=120)
        self.assertGreater(time.monotonic() - begin, 0.5, "not before its expiry")
        self.assert_objects(0)

    def test_all_of_the_memory_can_be_leased_and_comes_back(self):
        pool = self.compose()
        tenants = []
        free = pool["free_bytes"]
        part = max(self.kind.lease_bytes, free // 4 // pool["granule_bytes"] * pool["granule_bytes"])
        while free:
            tenants.append(self.tenant())
            self.granted(tenants[-1], f"part-{len(tenants)}", min(part, free))
            free = self.t.cli("pool", "show", "p").json["pool"]["free_bytes"]
            self.assertLess(len(tenants), real_pool.GRANTS_MAX)
        self.assert_objects(len(tenants))
        late = self.tenant()
        self.assertIn("capacity_exhausted", late.ask("grant", "p", self.kind.lease_bytes, "late"))
        for tenant in tenants:
            tenant.expect("ok", "release")
        self.t.wait_free("p", timeout=240)
        self.assert_objects(0)
        self.t.clean()

    def test_a_lease_grows_and_shrinks_or_says_that_it_cannot(self):
        self.compose()
        tenant = self.tenant()
        lease = self.granted(tenant, "sized")
        tenant.expect("ok", "stamp", 4)
        told = self.t.cli("lease", "resize", lease, 2 * self.kind.lease_bytes, check=False)
        if told.code != 0:
            self.assertTrue(told.json["error"]["message"])
            tenant.expect("intact", "verify", 4)
        else:
            self.assertEqual(self.t.leases()[lease]["bytes"], 2 * self.kind.lease_bytes)
        self.t.clean()


if __name__ == "__main__":
    if "--kind" in sys.argv:
        at = sys.argv.index("--kind")
        LeasePath.kind = KINDS[sys.argv[at + 1]]
        del sys.argv[at:at + 2]
    harness.main()
