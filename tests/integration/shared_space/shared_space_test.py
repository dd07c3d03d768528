# SPDX-License-Identifier: Apache-2.0
"""A tensor space of two hosts: on each a writer and readers that are killed at random. Both hosts are groups of processes
of this machine here; tests/guest/shared_space_test.py has a guest for each.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/shared_space/shared_space_test.py [TestClass[.test]]
"""

import itertools
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import shared_space_hosts as hosts  # noqa: E402
import terrace_harness as harness  # noqa: E402

BYTES = 8 << 20
ENOUGH = {"kills": 40, "reads": 2000, "news": 40}
runs = itertools.count(1)


class SharedSpaceTest(unittest.TestCase):
    def setUp(self):
        memory = tempfile.NamedTemporaryFile(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None,
                                             prefix="terrace-shared-space-")
        self.addCleanup(memory.close)
        memory.truncate(BYTES)
        self.memory = memory.name

    def start(self, host, **options):
        process = hosts.start(self.memory, host, **options)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()  # its children end with it
        process.wait()
        process.stdout.close()

    def both(self, **options):
        """What both hosts told, host 0 first."""
        options = {"run": next(runs), "limit_s": 200, **options}
        processes = [self.start(host, **options) for host in (1, 0)]  # host 1 waits for the space
        return [hosts.finish(process) for process in reversed(processes)]

    def sound(self, memory):
        for code, told in self.both(**ENOUGH, memory=memory):
            self.assertEqual(code, 0)
            hosts.check(self, told, memory, **ENOUGH)

    def test_coherent(self):
        self.sound("coherent")

    def test_noncoherent(self):
        self.sound("noncoherent")

    def test_what_an_earlier_run_left_is_not_taken_for_this_one(self):
        few = {"kills": 2, "reads": 20, "news": 1}
        for memory in ("coherent", "noncoherent", "coherent"):
            for code, told in self.both(**few, memory=memory):
                self.assertEqual(code, 0, told)

    def test_planted_faults_are_found(self):
        for fault, words in (("in-place", "torn|checksum"), ("early", "torn|checksum"), ("old", "stale")):
            for memory in ("coherent", "noncoherent"):
                with self.subTest(fault=fault, memory=memory):
                    self.found(words, fault=fault, memory=memory)

    def found(self, words, **options):
        ended = self.both(kills=10**6, **options)  # they end when they find it, or never
        self.assertLessEqual({code for code, _ in ended}, {1, 3}, "both end: one hears it of the other")
        finders = [told for code, told in ended if code == 1]
        self.assertTrue(finders)
        for told in finders:
            self.assertRegex(told["why"], words)

    def test_a_host_that_stays_alone_says_whom_it_waited_for(self):
        for host, words in ((0, "for the other host to be there"), (1, "for host 0 to make the space")):
            code, told = hosts.finish(self.start(host, run=next(runs), limit_s=1))
            self.assertEqual(code, 1)
            self.assertIn(words, told["why"])

    def test_memory_that_is_too_small_is_refused(self):
        os.truncate(self.memory, 4096)
        code, told = hosts.finish(self.start(0))
        self.assertEqual(code, 1)
        self.assertIn("fewer than", told["why"])


if __name__ == "__main__":
    harness.main()
