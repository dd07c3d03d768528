# SPDX-License-Identifier: Apache-2.0
"""One lease on two hosts, which are two guests over one memory: host 0 is the manager, host 1 runs an agent. Both attach the same
lease of mode shared_coherent, and have one KV space in it, in which processes of both put, read and erase blocks, and are killed and
stopped (tests/support/kv_soak). Owners of parts are by the manager; nobody says what the pool's memory is, so a part stays with its
host. A second shared lease is the test's own ledger.

1. Host 1 attaches what host 0 was granted, and host 0 what host 1 was; each sees what the other writes.
2. Both work in the space at once.
3. Host 1 loses its power while it works. Host 0 goes on in the same lease, and the lease of host 1's own goes on in host 0's view. Host 1
   comes back, attaches again, and both work in the space once more.
4. The lease is revoked: holders of both hosts are shut out, and its memory is free, and reads as zeros.
"""

import os
import re
import unittest

import guestlib
import kv_leases_test as leases
import kv_soak_runs as soak
import terrace_harness as harness
import two_hosts_test as two_hosts
from guestlib import MIB
from terrace_harness import wait_until
from two_hosts_test import NAMES, exchange, tls

PORT = 7313
HOST_LEASE_S = 20
SPACE_BYTES, LEDGER_BYTES = 16 * MIB, 4 * MIB
PATIENCE_S = 300
ENOUGH = {"reads": 5000, "kills": 4, "stops": 1}


class Hosts(leases.Leases):
    def path(self, label):
        """Attaches the lease on this host."""
        def opened():
            done = self.t.cli("lease", "path", label, check=False, timeout=PATIENCE_S)
            if done.code != 0:
                self.assertIn("unavailable", str(done))
                return None
            return done.json["path"]
        return wait_until(opened, PATIENCE_S, f"lease {label} being attached here", interval=0.5)

    def soak_here(self, run, **options):
        self.path("kv")
        running = soak.Soak(**{"socket": self.t.socket, "lease": "kv", "ledger": self.path("ledger"), "hosts": 2, "host": guestlib.host(),
                               "workers": 3, "stop": 1000, "limit_s": 3 * PATIENCE_S, "noncoherent": True,
                               "seed": guestlib.host() + 1, "run": run, **options})
        self.addCleanup(running.kill)
        return running

    def stamp_and_compare(self, own, other, seed):
        """Stamps the lease `own`, then reads what the other host stamped in `other`, each attached on both hosts."""
        mine = self.tenant()
        self.assertRegex(mine.ask("attach", own), r"^\d+ \d+$", self.t.log_tail())
        mine.expect("ok", "stamp", seed)
        exchange.put(f"stamped-{guestlib.host()}", {})
        exchange.get(f"stamped-{1 - guestlib.host()}", PATIENCE_S)
        theirs = self.tenant()
        self.assertRegex(theirs.ask("attach", other), r"^\d+ \d+$", self.t.log_tail())
        theirs.expect("intact", "verify", 1 - seed)
        return mine, theirs


@unittest.skipUnless(guestlib.in_guest() and guestlib.host() == 0, "is for host 0")
class Manager(Hosts):
    make_certificates = leases.Manager.make_certificates
    state_of_host_1 = leases.Manager.state_of_host_1

    def test_manager(self):
        self.make_certificates()
        self.start("--listen", f"0.0.0.0:{PORT}", "--host-lease", f"{HOST_LEASE_S}s", *tls(NAMES[0]))
        self.t.compose(two_hosts.real_pool.Devdax.prepare(self.t))
        free = self.t.cli("pool", "show", "p").json["pool"]["free_bytes"]
        ids = {label: self.lease(label, size) for label, size in
               (("kv", SPACE_BYTES), ("ledger", LEDGER_BYTES), ("of-0", 4 * MIB))}
        exchange.put("manager", ids)
        wait_until(lambda: self.state_of_host_1() == "connected", PATIENCE_S, "host 1 being connected")
        theirs = exchange.get("agent", PATIENCE_S)["of-1"]
        mine, other = self.stamp_and_compare(ids["of-0"], theirs, 0)
        running = self.soak_here(1, **ENOUGH)
        exchange.put("begun", {})
        exchange.get("works", PATIENCE_S)
        shown = self.t.cli("lease", "show", "kv").json["leases"][0]
        self.assertEqual((shown["agent"], shown["further_hosts"]), (None, [NAMES[1]]))
        refused = self.t.cli("lease", "resize", "kv", f"{SPACE_BYTES // MIB + 2}M", check=False)
        self.assertIn(NAMES[1], str(refused))
        exchange.put("cut-now", {})

        wait_until(lambda: self.state_of_host_1() != "connected", PATIENCE_S, "host 1 being missed")
        wait_until(lambda: not self.t.leases()[ids["kv"]]["further_hosts"], PATIENCE_S, "host 1 having nothing of it", interval=0.5)
        wait_until(lambda: self.t.leases()[theirs]["agent"] is None, PATIENCE_S, "host 1's lease going on here", interval=0.5)
        other.expect("intact", "verify", 1)
        mine.expect("intact", "verify", 0)
        exchange.put("missed", {})
        soak.check(self, running.finish(), **ENOUGH)
        exchange.get("worked", PATIENCE_S)

        for lease in self.t.leases():
            self.t.cli("lease", "revoke", lease, "--grace", "0s", timeout=PATIENCE_S)
        wait_until(lambda: not self.t.leases(), PATIENCE_S, "the leases being free", interval=0.5)
        mine.expect("SIGBUS", "verify", 0)
        self.assertEqual(self.t.cli("pool", "show", "p").json["pool"]["free_bytes"], free)
        following = self.tenant()
        self.granted(following, "after", self.t.cli("pool", "show", "p").json["pool"]["largest_free_bytes"])
        following.expect("zeros", "zeros")
        exchange.put("revoked", {})
        exchange.get("done", PATIENCE_S)
        self.t.clean()


@unittest.skipUnless(guestlib.in_guest() and guestlib.host() == 1, "is for host 1")
class Agent(Hosts):
    def test_agent(self):
        ids = exchange.get("manager", PATIENCE_S)
        port = os.environ[f"TERRACE_QEMU_PORT_0_{PORT}"]
        self.start("--role", "agent", "--manager", f"10.0.2.2:{port}", *tls(NAMES[1]))
        if guestlib.cuts() == 0:
            own = self.lease("of-1", 4 * MIB)
            exchange.put("agent", {"of-1": own})
            self.stamp_and_compare(own, ids["of-0"], 1)
            exchange.get("begun", PATIENCE_S)
            self.soak_here(1, reads=10**9, seconds=10**6).await_work(3000, 100, PATIENCE_S)
            exchange.put("works", {})
            exchange.get("cut-now", PATIENCE_S)
            guestlib.ask_for_power_cut(after_s=1)
        exchange.get("missed", PATIENCE_S)
        again = self.tenant()

        def attached():
            answer = again.ask("attach", ids["of-0"])
            if re.match(r"^\d+ \d+$", answer):
                return True
            self.assertIn("unavailable", answer)  # its agent has just started, and has not reached the manager yet
            return False
        wait_until(attached, PATIENCE_S, "attaching after the power cut", interval=0.5)
        again.expect("intact", "verify", 0)
        soak.check(self, self.soak_here(1, **ENOUGH).finish(), **ENOUGH)
        exchange.put("worked", {})
        exchange.get("revoked", PATIENCE_S)
        wait_until(lambda: again.ask("verify", 0) == "SIGBUS", PATIENCE_S, "the lease being taken from this host, too")
        exchange.put("done", {})


if __name__ == "__main__":
    harness.main()
