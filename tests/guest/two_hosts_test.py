# SPDX-License-Identifier: Apache-2.0
"""Two hosts, one memory: two guests over the same soft-reserved memory. Host 0 is the manager, host 1 runs an agent. Both
run this program, and wait for each other through the folder that they share.

1. Both lease from one pool; no byte is leased twice.
2. Both see the same memory: what a tenant of either host wrote is read by a tenant of the other, to whom the lease
   was handed over.
3. Host 1 goes away with leases held (its guest is powered off). The manager waits until its host lease has run out, takes
   the leases back, and grants their memory to others, who read zeros.
"""

import os
import pathlib
import subprocess
import tempfile
import time
import unittest

import guestlib
import real_pool
import terrace_harness as harness
from guestlib import MIB, Exchange, Tenant
from terrace_harness import wait_until

PORT = 7311
HOST_LEASE_S = 10
BYTES = 8 * MIB
NAMES = ("guest0", "guest1")
PATIENCE_S = 300
exchange = Exchange()


def certificates():
    """Where both hosts find them: a private CA of the test, made by host 0."""
    return exchange.folder / "ca"


def tls(name):
    """Keys on a 9p mount do not have the owner and mode that a daemon asks for."""
    local = pathlib.Path(tempfile.mkdtemp())
    for path in certificates().glob("*"):
        target = local / path.name
        target.write_bytes(path.read_bytes())
        target.chmod(0o600)
    return ["--tls-ca", local / "ca.pem", "--tls-cert", local / f"{name}.pem", "--tls-key", local / f"{name}.key"]


def ranges(lease):
    return [(extent["offset_bytes"], extent["length_bytes"]) for extent in lease["extents"]]


class Both(unittest.TestCase):
    def setUp(self):
        terrace = harness.find_binary("terrace")
        if subprocess.run([terrace, "cert", "--help"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this build knows no further hosts")

    def tenant(self):
        tenant = Tenant(self.t)
        self.addCleanup(tenant.close)
        return tenant

    def granted(self, tenant, label, size=BYTES):
        told = ""

        def answered():
            nonlocal told
            told = tenant.ask("grant", "p", size, label, 3600, timeout=PATIENCE_S)
            return not told.startswith("error unavailable the manager")  # of an agent that has not reached it yet
        wait_until(answered, PATIENCE_S, "the manager being reached", interval=0.2)
        self.assertRegex(told, r"^\d+ \d+$", self.t.log_tail())
        return int(told.split()[0])

    def start(self, *arguments):
        self.t = real_pool.Service(name="host", daemon_args=[*arguments])
        self.addCleanup(self.t.close)
        self.t.start("--host", NAMES[guestlib.host()], timeout=PATIENCE_S)


@unittest.skipUnless(guestlib.in_guest() and guestlib.host() == 0, "is for host 0")
class Manager(Both):
    def test_manager(self):
        terrace = harness.find_binary("terrace")
        for words in (["init", certificates()], ["issue", NAMES[0], "--manager", "--ca", certificates()],
                      ["issue", NAMES[1], "--ca", certificates()]):
            subprocess.run([terrace, "cert", *map(str, words)], check=True)
        self.start("--listen", f"0.0.0.0:{PORT}", "--host-lease", f"{HOST_LEASE_S}s", *tls(NAMES[0]))
        serial = real_pool.Devdax.prepare(self.t)
        self.t.compose(serial)
        exchange.put("manager", {"serial": serial})

        wait_until(lambda: self.other_host().get("state") == "connected", PATIENCE_S, "host 1 being connected")
        mine = self.tenant()
        lease = self.granted(mine, "of-host-0")
        mine.expect("zeros", "zeros")
        mine.expect("ok", "stamp", 10)
        theirs = exchange.get("granted", PATIENCE_S)["lease"]
        leases = self.t.leases()
        self.assertEqual({leases[lease]["host"], leases[theirs]["host"]}, set(NAMES))
        self.assertEqual(guestlib.overlaps(ranges(leases[lease]) + ranges(leases[theirs])), [])
        mine.expect("intact", "verify", 10)
        exchange.put("compared", {})

        self.hand_over(lease, NAMES[1])
        exchange.put("handed-over", {"lease": lease})
        mine.expect("SIGBUS", "verify", 10)
        exchange.get("read", PATIENCE_S)
        self.hand_over(theirs, NAMES[0])
        other = self.tenant()
        self.assertRegex(other.ask("attach", theirs), r"^\d+ \d+$")
        other.expect("intact", "verify", 11)
        print("both hosts read what the other one wrote", flush=True)

        lost = self.t.leases()[lease]
        exchange.put("die", {})
        begin = time.monotonic()
        wait_until(lambda: self.other_host().get("state") != "connected", PATIENCE_S, "host 1 being missed")
        wait_until(lambda: lease not in self.t.leases(), PATIENCE_S, "the dead host's lease being free", interval=0.5)
        print(f"host 1 was gone, and its memory free, after {time.monotonic() - begin:.1f} s", flush=True)
        self.assertGreater(time.monotonic() - begin, HOST_LEASE_S / 2, "not before its host lease ran out")
        following = self.tenant()
        again = self.granted(following, "after", self.t.cli("pool", "show", "p").json["pool"]["largest_free_bytes"])
        self.assertTrue(guestlib.overlaps(ranges(lost) + ranges(self.t.leases()[again])), "its extents are used again")
        following.expect("zeros", "zeros")
        other.expect("intact", "verify", 11)
        self.t.clean()

    def other_host(self):
        hosts = self.t.cli("host", "list").json["hosts"]
        return next((host for host in hosts if host["name"] == NAMES[1]), {})

    def hand_over(self, lease, host):
        tenant = self.t.leases()[lease]["tenant"]
        self.t.cli("lease", "transfer", lease, "--to-tenant", tenant, "--to-host", host, "--yes", timeout=PATIENCE_S)
        wait_until(lambda: self.t.leases()[lease]["phase"] == "active", PATIENCE_S, "the hand-over")


@unittest.skipUnless(guestlib.in_guest() and guestlib.host() == 1, "is for host 1")
class Agent(Both):
    def test_agent(self):
        serial = exchange.get("manager", PATIENCE_S)["serial"]
        port = os.environ[f"TERRACE_QEMU_PORT_0_{PORT}"]
        self.start("--role", "agent", "--manager", f"10.0.2.2:{port}", *tls(NAMES[1]))
        self.assertTrue(serial.startswith("dax:"))
        mine = self.tenant()
        lease = self.granted(mine, "of-host-1")
        mine.expect("zeros", "zeros")
        mine.expect("ok", "stamp", 11)
        exchange.put("granted", {"lease": lease})
        exchange.get("compared", PATIENCE_S)
        mine.expect("intact", "verify", 11)
        handed = exchange.get("handed-over", PATIENCE_S)["lease"]
        other = self.tenant()
        self.assertRegex(other.ask("attach", handed), r"^\d+ \d+$", self.t.log_tail())
        other.expect("intact", "verify", 10)
        exchange.put("read", {})
        wait_until(lambda: mine.ask("verify", 11) == "SIGBUS", PATIENCE_S, "the own lease being handed over")
        exchange.get("die", PATIENCE_S)
        # Power goes off when this ends: nothing is released, nobody says good-bye.
        os.sync()
        os.kill(self.t.pid, 9)


if __name__ == "__main__":
    harness.main()
