# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed between any two kernel steps of a carve, a fence or a scrub of real memory, and again while it
recovers; afterwards every holder has what it had, and nothing is lost or left over. Which memory: --kind."""

import queue
import subprocess
import sys
import time

import real_pool
import terrace_harness as harness
from guestlib import Tenant
from terrace_harness import HarnessError, wait_until

KINDS = {"devdax": real_pool.Devdax, "pmem": real_pool.Pmem}
KILLED = -9
DEATHS_MAX = 6   # of one daemon after another at one point
ARMED_MAX = 2    # starts after a death that are armed again, so that recovery meets the point, too


def points(prefix):
    """The failpoints of the daemon whose names begin so."""
    told = subprocess.run([harness.find_binary("terraced"), "--list-failpoints"], capture_output=True, text=True,
                          check=True).stdout
    return [line.split()[0] for line in told.splitlines() if line.startswith(prefix)]


class LeaseCrash(real_pool.RealTest):
    def setUp(self):
        super().setUp()
        if not self.t.cli("status").json["server"].get("failpoints", True):
            self.skipTest("this build has no failpoints")
        self.compose()
        self.survivor = self.tenant()
        self.granted(self.survivor, "survivor")
        self.survivor.expect("ok", "stamp", 1)

    def restart(self, point):
        """The daemon died, and is started again, at first with the same point armed."""
        self.assertEqual(self.t.wait_dead(), KILLED, self.t.log_tail())
        self.deaths += 1
        self.assertLessEqual(self.deaths, DEATHS_MAX, f"it dies at {point} over and over")
        try:
            self.t.start(failpoints=f"{point}=crash" if self.deaths <= ARMED_MAX else None)
        except HarnessError:
            self.restart(point)

    def dead(self):
        return self.t.process is not None and self.t.process.poll() is not None

    def dies(self):
        """Its socket closes before it is gone."""
        for _ in range(20):
            if self.dead():
                return True
            time.sleep(0.1)
        return False

    def answer(self, tenant, point):
        """The tenant's answer, which comes through however often the daemon dies meanwhile."""
        while True:
            try:
                return tenant.answer(timeout=0.2)
            except queue.Empty:
                if self.dead():
                    self.restart(point)

    def until(self, condition, what, point):
        def tried():
            if self.dead():
                self.restart(point)
            try:
                return condition()
            except HarnessError:
                if self.dies():
                    return None
                raise
        return wait_until(tried, 120, what, interval=0.1)

    def connect(self, point):
        while True:
            try:
                return self.tenant()
            except AssertionError:
                if not self.dead():
                    raise
                self.restart(point)

    def one_point(self, point):
        self.deaths = 0
        self.t.restart(failpoints=f"{point}=crash")
        victim = self.connect(point)
        victim.send("grant", "p", self.kind.lease_bytes, point)
        told = self.answer(victim, point)
        self.assertRegex(told, r"^\d+ \d+$", f"the grant over a crash at {point}\n{self.t.log_tail()}")
        lease = int(told.split()[0])
        victim.expect("zeros", "zeros")
        victim.expect("ok", "stamp", 2)
        victim.expect("ok", "keep")

        self.until(lambda: self.taken_back(lease), "the revocation", point)
        self.until(lambda: lease not in self.t.leases(), "the end of the scrub", point)
        victim.expect("SIGBUS", "verify", 2)
        victim.expect("ENXIO", "remap-kept")
        victim.close()
        self.assertGreater(self.deaths, 0, f"{point} was not passed")
        self.after(point)

    def taken_back(self, lease):
        """Whether the revocation stands; asks for it where it does not."""
        phase = self.t.leases().get(lease, {"phase": "gone"})["phase"]
        if phase == "active":
            self.t.cli("lease", "revoke", lease, "--grace", "100ms")
        return phase != "active"

    def after(self, point):
        """What must hold, whatever was cut off."""
        self.t.restart(hard=True)
        self.survivor.expect("intact", "verify", 1)
        self.assert_objects(1)
        following = self.tenant()
        self.granted(following, f"after-{point}")
        following.expect("zeros", "zeros")
        following.expect("ok", "stamp", 3)
        self.survivor.expect("intact", "verify", 1)
        self.assert_objects(2)
        following.expect("ok", "release")
        following.close()
        wait_until(lambda: len(self.t.leases()) == 1, 120, "the end of the scrub", interval=0.1)
        self.assert_objects(1)
        self.t.clean()

    def test_every_point(self):
        wanted = points(self.kind.points)
        self.assertTrue(wanted)
        for point in wanted:
            with self.subTest(point):
                self.one_point(point)
                print(f"{point}: {self.deaths} deaths, all recovered", flush=True)


def only(words):
    """Restricts the run to the points that are named."""
    global points
    points = lambda prefix: words  # noqa: E731


if __name__ == "__main__":
    if "--kind" in sys.argv:
        at = sys.argv.index("--kind")
        LeaseCrash.kind = KINDS[sys.argv[at + 1]]
        del sys.argv[at:at + 2]
    if "--points" in sys.argv:
        at = sys.argv.index("--points")
        only(sys.argv[at + 1].split(","))
        del sys.argv[at:at + 2]
    harness.main()
