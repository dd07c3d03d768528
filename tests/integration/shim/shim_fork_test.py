# SPDX-License-Identifier: Apache-2.0
"""Children under the preload libraries: each case of fork_cases."""

import os
import unittest

from shim_support import HERE, MIGRATES, ShimTest, run_suite


class Fork(ShimTest):
    """Each case of fork_cases; those that store in leased memory must have switched it."""

    def check(self, name, *options, switched=True):
        run = self.shim([HERE / "shim_fork_cases", name], "--ddr", "4M", *options)
        self.assertEqual(run.stats["forks_failed"], 0)
        if switched:
            self.assert_used_cxl(run)
            self.assertGreater(run.stats["forks_switched"], 0)
        return run

    def test_both_sides(self):
        self.check("both_sides")

    def test_without_leases(self):
        run = self.check("without_leases", "--cxl", "64M")
        self.assertEqual(run.stats["leases_granted"], 1)
        self.assertGreater(run.stats["allocations_detached"], 20)

    def test_untouched_pages(self):
        self.check("untouched_pages")

    def test_grandchildren(self):
        self.assertGreaterEqual(self.check("grandchildren").stats["forks_switched"], 2)

    def test_parent_first(self):
        self.assertEqual(self.check("parent_first").out, "orphan is well\n")

    def test_daemonised(self):
        self.assertEqual(self.check("daemonised").out, "daemon is well\n")

    def test_on_terminal(self):
        self.check("on_terminal")

    def test_repeatedly(self):
        self.check("repeatedly")

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_folded_after_the_last_child(self):
        run = self.check("folded")
        self.assertEqual(run.stats["folds"], 4)
        self.assertGreater(run.stats["promotions"], 0)

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_not_folded_between_many_forks(self):
        del self.environment["TERRACE_TEST_FOLD_SOON"]
        self.check("forks_all_the_time")

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_folding_blocked(self):
        run = self.shim([HERE / "shim_fork_cases", "folding_blocked"], "--ddr", "8M", "--cxl", "64M")
        self.assertGreater(run.stats["folded_bytes"], 0)

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_folded_after_careful_children(self):
        self.check("folded_after_careful_children")

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_fold_torture(self):
        run = self.check("fold_torture")
        self.assertGreater(run.stats["folds"], 0)
        self.assertGreater(run.stats["promotions"], 0)

    @unittest.skipUnless(MIGRATES, "nothing is folded")
    def test_freed_while_folding(self):
        run = self.shim([HERE / "shim_fork_cases", "freed_while_folding"], "--ddr", "4M", "--cxl", "128M")
        self.assertEqual(run.stats["forks_failed"], 0)
        self.assertGreater(run.stats["folds"], 0)
        self.assertGreater(run.stats["allocations_detached"], 20)

    def test_with_threads(self):
        self.assertGreater(self.check("with_threads").stats["during_fork"], 0)

    def test_handlers_of_other_libraries(self):
        self.check("handlers")

    def test_storing_while_forking(self):
        self.assertGreaterEqual(self.check("storing_while_forking").stats["forks_switched"], 2)

    def test_bare_fork(self):
        self.check("bare_fork")

    def test_advice(self):
        self.check("advice")

    def test_in_signals(self):
        self.shim([HERE / "shim_fork_cases", "in_signals"], "--ddr", "4M")

    def test_dropped_in_child(self):
        self.shim([HERE / "shim_fork_cases", "dropped_in_child"], "--ddr", "64M")

    def test_behind_our_back(self):
        self.check("behind_our_back", switched=False)

    def test_no_descriptors(self):
        self.check("no_descriptors")

    def test_after_chroot(self):
        if os.geteuid() != 0:
            self.skipTest("needs root for chroot")
        self.assertEqual(self.check("after_chroot").out, "copied\n")

    def test_registered_buffers(self):
        for name in ("registered", "sparse", "freed_and_again", "busy_ring"):
            with self.subTest(name):
                run = self.shim([HERE / "shim_ring_cases", name], "--ddr", "4M", "--cxl", "300M")
                self.assertEqual(run.stats["forks_failed"], 0)
                if "no io_uring" not in run.out:
                    self.assertGreater(run.stats["forks_switched"], 0)

    def test_supervisor_refused(self):
        if os.geteuid() != 0:
            self.skipTest("needs root for chroot")
        run = self.shim([HERE / "shim_fork_cases", "refused_with_threads"], "--ddr", "4M")
        if MIGRATES:
            self.assertEqual((run.stats["forks_failed"], run.stats["forks_switched"]), (0, 1))
        else:
            self.assertEqual(run.stats["forks_failed"], 1)
            self.assertIn("EAGAIN", run.err)

    def test_refused_half_way(self):
        run = self.shim([HERE / "shim_fork_cases", "refused_half_way"], "--ddr", "0", "--cxl", "1G")
        self.assertEqual(run.stats["forks_failed"], 2)
        self.assertGreaterEqual(run.stats["forks_switched"], 2)


if __name__ == "__main__":
    run_suite("shim_fork_cases")
