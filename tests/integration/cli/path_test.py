# SPDX-License-Identifier: Apache-2.0
"""lease path: a lease's memory by a path, for its tenant's user and nobody else, and gone with the lease.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/path_test.py [TestClass[.test]]
"""

import ctypes
import mmap
import os
import pathlib
import signal
import subprocess
import time
import unittest

from cli_base import DENIED, FAILED, MIB, NOT_FOUND, USAGE, WithDaemon
import terrace_harness as harness
from terrace_harness import Harness, wait_until

USER, OTHER = 65534, 65533
# Opens a path in the ways named by letters, and says what came of it.
TRY = """
import os, sys
for way in sys.argv[2:]:
    try:
        if way == "r": os.close(os.open(sys.argv[1], os.O_RDONLY))
        elif way == "w": os.close(os.open(sys.argv[1], os.O_RDWR))
        elif way == "chmod": os.chmod(sys.argv[1], 0o666)
        elif way == "unlink": os.unlink(sys.argv[1])
        elif way == "link": os.link(sys.argv[1], sys.argv[1] + ".more")
        elif way == "list": os.listdir(os.path.dirname(sys.argv[1]))
        print(way, "done")
    except OSError as error:
        print(way, error.strerror)
"""
# Maps the path's file, says so, and touches it until it ends.
HOLDER = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(file, 0)
memory[:4] = b"mine"
print("mapped", flush=True)
while True:
    memory[0] = memory[1]
    time.sleep(0.01)
"""
# The same, but lets go of it when it sees that it is taken back.
YIELDING = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(file, 0)
print("mapped", flush=True)
end = time.time() + 60
while os.fstat(file).st_mtime <= time.time():
    memory[0] = 1
    time.sleep(0.01)
    if time.time() > end:
        sys.exit("it was not shown")
memory.close()
os.close(file)
print("let go", flush=True)
sys.stdin.read()
"""
IN_ATTRIB = 4


class Watch:
    """Changes of a file's inode, by inotify."""

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0 or libc.inotify_add_watch(self.descriptor, os.fsencode(path), IN_ATTRIB) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def changed(self):
        try:
            return bool(os.read(self.descriptor, 4096))
        except BlockingIOError:
            return False

    def close(self):
        os.close(self.descriptor)


def tried(user, path, *ways):
    """{way: what came of it} for that user."""
    said = subprocess.run(["/usr/bin/python3", "-c", TRY, str(path), *ways], user=user, group=user, extra_groups=[], cwd="/",
                          text=True, capture_output=True, check=True, env={})
    return dict(line.split(" ", 1) for line in said.stdout.splitlines())


class Path(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")

    def path(self, *arguments):
        return self.t.cli("lease", "path", *arguments).json

    def test_what_is_written_by_the_path_is_the_leases(self):
        lease = self.t.grant("6M", "p", "--persistent", "--label", "model")
        told = self.path("model")
        self.assertEqual((told["id"], told["label"], told["bytes"], told["device"], told["read_only"], told["uid"]),
                         (lease["id"], "model", 6 * MIB, False, False, os.geteuid()))
        with open(told["path"], "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            self.assertEqual(len(memory), 6 * MIB)
            memory[4 * MIB:4 * MIB + 5] = b"hello"
        read = self.t.cli("lease", "exec", "model", "--ro", "--", "dd", "if={path}", "bs=1M", "skip=4", "count=1", "status=none",
                          json=False)
        self.assertTrue(read.out.startswith("hello"), read.out[:20])
        as_text = self.t.cli("lease", "path", lease["id"], json=False)
        self.assertEqual((as_text.out, as_text.err), (told["path"] + "\n", ""))
        self.assertEqual(self.t.leases()[lease["id"]]["holders"], 0, "a path holds nothing")

    def test_it_is_gone_with_the_lease_and_a_fence_is_a_sigbus(self):
        for how in (("release",), ("revoke", "--grace", "0s")):
            with self.subTest(how):
                self.t.grant("2M", "p", "--persistent", "--label", "taken")
                path = self.path("taken")["path"]
                holder = subprocess.Popen(["/usr/bin/python3", "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
                self.addCleanup(holder.stdout.close)
                self.addCleanup(holder.wait)
                self.addCleanup(holder.kill)
                self.assertEqual(holder.stdout.readline(), "mapped\n")
                self.t.cli("lease", how[0], "taken", *how[1:])
                self.assertEqual(holder.wait(60), -signal.SIGBUS)
                wait_until(lambda: not os.path.exists(path), 60, "the file goes")
                self.t.wait_free("p")

    def test_the_path_follows_a_resize_and_a_restart(self):
        self.t.grant("2M", "p", "--persistent", "--label", "grows")
        path = self.path("grows")["path"]
        self.t.cli("lease", "resize", "grows", "6M")
        self.assertEqual(os.stat(path).st_size, 6 * MIB)
        self.t.kill()
        self.t.start()
        self.assertEqual(self.path("grows")["path"], path)

    def test_a_lease_that_nobody_renews_is_told_of(self):
        self.t.grant("2M", "p", "--ttl", "10m", "--label", "short")
        said = self.t.cli("lease", "path", "short", json=False)
        self.assertIn("(short) ends in", said.err)
        self.assertIn("lease hold", said.err)

    def test_what_cannot_be(self):
        self.t.grant("2M", "p", "--persistent", "--movable", "--label", "moves")
        self.error("lease", "path", "moves", code=FAILED, name="unsupported", contains="without --movable")
        self.t.grant("2M", "p", "--persistent", "--label", "here")
        self.error("lease", "path", "here", "--user", "no-such-user", code=USAGE, contains="no such user")
        self.error("lease", "path", "nowhere", code=NOT_FOUND)
        self.error("lease", "path", "here", "--tenant", "somebody-else", code=NOT_FOUND)


@unittest.skipUnless(os.geteuid() == 0, "only a manager of root sees who has the memory")
class Grace(WithDaemon):
    """A revoke with a grace, of a lease whose programs opened a path."""

    def setUp(self):
        self.t.create_pool("p")
        self.lease = self.t.grant("2M", "p", "--persistent", "--label", "used")["id"]
        self.path = self.t.cli("lease", "path", "used").json["path"]

    def start(self, program, *more):
        process = subprocess.Popen(["/usr/bin/python3", "-c", program, self.path, *more], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        for end in (process.stdin.close, process.stdout.close, process.wait, process.kill):
            self.addCleanup(end)
        self.assertEqual(process.stdout.readline(), "mapped\n")
        return process

    def revoke(self, grace, *more):
        self.t.cli("lease", "revoke", "used", "--grace", grace, "--reason", "node 3 goes", *more)

    def left_s(self):
        return os.stat(self.path).st_mtime - time.time()

    def revoking(self):
        return self.t.leases()[self.lease]["phase"] == "revoking"

    def wait_gone(self):
        wait_until(lambda: self.lease not in self.t.leases(), 60, "the lease goes, long before its grace is over")

    def test_the_end_is_shown_on_the_file_and_the_memory_stays_until_then(self):
        holder = self.start(HOLDER)
        self.assertLess(self.left_s(), 0)
        watch = Watch(self.path)
        self.addCleanup(watch.close)
        self.revoke("1h")
        wait_until(watch.changed, 60, "whoever watches the file is told")
        wait_until(lambda: 3000 < self.left_s() <= 3600, 60, "the end of the grace is shown")
        self.assertIn("being taken back: node 3 goes", self.t.cli("lease", "path", "used", json=False).err)
        begun = time.monotonic()
        self.revoke("3s")  # a second one may only shorten it
        wait_until(lambda: self.left_s() <= 3, 60, "the new end is shown")
        self.assertEqual(holder.wait(60), -signal.SIGBUS)
        self.assertGreaterEqual(time.monotonic() - begun, 2.9)
        self.wait_gone()

    def test_without_a_grace_nothing_is_shown(self):
        holder = self.start(HOLDER)
        with open(self.path, "rb") as file:
            self.revoke("0s")
            self.assertEqual(holder.wait(60), -signal.SIGBUS)
            self.assertLessEqual(os.fstat(file.fileno()).st_mtime, time.time())

    def test_it_is_over_once_nobody_has_the_memory(self):
        first, second = self.start(YIELDING), self.start(HOLDER)
        self.revoke("1h")
        self.assertEqual(first.stdout.readline(), "let go\n")
        self.assertTrue(self.revoking(), "another one has it")
        self.assertIsNone(second.poll())
        second.kill()
        self.wait_gone()
        self.assertIsNone(first.poll())

    def test_a_holder_with_a_session_leaves_them_the_rest_of_it(self):
        runs = subprocess.Popen([self.t.terrace, "lease", "exec", "used", "--signal", "TERM", "--", "sleep", "600"],
                                env=self.t.environment(), stderr=subprocess.PIPE, text=True)
        for end in (runs.stderr.close, runs.wait, runs.kill):
            self.addCleanup(end)
        holder = self.start(HOLDER)
        wait_until(lambda: self.t.leases()[self.lease]["holders"] == 1, 60, "exec has the lease")
        children = pathlib.Path(f"/proc/{runs.pid}/task/{runs.pid}/children")
        wait_until(lambda: "sleep" in [pathlib.Path(f"/proc/{child}/comm").read_text().strip()
                                       for child in children.read_text().split()], 60, "its program runs")
        self.revoke("1h")
        self.assertIn("taken back in", runs.stderr.readline())
        self.assertEqual(runs.wait(60), 128 + signal.SIGTERM)
        self.assertTrue(self.revoking(), "what has it by the path keeps it")
        self.assertIsNone(holder.poll())
        holder.kill()
        self.wait_gone()

    def test_writing_to_the_file_and_a_restart_hide_it_for_a_moment_only(self):
        holder = self.start(HOLDER)
        self.revoke("1h")
        with open(self.path, "r+b") as file:
            file.write(b"x")
        wait_until(lambda: self.left_s() > 3000, 60, "shown again")
        self.t.kill()
        with open(self.path, "r+b") as file:
            file.write(b"x")
        self.assertLess(self.left_s(), 60)
        self.t.start()
        wait_until(lambda: self.left_s() > 3000, 60, "shown again by the next manager")
        self.assertIsNone(holder.poll())
        holder.kill()
        self.wait_gone()


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class Users(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="path", daemon_args=["--allow-unmapped-uids"])
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.t.directory.chmod(0o755)

    def grant(self, label, *more, tenant=f"uid-{USER}"):
        return self.t.grant("2M", "p", "--persistent", "--label", label, "--tenant", tenant, *more)

    def path(self, label, *more):
        return pathlib.Path(self.t.cli("lease", "path", label, "--tenant", f"uid-{USER}", "--user", USER, *more).json["path"])

    def test_one_user_may_and_no_other(self):
        self.grant("mine")
        self.grant("not-asked")
        self.grant("theirs", tenant=f"uid-{OTHER}")
        before = pathlib.Path(self.t.cli("lease", "path", "mine", "--tenant", f"uid-{USER}").json["path"])
        self.assertEqual(tried(USER, before, "r")["r"], "Permission denied", "root asked for itself")
        path = self.path("mine")
        self.assertEqual(path, before)
        self.assertEqual(tried(USER, path, "r", "w", "list", "chmod", "unlink", "link"),
                         {"r": "done", "w": "done", "list": "Permission denied", "chmod": "Operation not permitted",
                          "unlink": "Permission denied", "link": "Permission denied"})
        self.assertEqual(set(tried(OTHER, path, "r", "w", "list").values()), {"Permission denied"})
        for other in path.parent.iterdir():
            if other != path:
                self.assertEqual(tried(USER, other, "r")["r"], "Permission denied", other)

    def test_users_are_bounded_and_disturb_nobody(self):
        self.grant("many")
        self.grant("other", tenant=f"uid-{OTHER}")
        for user in range(40_000, 40_032):
            self.t.cli("lease", "path", "many", "--tenant", f"uid-{USER}", "--user", user)
        refused = self.t.cli("lease", "path", "many", "--tenant", f"uid-{USER}", "--user", USER, check=4)
        self.assertIn("32 users", refused.json["error"]["message"])
        path = self.t.cli("lease", "path", "other", "--tenant", f"uid-{OTHER}", "--user", OTHER).json["path"]
        self.assertEqual(tried(OTHER, path, "w")["w"], "done")

    def test_read_only_stays_so(self):
        self.grant("model")
        path = self.path("model", "--ro")
        self.assertEqual(tried(USER, path, "r", "w"), {"r": "done", "w": "Permission denied"})
        self.t.kill()
        self.t.start()
        self.assertEqual(tried(USER, path, "r", "w"), {"r": "done", "w": "Permission denied"})
        self.assertEqual(self.path("model"), path)
        self.assertEqual(tried(USER, path, "w")["w"], "done")

    def test_a_transfer_takes_it_away(self):
        lease = self.grant("given")
        path = self.path("given")
        with path.open("r+b") as file:  # without cutting it, as "wb" would
            file.write(b"secret")
        self.t.cli("lease", "transfer", lease["id"], "--to-tenant", f"uid-{OTHER}", "--yes")
        self.assertFalse(path.exists())
        now = pathlib.Path(self.t.cli("lease", "path", lease["id"], "--tenant", f"uid-{OTHER}", "--user", OTHER).json["path"])
        self.assertNotEqual(now, path)
        self.assertEqual(tried(USER, now, "r")["r"], "Permission denied")
        self.assertEqual(tried(OTHER, now, "r")["r"], "done")

    def as_user(self, *arguments):
        try:
            return subprocess.run([self.t.terrace, *arguments], env=self.t.environment(), text=True, capture_output=True,
                                  check=False, user=USER, group=USER, extra_groups=[], cwd="/")
        except PermissionError:
            self.skipTest("this user cannot run the program where it was built")

    def test_a_user_asks_for_itself_and_for_nobody_else(self):
        self.grant("own")
        self.grant("theirs", tenant=f"uid-{OTHER}")
        done = self.as_user("lease", "path", "own")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(tried(USER, done.stdout.strip(), "w")["w"], "done")
        refused = self.as_user("lease", "path", "own", "--user", str(OTHER))
        self.assertEqual(refused.returncode, DENIED, refused.stderr)
        self.assertIn("only an administrator", refused.stderr)
        self.assertEqual(self.as_user("lease", "path", "theirs").returncode, NOT_FOUND)
        ran = self.as_user("lease", "exec", "own", "--", "dd", "if={path}", "of=/dev/null", "bs=1M", "status=none")
        self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_a_closed_folder_is_named(self):
        self.grant("hidden")
        self.t.directory.chmod(0o700)
        refused = self.t.cli("lease", "path", "hidden", "--tenant", f"uid-{USER}", "--user", USER, check=DENIED)
        self.assertIn(f"the folder {self.t.directory} is closed to others", refused.json["error"]["message"])
        self.t.directory.chmod(0o755)


if __name__ == "__main__":
    harness.main()
