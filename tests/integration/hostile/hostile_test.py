"""A daemon under attack by tenants of another uid: it lives, its memory stays bounded, nobody gets what is not his, and
a tenant that behaves hardly notices.

    TERRACE_BUILD_DIR=build/sim python3 tests/integration/hostile/hostile_test.py [TestClass[.test]]

Latency is compared with that of the same run without attackers. Those run at the lowest priority: what is asked here
is what the daemon does to the one for the others, not how a kernel shares two processors among twenty programs.
"""

import json
import os
import pathlib
import resource
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))

import terrace_harness  # noqa: E402
from terrace_harness import Harness, find_binary, wait_until  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ATTACKER_UID = 65534
SPEAKING = ("deaf", "flood", "liar", "attach", "queue", "move", "grow")
RAW = ("connections", "garbage", "giant", "truncated", "descriptors", "silent")

SECONDS = float(os.environ.get("TERRACE_HOSTILE_SECONDS", "4"))
# Anonymous memory of the daemon, all attacks at once. What one uid may make it keep: a quarter of 4,096 connections
# with unfinished requests, and 64 MiB of answers that are not taken.
RSS_MAX = 256 << 20
# p99 under attack: at most this many times that of a quiet daemon, or this long, whichever is more.
RATIO_MAX = 20
FLOOR_US = 100_000
# A sanitized build is several times slower and larger; only what does not depend on that is asked of it.


def raise_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class Hostile(unittest.TestCase):
    def setUp(self):
        raise_limit()
        self.t = Harness(name="hostile", devices={"a": "64M", "v": "64M"}, daemon_args=["--allow-unmapped-uids"])
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p", ["a"])
        self.t.create_pool("v", ["v"])
        self.t.directory.chmod(0o755)
        self.attacker = self.t.directory / "attacker"  # where another uid may run it from
        self.attacker.write_bytes(pathlib.Path(find_binary("tests/integration/hostile/attacker")).read_bytes())
        self.attacker.chmod(0o755)
        self.raw = self.t.directory / "attacks.py"
        self.raw.write_bytes((HERE / "attacks.py").read_bytes())
        self.raw.chmod(0o644)
        self.others = self.t.grant("2M", "v", "--persistent", "--tenant", "victim")["id"]
        self.sanitized = self.anonymous_bytes() > 40 << 20
        self.running = []
        self.addCleanup(self.end_attacks)

    # -- attackers

    def attack(self, kind):
        out = open(self.t.directory / f"{kind}.out", "wb")
        self.addCleanup(out.close)
        command = ([self.attacker, kind, "--socket", self.t.socket, "--others-lease", self.others] if kind in SPEAKING
                   else ["/usr/bin/python3", "-B", self.raw, kind, self.t.socket])
        command = ["/usr/bin/nice", "-n", "19", *command]
        process = self.t.popen(*command, user=ATTACKER_UID, group=ATTACKER_UID, extra_groups=[], stdout=out, stderr=out)
        self.running.append((kind, process))
        return process

    def said(self, kind):
        return (self.t.directory / f"{kind}.out").read_text(errors="replace")

    def end_attacks(self):
        for _, process in self.running:
            process.kill()
        for _, process in self.running:
            process.wait()
        self.running.clear()

    def check_attacks(self):
        """They ran until now, and none got anything."""
        for kind, process in self.running:
            self.assertIsNone(process.poll(), f"{kind} ended: {self.said(kind)[-2000:]}")
            self.assertNotIn("breach", self.said(kind))

    # -- the daemon

    def anonymous_bytes(self):
        status = pathlib.Path(f"/proc/{self.t.pid}/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) << 10

    def probe(self, seconds=SECONDS):
        """What a tenant that behaves measures."""
        result = self.t.run(find_binary("tests/integration/hostile/latency_probe"), "--socket", self.t.socket,
                            "--seconds", seconds, timeout=seconds + 120)
        return json.loads(result.out.splitlines()[-1])

    def check_survived(self, pid):
        self.assertEqual(self.t.pid, pid, f"the daemon died\n{self.t.log_tail()}")
        self.end_attacks()
        for lease in self.t.leases().values():  # those of attackers; their ttl would end them as well
            if lease["tenant"] != "victim" and lease["phase"] == "active":
                self.t.cli("lease", "release", lease["id"], check=False)
        self.t.wait_free("p", 60)
        self.t.check_invariants()
        wait_until(lambda: self.t.cli("status").json["server"]["connections"] <= 1, 30, "the end of their connections")
        self.assertEqual(self.t.cli("status").json["server"]["waiting"], 0)
        self.assertEqual(set(self.t.leases()), {self.others})

    def under(self, *kinds, quiet=None):
        """Measures with the attacks running. Returns (figures, largest anonymous memory)."""
        pid = self.t.pid
        for kind in kinds:
            self.attack(kind)
        time.sleep(1.5)
        most = self.anonymous_bytes()
        figures = self.probe()
        most = max(most, self.anonymous_bytes())
        self.check_attacks()
        operator = time.monotonic()
        self.t.cli("status")
        operator = time.monotonic() - operator
        print(f"\n  under {'+'.join(kinds)}: {self.text(figures)}, operator {operator * 1e3:.0f} ms, "
              f"memory {most >> 20} MiB", end="", file=sys.stderr)
        self.assertEqual(figures["failures"], 0, figures)
        if not self.sanitized:
            self.assertLess(most, RSS_MAX)
            for what in ("grant_us", "renew_us") if quiet else ():
                bound = max(RATIO_MAX * quiet[what]["p99"], FLOOR_US)
                self.assertLess(figures[what]["p99"], bound, f"{what} p99; quiet it is {quiet[what]['p99']:.0f}")
        self.check_survived(pid)
        return figures, most

    @staticmethod
    def text(figures):
        return ", ".join(f"{what} p50 {figures[what]['p50']:.0f} p99 {figures[what]['p99']:.0f}"
                         for what in ("grant_us", "renew_us"))

    # -- the tests

    def test_each_attack_alone(self):
        quiet = self.probe()
        print(f"\n  quiet: {self.text(quiet)}", end="", file=sys.stderr)
        for kind in (*SPEAKING, *RAW):
            with self.subTest(kind):
                self.under(kind, quiet=quiet)
                self.assertRegex(self.said(kind), "attack|ended", f"{kind} did nothing")

    def test_all_at_once(self):
        quiet = self.probe()
        print(f"\n  quiet: {self.text(quiet)}", end="", file=sys.stderr)
        self.under(*SPEAKING, *RAW, quiet=quiet)

    def test_a_fenced_mapping_is_dead_however_its_file_grows(self):
        pid = self.t.pid
        self.attack("grow")
        lease = wait_until(lambda: next((one for one in self.t.leases().values() if one["pool"] == "p"), None), 20,
                           "the attacker's lease")
        self.t.cli("lease", "revoke", lease["id"], "--grace", "0s", "--reason", "hostile")
        wait_until(lambda: self.t.leases().get(lease["id"], {"phase": ""})["phase"] not in ("active", "revoking"), 30,
                   "the fence")
        # Whatever it does now, nobody else gets its bytes: each new lease reads as zeros while it goes on.
        for _ in range(5):
            self.t.run(find_binary("tests/crash/stubborn_holder"), "--pool", "p", "--size", "8M", "--expect-zeros")
        self.check_attacks()
        state = self.t.leases().get(lease["id"])
        self.assertIn(state and state["phase"], (None, "scrubbing", "quarantined"))
        self.end_attacks()
        if state and state["phase"] == "quarantined":
            self.t.cli("lease", "release", lease["id"])
        self.check_survived(pid)


if __name__ == "__main__":
    terrace_harness.main()
