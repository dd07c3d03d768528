# SPDX-License-Identifier: Apache-2.0
"""A program whose threads and children come and go in every way, under the preload library with a live supervisor
that asks for statistics: storm.cc. TERRACE_STORM_SECONDS says how long (default 12; by hand, for an hour: 3600).

By hand: TERRACE_BUILD_DIR=build/release tests/integration/shim/storm_test.py
"""

import os
import random
import sys
import unittest

from shim_support import HERE, ShimTest

SECONDS = int(os.environ.get("TERRACE_STORM_SECONDS", "12"))
SEED = int(os.environ.get("TERRACE_STORM_SEED", "0")) or random.randrange(1, 1 << 32)


class Storm(ShimTest):
    def storm(self, seconds, *kinds, options):
        print(f"storm: {seconds} s, seed {SEED}, {' '.join(kinds) or 'all kinds'}", flush=True)
        run = self.shim([HERE / "shim_storm", seconds, SEED, *kinds], "--tick", 10, *options, timeout=seconds + 90)
        counts = {name: int(count) for name, count in (line.split() for line in run.out.splitlines())}
        print(f"storm: {counts}", flush=True)
        self.assertEqual((counts.pop("torn"), counts.pop("children")), (0, 0), run.err)
        self.assertEqual(run.stats["forks_failed"], 0, run.stats)
        for kind, count in counts.items():
            self.assertGreater(count, 0, kind)
        return run

    def test_everything_at_once(self):
        self.assert_used_cxl(self.storm(SECONDS, options=("--ddr", "16M", "--cxl", "1G")))

    # Without forks the threads come and go ten times as often. Threads that never allocate ended the process within
    # seconds: the answer to a question for statistics, in the C library's last free() of such a thread, put it into
    # the small allocator's lists, and nothing took it out.
    def test_threads_that_end_while_statistics_are_asked_for(self):
        self.storm(max(5, SECONDS // 3), "threads", "idlers", options=("--ddr", "512M"))


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1)
