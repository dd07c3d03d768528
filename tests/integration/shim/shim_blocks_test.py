# SPDX-License-Identifier: Apache-2.0
"""What the preload libraries' heap keeps, joins and gives back: each case of kept_cases.cc and large_cases.cc."""

import signal
import unittest

from shim_support import HERE, WHOLE_HEAP, ShimTest, run_suite


class Kept(ShimTest):
    """Page runs that threads keep for their next request: kept_cases.cc."""

    def kept(self, *words, ddr="256M", cxl="0", **more):
        return self.shim([HERE / "shim_kept_cases", *words], "--ddr", ddr, "--cxl", cxl, "--min-size", 65536, **more)

    def test_what_ended_threads_kept_serves_others(self):
        self.kept("shelves")

    def test_calloc_shows_no_old_bytes(self):
        for ddr, cxl in (("256M", "0"), ("64M", "64M"), ("0", "64M")):
            self.kept("zeros", ddr=ddr, cxl=cxl)

    def test_freed_twice(self):
        run = self.kept("twice", code=128 + signal.SIGABRT)
        self.assertIn("double free", run.err)

    @unittest.skipUnless(WHOLE_HEAP, "glibc's own")
    def test_realloc_of_no_block(self):
        for what in ("realloc_stack", "realloc_inside", "realloc_global"):
            with self.subTest(what):
                run = self.kept(what, code=128 + signal.SIGABRT)
                self.assertIn("realloc(): invalid pointer", run.err)

    def test_pairs_are_counted(self):
        run = self.kept("pairs", 20000)
        self.assertGreaterEqual(run.stats["allocations_ddr"], 20000, run.stats)
        self.assertEqual(run.stats["live_bytes"] // (256 << 10), 0, run.stats)


class Large(ShimTest):
    def test_scattered_free_pages_serve_a_long_request(self):
        self.shim([HERE / "shim_large_cases", "scattered"], "--ddr", "64M", "--cxl", "0", "--min-size", 65536)

    def test_kept_pages_show_no_old_bytes(self):
        for policy in ("static", "benefit-density"):
            self.shim([HERE / "shim_large_cases", "kept"], "--ddr", "256M", "--cxl", "64M", "--min-size", 65536,
                      "--policy", policy)

    def test_free_leases_go_back_and_come_again_longer(self):
        self.shim([HERE / "shim_large_cases", "leases"], "--ddr", "0", "--cxl", "512M", "--pool-size", "512M",
                  "--min-size", 65536)

    def test_free_leases_of_a_window_that_migrates_go_back_too(self):
        run = self.shim([HERE / "shim_large_cases", "leases"], "--ddr", "16M", "--cxl", "512M", "--pool-size", "512M",
                        "--min-size", 65536, "--policy", "churn", "--round", 1)
        self.assertGreater(run.stats["promotions"], 0, run.stats)
        self.assertEqual(run.stats["leases_granted"], run.stats["leases_released"], run.stats)

    def test_leases_come_and_go_under_threads_forks_and_moves(self):
        for policy in ("static", "churn"):
            for _ in range(6):  # on a busy machine the program gets too little done in its three seconds
                run = self.shim([HERE / "shim_large_cases", "returning"], "--ddr", "16M", "--cxl", "512M",
                                "--min-size", 65536, "--policy", policy, "--round", 1)
                self.assertEqual(run.stats["leases_granted"], run.stats["leases_released"], run.stats)
                if run.stats["leases_granted"] > 2:
                    break
            else:
                self.fail(f"no lease came again: {run.stats}")

    def test_a_program_of_rounds_keeps_its_leases(self):
        run = self.shim([HERE / "shim_large_cases", "rounds"], "--ddr", "0", "--cxl", "512M", "--min-size", 65536)
        self.assertLess(run.stats["leases_granted"], 16, run.stats)

    def test_small_blocks_leave_room_for_large_ones(self):
        self.shim([HERE / "shim_large_cases", "steps"], "--ddr", "256M", "--cxl", "0")

    @unittest.skipUnless(WHOLE_HEAP, "small blocks are another malloc's")
    def test_what_small_blocks_had_serves_large_ones(self):
        for ddr, cxl in (("128M", "0"), ("0", "128M"), ("96M", "96M")):
            self.shim([HERE / "shim_large_cases", "small", ddr[:-1] if ddr != "0" else cxl[:-1]], "--ddr", ddr, "--cxl", cxl,
                      "--pool-size", "512M")

    @unittest.skipUnless(WHOLE_HEAP, "small blocks are another malloc's")
    def test_no_extent_is_joined_over_a_gap(self):
        for ddr, cxl in (("128M", "0"), ("64M", "64M")):
            self.shim([HERE / "shim_large_cases", "borders", 128], "--ddr", ddr, "--cxl", cxl, "--pool-size", "256M")

    @unittest.skipUnless(WHOLE_HEAP, "another malloc would take all of the machine's memory")
    def test_a_full_budget_is_out_of_memory_for_all_threads(self):
        for ddr, cxl in (("64M", "0"), ("32M", "32M")):
            self.shim([HERE / "shim_large_cases", "full", ddr[:-1]], "--ddr", ddr, "--cxl", cxl)

    def test_trim_says_whether_anything_went_back(self):
        self.shim([HERE / "shim_large_cases", "trim"], "--ddr", "256M", "--cxl", "64M", "--min-size", 65536)

    def test_a_request_longer_than_the_window_has_its_own_line(self):
        run = self.shim([HERE / "shim_large_cases", "too_long"], "--ddr", "64M", "--cxl", "0", "--min-size", 65536)
        lines = run.err.splitlines()
        self.assertEqual(len(lines), 2, run.err)
        self.assertRegex(lines[0], r"a request of 1048576 MiB is refused: .*, \d+ MiB from --ddr and --cxl")
        self.assertRegex(lines[1], r"out of memory: no room for 1024 KiB in one tier; DDR 0 MiB free of the run's 64, .*--ddr")


if __name__ == "__main__":
    run_suite("shim_kept_cases", "shim_large_cases")
