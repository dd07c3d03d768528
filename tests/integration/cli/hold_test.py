# SPDX-License-Identifier: Apache-2.0
"""lease exec, lease hold: programs and scripts that know nothing of leases have one's memory.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/hold_test.py [TestClass[.test]]
"""

import json
import os
import signal
import subprocess
import sys
import unittest

from cli_base import CONFLICT, DENIED, MIB, NOT_FOUND, USAGE, WithDaemon
import terrace_harness as harness
from terrace_harness import Harness, wait_until

# Writes its argument where the lease begins, and says what was there.
WRITER = """
import mmap, os, sys
fd, text = int(sys.argv[1]), sys.argv[2].encode()
memory = mmap.mmap(fd, int(os.environ["TERRACE_LEASE_BYTES"]))
print(memory[:len(text)].decode(errors="replace").replace("\\0", "."), os.environ["TERRACE_LEASE_LABEL"],
      os.environ["TERRACE_LEASE_FD"], len(memory))
memory[:len(text)] = text
"""
# Maps it, says so, and touches it until it ends.
HOLDER = """
import mmap, signal, sys, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(42))
memory = mmap.mmap(int(sys.argv[1]), 0)
print("mapped", flush=True)
while True:
    memory[0] = 1
    time.sleep(0.01)
"""
NO_PROGRAM, NO_LEASE = 127, 125


class WithLines(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")

    def start(self, *arguments, **options):
        """`terrace lease ARGUMENTS` in the background, with pipes."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        process = self.t.popen(self.t.terrace, "lease", *map(str, arguments), **options)
        self.addCleanup(lambda: [one.close() for one in (process.stdout, process.stderr, process.stdin) if one])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def exec(self, *arguments, code=0, env=None):
        return self.t.cli("lease", "exec", *arguments, json=False, check=code, env=env)


class Exec(WithLines):
    def test_a_program_maps_what_the_one_before_wrote(self):
        lease = self.t.grant("6M", "p", "--persistent", "--label", "model")
        first = self.exec("model", "--", sys.executable, "-c", WRITER, "{fd}", "weights")
        self.assertEqual(first.out.split()[1:], ["model", "3", str(6 * MIB)])
        again = self.exec(lease["id"], "--fd", 77, "--", sys.executable, "-c", WRITER, "{fd}", "weights")
        self.assertEqual(again.out.split(), ["weights", "model", "77", str(6 * MIB)])
        self.assertEqual(self.t.leases()[lease["id"]]["holders"], 0)

    def test_words_with_braces_and_the_environment_say_the_same(self):
        self.t.grant("4M", "p", "--label", "one")
        shown = self.exec("one", "--", "sh", "-c", "echo $0 $TERRACE_LEASE_FD $TERRACE_LEASE_PATH $TERRACE_LEASE_BYTES",
                          "a={fd}:{fd},{path},{bytes}").out.split()
        self.assertEqual(shown, [f"a=3:3,/proc/self/fd/3,{4 * MIB}", "3", "/proc/self/fd/3", str(4 * MIB)])

    def test_a_path_is_opened_by_who_may(self):
        self.t.grant("4M", "p", "--label", "one")
        self.exec("one", "--", "dd", "if=/bin/true", "of={path}", "conv=notrunc", "bs=4k", "count=1", "status=none")
        self.assertEqual(self.exec("one", "--", "head", "-c4", "{path}").out, "\x7fELF")

    def test_read_only_memory_cannot_be_written(self):
        self.t.grant("2M", "p", "--mode", "shared_read_only", "--label", "model")
        tried = self.exec("model", "--ro", "--", sys.executable, "-c", WRITER, "{fd}", "x", code=1)
        self.assertIn("PermissionError", tried.err)
        reads = "import mmap,sys; print(len(mmap.mmap(int(sys.argv[1]), 0, prot=mmap.PROT_READ)))"
        self.assertEqual(self.exec("model", "--ro", "--", sys.executable, "-c", reads, "{fd}").out, f"{2 * MIB}\n")

    def test_it_exits_as_the_program_did(self):
        self.t.grant("2M", "p", "--label", "one")
        self.exec("one", "--", "sh", "-c", "exit 7", code=7)
        self.exec("one", "--", "sh", "-c", "kill -KILL $$", code=128 + signal.SIGKILL)
        self.assertIn("no program 'no-such-program'", self.exec("one", "--", "no-such-program", code=NO_PROGRAM).err)
        self.exec("one", "--", "/etc/passwd", code=126)
        missing = self.t.cli("lease", "exec", "none", "--", "true", check=NO_LEASE).json["error"]
        self.assertEqual((missing["code"], missing["exit_code"]), ("not_found", NO_LEASE))

    def test_what_cannot_be_meant_is_said_before_anything_runs(self):
        self.error("lease", "exec", "one", code=USAGE)
        self.error("lease", "exec", "one", "--fd", "1", "--", "true", code=USAGE)
        self.error("lease", "exec", "one", "--signal", "KILL", "--", "true", code=USAGE, contains="TERM")
        self.error("lease", "exec", "one", "--pool", "p", "--", "true", code=USAGE)
        self.error("lease", "exec", "7", "--size", "2M", "--", "true", code=NO_LEASE, contains="7")
        read_end, write_end = os.pipe()
        try:
            os.set_inheritable(read_end, True)
            taken = self.start("exec", "one", "--fd", read_end, "--", "true", pass_fds=[read_end])
            self.assertEqual(taken.wait(60), USAGE)
            self.assertIn(f"--fd {read_end}", taken.stderr.read())
        finally:
            os.close(read_end)
            os.close(write_end)

    def test_a_lease_of_its_own_goes_back_at_the_end(self):
        shown = self.exec("scratch", "--size", "5M", "--pool", "p", "--", sys.executable, "-c", WRITER, "{fd}", "new")
        self.assertEqual(shown.out.split(), ["...", "scratch", "3", str(6 * MIB)])
        self.assertEqual(self.t.active_leases(), {})
        self.t.grant("2M", "p", "--label", "taken")
        self.assertIn("already_exists", self.exec("taken", "--size", "2M", "--", "true", code=NO_LEASE).err)
        self.assertIn("capacity_exhausted", self.exec("big", "--size", "1T", "--", "true", code=NO_LEASE).err)

    def test_a_lease_that_is_short_lived_is_renewed(self):
        lease = self.t.grant("2M", "p", "--ttl", "2s", "--label", "short")
        runs = self.start("exec", "short", "--", sys.executable, "-c", HOLDER, "{fd}")
        self.assertEqual(runs.stdout.readline(), "mapped\n")
        self.assertRaises(subprocess.TimeoutExpired, runs.wait, 6)
        self.assertEqual(self.t.leases()[lease["id"]]["phase"], "active")
        runs.terminate()
        self.assertEqual(runs.wait(60), 128 + signal.SIGTERM, "signals are passed on")

    def test_a_revoked_lease_is_told_of_and_ends_in_sigbus(self):
        self.t.grant("2M", "p", "--label", "one")
        runs = self.start("exec", "one", "--", sys.executable, "-c", HOLDER, "{fd}")
        self.assertEqual(runs.stdout.readline(), "mapped\n")
        self.t.cli("lease", "revoke", "one", "--grace", "2s", "--reason", "node 3 goes")
        told = runs.stderr.readline()
        self.assertIn("(one) is being taken back in", told)
        self.assertIn("node 3 goes", told)
        self.assertEqual(runs.wait(60), 128 + signal.SIGBUS)

    def test_a_program_that_asks_for_it_gets_a_signal_and_the_lease_goes_at_once(self):
        lease = self.t.grant("2M", "p", "--label", "one")
        runs = self.start("exec", "one", "--signal", "USR1", "--", sys.executable, "-c", HOLDER, "{fd}", "ends")
        self.assertEqual(runs.stdout.readline(), "mapped\n")
        self.t.cli("lease", "revoke", "one", "--grace", "1h")
        self.assertEqual(runs.wait(60), 42)
        wait_until(lambda: lease["id"] not in self.t.leases(), 60, "the lease goes, as nobody holds it")

    def test_it_stays_for_what_the_program_left_behind(self):
        self.exec("scratch", "--size", "2M", "--", "sh", "-c", "sleep 0.1 & exec 3<&-")  # closed here, not in the child
        self.assertEqual(self.t.active_leases(), {})
        runs = self.start("exec", "scratch", "--size", "2M", "--", "sh", "-c",
                          f"'{sys.executable}' -c \"$0\" {{fd}} & echo $!", HOLDER)
        self.assertEqual({runs.stdout.readline().strip().isdigit(), runs.stdout.readline().strip().isdigit()}, {True, False})
        self.assertRaises(subprocess.TimeoutExpired, runs.wait, 1)
        self.assertEqual(len(self.t.leases()), 1)
        runs.terminate()
        self.assertEqual(runs.wait(60), 0, "the program's own end, before the signal came")
        self.assertEqual(self.t.active_leases(), {})

    def test_killed_it_leaves_neither_program_nor_lease(self):
        runs = self.start("exec", "scratch", "--size", "2M", "--", sys.executable, "-c", HOLDER, "{fd}")
        self.assertEqual(runs.stdout.readline(), "mapped\n")
        runs.kill()
        self.assertEqual(runs.stdout.read(), "", "the program has ended, and with it the pipe")
        wait_until(lambda: not self.t.leases(), 60, "the manager takes back what no process has")

    def test_a_manager_that_starts_anew_is_not_noticed(self):
        lease = self.t.grant("2M", "p", "--persistent", "--label", "one")
        runs = self.start("exec", "one", "--", sys.executable, "-c", HOLDER, "{fd}")
        self.assertEqual(runs.stdout.readline(), "mapped\n")
        self.t.restart(hard=True)
        wait_until(lambda: self.t.leases()[lease["id"]]["holders"] == 1, 60, "it attaches again")
        self.assertIsNone(runs.poll())
        runs.send_signal(signal.SIGTERM)
        self.assertEqual(runs.wait(60), 128 + signal.SIGTERM)


class Hold(WithLines):
    def held(self, *arguments, **options):
        process = self.start("--json", "hold", *arguments, **options)
        return process, json.loads(process.stdout.readline())["held"]

    def test_a_lease_is_kept_until_it_is_told_to_stop(self):
        process, held = self.held("scratch", "--size", "3M")
        self.assertEqual((held["label"], held["bytes"], held["pid"], held["read_only"]), ("scratch", 4 * MIB, process.pid, False))
        with open(held["path"], "r+b", buffering=0) as memory:
            memory.write(b"by path")
        self.assertEqual(list(self.t.leases()), [held["id"]])
        process.terminate()
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(self.t.active_leases(), {})

    def test_what_it_only_attached_stays(self):
        lease = self.t.grant("2M", "p", "--persistent", "--label", "one")
        process, held = self.held("one")
        self.assertEqual(self.t.leases()[lease["id"]]["holders"], 1)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(list(self.t.leases()), [held["id"]])

    def test_programs_have_it_beside_the_holder(self):
        _, held = self.held("scratch", "--size", "2M")
        self.assertEqual(self.t.leases()[held["id"]]["mode"], "shared_coherent")
        for before, after in (("...", "one"), ("one", "two")):
            self.assertEqual(self.exec("scratch", "--", sys.executable, "-c", WRITER, "{fd}", after).out.split()[0], before)
        alone, _ = self.held("alone", "--size", "2M", "--mode", "exclusive")
        self.assertIn(f"held by process {alone.pid}", self.exec("alone", "--", "true", code=NO_LEASE).err)

    def test_people_read_a_sentence(self):
        process = self.start("hold", "scratch", "--size", "2M")
        self.assertRegex(process.stdout.readline(), rf"^holding lease \d+ \(scratch\), 2 MiB, as /proc/{process.pid}/fd/\d+\n$")

    def test_it_ends_with_its_input(self):
        process, _ = self.held("scratch", "--size", "2M", "--stdin", stdin=subprocess.PIPE)
        process.stdin.write("what is written does not matter\n")
        process.stdin.flush()
        self.assertRaises(subprocess.TimeoutExpired, process.wait, 0.5)
        process.stdin.close()
        self.assertEqual(process.wait(60), 0)

    def test_it_ends_with_a_process(self):
        sleeper = subprocess.Popen(["sleep", "600"])
        try:
            process, _ = self.held("scratch", "--size", "2M", "--pid", sleeper.pid)
            self.assertRaises(subprocess.TimeoutExpired, process.wait, 0.5)
        finally:
            sleeper.kill()
            sleeper.wait()
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(self.t.active_leases(), {})
        self.error("lease", "hold", "other", "--size", "2M", "--pid", sleeper.pid, code=NOT_FOUND, contains="process")

    def test_it_ends_as_told_while_it_waits_for_room(self):
        self.t.grant("120M", "p", "--label", "all")
        for how in ("input", "signal"):
            with self.subTest(how):
                process = self.start("hold", "later", "--size", "64M", "--wait", "1h", "--stdin", stdin=subprocess.PIPE)
                wait_until(lambda: self.t.cli("queue", "list").json["waiting"], 60, "it waits in the queue")
                if how == "input":
                    process.stdin.close()
                else:
                    process.terminate()
                self.assertEqual(process.wait(60), 0)
                self.assertEqual(process.stdout.read(), "", "it never held the lease")
                wait_until(lambda: not self.t.cli("queue", "list").json["waiting"], 60, "its place in the queue goes")
        self.assertEqual(len(self.t.leases()), 1)

    # A program that was not started yet can be passed no signal.
    def test_exec_ends_as_told_while_it_waits_for_room(self):
        self.t.grant("120M", "p", "--label", "all")
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.t.popen(self.t.terrace, "lease", "exec", "later", "--size", "64M", "--wait", "1h", "--", "/bin/true")
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            wait_until(lambda: self.t.cli("queue", "list").json["waiting"], 60, "it waits in the queue")
            process.send_signal(number)
            self.assertEqual(process.wait(60), -number)
            wait_until(lambda: not self.t.cli("queue", "list").json["waiting"], 60, "its place in the queue goes")
        ignoring = self.t.popen("/bin/sh", "-c", f"trap '' TERM; exec {self.t.terrace} lease exec later --size 64M --wait 1h -- /bin/true")
        self.addCleanup(ignoring.wait)
        self.addCleanup(ignoring.kill)
        wait_until(lambda: self.t.cli("queue", "list").json["waiting"], 60, "it waits in the queue")
        ignoring.terminate()
        with self.assertRaises(subprocess.TimeoutExpired):
            ignoring.wait(1)
        ignoring.send_signal(signal.SIGINT)
        self.assertEqual(ignoring.wait(60), -signal.SIGINT)

    def test_a_lost_lease_ends_it(self):
        process, held = self.held("scratch", "--size", "2M")
        self.t.cli("lease", "revoke", held["id"], "--grace", "0s", "--reason", "now")
        self.assertEqual(process.wait(60), NOT_FOUND)
        lines = [json.loads(line) for line in process.stdout.read().splitlines() if line.startswith("{\"notice")]
        self.assertEqual(lines[-1]["notice"]["state"], "lost")
        self.assertIn("lost", process.stderr.read())

    def test_labels_that_are_taken(self):
        self.t.grant("2M", "p", "--label", "one")
        self.error("lease", "hold", "one", "--size", "2M", code=CONFLICT)
        self.error("lease", "hold", "two", code=NOT_FOUND)
        self.error("lease", "hold", "two", "--ro", "--size", "2M", code=USAGE, contains="--ro")


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class AnotherUser(unittest.TestCase):
    USER = 65534

    def test_the_descriptor_and_the_path_are_for_every_tenant(self):
        t = Harness(name="hold", daemon_args=["--allow-unmapped-uids"])
        self.addCleanup(t.close)
        t.start()
        t.create_pool("p")
        t.directory.chmod(0o755)

        def run(*arguments, label=("mine", "--size", "2M")):
            done = subprocess.run([t.terrace, "lease", "exec", *label, "--", *arguments], env=t.environment(),
                                  text=True, capture_output=True, check=False, user=self.USER, group=self.USER,
                                  extra_groups=[], cwd="/")
            return done
        try:
            wrote = run("/usr/bin/python3", "-c", WRITER, "{fd}", "new")
        except PermissionError:
            self.skipTest("this user cannot run the program where it was built")
        self.assertEqual((wrote.returncode, wrote.stdout.split()[0]), (0, "..."), wrote.stderr)
        read = run("dd", "if={path}", "bs=1M", "status=none")
        self.assertEqual((read.returncode, len(read.stdout)), (0, 2 * MIB), read.stderr)
        t.grant("2M", "p", "--persistent", "--movable", "--label", "moves", "--tenant", f"uid-{self.USER}")
        refused = run("cat", "{path}", label=["moves"])
        self.assertEqual((refused.returncode, refused.stdout), (NO_LEASE, ""))
        self.assertIn("use {fd}", refused.stderr)
        self.assertIn("without --movable", refused.stderr)
        for lease in t.leases():
            t.cli("lease", "release", lease)


if __name__ == "__main__":
    harness.main()
