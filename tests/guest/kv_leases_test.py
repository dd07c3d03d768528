# SPDX-License-Identifier: Apache-2.0
"""KV spaces in leases of mode shared_coherent, on two hosts that are two guests over one memory: host 0 is the manager, host 1 runs
an agent. In each lease processes put, read and erase blocks, and are killed and stopped (tests/support/kv_soak). A lease is attached
on one host at a time, so a space goes from one to the other with its lease. Owners of parts are by locks; kv_hosts_test.py has those
by the manager.

1. A lease of each host, with work in both at once.
2. Host 1's is revoked while its processes read and put: each of them hears of it. The next lease of that memory has none of its blocks.
3. Host 0's is handed to host 1 while its processes work. There they find its blocks, and none that had been erased.
4. Host 1 loses its power while it puts. Host 0 gets that memory, with none of its blocks. Host 1 comes back, and works.
"""

import os
import pathlib
import shutil
import tempfile
import unittest

import guestlib
import kv_soak_runs as soak
import terrace_harness as harness
import two_hosts_test as two_hosts
from guestlib import MIB
from terrace_harness import wait_until
from two_hosts_test import NAMES, exchange, tls

PORT = 7312
HOST_LEASE_S = 20
BYTES = 16 * MIB
PATIENCE_S = 300
ENOUGH = {"reads": 3000, "kills": 3, "stops": 1}


class Leases(two_hosts.Both):
    """`self.t`: this host's terraced."""

    def lease(self, label, size=BYTES):
        """A new one of this host, by its agent or manager."""
        def granted():
            done = self.t.cli("lease", "grant", "--pool", "p", "--size", size, "--persistent", "--mode", "shared_coherent", "--label",
                              label, check=False, timeout=PATIENCE_S)
            if done.code != 0:
                self.assertIn("unavailable", str(done))  # an agent that has not reached its manager yet
                return None
            return done.json["lease"]["id"]
        return wait_until(granted, PATIENCE_S, f"a lease for {label}", interval=0.5)

    def soak(self, label, run, ledger=None, **options):
        """kv_soak in that lease. `run` tells its blocks from those of all other spaces."""
        if ledger is None:
            ledger = pathlib.Path(tempfile.mkdtemp()) / "ledger"
            ledger.write_bytes(bytes(2 * MIB))
        running = soak.Soak(socket=self.t.socket, lease=label, run=run, ledger=ledger, workers=3, keys=2048, stop=1000,
                            kill_every=1500, limit_s=PATIENCE_S, noncoherent=True, locks=True, **options)
        self.addCleanup(running.kill)
        running.ledger = ledger
        return running

    def works(self, label, run, **options):
        return soak.check(self, self.soak(label, run, **ENOUGH, **options).finish(), **ENOUGH)

    def assert_lost(self, running):
        code, told = running.finish()
        self.assertEqual((code, told["wrong"], told["lease_ended"]), (0, 0, True), told)


@unittest.skipUnless(guestlib.in_guest() and guestlib.host() == 0, "is for host 0")
class Manager(Leases):
    def test_manager(self):
        self.make_certificates()
        self.start("--listen", f"0.0.0.0:{PORT}", "--host-lease", f"{HOST_LEASE_S}s", *tls(NAMES[0]))
        self.t.compose(two_hosts.real_pool.Devdax.prepare(self.t))
        exchange.put("manager", {})
        wait_until(lambda: self.state_of_host_1() == "connected", PATIENCE_S, "host 1 being connected")
        mine = self.lease("kv-of-0")
        running = self.soak("kv-of-0", 1, **ENOUGH)
        soak.check(self, running.finish(), **ENOUGH)

        revoked = exchange.get("revoke", PATIENCE_S)["lease"]
        self.t.cli("lease", "revoke", revoked, "--grace", "0s", timeout=PATIENCE_S)

        exchange.get("found-no-foreign-block", PATIENCE_S)
        again = self.soak("kv-of-0", 1, running.ledger, join=True, expect_loss=True)
        again.await_work(4000, 100, PATIENCE_S)
        self.hand_over(mine)
        self.assert_lost(again)
        shutil.copy(running.ledger, exchange.folder / "ledger-of-0")
        exchange.put("handed-over", {})

        exchange.get("cut", PATIENCE_S)
        wait_until(lambda: self.state_of_host_1() != "connected", PATIENCE_S, "host 1 being missed")
        wait_until(lambda: not self.t.leases(), PATIENCE_S, "the leases of host 1 being free", interval=0.5)
        free = self.t.cli("pool", "show", "p").json["pool"]["largest_free_bytes"]
        self.lease("kv-of-all", min(free, 64 * MIB))
        self.works("kv-of-all", 4)
        exchange.put("used-again", {})
        exchange.get("done", PATIENCE_S)
        self.t.clean()

    def make_certificates(self):
        terrace = harness.find_binary("terrace")
        for words in (["init", two_hosts.certificates()], ["issue", NAMES[0], "--manager", "--ca", two_hosts.certificates()],
                      ["issue", NAMES[1], "--ca", two_hosts.certificates()]):
            guestlib.command(terrace, "cert", *words)

    def state_of_host_1(self):
        hosts = self.t.cli("host", "list").json["hosts"]
        return next((host["state"] for host in hosts if host["name"] == NAMES[1]), "")

    def hand_over(self, lease):
        tenant = self.t.leases()[lease]["tenant"]
        self.t.cli("lease", "transfer", lease, "--to-tenant", tenant, "--to-host", NAMES[1], "--yes", timeout=PATIENCE_S)
        wait_until(lambda: self.t.leases()[lease]["phase"] == "active", PATIENCE_S, "the hand-over")


@unittest.skipUnless(guestlib.in_guest() and guestlib.host() == 1, "is for host 1")
class Agent(Leases):
    def test_agent(self):
        exchange.get("manager", PATIENCE_S)
        port = os.environ[f"TERRACE_QEMU_PORT_0_{PORT}"]
        self.start("--role", "agent", "--manager", f"10.0.2.2:{port}", *tls(NAMES[1]))
        if guestlib.cuts() == 0:
            self.until_the_power_is_cut()
        exchange.get("used-again", PATIENCE_S)
        self.lease("kv-of-1-back")
        self.works("kv-of-1-back", 5)
        exchange.put("done", {})

    def until_the_power_is_cut(self):
        lost = self.lease("kv-of-1")
        first = self.soak("kv-of-1", 2, **ENOUGH)
        soak.check(self, first.finish(), **ENOUGH)
        running = self.soak("kv-of-1", 2, first.ledger, join=True, expect_loss=True)
        running.await_work(4000, 100, PATIENCE_S)
        exchange.put("revoke", {"lease": lost})
        self.assert_lost(running)
        self.lease("kv-of-1-next")
        self.works("kv-of-1-next", 3)
        exchange.put("found-no-foreign-block", {})

        exchange.get("handed-over", PATIENCE_S)
        ledger = pathlib.Path(tempfile.mkdtemp()) / "ledger"
        shutil.copy(exchange.folder / "ledger-of-0", ledger)
        self.works("kv-of-0", 1, ledger=ledger, join=True, find=500)
        self.soak("kv-of-0", 1, ledger, join=True, reads=10**9).await_work(8000, 200, PATIENCE_S)
        exchange.put("cut", {})
        guestlib.ask_for_power_cut(after_s=1)


if __name__ == "__main__":
    harness.main()
