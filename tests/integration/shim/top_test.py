# SPDX-License-Identifier: Apache-2.0
"""What a run tells of its memory: --stats, SIGUSR1, --stats-interval and `terrace top`, against programs whose live
blocks are known.

By hand: TERRACE_BUILD_DIR=build/dev tests/integration/shim/top_test.py [Class[.test]]
"""

import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from terrace_harness import Harness, find_binary, process_alive, wait_until  # noqa: E402

PYTHON = "/usr/bin/python3"
KIB, MIB = 1 << 10, 1 << 20

# known SMALL LARGE: so many blocks of 100 bytes, so many of 1 MiB, and one of 20 MiB; then it goes on with blocks that
# it frees at once until its standard input ends. `quit` ends it there and then.
KNOWN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>
#include <poll.h>
static void on_signal(int n) { (void)n; if (write(1, "signal\n", 7) < 0) _exit(1); }
int main(int c, char** v) {
  signal(SIGUSR1, on_signal);
  for (int i = 0; i < atoi(v[1]); ++i) memset(malloc(100), 1, 100);
  for (int i = 0; i < atoi(v[2]); ++i) memset(malloc(1 << 20), 1, 1 << 20);
  memset(malloc(20 << 20), 1, 20 << 20);
  if (c > 3 && strcmp(v[3], "quit") == 0) return 0;
  if (c > 3 && strcmp(v[3], "too-much") == 0)
    for (int i = 0; i < 5; ++i) { void* p = malloc(200u << 20); if (p != NULL) *(volatile char*)p = 1; }
  puts("ready");
  fflush(stdout);
  for (;;) {
    struct pollfd in = {0, POLLIN, 0};
    if (poll(&in, 1, 20) > 0) return 0;
    for (int j = 0; j < 2000; ++j) { char* p = malloc(300); *(volatile char*)p = 1; free(p); }
    char* p = malloc(200000);
    *(volatile char*)p = 1;
    free(p);
  }
}
"""


def entry(classes, kind, at_least):
    return next((one for one in classes if one["kind"] == kind and one["bytes_min"] == at_least), None)


class TopTest(unittest.TestCase):
    LIBRARY = "libterrace_heap.so"

    @classmethod
    def setUpClass(cls):
        cls.t = Harness(devices={"a": "512M"}, name="top", daemon_args=["--allow-unmapped-uids"],
                        env={"TERRACE_MALLOC_LIBRARY": find_binary(cls.LIBRARY)})
        cls.addClassCleanup(cls.t.close)
        cls.t.env["XDG_RUNTIME_DIR"] = str(cls.t.directory)
        cls.t.start()
        cls.t.create_pool("p")
        source = cls.t.directory / "known.c"
        source.write_text(KNOWN)
        cls.known = cls.t.directory / "known"
        subprocess.run(["gcc", "-O1", "-fno-builtin", "-o", cls.known, source], check=True)
        cls.t.directory.chmod(0o755)

    def start(self, *command, options=(), **more):
        process = self.t.popen(self.t.terrace, "run", *options, "--", *command, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

        def end():
            process.stdin.close()
            if process.poll() is None:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(20)
            process.stdout.close()
            process.stderr.close()
        self.addCleanup(end)
        return process

    def start_known(self, small, large, *words, options=("--ddr", "32M", "--cxl", "128M", "--policy", "static"), **more):
        process = self.start(self.known, str(small), str(large), *words, options=options, **more)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def finish(self, process):
        process.stdin.close()
        self.assertEqual(process.wait(60), 0)

    def top(self, *options, **more):
        return self.t.cli("top", *options, **more)

    def run_of(self, process):
        """What `terrace top` says of the run that `process` supervises; None: nothing."""
        return next((run for run in self.top("--once").json["runs"] if run["run"]["pid"] == process.pid), None)

    def settled(self, process, check):
        """The run, once `check` of it holds: its numbers are up to two seconds old."""
        last = {}

        def look():
            last["run"] = self.run_of(process)
            return last["run"] is not None and check(last["run"])
        wait_until(look, 20, "the run's numbers", interval=0.2)
        return last["run"]

    # -- numbers that are known

    def test_live_blocks_by_size_and_tier(self):
        process = self.start_known(200_000, 30)
        run = self.settled(process, lambda r: (entry(r["size_classes"], "small", 112) or {"blocks": 0})["blocks"] >= 200_000)
        small = entry(run["size_classes"], "small", 112)
        # Blocks in the thread's cache count as live: a few hundred of a class.
        self.assertLess(small["blocks"], 200_600)
        self.assertEqual(small["bytes"], small["blocks"] * 112)
        self.assertEqual(entry(run["size_classes"], "large", MIB)["blocks"], 30)
        self.assertEqual(entry(run["size_classes"], "large", MIB)["bytes"], 30 * MIB)
        self.assertEqual(entry(run["size_classes"], "large", 16 * MIB)["bytes"], 20 * MIB)
        memory = run["memory"]
        self.assertEqual(memory["large_bytes"] & ~(MIB - 1), 50 * MIB)
        self.assertAlmostEqual(memory["small_bytes"], 200_000 * 112, delta=2 * MIB)
        self.assertEqual(memory["live_bytes"], memory["large_bytes"] + memory["small_bytes"])
        # By tier: all that was handed out of the window, the small blocks' extents as a whole.
        handed_out = memory["large_bytes"] + memory["small_extent_bytes"]
        self.assertEqual(memory["live_ddr_bytes"] + memory["live_cxl_bytes"], handed_out)
        self.assertGreater(memory["live_cxl_bytes"], 30 * MIB)
        self.assertLessEqual(memory["live_ddr_bytes"], 32 * MIB)
        self.assertEqual(sum(lease["live_bytes"] for lease in run["leases"]), memory["live_cxl_bytes"])
        self.assertEqual(sum(lease["bytes"] for lease in run["leases"]), run["cxl"]["leased_bytes"])
        self.assertEqual({lease["id"] for lease in run["leases"]}, set(self.t.leases()))
        self.assertEqual(run["run"]["pool"], "p")
        # Held is what the budgets are charged with, and all of it covers what is live.
        self.assertEqual(memory["held_bytes"], memory["ddr_bytes"] + memory["leased_bytes"] + memory["plain_bytes"])
        self.assertGreaterEqual(memory["held_over_live"], 1)
        self.assertLess(memory["held_over_live"], 3)
        self.assertLessEqual(memory["longest_free_bytes"], memory["free_bytes"])
        self.assertEqual(len(run["process_list"]), 1)
        self.assertEqual(run["process_list"][0]["program"], "known")
        self.assertEqual(run["process_list"][0]["memory"]["large_bytes"], memory["large_bytes"])
        self.finish(process)

    def test_the_end_says_what_was_at_the_peak(self):
        stats = self.t.directory / "peak.json"
        self.t.cli("run", "--stats", stats, "--ddr", "64M", "--cxl", "128M", "--", self.known, 100_000, 20, "quit", json=False)
        document = json.loads(stats.read_text())
        self.assertEqual((document["exit_code"], document["run"]["running"]), (0, False))
        self.assertEqual(document["memory"]["large_bytes"], 0)
        self.assertEqual(entry(document["size_classes"], "large", MIB)["bytes_at_peak"], 20 * MIB)
        self.assertEqual(entry(document["size_classes"], "large", MIB)["allocations"], 20)
        self.assertEqual(entry(document["size_classes"], "large", MIB)["bytes"], 0)
        (ended,) = document["process_list"]
        self.assertEqual((ended["program"], ended["running"]), ("known", False))
        self.assertEqual(ended["memory"]["large_bytes"], 40 * MIB)

    def test_a_killed_process_leaves_its_last_numbers(self):
        stats = self.t.directory / "killed.json"
        script = f'exec 3<&0; "{self.known}" 100000 10 <&3 & echo $!; wait $!; read line'
        process = self.start("/bin/sh", "-c", script, options=("--ddr", "128M", "--stats", stats))
        pid = int(process.stdout.readline())
        self.assertEqual(process.stdout.readline(), "ready\n")
        self.settled(process, lambda r: r["memory"]["large_bytes"] >= 30 * MIB
                     and (entry(r["size_classes"], "small", 112) or {"blocks": 0})["blocks"] >= 100_000)
        os.kill(pid, signal.SIGKILL)
        run = self.settled(process, lambda r: r["run"]["processes_running"] == 0)
        self.assertEqual((run["memory"]["live_bytes"], run["ddr"]["used_bytes"]), (0, 0))
        process.stdin.close()
        process.wait(60)
        document = json.loads(stats.read_text())
        (ended,) = [one for one in document["process_list"] if one["pid"] == pid]
        self.assertEqual(ended["memory"]["large_bytes"] & ~(MIB - 1), 30 * MIB)
        self.assertGreaterEqual(entry(ended["size_classes"], "small", 112)["blocks"], 100_000)
        self.assertEqual((document["memory"]["live_bytes"], document["ddr"]["used_bytes"]), (0, 0))

    def test_a_forked_child_has_numbers_of_its_own(self):
        script = ("import os,sys,time\na=[bytearray(b'x')*(1<<20) for _ in range(20)]\n"
                  "child=os.fork()\n"
                  "if child==0: b=[bytearray(b'y')*(1<<20) for _ in range(10)]; del a[:15]\n"
                  "else: print(child,flush=True)\n"
                  "while not __import__('select').select([0],[],[],0.05)[0]: c=[bytes(300) for _ in range(3000)]\n"
                  "if child: os.waitpid(child,0)")
        process = self.start(PYTHON, "-c", script, options=("--ddr", "256M", "--policy", "static"))
        child = int(process.stdout.readline())

        def large(run, wanted):
            ones = [one for one in run["process_list"] if (one["pid"] == child) == wanted]
            return (entry(ones[0]["size_classes"], "large", MIB) or {"blocks": 0})["blocks"] if len(ones) == 1 else None
        # bytearray's blocks are of 1 MiB and a byte.
        run = self.settled(process, lambda r: large(r, True) == 15 and large(r, False) == 20)
        self.assertEqual(entry(run["size_classes"], "large", MIB)["blocks"], 35)
        self.finish(process)

    def test_two_hundred_short_processes_are_summed(self):
        stats = self.t.directory / "many.json"
        script = f'i=0; while [ $i -lt 200 ]; do "{self.known}" 10 2 quit; i=$((i+1)); done'
        self.t.cli("run", "--stats", stats, "--ddr", "8G", "--", "/bin/sh", "-c", script, json=False)
        document = json.loads(stats.read_text())
        self.assertEqual(document["processes"], 200)
        self.assertEqual(len(document["process_list"]) + document["processes_left_out"], 200)
        self.assertEqual(entry(document["size_classes"], "large", MIB)["allocations"], 400)
        self.assertEqual(entry(document["size_classes"], "large", 16 * MIB)["allocations"], 200)
        self.assertEqual((document["memory"]["live_bytes"], document["ddr"]["used_bytes"]), (0, 0))
        self.assertTrue(all(one["memory"]["large_bytes"] == 22 * MIB for one in document["process_list"]))

    def test_why_there_was_no_room(self):
        process = self.start_known(10, 1, "too-much", options=("--ddr", "32M", "--cxl", "64M", "--policy", "static"))
        run = self.settled(process, lambda r: r["refused"] >= 5)
        self.assertEqual(run["memory"]["refused"], sum(run["memory"]["refused_by"].values()))
        self.assertEqual(run["memory"]["refused_by"]["too_large"] + run["memory"]["refused_by"]["budgets"], 5)
        self.finish(process)
        process = self.start_known(10, 1, "too-much",
                                   options=("--ddr", "32M", "--cxl", "64M", "--policy", "static", "--fallback"))
        run = self.settled(process, lambda r: r["fallbacks"] >= 5)
        self.assertEqual((run["refused"], run["memory"]["fallback_bytes"]), (0, 5 * 200 * MIB))
        self.finish(process)

    def test_where_memory_migrates_the_tiers_are_where_it_is(self):
        process = self.start_known(10, 60, options=("--ddr", "16M", "--cxl", "128M"))
        run = self.run_of(process)
        wait_until(lambda: self.run_of(process) is not None, 20, "the run")
        if self.run_of(process)["migration"]["obstacle"]:
            self.skipTest(self.run_of(process)["migration"]["obstacle"])
        run = self.settled(process, lambda r: r["process_list"] and r["process_list"][0]["migration"] == "running"
                           and r["memory"]["live_cxl_bytes"] > 50 * MIB)
        memory = run["memory"]
        # Taken at one moment by the engine: blocks that come and go meanwhile are 200 KB.
        self.assertAlmostEqual(memory["live_ddr_bytes"] + memory["live_cxl_bytes"],
                               memory["large_bytes"] + memory["small_extent_bytes"], delta=MIB)
        self.assertLessEqual(memory["live_ddr_bytes"], 16 * MIB)
        self.assertEqual(sum(lease["live_bytes"] for lease in run["leases"]), memory["live_cxl_bytes"])
        self.finish(process)

    # -- to a file, by a signal

    def test_the_kernels_records_of_accesses_are_taken_where_they_are_asked_for(self):
        migrating = ("--ddr", "32M", "--cxl", "128M")
        for asked in (False, True):
            options = (*migrating, "--access-events") if asked else migrating
            process = self.start_known(100, 40, options=options)
            wait_until(lambda: self.run_of(process) is not None, 20, "the run")
            if self.run_of(process)["migration"]["obstacle"]:
                self.skipTest(self.run_of(process)["migration"]["obstacle"])
            run = self.settled(process, lambda r: r["process_list"] and r["process_list"][0]["migration"] == "running")
            maps = pathlib.Path(f"/proc/{run['process_list'][0]['pid']}/maps")
            rings = lambda: "perf_event" in maps.read_text()
            if asked:
                wait_until(rings, 60, "the rings of the kernel's events")
            else:
                self.assertFalse(rings())
            self.finish(process)

    def test_a_signal_writes_the_file_and_the_program_keeps_its_own(self):
        stats = self.t.directory / "now.json"
        process = self.start_known(10, 5, options=("--ddr", "64M", "--stats", stats))
        self.assertFalse(stats.exists())
        run = self.settled(process, lambda r: r["process_list"])
        process.send_signal(signal.SIGUSR1)
        wait_until(stats.exists, 10, "the file")
        document = json.loads(stats.read_text())
        self.assertEqual((document["exit_code"], document["run"]["running"]), (None, True))
        self.assertGreaterEqual(document["memory"]["large_bytes"], 25 * MIB)
        os.kill(run["process_list"][0]["pid"], signal.SIGUSR1)
        self.assertEqual(process.stdout.readline(), "signal\n")
        self.finish(process)
        self.assertEqual(process.stdout.read(), "")  # the first signal was not passed on
        self.assertFalse(json.loads(stats.read_text())["run"]["running"])

    def test_a_signal_without_a_file_prints_a_table(self):
        process = self.start_known(10, 5, options=("--ddr", "64M"))
        process.send_signal(signal.SIGUSR1)
        self.assertIn("terrace run[%d]" % process.pid, process.stderr.readline())
        self.finish(process)
        text = process.stderr.read()
        for words in ("64 MiB", "in large blocks", "BLOCKS OF", "known", "1 MiB to 2 MiB"):
            self.assertIn(words, text)

    def test_the_file_is_rewritten_whole_at_the_interval(self):
        stats = self.t.directory / "often.json"
        process = self.start_known(10, 5, options=("--ddr", "64M", "--stats", stats, "--stats-interval", "0.1"))
        wait_until(stats.exists, 10, "the file")
        seen, end = set(), time.monotonic() + 2
        while time.monotonic() < end:
            seen.add(json.loads(stats.read_text())["run"]["written_ns"])  # never half a document
        self.assertGreater(len(seen), 5)
        self.finish(process)
        self.assertEqual([path.name for path in self.t.directory.glob("often.json*")], ["often.json"])
        result = self.t.cli("run", "--ddr", "64M", "--stats-interval", "1", "--", "true", json=False, check=2)
        self.assertIn("--stats FILE", result.err)
        result = self.t.cli("run", "--ddr", "64M", "--stats", stats, "--stats-interval", "0.01", "--", "true", json=False,
                            check=False)
        self.assertEqual(result.code, 2)

    # -- top

    def test_runs_are_there_as_long_as_they_run(self):
        first, second = self.start_known(10, 2), self.start_known(10, 10)
        wait_until(lambda: self.run_of(first) and self.run_of(second), 10, "both runs")
        self.settled(second, lambda r: r["memory"]["large_bytes"] >= 30 * MIB)
        self.settled(first, lambda r: r["memory"]["large_bytes"] >= 22 * MIB)
        text = self.top("--once", json=False).out
        self.assertIn("RUN", text)
        self.assertLess(text.index(str(second.pid)), text.index(str(first.pid)))  # the larger one first
        self.assertIn("known 10 10", text)
        more = self.top("--once", "--processes", "--classes", json=False).out
        self.assertIn("1 MiB to 2 MiB", more)
        self.assertGreater(len(more.splitlines()), len(text.splitlines()) + 6)
        self.finish(first)
        self.assertIsNone(self.run_of(first))
        self.finish(second)
        self.assertIsNone(self.run_of(second))

    def test_other_users_runs_are_not_seen_but_by_root(self):
        user = 61_238
        try:
            subprocess.run(["true"], user=user, group=user, extra_groups=[], check=True)
            subprocess.run([str(self.t.terrace), "--version"], user=user, group=user, extra_groups=[], check=True,
                           capture_output=True)
        except PermissionError:
            self.skipTest("not root, or that user cannot run the program where it was built")
        roots = self.start_known(10, 2, options=("--ddr", "64M"))
        wait_until(lambda: self.run_of(roots), 10, "the run")
        as_user = {"user": user, "group": user, "extra_groups": []}
        seen = subprocess.run([str(self.t.terrace), "top", "--once", "--json"], capture_output=True, text=True, check=True,
                              env=self.t.environment(), **as_user)
        self.assertEqual(json.loads(seen.stdout)["runs"], [])
        users = self.start_known(10, 2, options=("--ddr", "64M"), **as_user)
        wait_until(lambda: self.run_of(users), 10, "the user's run, as root sees it")
        seen = subprocess.run([str(self.t.terrace), "top", "--once", "--json"], capture_output=True, text=True, check=True,
                              env=self.t.environment(), **as_user)
        self.assertEqual([run["run"]["pid"] for run in json.loads(seen.stdout)["runs"]], [users.pid])
        self.assertIn("USER", self.top("--once", json=False).out)
        self.finish(users)
        self.finish(roots)

    def test_a_stopped_run_is_shown_and_holds_nobody_up(self):
        process = self.start_known(10, 2, options=("--ddr", "64M"))
        self.settled(process, lambda r: r["memory"]["large_bytes"] >= 22 * MIB)
        process.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            run = self.run_of(process)
            self.assertLess(time.monotonic() - begin, 10)
            self.assertEqual(run["state"], "stopped")
            self.assertGreaterEqual(run["memory"]["large_bytes"], 22 * MIB)
            self.assertIn("stopped", self.top("--once", json=False).out)
        finally:
            process.send_signal(signal.SIGCONT)
        self.finish(process)

    def test_what_a_killed_supervisor_left_is_swept(self):
        process = self.start_known(10, 2, options=("--ddr", "64M"))
        self.settled(process, lambda r: r["process_list"])
        pid = self.run_of(process)["process_list"][0]["pid"]
        process.kill()
        process.wait(20)
        answer = self.top("--once").json
        self.assertNotIn(process.pid, [run["run"]["pid"] for run in answer["runs"]])
        self.assertGreaterEqual(answer["swept"], 1)
        self.assertEqual(self.top("--once").json["swept"], 0)
        wait_until(lambda: not process_alive(pid), 10, "the program's end")

    def test_without_a_terminal_it_says_what_to_do(self):
        result = self.top(json=False, check=2)
        self.assertIn("--once", result.err)
        self.assertEqual(result.out, "")
        self.assertEqual(self.top("--interval", "0", "--once", json=False, check=False).code, 2)

    def test_on_a_terminal_keys_and_signals_end_it(self):
        process = self.start_known(10, 2, options=("--ddr", "64M"))
        self.settled(process, lambda r: r["process_list"])
        for how in ("q", "\x03", signal.SIGTERM):
            with self.subTest(how=how):
                master, slave = pty.openpty()
                before = termios.tcgetattr(slave)
                top = subprocess.Popen([str(self.t.terrace), "top", "--interval", "0.2"], stdin=slave, stdout=slave,
                                       stderr=slave, env=self.t.environment(TERM="xterm"), start_new_session=True,
                                       preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)))
                shown = b""

                def more(master=master):
                    return os.read(master, 65536) if select.select([master], [], [], 0.05)[0] else b""
                end = time.monotonic() + 15
                while b"known 10 2" not in shown and time.monotonic() < end:
                    shown += more()
                self.assertTrue(b"known 10 2" in shown, shown[-600:])
                if isinstance(how, str):
                    os.write(master, how.encode())
                else:
                    top.send_signal(how)
                end = time.monotonic() + 15
                while top.poll() is None and time.monotonic() < end:
                    shown += more()
                self.assertEqual(top.poll(), 0)
                shown += more()
                self.assertIn(b"\x1b[?1049h", shown)
                self.assertTrue(shown.rstrip().endswith(b"\x1b[?1049l"), shown[-40:])
                self.assertEqual(termios.tcgetattr(slave), before)
                os.close(master)
                os.close(slave)
        self.finish(process)

    def test_lines_of_json_until_it_is_ended(self):
        process = self.start_known(10, 2, options=("--ddr", "64M"))
        top = self.t.popen(self.t.terrace, "top", "--json", "--interval", "0.2", stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(3):
                self.assertIn("runs", json.loads(top.stdout.readline()))
        finally:
            top.terminate()
            top.wait(20)
            top.stdout.close()
        self.finish(process)


class MinSizeTopTest(unittest.TestCase):
    """Large requests only: small blocks are the program's own malloc's, and nobody counts them."""

    def test_large_blocks_are_known(self):
        library = find_binary("libterrace_malloc.so")
        with Harness(devices={"a": "256M"}, name="top-min", env={"TERRACE_MALLOC_LIBRARY": library}) as t:
            t.start()
            t.create_pool("p")
            source = t.directory / "known.c"
            source.write_text(KNOWN)
            subprocess.run(["gcc", "-O1", "-fno-builtin", "-o", t.directory / "known", source], check=True)
            stats = t.directory / "stats.json"
            t.cli("run", "--stats", stats, "--ddr", "16M", "--cxl", "128M", "--min-size", "64K", "--policy", "static", "--",
                  t.directory / "known", 50_000, 30, "quit", json=False)
            document = json.loads(stats.read_text())
            (ended,) = document["process_list"]
            self.assertEqual(ended["memory"]["large_bytes"], 50 * MIB)
            self.assertEqual((ended["memory"]["small_bytes"], ended["memory"]["small_extent_bytes"]), (0, 0))
            self.assertIsNone(ended["small_age_ns"])
            self.assertEqual(ended["memory"]["live_ddr_bytes"] + ended["memory"]["live_cxl_bytes"], 50 * MIB)
            self.assertEqual([(one["bytes_min"], one["blocks"]) for one in ended["size_classes"]], [(MIB, 30), (16 * MIB, 1)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
