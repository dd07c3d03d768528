# SPDX-License-Identifier: Apache-2.0
"""Whether a host can be fenced in time: what its agent measures and tells, what it refuses, and a host that was asleep.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/agents/fencing_test.py [TestClass[.test]]
"""

import os
import pathlib
import signal
import struct
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from agents_test import MIB, S, Case  # noqa: E402
from fabric import harness, wait_until  # noqa: E402


def moments(host):
    """(when the guard begins to fence, when it stops an agent that has not fenced) of the page that both have mapped;
    CLOCK_BOOTTIME in ns (daemon/agent/host_lease_file.cc)."""
    page = (host.runtime / "host-lease").read_bytes()
    return struct.unpack_from("<Q", page, 64)[0], struct.unpack_from("<Q", page, 80)[0]


def guard_pid(host):
    return int(wait_until(lambda: (host.runtime / "guard.lock").read_text().strip(), 20, "the guard's pid"))


class Lengths(Case):
    def test_a_host_lease_below_ten_seconds_is_refused_with_what_and_how(self):
        manager = self.fabric.manager()
        del manager.env["TERRACE_SHORT_HOST_LEASE"]
        for source, arguments in (("flag", ["--host-lease", "9s"]), ("file", ["--config", self.config("9s")])):
            with self.subTest(source):
                command = [word for word in manager.daemon_command() if word not in ("--host-lease", "4s")]
                refused = manager.run(*command, *arguments, "--check-config", check=2)
                for part in ("host_lease of 9 s", "10 s to 10 min", "--host-lease", "[listen]"):
                    self.assertIn(part, str(refused))
        manager.run(*command, "--host-lease", "10s", "--check-config")

    def config(self, length):
        file = self.fabric.directory / "m.toml"
        file.write_text(f'[listen]\nhost_lease = "{length}"\n')
        return file


class Margins(Case):
    def grant(self, host, size=2 * MIB, check=True):
        return host.cli("lease", "grant", "--pool", "p", "--size", size, "--ttl", "1h", check=check)

    def test_what_fencing_takes_is_measured_and_told(self):
        self.fabric.host_lease = "10s"
        manager, b, _ = self.two_hosts()
        self.assertIn("as measured on files of its own", b.text())
        before = self.fabric.host("hostb")
        self.assertEqual((before["fence_ns"], before["margin_ns"], before["margin_max_ns"]), (None, 2 * S, 5 * S))
        for _ in range(4):
            self.grant(b, 16 * MIB)
        told = wait_until(lambda: self.fabric.host("hostb")["fence_ns"], 20, "what fencing four leases takes")
        self.assertLess(told, S)
        text = str(manager.cli("host", "list", json=False))
        self.assertIn("FENCING", text)
        self.assertIn(" of 2.5 s, begins 2 s early", text)
        # The agent's word is in force: half of the margin for it, half for the guard alone.
        fence_at, stop_at = moments(b)
        self.assertEqual(stop_at - fence_at, S)

    def test_what_could_not_be_fenced_in_time_is_refused(self):
        self.fabric.host_lease = "10s"
        manager = self.fabric.manager()
        manager.create_pool("p")
        b = self.fabric.agent("hostb", start=False)
        b.start(failpoints="fence_before_truncate=delay:1500")
        self.fabric.wait_state("hostb", "connected")
        for _ in range(2):  # it fences slowly, which it has to see for itself
            manager.cli("lease", "revoke", self.grant(b).json["lease"]["id"])
            manager.wait_free()
        granted, refused, ends = [], None, []
        while refused is None and len(granted) < 60:
            answer = self.grant(b, check=False)
            if answer.code == 0:
                granted.append(answer.json["lease"]["id"])
                fence_at, stop_at = moments(b)
                ends.append((stop_at - fence_at) * 2)
            else:
                refused = str(answer)
        self.assertIsNotNone(refused, b.log_tail())
        self.assertGreater(len(granted), 0, refused)
        for part in ("host hostb could not take all its leases away in time", f"{len(granted) + 1} with",
                     "a host lease of 10 s leaves 2.5 s", "Release leases there", "longer host_lease"):
            self.assertIn(part, refused)
        # Before a lease was there its guard knew to begin earlier: by the time that fencing all takes.
        self.assertEqual(ends, sorted(ends))
        self.assertGreater(ends[-1], 3 * S)
        told = wait_until(lambda: self.told("hostb", ends[-1]), 20, "the margin in force")
        self.assertEqual(told["margin_max_ns"], 5 * S)
        self.assertLessEqual(told["margin_ns"], 5 * S)
        # Nothing was lost for it, nor made: renewals go on.
        time.sleep(6)
        self.assertEqual(self.fabric.host("hostb")["state"], "connected")
        self.assertEqual(len(manager.leases()), len(granted))
        self.assertEqual(len(b.objects()), len(granted))
        self.assertEqual(b.object_bytes(), len(granted) * 2 * MIB)
        # An agent that is killed: the guard begins that early, and has fenced by the end.
        fence_at, stop_at = moments(b)
        b.kill()
        wait_until(lambda: b.object_bytes() == 0, 20, "the guard's fence", interval=0.005)
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.assertGreaterEqual(now, fence_at)
        self.assertLess(now, stop_at)
        self.assertIsNone(self.fabric.host("hostb")["margin_ns"])  # it is away

    def told(self, name, least):
        host = self.fabric.host(name)
        return host if host["margin_ns"] >= least else None


class Waking(Case):
    def test_a_host_that_slept_longer_than_its_host_lease_is_fenced_as_it_wakes(self):
        """Stopping all of the host's processes stands in for suspending the machine."""
        manager, b, _ = self.two_hosts()
        on_b = self.tenant(b)
        self.assertTrue(on_b.ask("grant", 64 * MIB, 60 * S, "x").endswith(str(64 * MIB)))
        self.assertEqual(on_b.ask("fill", 7), "ok")
        guard = guard_pid(b)
        stopped = [on_b.process.pid, b.pid, guard]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            self.fabric.wait_state("hostb", "self-fenced")
            self.assertEqual(b.object_bytes(), 64 * MIB)  # nobody was awake to take it
            woke = time.monotonic()
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            wait_until(lambda: b.object_bytes() == 0, 10, "the fence", interval=0.0005)
            took = time.monotonic() - woke
        finally:
            for pid in stopped:
                if harness.process_alive(pid):
                    os.kill(pid, signal.SIGCONT)
        print(f"fenced {took * 1e3:.1f} ms after it woke", file=sys.stderr)
        self.assertLess(took, 1.0)
        # What the agent had under way is not gone on with: its guard ends it, unless it has fenced as well.
        wait_until(lambda: "host lease has run out" in b.text(), 20, "the word of it")
        wait_until(lambda: moments(b)[0] == 0, 20, "no promise being left")
        if b.process.poll() is not None:
            b.wait_dead()
            b.start()
        self.fabric.wait_state("hostb", "connected")
        manager.wait_free()
        manager.check_invariants()


if __name__ == "__main__":
    harness.main()
