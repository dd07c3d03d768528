# SPDX-License-Identifier: Apache-2.0
"""What POSIX, the kernel and glibc promise a program about its heap, under the preload libraries: the interface of
malloc, start-up and end, the program's own calls on its memory, futexes, the end of memory. The programs are *_cases.cc
here; run as the other suites are, with the same environment:
    TERRACE_BUILD_DIR=build/dev tests/integration/shim/posix_test.py [Class[.test]]
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from shim_support import HERE, MIGRATES, WHOLE_HEAP, ShimTest, needs, run_suite  # noqa: E402

# How often what is a matter of luck is tried; 500 by hand.
ROUNDS = int(os.environ.get("TERRACE_TEST_ROUNDS", "36"))
# Random calls on mappings; 100,000 by hand.
OPERATIONS = int(os.environ.get("TERRACE_TEST_OPERATIONS", "2000"))


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
        Libc.needs_a_lone_thread(self)
        self.check("handlers_fork")

    def test_children_that_share_memory(self):
        self.check("spawned")

    def test_children_by_clone(self):
        self.assertGreater(self.check("cloned").stats["forks_switched"], 0)


class Libc(ShimTest):
    """Each case of libc_cases.cc: what programs expect of glibc's malloc beside its interface."""

    def check(self, *arguments, **expected):
        return self.shim([HERE / "shim_libc_cases", *arguments], "--ddr", "16M", "--cxl", "512M", **expected)

    def needs_a_lone_thread(self):
        if MIGRATES and not WHOLE_HEAP:
            self.skipTest("glibc's malloc has its locks there, since the engine is a second thread: docs/design/0003")

    def test_forks_in_handlers(self):
        self.needs_a_lone_thread()
        run = self.check("fork_in_handlers")
        self.assertGreater(run.stats["allocations_cxl"], 0)
        self.assertEqual(run.stats["forks_failed"], 0)

    def test_handlers_children_go_on(self):
        self.needs_a_lone_thread()
        self.check("fork_in_handlers", "goes_on")

    def test_forks_in_handlers_that_interrupt_a_fork(self):
        self.needs_a_lone_thread()
        self.check("fork_in_handlers", "forks")

    def test_bare_forks_in_handlers_beside_threads(self):
        self.check("bare_fork_in_handlers")

    def test_forks_beside_streams(self):
        self.check("fork_beside_streams")

    def test_free_without_mappings(self):
        self.check("free_without_mappings")

    def test_errno_beside_threads(self):
        self.check("errno_beside_threads")

    def test_wrong_frees_end_the_program(self):
        mistakes = ["large_twice", "inside_a_large_block"]
        if WHOLE_HEAP:
            mistakes += ["extent_twice", "odd", "a_global", "the_stack", "nowhere", "slab_twice"]
        for mistake in mistakes:
            run = self.check("free_wrongly", mistake, code=128 + signal.SIGABRT)
            self.assertIn("free(): ", run.err, mistake)

    def test_numbers(self):
        if not WHOLE_HEAP:
            self.skipTest("the program's own malloc tells")
        run = self.check("numbers", "xml")
        lines = [line.split("=") for line in run.err.splitlines()]
        self.assertEqual([line[0].rstrip() for line in lines],
                         ["Arena 0:", "system bytes", "in use bytes", "Total (incl. mmap):", "system bytes",
                          "in use bytes", "max mmap regions", "max mmap bytes"])
        system, used, all_system, all_used, regions, mapped = (int(line[1]) for line in lines if len(line) > 1)
        self.assertGreaterEqual(regions, 3)
        self.assertEqual((all_system - system, all_used - used), (mapped, mapped))
        heap = xml.etree.ElementTree.fromstring(run.out)
        self.assertEqual({total.get("type") for total in heap.findall("total")}, {"fast", "rest", "mmap"})
        large = heap.find("total[@type='mmap']")
        self.assertEqual((int(large.get("count")), int(large.get("size"))), (regions, mapped))

    def test_a_malloc_of_the_programs_own(self):
        run = self.shim([HERE / "shim_own_malloc"], "--ddr", "16M", "--cxl", "512M")
        self.assertEqual(run.out, "well\n")


class Memory(ShimTest):
    """Each case of memory_cases.cc, by the C library's functions and by syscall()."""

    def check(self, name, promotions=1):
        for way in ("name", "number"):
            for _ in range(6):  # a busy machine may leave the engine no time in one of them
                run = self.shim([HERE / "shim_memory_cases", name, way], "--ddr", "16M", "--cxl", "256M")
                self.assertGreater(run.stats["allocations_cxl"], 0)
                if not MIGRATES or run.stats["promotions"] >= promotions:
                    break
            else:
                self.fail(f"nothing moved: {run.stats}")

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

    def test_mappings_of_the_programs_own_moved_out(self):
        self.check("moved_out", promotions=0)

    def test_remapped_and_unmapped(self):
        self.check("remapped")

    def test_beside_a_policy_that_samples(self):
        # Sampling drops translations: what is not the library's must not be dropped so.
        for name in ("own_mappings", "remapped", "children"):
            self.shim([HERE / "shim_memory_cases", name], "--ddr", "16M", "--cxl", "256M", "--policy",
                      "benefit-density", "--round", "1")


class Mappings(ShimTest):
    """mapping_cases.cc: memory that the program gets by mmap, served from the window. Each case also runs plainly."""

    OPTIONS = ("--ddr", "16M", "--cxl", "256M", "--mmap", "64K")

    def check(self, *arguments, timeout=120, options=OPTIONS, least=1):
        run = self.shim([HERE / "shim_mapping_cases", *arguments], *options, timeout=timeout)
        self.assertGreaterEqual(run.stats["allocations_ddr"] + run.stats["allocations_cxl"], least)
        self.assertEqual(run.stats["ddr_used_at_end"], 0)
        self.assertEqual((run.stats["refused"], run.stats["forks_failed"]), (0, 0))
        return run

    @unittest.skipIf(MIGRATES or WHOLE_HEAP, "the library is not in it: once is enough")
    def test_plain_memory_passes(self):
        for arguments in (("model", 1, 2500, 1), ("model", 2, 1500, 3), ("cycles", 40), ("grown", 40), ("busy_heap",)):
            self.plain([HERE / "shim_mapping_cases", *arguments])

    def test_random_calls(self):
        moves = 0
        for seed in range(1, 11):
            run = self.check("model", seed, OPERATIONS, 1, least=200)
            self.assertGreater(run.stats["allocations_cxl"], 0)
            moves += run.stats["promotions"] + run.stats["demotions"]
            # A run may be over before the engine's thread has had a processor: another one then.
            if seed >= 2 and (moves > 0 or not MIGRATES):
                break
        if MIGRATES:
            self.assertGreater(moves, 0)

    def test_random_calls_by_number(self):
        self.check("model", 3, OPERATIONS // 2, 1, "number", least=100)

    def test_random_calls_of_threads_that_fork(self):
        run = self.check("model", 4, OPERATIONS // 4, 3, least=60)
        self.assertGreater(run.stats["forks_switched"], 0)

    def test_random_calls_without_room(self):
        # What the budgets do not hold is the kernel's, and the two lie among each other.
        self.check("model", 5, OPERATIONS, 1, options=("--ddr", "8M", "--cxl", "16M", "--mmap", "64K", "--fallback"))

    def test_what_was_unmapped_comes_again(self):
        # Each round maps 16 MiB of the 80.
        run = self.check("cycles", 40, options=("--ddr", "16M", "--cxl", "64M", "--mmap", "1M"), least=78)
        self.assertLessEqual(run.stats["peak_live_bytes"], 40 << 20)

    def test_a_mapping_that_grows(self):
        self.check("grown", 60)

    def test_while_a_collector_has_stopped_the_others(self):
        self.check("busy_heap")

    def test_what_needs_the_kernels_own_stays_out(self):
        for why in ("lock", "faults"):
            program = HERE / "shim_mapping_cases"
            if subprocess.run([program, "futures", why], check=False, timeout=60).returncode == 77:
                continue
            run = self.shim([program, "futures", why], *self.OPTIONS)
            self.assertLess(run.stats["peak_live_bytes"], 8 << 20)
        self.assertGreaterEqual(self.check("futures", "nothing").stats["peak_live_bytes"], 40 << 20)

    def test_below_the_threshold_and_off(self):
        for size in ("16M", "0"):
            run = self.shim([HERE / "shim_mapping_cases", "futures", "nothing"], "--ddr", "16M", "--cxl", "256M", "--mmap", size)
            self.assertLess(run.stats["peak_live_bytes"], 8 << 20)

    def test_small_objects_of_python(self):
        script = "import hashlib\nd=[(i,str(i),[i]) for i in range(300000)]\nprint(hashlib.sha256(repr(d).encode()).hexdigest())"
        plain = self.plain(["/usr/bin/python3", "-c", script]).stdout
        run = self.shim(["/usr/bin/python3", "-c", script], "--ddr", "16M", "--cxl", "512M", "--mmap", "1M")
        self.assertEqual(run.out, plain)
        self.assertGreater(run.stats["peak_live_bytes"], 64 << 20)

    @needs("php")
    def test_the_heap_of_php(self):
        script = ("$a=[];for($i=0;$i<300000;$i++)$a[]='s'.$i;$b=array_map('strrev',$a);sort($b);unset($a);"
                  "$m=str_repeat('x',20000000);$m[1234]='y';$c=[];for($i=0;$i<30;$i++){$c[]=str_repeat(chr(65+$i%26),"
                  "1000000*($i%5+1));if($i%3==0)array_shift($c);}echo md5(implode(',',$b)),md5($m),md5(implode('',$c));")
        command = [os.path.realpath(shutil.which("php")), "-d", "memory_limit=-1", "-r", script]
        plain = self.plain(command).stdout
        run = self.shim(command, "--ddr", "16M", "--cxl", "512M", "--mmap", "1M")
        self.assertEqual(run.out, plain)
        self.assertGreater(run.stats["peak_live_bytes"], 48 << 20)


class Futexes(ShimTest):
    """Each case of futex_cases.cc: right with the protection, a thread that sleeps for ever without it."""

    def moved(self, command, options):
        """A run in which memory moved, if any does: on a busy machine the half second of a case may be too short for that."""
        for _ in range(10):
            run = self.shim(command, *options)
            if not MIGRATES or run.stats["promotions"] + run.stats["demotions"] >= 1:
                return run
        return self.fail("in ten runs nothing moved")

    def check(self, name):
        command, options = [HERE / "shim_futex_cases", name], ("--ddr", "16M", "--cxl", "128M")
        for way in ("move", "fork"):
            run = self.moved([*command, way], options)
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
    run_suite()
