# SPDX-License-Identifier: Apache-2.0
"""The client library against a real daemon: restarts, renewals, revocations, memory.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/session/session_test.py [TestClass[.test]]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from session_tenant import Tenant  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

MIB = 1 << 20
S = 10**9


class SessionTest(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "64M"}, name="session")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.tenant = self.new_tenant()

    def new_tenant(self):
        tenant = Tenant(self.t)
        self.addCleanup(tenant.close)
        self.assertEqual(tenant.first, "ready")
        return tenant

    def test_a_killed_daemon_is_survived_and_renewal_goes_on(self):
        lease, size = map(int, self.tenant.ask("grant", 6 * MIB, 3 * S).split())
        self.assertEqual(size, 6 * MIB)
        self.assertEqual(self.tenant.ask("fill", 17), "ok")
        epoch = self.tenant.ask("info").split()[1]
        for _ in range(3):
            self.t.kill()
            self.assertEqual(self.tenant.ask("check", 17), "same")
            self.t.start()
            wait_until(lambda: self.tenant.ask("connected") == "yes", what="the session's return")
            self.assertEqual(self.tenant.ask("info"), f"active {epoch}")
        time.sleep(4)  # longer than the TTL: only renewals keep it
        self.assertEqual(self.tenant.ask("state"), "live")
        self.assertEqual(self.t.leases()[lease]["phase"], "active")
        self.assertEqual(self.tenant.ask("check", 17), "same")
        self.assertEqual(self.tenant.notices, [])
        self.assertEqual(self.tenant.ask("release"), "ok")
        self.t.wait_free()
        self.t.check_invariants()

    def test_calls_wait_for_a_daemon_that_is_away(self):
        self.tenant.ask("grant", 2 * MIB, 60 * S)
        self.t.kill()
        self.tenant.send("renew")
        time.sleep(0.5)
        self.assertTrue(self.tenant.answers.empty())
        self.t.start()
        self.assertEqual(self.tenant.answers.get(timeout=30), "ok")

    def test_a_detached_lease_lapses_once_its_holder_is_gone(self):
        self.tenant.ask("grant", 2 * MIB, 2 * S, "left", 0, 0, 1)
        self.tenant.process.kill()
        self.tenant.process.wait()
        self.assertEqual(len(self.t.leases()), 1)
        self.t.wait_free(timeout=20)

    def test_a_revocation_is_announced_and_release_ends_it_early(self):
        lease = int(self.tenant.ask("grant", 2 * MIB, 60 * S).split()[0])
        revoke = self.t.popen(self.t.terrace, "lease", "revoke", str(lease), "--grace", "30s", "--reason", "drain",
                              stdout=subprocess.DEVNULL)
        wait_until(lambda: self.tenant.notices, what="the notice")
        state, grace, reason = self.tenant.notices[0].split()
        self.assertEqual((state, reason), ("revoking", "drain"))
        self.assertGreater(int(grace), 20_000)
        self.assertEqual(self.tenant.ask("state"), "revoking")
        self.assertEqual(self.tenant.ask("release"), "ok")
        self.t.wait_free(timeout=20)
        revoke.wait(30)
        self.assertEqual(len(self.tenant.notices), 1)

    def test_a_holder_that_ignores_a_revocation_is_fenced_by_the_kernel(self):
        lease = int(self.tenant.ask("grant", 4 * MIB, 60 * S, "weights").split()[0])
        self.assertEqual(self.tenant.ask("fill", 99), "ok")
        self.t.cli("lease", "revoke", lease, "--grace", "0s", "--reason", "now")
        wait_until(lambda: self.tenant.ask("state") == "lost", what="the fence")
        self.assertEqual(self.tenant.ask("renew"), "error lease_revoked")
        wait_until(lambda: any(notice.startswith("lost") for notice in self.tenant.notices), what="the notice")
        self.tenant.send("check", 99)
        self.tenant.process.wait(30)
        self.assertNotEqual(self.tenant.process.returncode, 0)
        if self.tenant.process.returncode > 0:  # a sanitizer's handler turned the signal into an exit code
            return
        self.assertEqual(self.tenant.process.returncode, -signal.SIGBUS)

    def test_a_second_process_reads_what_the_first_one_wrote(self):
        answer = self.tenant.ask("grant", 2 * MIB, 60 * S, "shared", 0, 0, 1)
        self.assertEqual(self.tenant.ask("fill", 5), "ok")
        other = self.new_tenant()
        self.assertEqual(other.ask("attach", "shared", "ro"), "error busy")  # exclusive
        self.assertEqual(self.tenant.close(), 0)
        wait_until(lambda: other.ask("attach", "shared", "ro") == answer, what="the holder's connection to end")
        self.assertEqual(other.ask("check", 5), "same")

    def test_a_manager_that_is_stopped_for_longer_than_a_ttl_ends_no_lease_that_is_renewed(self):
        tenant, dead = self.new_tenant(), self.new_tenant()
        lease = int(tenant.ask("grant", 2 * MIB, 2 * S).split()[0])
        gone = int(dead.ask("grant", 2 * MIB, 2 * S).split()[0])
        self.assertEqual(tenant.ask("fill", 17), "ok")
        dead.kill()
        for _ in range(2):
            self.t.process.send_signal(signal.SIGSTOP)
            time.sleep(5)
            self.t.process.send_signal(signal.SIGCONT)
            self.assertEqual(tenant.ask("info").split()[0], "active")
        self.assertEqual((tenant.ask("check", 17), tenant.ask("state")), ("same", "live"))
        self.assertEqual(tenant.notices, [])
        wait_until(lambda: gone not in self.t.leases(), what="the dead holder's lease to lapse")
        self.assertEqual(self.t.leases()[lease]["phase"], "active")
        self.t.check_invariants()

    def run_handler(self, way):
        program = harness.find_binary("tests/integration/session/handler_client")
        # What a forked child has of its parent's threads nobody can take apart there: it is left.
        options = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "detect_leaks=0")))
        process = self.t.popen(program, self.t.socket, way, env={"ASAN_OPTIONS": options}, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)

        def end():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

        self.addCleanup(end)
        return process, int(process.stdout.readline())

    def test_a_handler_may_call_exit_though_the_session_is_a_static_object(self):
        process, lease = self.run_handler("exit")
        self.t.cli("lease", "revoke", lease, "--grace", "0s", "--reason", "now")
        self.assertEqual(process.wait(60), 7)

    def test_a_program_and_its_forked_child_end_with_a_static_session(self):
        for way in ("static", "fork"):
            process, _ = self.run_handler(way)
            if way == "fork":
                self.assertEqual(process.stdout.readline(), "child 0\n")
            process.stdin.write("end\n")
            process.stdin.flush()
            self.assertEqual(process.wait(60), 0)

    def test_usage_and_arena(self):
        self.assertEqual(self.tenant.ask("arena"), "ddr cxl")
        lease = int(self.tenant.ask("grant", 2 * MIB, 60 * S).split()[0])
        self.assertEqual(self.tenant.ask("usage"), "ok")
        shown = self.t.cli("lease", "show", lease)
        self.assertIn("tenant[1]", shown.out)
        self.assertEqual(self.tenant.ask("grant", 1 << 30, 60 * S), "error capacity_exhausted")


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
@unittest.skipUnless(pathlib.Path("/dev/userfaultfd").exists(), "this kernel has no /dev/userfaultfd")
class PlainUser(unittest.TestCase):
    USER = 65534

    def start(self, configuration='[clients]\nuserfaultfd = "all"\n'):
        file = self.t.directory / "terraced.toml"
        file.write_text(configuration)
        self.t.start("--config", file)
        self.t.directory.chmod(0o755)

    def plain_user(self):
        harness.need_build_for_all()
        tenant = Tenant(self.t, user=self.USER, group=self.USER, extra_groups=[])
        self.addCleanup(tenant.close)
        self.assertEqual(tenant.first, "ready")
        return tenant


class UserfaultfdTest(PlainUser):
    def setUp(self):
        self.t = Harness(devices={}, name="uffd", daemon_args=["--allow-unmapped-uids"])
        self.addCleanup(self.t.close)

    def test_a_system_call_of_an_unprivileged_tenant_waits_for_a_protected_page(self):
        self.start()
        tenant = self.plain_user()
        if pathlib.Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "0":
            self.assertEqual(tenant.ask("userfault", "own"), "error permission_denied")
        for _ in range(3):  # asking again gives another descriptor of the same device
            self.assertEqual(tenant.ask("userfault"), "waits 4 abcd")
        self.assertIn("was given /dev/userfaultfd", self.t.log.read_text())
        self.assertEqual(self.t.log.read_text().count("was given /dev/userfaultfd"), 1)

    def test_the_descriptors_of_a_daemon_that_is_asked_often_do_not_grow(self):
        self.start()
        tenant = self.plain_user()

        def count():
            """The fewest of many looks: it opens files for a moment by itself, too."""
            looks = []
            for _ in range(30):
                looks.append(len(os.listdir(f"/proc/{self.t.pid}/fd")))
                time.sleep(0.01)
            return min(looks)
        self.assertEqual(tenant.ask("userfault"), "waits 4 abcd")
        before = count()
        for _ in range(50):
            tenant.ask("userfault")
        self.assertLessEqual(count(), before)

    def test_it_is_refused_where_the_configuration_says_so(self):
        self.start("[clients]\nuserfaultfd = false\n")
        self.assertEqual(self.plain_user().ask("userfault"), "error permission_denied")

    def test_whom_the_kernel_refuses_one_gets_none_unless_the_operator_says_so(self):
        if pathlib.Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() != "0" \
                or pathlib.Path("/dev/userfaultfd").stat().st_mode & 0o006:
            self.skipTest("everybody has the right here")
        self.start("")
        self.assertEqual(self.plain_user().ask("userfault"), "error permission_denied")
        root = Tenant(self.t)
        self.addCleanup(root.close)
        self.assertEqual(root.ask("userfault"), "waits 4 abcd")
        # The operator's word is taken over without a restart.
        (self.t.directory / "terraced.toml").write_text('[clients]\nuserfaultfd = "all"\n')
        os.kill(self.t.pid, signal.SIGHUP)
        wait_until(lambda: "in force now: clients.userfaultfd" in self.t.log.read_text(), 20, "the reload")
        self.assertEqual(self.plain_user().ask("userfault"), "waits 4 abcd")


class MigrationTest(PlainUser):
    """A program without privileges that migrates, seen and steered by `terrace tier`. A user of its own: the verbs of
    root would find everybody's programs."""

    USER = 61_235

    @classmethod
    def setUpClass(cls):
        harness.need_build_for_all()

    @classmethod
    def tearDownClass(cls):
        os.rmdir(f"/dev/shm/terrace-tier-{cls.USER}")  # empty: the engines removed their pages

    def setUp(self):
        self.t = Harness(devices={"a": "256M"}, name="migrate", daemon_args=["--allow-unmapped-uids"])
        self.addCleanup(self.t.close)

    def tier(self, *words, code=0):
        done = subprocess.run([self.t.terrace, "--json", "tier", *map(str, words)], capture_output=True, text=True,
                              timeout=60, check=False, user=self.USER, group=self.USER, extra_groups=[])
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def the_range(self, tenant):
        (process,) = self.tier("status", tenant.process.pid)["processes"]
        (only,) = process["ranges"]
        return only

    def test_what_is_used_rises_and_is_steered_from_outside(self):
        self.start()
        self.t.create_pool("p")
        tenant = self.plain_user()
        self.assertEqual(tenant.ask("range", "kv", 64 * MIB, 16 * MIB), "migrates")
        page = pathlib.Path(f"/dev/shm/terrace-tier-{self.USER}/{tenant.process.pid}")
        wait_until(lambda: self.the_range(tenant)["ddr_bytes"], what="the engine's first round")
        before = self.the_range(tenant)
        self.assertEqual((before["name"], before["state"], before["ddr_bytes"], before["bytes"]),
                         ("kv", "running", 16 * MIB, 64 * MIB))

        paused = self.tier("pause", tenant.process.pid)["changed"][0]["range"]
        self.assertEqual(paused["state"], "paused")
        self.assertEqual(tenant.ask("hammer", 48 * MIB, 8 * MIB, 1.5), "ok")
        self.assertEqual(self.the_range(tenant)["promotions"], 0)

        set_ = self.tier("set", "kv", "--copy-budget", "1G/s", "--ddr", "12M")["changed"][0]["range"]
        self.assertEqual((set_["state"], set_["copy_bytes_per_s_max"], set_["ddr_bytes_max"]),
                         ("paused", 1 << 30, 12 * MIB))
        self.tier("set", "kv", "--ddr", "1G", code=2)
        self.assertEqual(self.tier("resume", "kv")["changed"][0]["range"]["state"], "running")

        def hot_blocks():
            (map_,) = self.tier("map", "kv")["maps"]
            return [block for block in map_["blocks"] if 48 * MIB <= block["offset_bytes"] < 56 * MIB]
        for _ in range(30):
            self.assertEqual(tenant.ask("hammer", 48 * MIB, 8 * MIB, 1), "ok")
            if all(block["ddr_bytes"] == block["bytes"] for block in hot_blocks()):
                break
        after = self.the_range(tenant)
        self.assertGreaterEqual(after["promoted_bytes"], 8 * MIB, after)
        self.assertLessEqual(after["ddr_bytes"], 12 * MIB + 2 * MIB, after)
        self.assertGreater(after["sweeps"], 0)
        self.assertGreater(after["stalled_ns"], 0)
        hot = hot_blocks()
        self.assertEqual(len(hot), 4)
        self.assertTrue(all(block["ddr_bytes"] == block["bytes"] for block in hot), hot)
        self.assertTrue(any(block["ddr_accesses_per_s"] for block in hot), hot)

        self.assertEqual(tenant.close(), 0)
        self.assertFalse(page.exists())

    def test_without_a_userfaultfd_nothing_moves_and_the_range_says_why(self):
        self.start("[clients]\nuserfaultfd = false\n")
        self.t.create_pool("p")
        tenant = self.plain_user()
        self.assertEqual(tenant.ask("range", "kv", 16 * MIB, 4 * MIB), "stays")
        self.assertEqual(tenant.ask("hammer", 8 * MIB, 4 * MIB, 1), "ok")
        told = self.the_range(tenant)
        self.assertEqual((told["state"], told["promotions"]), ("no_uffd", 0))
        self.assertTrue(told["reason"])
        self.assertIn("terraced", told["fix"])
        refused = self.tier("pause", tenant.process.pid, code=1)["error"]
        self.assertEqual(refused["code"], "unsupported")


if __name__ == "__main__":
    harness.main()
