# SPDX-License-Identifier: Apache-2.0
"""A real daemon that is watched and told to reload: SIGHUP under load, wrong configurations, a rotated log, a hang."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

CONFIG = """
[tenants.uids]
{uid} = "{tenant}"
[log]
level = "{level}"
file = "{log}"
[limits]
ttl_max = "{ttl}"
"""
USER = 65534


class Notified:
    """The service manager's socket, and what came to it."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(0.2)
        self.messages = []

    def gather(self, seconds=0.0):
        until = time.monotonic() + seconds
        while True:
            try:
                self.messages.append(self.socket.recv(4096).decode())
            except TimeoutError:
                if time.monotonic() >= until:
                    return self.messages

    def wait(self, text, timeout=60):
        def seen():
            return [message for message in self.gather() if text in message]
        return wait_until(seen, timeout, f"a message with {text!r} in {self.messages[-3:]}")


class Reload(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="reload")
        self.addCleanup(self.t.close)
        self.config = self.t.directory / "terraced.toml"
        self.log = self.t.directory / "own.log"
        self.write()
        self.t.daemon_args += ["--config", str(self.config)]

    def write(self, tenant="training", level="info", ttl="30d", more=""):
        self.config.write_text(CONFIG.format(uid=USER, tenant=tenant, level=level, log=self.log, ttl=ttl) + more)

    def hang_up(self, answer):
        """SIGHUP, until the log has `answer` once more."""
        before = self.log.read_text().count(answer) if self.log.exists() else 0
        os.kill(self.t.pid, signal.SIGHUP)
        wait_until(lambda: self.log.exists() and self.log.read_text().count(answer) > before, 30, f"the log's {answer!r}")
        return self.log.read_text()

    def test_leases_live_on_while_it_is_told_to_reload_under_load(self):
        self.t.start()
        self.t.create_pool("p")
        lease = self.t.grant("8M", "p", "--ttl", "60s")
        over, failures, done = threading.Event(), [], []

        def load():
            while not over.is_set():
                result = self.t.cli("lease", "grant", "--pool", "p", "--size", "2M", "--ttl", "60s", check=False)
                if result.code == 0:
                    given = result.json.get("lease", result.json)["id"]
                    result = self.t.cli("lease", "release", str(given), check=False)
                (done if result.code == 0 else failures).append(result)

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            os.kill(self.t.pid, signal.SIGHUP)
            time.sleep(0.05)
        over.set()
        for thread in threads:
            thread.join()
        self.assertEqual([str(failure) for failure in failures], [])
        self.assertGreater(len(done), 1)
        text = self.hang_up("nothing that takes effect now has changed")
        self.assertIn("SIGHUP", text)
        self.assertIsNotNone(self.t.pid)
        self.assertEqual(list(self.t.leases()), [lease["id"]])
        self.t.check_invariants()
        self.assertEqual(self.t.stop(), 0)

    def test_what_can_be_taken_over_is_and_the_rest_is_named(self):
        self.t.start()
        self.write(tenant="serving", ttl="1h")
        text = self.hang_up("in force now: tenants.uids")
        self.assertIn("as before until terraced is started again: limits.ttl_max", text)
        self.write(tenant="serving", ttl="1h", level="error")
        os.kill(self.t.pid, signal.SIGHUP)
        self.t.create_pool("p")  # answered after the reload
        self.write(tenant="serving", ttl="1h", level="info")
        self.assertIn("in force now: log.level", self.hang_up("in force now: log.level"))
        self.t.grant("2M", "p", "--ttl", "2h")  # the old bound

    @unittest.skipUnless(os.geteuid() == 0, "only root is uid 0, and can become another user")
    def test_another_users_tenant_changes_while_the_daemon_runs(self):
        self.t.directory.chmod(0o755)
        self.t.start()
        self.assertEqual(self.tenant_of_user(), "training")
        self.write(tenant="serving")
        self.hang_up("in force now: tenants.uids")
        self.assertEqual(self.tenant_of_user(), "serving")

    def tenant_of_user(self):
        harness.need_build_for_all()
        pool = self.t.cli("pool", "list").json["pools"] or [self.t.create_pool("p")]
        self.assertTrue(pool)
        done = subprocess.run([self.t.terrace, "--json", "lease", "grant", "--pool", "p", "--size", "2M", "--ttl", "60s"],
                              user=USER, group=USER, extra_groups=[], env=self.t.environment(), capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return max(self.t.leases().values(), key=lambda lease: lease["id"])["tenant"]

    def test_a_wrong_configuration_is_refused_and_the_old_one_stays(self):
        self.t.start()
        self.write(tenant="serving", level="loud", more="\n[emulated]\nno_such_key = 1\n")
        text = self.hang_up("the one from before stays in force")
        line = next(line for line in text.splitlines() if "the one from before stays in force" in line)
        self.assertIn("terraced.toml:5: log level 'loud' is none of", line)
        self.assertIn("unknown key 'no_such_key'", line)
        self.config.unlink()
        self.hang_up("the one from before stays in force")
        self.write()
        self.hang_up("nothing that takes effect now has changed")
        self.assertEqual(self.t.cli("status").code, 0)

    def test_a_log_that_was_rotated_away_is_made_anew(self):
        self.t.start()
        old = self.log.rename(self.t.directory / "own.log.1")
        self.hang_up("the configuration was read again")
        self.assertIn("serving at", old.read_text())
        self.assertNotIn("the configuration was read again", old.read_text())
        # Also where the configuration has a mistake: the old file is not written to for ever.
        self.log.rename(self.t.directory / "own.log.2")
        self.write(level="loud")
        self.hang_up("the one from before stays in force")

    def test_the_service_manager_hears_of_each_step_and_a_watchdog_of_the_loop(self):
        manager = Notified(self.t.directory / "notify")
        self.addCleanup(manager.socket.close)
        self.t.env.update(NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="400000")
        self.t.start()
        manager.wait("READY=1\nSTATUS=serving at")
        self.assertTrue(manager.messages[0].startswith("STATUS=starting"))
        self.assertGreaterEqual(len(manager.wait("WATCHDOG=1")), 1)
        manager.gather(2.0)
        self.assertGreaterEqual(len(manager.wait("WATCHDOG=1")), 4)

        self.write(level="loud")
        os.kill(self.t.pid, signal.SIGHUP)
        manager.wait("RELOADING=1\nMONOTONIC_USEC=")
        manager.wait("READY=1\nSTATUS=the last reload was refused: ")

        os.kill(self.t.pid, signal.SIGSTOP)  # it hangs
        try:
            manager.gather()
            manager.messages.clear()
            self.assertEqual(manager.gather(1.0), [])
        finally:
            os.kill(self.t.pid, signal.SIGCONT)
        manager.wait("WATCHDOG=1")
        self.assertEqual(self.t.stop(), 0)
        manager.wait("STOPPING=1")


if __name__ == "__main__":
    harness.main()
