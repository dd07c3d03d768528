"""What POSIX, the kernel and glibc promise a program about its heap, under the preload libraries: the interface of
malloc, start-up and end, the program's own calls on its memory, futexes, the end of memory. The programs are *_cases.cc
here; run as shim_test.py is, with the same environment:
    TERRACE_BUILD_DIR=build/dev tests/integration/shim/posix_test.py [Class[.test]]
"""

import os
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from shim_test import HERE, MIGRATES, WHOLE_HEAP, ShimTest  # noqa: E402

# How often what is a matter of luck is tried; 500 by hand.
ROUNDS = int(os.environ.get("TERRACE_TEST_ROUNDS", "36"))


class Interface(ShimTest):
    """One program, run plainly and under the library: the same answers."""

    def test_answers_are_glibcs(self):
        self.maxDiff = 4000
        program = HERE / "shim_interface_cases"
        plain = self.plain([program]).stdout.splitlines()
        self.assertGreater(len(plain), 1500)
        for options in (("--ddr", "16M", "--cxl", "512M"), ("--ddr", "1G", "--cxl", "0"), ("--ddr", "0", "--cxl", "1G")):
            run = self.shim([program], *options)
            self.assertEqual(run.out.splitlines(), plain, options)


class Start(ShimTest):
    """Each case of startup_cases.cc: programs, threads, libraries and children begin and end."""

    def check(self, name, *arguments, **expected):
        return self.shim([HERE / "shim_startup_cases", name, *arguments], "--ddr", "8M", "--cxl", "512M", **expected)

    def plugin(self):
        # Not the library that the program is linked to: another one with the same contents.
        return shutil.copy(HERE / "libshim_startup_library.so", self.folder / "plugin.so")

    def test_constructors_before_ours(self):
        self.check("constructors")

    def test_operators_of_the_programs_own(self):
        self.shim([HERE / "shim_own_operators"], "--ddr", "8M", "--cxl", "512M")

    def test_plugins_come_and_go(self):
        self.check("plugins", self.plugin())

    def test_a_plugin_bound_to_the_c_library(self):
        run = self.check("deepbind", self.plugin())
        self.assertEqual(run.err.count("RTLD_DEEPBIND"), 1, run.err)

    def test_a_name_space_of_its_own(self):
        self.check("namespaces", self.plugin())

    def test_threads_end(self):
        self.check("thread_ends")

    def test_programs_end_while_threads_allocate(self):
        run = self.check("ends", ROUNDS, timeout=30 + ROUNDS)
        self.assertGreaterEqual(run.stats["processes"], ROUNDS)

    def test_fork_in_a_handler(self):
        if MIGRATES and not WHOLE_HEAP:
            self.skipTest("glibc's malloc has its locks there, since the engine is a second thread: docs/design/0003")
        self.check("handlers_fork")

    def test_children_that_share_memory(self):
        self.check("spawned")

    def test_children_by_clone(self):
        self.assertGreater(self.check("cloned").stats["forks_switched"], 0)


class Memory(ShimTest):
    """Each case of memory_cases.cc, by the C library's functions and by syscall()."""

    def check(self, name, promotions=1):
        for way in ("name", "number"):
            run = self.shim([HERE / "shim_memory_cases", name, way], "--ddr", "16M", "--cxl", "256M")
            self.assertGreater(run.stats["allocations_cxl"], 0)
            if MIGRATES:
                self.assertGreaterEqual(run.stats["promotions"], promotions)

    def test_dropped(self):
        self.check("dropped", promotions=0)

    def test_wishes(self):
        self.check("wishes", promotions=0)

    def test_what_children_get(self):
        self.check("children")

    def test_protections_and_locks_are_kept(self):
        self.check("kept")

    def test_looked_at(self):
        self.check("looked_at", promotions=0)

    def test_executable(self):
        self.check("executable")

    def test_mappings_of_the_programs_own(self):
        self.check("own_mappings")

    def test_remapped_and_unmapped(self):
        self.check("remapped")

    def test_beside_a_policy_that_samples(self):
        # Sampling drops translations: what is not the library's must not be dropped so.
        for name in ("own_mappings", "remapped", "children"):
            self.shim([HERE / "shim_memory_cases", name], "--ddr", "16M", "--cxl", "256M", "--policy",
                      "benefit-density", "--round", "1")


class Futexes(ShimTest):
    """Each case of futex_cases.cc: right with the protection, a thread that sleeps for ever without it."""

    def check(self, name):
        command, options = [HERE / "shim_futex_cases", name], ("--ddr", "16M", "--cxl", "128M")
        for way in ("move", "fork"):
            run = self.shim([*command, way], *options)
            if MIGRATES:
                self.assertGreaterEqual(run.stats["promotions"] + run.stats["demotions"], 1)
            # Both ways fail so; one of them is waited for.
            if way == ("move" if MIGRATES else "fork") and "here" not in run.out:
                environment, self.environment = self.environment, dict(self.environment, TERRACE_TEST_HOLD_NOTHING="1")
                self.shim([*command, way], *options, code=1)
                self.environment = environment

    def test_shared_mutexes(self):
        self.check("shared_mutexes")

    def test_robust_mutexes(self):
        self.check("robust_mutexes")

    def test_dead_owners(self):
        self.check("dead_owners")

    def test_semaphores(self):
        self.check("semaphores")

    def test_conditions(self):
        self.check("conditions")

    def test_readers_and_writers(self):
        self.check("readers")

    def test_barriers(self):
        self.check("barriers")

    def test_by_number(self):
        self.check("by_number")

    def test_by_number_many_at_once(self):
        self.check("by_number_many")

    def test_stacks_in_the_heap(self):
        self.check("stacks")


class Limits(ShimTest):
    """limits_cases.cc: no more memory, and nothing crashes."""

    def check(self, least, *arguments, options=(), ddr="16M"):
        if not WHOLE_HEAP:
            arguments = (*(arguments or ("none", "0")), "4096")
        run = self.shim([HERE / "shim_limits_cases", least, *arguments], "--ddr", ddr, "--cxl", "64M", *options)
        self.assertEqual(run.out, "well\n")
        return run

    def test_both_budgets_used_up(self):
        for ddr in ("16M", "0"):
            self.assertGreater(self.check(30_000_000, ddr=ddr).stats["refused"], 0)

    def test_a_pool_shorter_than_the_budget(self):
        self.check(20_000_000, options=("--pool-size", "24M"))

    def test_address_space_limit(self):
        self.check(20_000_000, "as", 220)

    def test_the_manager_is_gone(self):
        # The leases that it has stay; more it does not get.
        self.check(5_000_000, "away", 700, options=("--away-after", 300))


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1)
