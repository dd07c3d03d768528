# SPDX-License-Identifier: Apache-2.0
"""Clients that do nothing wrong and are slow, stalled or away at a bad moment.

    TERRACE_BUILD_DIR=build/sim python3 tests/integration/hostile/unlucky_test.py [TestClass[.test]]
"""

import pathlib
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))

import terrace_harness  # noqa: E402
from terrace_harness import Harness, find_binary, wait_until  # noqa: E402


class Unlucky(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="unlucky", devices={"a": "64M", "b": "64M"})
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")

    def test_a_holder_that_is_not_back_yet_keeps_its_memory_in_a_drain(self):
        """The manager restarts during a drain. A holder that comes back three seconds later was not moved under its
        mapping: what it wrote meanwhile would be lost."""
        path = self.t.directory / "load.out"
        with open(path, "wb") as out:
            load = self.t.popen(find_binary("tests/crash/lease_load"), "--pool", "p", "--mix", "all", "--leases-max", 1,
                                "--pause-ms", 300, "--size-max", "6M", "--ttl", "600s", "--seed", 3, stdout=out)
        self.addCleanup(load.wait)
        self.addCleanup(load.kill)
        lease = self.t.grant("2M", "p", "--persistent", "--movable")  # this one nobody holds: it moves
        for _ in range(40):  # until the client has a movable lease
            held = [one for one in self.t.leases().values() if one["movable"] and one["holders"] == 1]
            if held:
                load.send_signal(signal.SIGSTOP)
                held = [self.t.leases().get(held[0]["id"])]
                if held[0] and held[0]["phase"] == "active":
                    break
                load.send_signal(signal.SIGCONT)
            time.sleep(0.2)
        self.assertTrue(held and held[0])
        place = held[0]["extents"][0]["device"]
        self.t.cli("device", "drain", place)
        self.t.restart(hard=True)
        time.sleep(3)
        now = self.t.leases()[held[0]["id"]]
        self.assertEqual(now["epoch"], held[0]["epoch"], "the lease was moved under its holder's mapping")
        load.send_signal(signal.SIGCONT)
        before = len(path.read_text().splitlines())
        wait_until(lambda: len(path.read_text().splitlines()) > before + 8, 60, "the client going on")
        self.assertIsNone(load.poll())
        self.assertNotIn("lost", path.read_text())
        if lease["extents"][0]["device"] == place:  # once holders had their time
            wait_until(lambda: self.t.leases()[lease["id"]]["epoch"] > lease["epoch"], 30, "the move of the other lease")
        self.t.check_invariants()


if __name__ == "__main__":
    terrace_harness.main()
