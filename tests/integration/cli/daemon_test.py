# SPDX-License-Identifier: Apache-2.0
"""daemon start, stop, run, status; commands whose daemon goes away.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/daemon_test.py [TestClass[.test]]
"""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import unittest

from cli_base import CONFLICT, NOT_FOUND, UNAVAILABLE, USAGE
import terrace_harness as harness
from terrace_harness import Harness, process_alive, wait_until

CLONE_NEWUTS = 0x04000000


class DaemonVerbs(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="daemon")
        self.addCleanup(self.t.close)

    def start(self, *arguments, check=True):
        result = self.t.cli("daemon", "start", "--runtime-dir", self.t.runtime, "--state", self.t.state,
                            "--emulate", "a=32M", "--emulate", "b=32M", *arguments, check=check)
        if result.code == 0:
            self.t.track(result.json["pid"])
        return result.json

    def test_start_status_stop(self):
        started = self.start()
        self.assertTrue(process_alive(started["pid"]))
        self.assertEqual(started["socket"], str(self.t.socket))
        self.assertEqual(started["server"]["pid"], started["pid"])
        self.assertTrue(pathlib.Path(started["log"]).is_file())
        serials = [device["serial"] for device in self.t.cli("device", "list").json["devices"]]
        self.assertLessEqual({"emu:a", "emu:b"}, set(serials))
        shown = self.t.cli("daemon", "status", "--runtime-dir", self.t.runtime, env={"TERRACE_SOCKET": ""}).json
        self.assertEqual(shown["server"]["pid"], started["pid"])
        self.assertIn(f"pid {started['pid']}", self.t.cli("daemon", "status", json=False).out)
        again = self.start(check=CONFLICT)
        self.assertEqual(again["error"]["code"], "already_exists")
        self.assertIn(str(started["pid"]), again["error"]["message"])
        self.assertEqual(self.t.cli("daemon", "stop").json, {"stopped": started["pid"]})
        self.assertFalse(process_alive(started["pid"]))
        self.t.cli("daemon", "status", check=UNAVAILABLE)

    def test_leases_survive_stop_and_start(self):
        first = self.start()
        self.t.create_pool("p")
        lease = self.t.grant("4M", "p", "--ttl", "10m")
        self.assertIn("stopped terraced", self.t.cli("daemon", "stop", json=False).out)
        second = self.start()
        self.assertNotEqual(first["pid"], second["pid"])
        self.assertEqual(self.t.leases()[lease["id"]]["epoch"], lease["epoch"])
        self.t.check_invariants()

    @unittest.skipUnless(os.geteuid() == 0, "only root may give itself another host name")
    def test_a_machine_without_a_host_name_has_a_name_all_the_same(self):
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/self/ns/uts") as before:
            if libc.unshare(CLONE_NEWUTS) != 0:
                self.skipTest(os.strerror(ctypes.get_errno()))
            try:
                socket.sethostname("(none)")
                self.start()
                self.t.create_pool("p")
                lease = self.t.grant("4M", "p", "--ttl", "10m")
            finally:
                self.assertEqual(libc.setns(before.fileno(), CLONE_NEWUTS), 0)
        self.assertRegex(lease["host"], r"^(machine-[0-9a-f]{16}|localhost)$")

    def test_the_socket_says_where_to_start(self):
        result = self.t.cli("daemon", "start", "--state", self.t.state, "--emulate", "a=32M")
        self.t.track(result.json["pid"])
        self.assertEqual(result.json["socket"], str(self.t.socket))

    def test_a_daemon_that_cannot_start_says_why(self):
        error = self.start("--emulate", "nonsense", check=USAGE)["error"]
        self.assertIn("exit status", error["message"])
        self.assertIn("nonsense", error["message"], "its last words are shown")
        missing = self.t.cli("daemon", "start", env={"TERRACED": "/nonexistent/terraced"}, check=NOT_FOUND).json
        self.assertIn("/nonexistent/terraced", missing["error"]["message"])

    def test_a_state_in_use_is_a_conflict(self):
        self.start()
        other = self.t.directory / "other"
        error = self.t.cli("daemon", "start", "--runtime-dir", other, "--state", self.t.state, "--emulate", "a=32M",
                           check=CONFLICT).json["error"]
        self.assertEqual(error["code"], "busy")
        self.assertIn("exit status 1", error["message"])

    def test_further_arguments_are_passed_on(self):
        error = self.start("--", "--no-such-flag", check=USAGE)["error"]
        self.assertIn("--no-such-flag", error["message"])

    def test_granules_of_a_gigabyte(self):
        """Overcommitted: no machine needs two gigabytes for this."""
        arguments = ["daemon", "start", "--runtime-dir", self.t.runtime, "--state", self.t.state]
        error = self.t.cli(*arguments, "--emulate", "a=3G", "--", "--emulate-granule", "3M", check=USAGE).json["error"]
        self.assertIn("power of two from 2 MiB to 1 GiB", error["message"])
        error = self.t.cli(*arguments, "--emulate", "a=1536M", "--", "--emulate-granule", "1G", check=USAGE).json["error"]
        self.assertIn("whole number of granules of 1 GiB", error["message"])
        started = self.t.cli(*arguments, "--emulate", "a=3G", "--", "--emulate-granule", "1G", "--emulate-overcommit").json
        self.t.track(started["pid"])
        self.t.create_pool("p", ["a"])
        self.assertEqual(self.t.cli("pool", "show", "p").json["pool"]["granule_bytes"], 1 << 30)
        lease = self.t.grant("1100M", "p", "--ttl", "10m")
        self.assertEqual(lease["bytes"], 2 << 30, "rounded up to granules")
        self.assertEqual(lease["granule_bytes"], 1 << 30)
        self.t.check_invariants()

    def test_run_becomes_the_daemon(self):
        command = [self.t.terrace, "daemon", "run", "--runtime-dir", str(self.t.runtime), "--state", str(self.t.state),
                   "--emulate", "a=32M"]
        with open(self.t.log, "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.t.environment())
        self.t.track(process.pid)
        self.t.process = process
        self.t.wait_ready()
        self.assertEqual(self.t.cli("status").json["server"]["pid"], process.pid, "the same process")
        self.assertEqual(self.t.stop(), 0)

    def test_stop_refuses_what_is_not_terraced(self):
        """A daemon under another name (a wrapper, another container): its pid is not signalled."""
        copy = self.t.directory / "elsewhere"
        copy.write_bytes(pathlib.Path(self.t.terraced).read_bytes())
        copy.chmod(0o755)
        self.t.terraced = str(copy)
        self.t.start()
        error = self.t.cli("daemon", "stop", check=NOT_FOUND).json["error"]
        self.assertIn("not terraced", error["message"])
        self.assertTrue(process_alive(self.t.pid))


class DaemonGone(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="gone")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")

    def test_killed_between_commands(self):
        lease = self.t.grant("4M", "p", "--ttl", "10m")
        self.t.kill()
        self.t.cli("status", check=UNAVAILABLE)
        self.t.start()
        self.assertIn(lease["id"], self.t.leases())
        self.t.check_invariants()

    def test_a_process_that_kept_what_was_taken_back_is_named_at_the_start(self):
        lease = self.t.grant("4M", "p", "--ttl", "10m")
        path = self.t.runtime / "objects" / f"lease-{lease['id']}.obj"
        program = ("import mmap, os, sys\n"
                   f"fd = os.open({str(path)!r}, os.O_RDWR)\n"
                   "memory = mmap.mmap(fd, 4 << 20)\n"
                   "print('mapped', flush=True)\n"
                   "sys.stdin.read()\n")
        stubborn = self.t.popen("/usr/bin/python3", "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(stubborn.stdout.readline(), b"mapped\n")
        self.t.cli("lease", "revoke", lease["id"], "--grace", "0s")
        wait_until(lambda: lease["id"] not in self.t.leases(), 60, "the lease to be gone")
        self.t.kill()
        self.t.start()
        recovered = self.t.cli("status").json["server"]["recovered"]
        self.assertIn(f"process {stubborn.pid} ", recovered)
        self.assertIn(f"lease-{lease['id']};", recovered)
        stubborn.communicate(timeout=60)

    @staticmethod
    def has_socket(pid):
        """Whether `pid` has a socket: its connection, which a frozen daemon's backlog accepts."""
        try:
            return any(os.readlink(fd).startswith("socket:") for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            return False

    def test_stopped_during_a_command(self):
        """The daemon is frozen, then killed, while commands wait for it."""
        os.kill(self.t.pid, signal.SIGSTOP)
        result = self.t.cli("--timeout", "1s", "status", check=UNAVAILABLE)
        self.assertIn("did not answer within 1 s", result.json["error"]["message"])
        waiting = self.t.popen(self.t.terrace, "--json", "status", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: self.has_socket(waiting.pid), 60, "the command's connection")
        time.sleep(0.2)
        self.t.kill()
        out, _ = waiting.communicate(timeout=60)
        self.assertEqual(waiting.returncode, UNAVAILABLE)
        self.assertIn("closed the connection", json.loads(out)["error"]["message"])

    def test_a_grant_that_times_out_is_said_to_be_undecided(self):
        os.kill(self.t.pid, signal.SIGSTOP)
        result = self.t.cli("--timeout", "1s", "lease", "grant", "--size", "2M", check=UNAVAILABLE)
        self.assertIn("may still happen", result.json["error"]["message"])
        os.kill(self.t.pid, signal.SIGCONT)
        self.t.check_invariants()


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class UserWithoutRuntimeDirectory(unittest.TestCase):
    UID = 64211  # nobody's: what it leaves in /tmp is this test's

    def test_start_whatever_the_umask(self):
        t = Harness(name="nodir")
        self.addCleanup(t.close)
        t.directory.chmod(0o755)
        home = t.directory / "home"
        home.mkdir()
        os.chown(home, self.UID, self.UID)
        place = pathlib.Path(f"/tmp/terrace-{self.UID}")
        self.addCleanup(shutil.rmtree, place, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
        environment = {name: value for name, value in t.environment(HOME=str(home)).items()
                       if name not in ("TERRACE_SOCKET", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")}

        def as_user(*arguments):
            try:
                done = subprocess.run([t.terrace, "--json", *arguments], env=environment, text=True, capture_output=True,
                                      check=False, user=self.UID, group=self.UID, extra_groups=[], umask=0o002, cwd="/")
            except PermissionError:
                self.skipTest("this user cannot run the program where it was built")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return json.loads(done.stdout)
        started = as_user("daemon", "start", "--emulate", "a=16M")
        t.track(started["pid"])
        self.assertEqual(started["socket"], f"{place}/terrace/terraced.sock")
        self.assertEqual(as_user("daemon", "status")["server"]["pid"], started["pid"])
        self.assertEqual(place.stat().st_mode & 0o777, 0o700)
        self.assertEqual(as_user("daemon", "stop"), {"stopped": started["pid"]})


if __name__ == "__main__":
    harness.main()
