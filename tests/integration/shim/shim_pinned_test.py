# SPDX-License-Identifier: Apache-2.0
"""Memory that must not move meanwhile, under the preload libraries: each case of busy_cases.cc."""

import ctypes
import unittest

from shim_support import HERE, MIGRATES, ShimTest, die_with_parent, run_suite


@unittest.skipUnless(MIGRATES, "nothing moves")
class Busy(ShimTest):
    """Each case of busy_cases.cc: right with the protection, wrong without it."""

    def check(self, name, *, fails_without=True, promotions=1):
        command = [HERE / "shim_busy_cases", name]
        options = ("--ddr", "16M", "--cxl", "64M", "--policy", "churn", "--round", "1")
        for _ in range(6):  # a busy machine may leave the engine no time in one of them
            run = self.shim(command, *options)
            if run.stats["promotions"] >= promotions:
                break
        self.assertGreaterEqual(run.stats["promotions"], promotions)
        if fails_without and "here" not in run.out:
            self.environment["TERRACE_TEST_HOLD_NOTHING"] = self.environment["TERRACE_TEST_ASK_NOTHING"] = "1"
            self.shim(command, *options, code=1)
        return run

    def test_direct_reads(self):
        self.check("direct_reads")

    def test_pages_in_a_pipe(self):
        self.check("pages_in_a_pipe")

    def test_protections(self):
        self.check("protections")

    def test_locks(self):
        self.check("locks")

    def test_held_by_the_program(self):
        self.check("held_by_the_program")

    def test_a_ring(self):
        self.check("a_ring")

    def test_a_raw_ring(self):
        self.check("a_raw_ring")

    def test_a_filter_for_all_threads(self):
        self.check("a_filter", fails_without=False)

    def test_filters_that_the_kernel_refuses(self):
        self.check("filters_that_fail", fails_without=False)

    def test_leases_that_are_taken_back(self):
        run = self.shim([HERE / "shim_busy_cases", "taken_back"], "--ddr", "8M", "--cxl", "400M", "--revokes")
        self.assertGreaterEqual(run.stats["leases_left"], 5)
        self.assertGreater(run.stats["left_bytes"], 0)
        # What was free was not moved, and the DDR budget holds.
        self.assertLess(run.stats["left_bytes"], 280 << 20)
        self.assertEqual(run.stats["refused"], 0)

    def test_fork_while_moving(self):
        # Short: on a busy machine one of them may end before anything moves.
        runs = [self.check("fork_while_moving", fails_without=False, promotions=0) for _ in range(8)]
        self.assertGreater(sum(run.stats["promotions"] for run in runs), 0)

    def test_where_the_kernel_cannot_be_asked_nothing_moves(self):
        def without_huge_pages():
            die_with_parent()
            ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: the question needs them

        def moved(*ways):
            run = self.shim([HERE / "shim_pin_stress", "3", *ways], "--ddr", "4M", "--cxl", "64M", "--policy", "churn",
                            "--round", "1", preexec_fn=without_huge_pages)
            return run.stats["promotions"] + run.stats["demotions"]

        self.assertEqual(moved("uring", "stores"), 0)
        self.environment["TERRACE_MOVE_UNPROVEN"] = "1"
        self.assertGreater(moved("stores"), 0)

    def test_aio_while_folding(self):
        self.check("aio_while_folding", fails_without=False, promotions=0)

    def test_written_by_itself(self):
        self.check("written_by_itself", fails_without=False)  # a page at a time: too short to be hit at will


if __name__ == "__main__":
    run_suite("shim_busy_cases")
