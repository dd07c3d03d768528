# SPDX-License-Identifier: Apache-2.0
"""What the tests of real memory share: a service without emulated devices, and how each kind of memory is found and
seen from outside."""

import re
import sys
import unittest

import guestlib
from guestlib import MIB, Tenant, chardev, dax_devices, listed, overlaps
from terrace_harness import Harness, HarnessError, wait_until

GRANTS_MAX = 64


class Devdax:
    """The soft-reserved node as a dynamic dax region: a lease is a dax device of its own."""

    name = "devdax"
    points = "dax_"
    lease_bytes = 8 * MIB

    @staticmethod
    def prepare(service):
        return service.only_device("dax:hmem@")["serial"]

    @staticmethod
    def objects():
        """name -> DaxDevice of what has memory, as sysfs shows it."""
        return {name: device for name, device in dax_devices(dynamic=True).items() if device.size and device.enabled}

    @staticmethod
    def unfinished():
        """Devices with memory that nobody can open: left by a step that was cut off."""
        return {name: device for name, device in dax_devices(dynamic=True).items()
                if device.size and not device.enabled}

    @staticmethod
    def ranges(device):
        return device.ranges

    @staticmethod
    def picture():
        """All that a look must not change."""
        return listed("daxctl", "list", "-RD")


class Pmem:
    """A CXL memdev's region: a lease is a devdax namespace of its own."""

    name = "pmem"
    points = "namespace_"
    lease_bytes = 32 * MIB
    serials = (0xC0,)

    @classmethod
    def prepare(cls, service):
        """The region over the memdevs, composed when an earlier test of this boot did not do it."""
        there = service.devices_of("pmem")
        if not there:
            made = service.cli("region", "create", *(f"{serial:#x}" for serial in cls.serials)).json["region"]
            there = [made]
        assert len(there) == 1, there
        return there[0]["serial"]

    @staticmethod
    def objects():
        found = {}
        devices = dax_devices(dynamic=False)
        for namespace in listed("ndctl", "list", "-N", "-X"):
            if chardev(namespace) in devices:
                found[namespace["dev"]] = devices[chardev(namespace)]
        return found

    @staticmethod
    def unfinished():
        enabled = {namespace["dev"] for namespace in listed("ndctl", "list", "-N")}
        return {namespace["dev"]: namespace for namespace in listed("ndctl", "list", "-N", "-i")
                if namespace["dev"] not in enabled and namespace.get("size")}

    @staticmethod
    def ranges(device):
        """A namespace's dax device is not a list of mappings: where it lies is its resource."""
        text = guestlib.read(f"{device.real}/resource")
        return [(int(text, 0), device.size)]

    @staticmethod
    def picture():
        return [listed("cxl", "list", "-MR"), listed("ndctl", "list", "-N", "-i")]


class Service(Harness):
    """A private terraced that has real memory only."""

    def __init__(self, name="guest", **options):
        super().__init__(devices={}, name=name, **options)

    def devices_of(self, backend):
        return [device for device in self.cli("device", "list").json["devices"] if device["backend"] == backend]

    def only_device(self, prefix):
        """The one whose serial begins so."""
        found = [device for device in self.cli("device", "list").json["devices"]
                 if device["serial"].startswith(prefix)]
        if len(found) != 1:
            raise HarnessError(f"expected one device {prefix}..., the daemon sees {found}\n"
                               f"{self.cli('device', 'list', json=False).out}")
        return found[0]

    def compose(self, serial, pool="p"):
        """Adopts the device, and makes it a pool, whose tenants trust each other where they have to."""
        self.cli("device", "adopt", serial, "--yes")
        made = self.cli("pool", "create", pool, "--device", serial).json["pool"]
        if made["isolation"] == "verified":
            return made
        return self.cli("pool", "set", pool, "--trust", "mutual").json["pool"]

    def clean(self):
        """`terrace check` and `terrace fsck` find nothing wrong. Who still has what was taken from him is named, and
        here that is meant."""
        self.check_invariants()
        wrong = [finding for finding in self.cli("fsck", check=False).json["findings"]
                 if finding["severity"] != "note" and not finding["subject"].startswith("process ")]
        if wrong:
            raise HarnessError(f"fsck: {wrong}")


class RealTest(unittest.TestCase):
    """One service and one pool over one real device a test."""

    kind = Devdax

    def setUp(self):
        self.t = Service(name=self.kind.name)
        self.addCleanup(self.t.close)
        self.t.start()

    def tearDown(self):
        """What a test leaves on a device would be in the way of the next one."""
        if sys.exc_info()[0] is None and not self.t.pid:
            self.t.start()
        if not self.t.pid:
            return
        for lease in self.t.leases().values():
            self.t.cli("lease", "release", lease["id"], check=False)
        for pool in self.t.cli("pool", "list").json["pools"]:
            self.t.wait_free(pool["name"], timeout=120)
            self.t.cli("pool", "delete", pool["name"], check=False)
        for device in self.t.cli("device", "list").json["devices"]:
            if device["adopted"]:
                self.t.cli("device", "remove", device["serial"], "--yes", check=False)

    def compose(self):
        self.serial = self.kind.prepare(self.t)
        return self.t.compose(self.serial)

    def tenant(self):
        tenant = Tenant(self.t)
        self.addCleanup(tenant.close)
        return tenant

    def granted(self, tenant, label, bytes_=0, ttl_s=0):
        """The lease's id."""
        words = ["grant", "p", bytes_ or self.kind.lease_bytes, label] + ([ttl_s] if ttl_s else [])
        told = tenant.ask(*words)
        self.assertRegex(told, r"^\d+ \d+$", self.t.log_tail())
        return int(told.split()[0])

    def objects(self):
        return self.kind.objects()

    def assert_objects(self, count):
        """As many devices as leases, none over another, none half made."""
        (found,) = wait_until(lambda: (lambda seen: (seen,) if len(seen) == count else None)(self.objects()), 30,
                              f"{count} devices with memory (there are {self.objects()})")
        ranges = [part for device in found.values() for part in self.kind.ranges(device)]
        self.assertEqual(overlaps(ranges), [])
        self.assertEqual(self.kind.unfinished(), {})
        return found

    @staticmethod
    def told_sigbus(tenant):
        return any(re.match(r"SIGBUS after \d+", notice) for notice in tenant.notices)
