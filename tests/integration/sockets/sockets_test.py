# SPDX-License-Identifier: Apache-2.0
"""Sockets with roles: what whoever connects may do follows from the socket, not from the uid."""

import contextlib
import json
import os
import pathlib
import socket
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from session_tenant import Tenant  # noqa: E402
from terrace_harness import Harness  # noqa: E402

DENIED = 6
USER = 65534
INSIDE = 100000  # whom root of a user namespace is outside of it

CONFIG = """
root_is_administrator = false
socket_mode = 0o600
[tenants.uids]
0 = "rooted"
[[sockets]]
path = "{run}/admin/a.sock"
role = "administrator"
mode = 0o660
group = {user}
[[sockets]]
path = "{run}/watch/o.sock"
role = "operator"
[[sockets]]
path = "{run}/training/terraced.sock"
tenant = "training"
mode = 0o666
[[sockets]]
path = "{run}/tenants/t.sock"
role = "tenant"
[[sockets]]
path = "{run}/serving/terraced.sock"
tenant = "serving"
owner = {inside}
[limits]
connections_max = 64
"""


@unittest.skipUnless(os.geteuid() == 0, "only root is uid 0, and can become another user")
class Sockets(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="sockets")
        self.addCleanup(self.t.close)
        self.t.directory.chmod(0o755)
        self.config = self.t.directory / "terraced.toml"
        self.config.write_text(CONFIG.format(run=self.t.runtime, user=USER, inside=INSIDE))
        self.t.daemon_args += ["--config", str(self.config)]
        self.main = self.t.socket
        self.admin = self.t.runtime / "admin/a.sock"
        self.watch = self.t.runtime / "watch/o.sock"
        self.training = self.t.runtime / "training/terraced.sock"
        self.tenants = self.t.runtime / "tenants/t.sock"
        self.serving = self.t.runtime / "serving/terraced.sock"

    def start(self):
        self.t.start()
        self.at(self.admin, "pool", "create", "p", "--adopt", "--device", "emu:a")

    def at(self, path, *arguments, code=0, user=None):
        """`terrace --json` through the socket at `path`: its document."""
        if user is None:
            return self.t.cli("--socket", path, *arguments, check=code).json
        harness.need_build_for_all()
        command = [self.t.terrace, "--json", "--socket", str(path), *map(str, arguments)]
        done = subprocess.run(command, env=self.t.environment(ASAN_OPTIONS="detect_leaks=0"), text=True, capture_output=True,
                              timeout=120, check=False, user=user, group=user, extra_groups=[])
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}{done.stderr}\n{self.t.log_tail()}")
        return json.loads(done.stdout)

    def denied(self, path, *arguments, says):
        error = self.at(path, *arguments, code=DENIED)["error"]
        self.assertEqual(error["code"], "permission_denied")
        self.assertIn(says, error["message"])

    def test_each_socket_gives_its_role(self):
        self.start()
        listed = self.at(self.admin, "status")["server"]["sockets"]
        self.assertEqual(listed, [
            {"path": str(self.main), "role": "by-uid", "tenant": None},
            {"path": str(self.admin), "role": "administrator", "tenant": None},
            {"path": str(self.watch), "role": "operator", "tenant": None},
            {"path": str(self.training), "role": "tenant", "tenant": "training"},
            {"path": str(self.tenants), "role": "tenant", "tenant": None},
            {"path": str(self.serving), "role": "tenant", "tenant": "serving"}])
        text = self.t.run(self.t.terrace, "--socket", self.watch, "status").out
        self.assertIn(f"serves   {self.training}, tenant training only\n", text)

        # Root is an administrator nowhere but at that socket.
        self.denied(self.main, "status", says="uid 0 is no administrator here; list it under admin_uids")
        for path in (self.training, self.tenants):
            for verb in (["status"], ["pool", "create", "q", "--device", "emu:a"], ["device", "drain", "emu:a"],
                         ["lease", "revoke", "1"], ["quota", "set", "training", "--bytes", "1G"]):
                self.denied(path, *verb, says=f"the socket {path} has the role tenant")

        # One tenant's socket gives it to every caller, and no other.
        lease = self.at(self.training, "lease", "grant", "--pool", "p", "--size", "2M", "--label", "x")["lease"]
        self.assertEqual(lease["tenant"], "training")
        self.denied(self.training, "lease", "grant", "--pool", "p", "--size", "2M", "--tenant", "serving", says="serving")
        for asked, answer in (("training", "ready"), ("serving", "error permission_denied")):
            with Tenant(self.t, self.training, asked) as tenant:  # the daemon's answer, not the command line's
                self.assertEqual(tenant.first, answer)
        with Tenant(self.t, self.admin, "serving") as tenant:
            self.assertEqual(tenant.first, "ready")
        self.assertEqual(self.at(self.tenants, "lease", "list")["leases"], [])
        self.assertEqual(self.at(self.tenants, "lease", "grant", "--pool", "p", "--size", "2M")["lease"]["tenant"],
                         "rooted")
        self.assertEqual(self.at(self.training, "lease", "show", "x", user=USER)["leases"][0]["id"], lease["id"])

    def test_an_operator_drains_and_makes_no_pool(self):
        self.start()
        lease = self.at(self.training, "lease", "grant", "--pool", "p", "--size", "2M", "--ttl", "1h")["lease"]["id"]
        self.assertEqual(len(self.at(self.watch, "lease", "list")["leases"]), 1)
        self.at(self.watch, "device", "drain", "emu:a")
        self.at(self.watch, "device", "undrain", "emu:a")
        self.at(self.watch, "check")
        self.at(self.watch, "queue", "list")
        self.at(self.watch, "lease", "renew", lease, "--ttl", "2h")
        backup = self.t.directory / "backup"
        for verb in (["pool", "create", "q", "--adopt", "--device", "emu:b"], ["device", "adopt", "--yes", "emu:b"],
                     ["quota", "set", "training", "--bytes", "1G"], ["pool", "delete", "p"],
                     ["reserve", "create", "p", "training", "2M"],
                     ["lease", "transfer", lease, "--to-tenant", "rooted", "--yes"], ["state", "backup", backup]):
            with self.subTest(verb):
                self.denied(self.watch, *verb, says="needs the role administrator")
        self.assertFalse(backup.exists())
        self.at(self.watch, "lease", "revoke", lease, "--grace", "0s")
        rows = self.at(self.admin, "audit")["entries"]
        by_operator = [row for row in rows if " on operator socket (" in row["actor"]]
        self.assertIn("revoke", [row["verb"] for row in by_operator])
        self.assertIn("denied admin", [row["verb"] for row in by_operator])
        self.assertTrue([row for row in rows if row["actor"].startswith("uid 0 on tenant socket of training (")], rows)

    def test_whoever_opens_an_administrators_socket_is_one(self):
        self.start()
        self.assertEqual(stat.S_IMODE(self.admin.stat().st_mode), 0o660)
        self.assertEqual(self.admin.stat().st_gid, USER)
        self.assertEqual(stat.S_IMODE(self.watch.stat().st_mode), 0o600)
        self.at(self.admin, "pool", "create", "q", "--adopt", "--device", "emu:b", user=USER)
        self.at(self.admin, "quota", "set", "training", "--bytes", "1G", user=USER)
        self.at(self.watch, "status", code=DENIED, user=USER)
        says = next(check for check in self.at(self.admin, "doctor", user=USER)["checks"] if check["name"] == "socket")
        self.assertIn("by the socket's role (administrator) an administrator", says["meaning"])
        says = next(check for check in self.at(self.training, "doctor")["checks"] if check["name"] == "socket")
        self.assertIn("by the socket's role (tenant) no administrator, tenant training", says["meaning"])

    @unittest.skipUnless(harness.can_mount(), "needs a mount namespace")
    def test_a_container_that_sees_one_folder(self):
        self.start()
        inside = self.t.directory / "inside"
        inside.mkdir()
        program = (f"mount --bind {self.training.parent} {inside} && mount -o remount,bind,ro {inside} && "
                   f"! touch {inside}/x 2>/dev/null && mount -t tmpfs none {self.t.runtime} && "
                   f"{self.t.terrace} --json --socket {inside}/terraced.sock lease grant --pool p --size 2M && "
                   f"! {self.t.terrace} --socket {inside}/terraced.sock pool delete p")
        done = self.t.run("unshare", "-m", "sh", "-c", program)
        self.assertEqual(json.loads(done.out)["lease"]["tenant"], "training")
        self.assertIn("has the role tenant of training only", done.err)

    def test_root_of_a_user_namespace_opens_what_is_its_own(self):
        self.start()

        def inside(path, *arguments):
            done = subprocess.run(["setpriv", f"--reuid={INSIDE}", f"--regid={INSIDE}", "--clear-groups", "unshare", "-U",
                                   "-r", self.t.terrace, "--json", "--socket", str(path), *arguments], text=True,
                                  env=self.t.environment(ASAN_OPTIONS="detect_leaks=0"), capture_output=True,
                                  timeout=120, check=False)
            if "unshare:" in done.stderr or "setpriv:" in done.stderr or "Permission denied" in done.stderr:
                self.skipTest(done.stderr)
            return json.loads(done.stdout)
        grant = ("lease", "grant", "--pool", "p", "--size", "2M")
        self.assertEqual(inside(self.serving, *grant)["lease"]["tenant"], "serving")
        self.assertIn(f"uid {INSIDE} has no tenant here", inside(self.tenants, *grant)["error"]["message"])
        self.assertIn("may not connect", inside(self.admin, "status")["error"]["message"])
        self.assertIn("may not connect", self.at(self.serving, *grant, code=DENIED, user=USER)["error"]["message"])

    def test_files_come_and_go_with_the_daemon(self):
        self.start()
        every = [self.main, self.admin, self.watch, self.training, self.tenants, self.serving]
        self.t.kill()
        self.assertTrue(all(path.is_socket() for path in every), "left by a daemon that was killed")
        self.t.start()
        self.assertEqual(len(self.at(self.admin, "pool", "list")["pools"]), 1)
        self.t.stop()
        self.assertEqual([path for path in every if path.exists()], [])
        self.watch.write_text("somebody's")
        self.t.start(wait=False)
        self.assertEqual(self.t.wait_dead(), 1)
        self.assertIn(f"{self.watch} exists and is no socket", self.t.log_tail())
        self.assertEqual([path for path in every if path.is_socket()], [], "a start that fails leaves none")
        self.watch.unlink()
        self.watch.parent.chmod(0o777)
        self.t.start(wait=False)
        self.assertEqual(self.t.wait_dead(), 1)
        self.assertIn(f"{self.watch.parent} can be written by others", self.t.log_tail())

    def test_configurations_that_are_refused(self):
        for text, expected in (
                ('[[sockets]]\npath = "/run/a.sock"\nrole = "administrator"\nmode = 0o666\n',
                 f"{self.config}:4: any user may open a socket of mode 0o666"),
                ('[[sockets]]\npath = "a.sock"\n', f"{self.config}:2: the socket's path 'a.sock' must be an absolute"),
                ('[[sockets]]\npath = "/a"\n[[sockets]]\npath = "/a"\n', f"{self.config}:4: the socket /a is there twice"),
                (f'[[sockets]]\npath = "{self.main}"\n', f"the socket {self.main} is there twice"),
                ('root_is_administrator = false\n', "nobody could administer this daemon"),
                ('socket_role = "operator"\nsocket_mode = 0o600\n', "nobody could administer this daemon")):
            with self.subTest(text):
                self.config.write_text(text)
                done = self.t.run(*self.t.daemon_command(), "--check-config", check=2)
                self.assertIn(expected, done.err)
        # A flag may name who the file does not.
        self.config.write_text("root_is_administrator = false\n")
        self.t.run(*self.t.daemon_command(), "--check-config", "--admin-uid", "7")

    def test_the_command_line_starts_it_where_root_may_not_ask(self):
        """With several sockets the main one is named."""
        arguments = ["--runtime-dir", self.t.runtime, "--state", self.t.state, "--emulate", "a=64M", "--config", self.config]
        started = self.t.cli("daemon", "start", *arguments).json
        self.t.track(started["pid"])
        self.assertEqual((started["socket"], started["server"]), (str(self.main), None))
        again = self.t.cli("daemon", "start", *arguments, check=7).json["error"]
        self.assertIn("a daemon answers at", again["message"])
        stopped = self.at(self.watch, "daemon", "stop")
        self.assertEqual(stopped, {"stopped": started["pid"]})
        text = self.t.cli("daemon", "start", *arguments, json=False).out
        self.t.track(self.at(self.watch, "status")["server"]["pid"])
        self.assertIn("uid 0 is no administrator here", text)

    def test_room_is_kept_for_operators_not_for_root(self):
        self.start()
        with contextlib.ExitStack() as held:
            def connect(path):
                client = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                client.connect(str(path))
                client.settimeout(0.5)
                try:
                    return client.recv(1) != b""  # closed at once, or silent
                except TimeoutError:
                    return True
            # Root's connections at one tenant's socket are one user's: a quarter.
            kept = 0
            while kept < 64 and connect(self.training):
                kept += 1
            self.assertEqual(kept, 16)
            self.assertTrue(connect(self.tenants))
            self.at(self.watch, "status")
            self.at(self.admin, "status")


if __name__ == "__main__":
    harness.main()
