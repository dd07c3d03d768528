# SPDX-License-Identifier: Apache-2.0
"""Leases whose holders agreed to be ended before their memory is taken (on_fence kill): they are, whatever takes the lease
from them, and nobody else is; the memory is back, erased, at once.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/session/kill_then_fence_test.py [TestClass[.test]]
"""

import os
import pathlib
import shutil
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
LONG = 600 * 10**9
SHORT = 3 * 10**9


def runs(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class KillThenFence(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "64M"}, name="kill")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")

    def tenant(self, *arguments, **options):
        tenant = Tenant(self.t, *arguments, **options)
        self.addCleanup(tenant.kill)
        self.assertEqual(tenant.first, "ready")
        return tenant

    def holder(self, label="one", on_fence="kill", ttl=LONG):
        """A process with a lease of which it has a page pinned, and the lease's id."""
        tenant = self.tenant()
        lease = int(tenant.ask("grant", 2 * MIB, ttl, label, 0, 0, 1, on_fence).split()[0])
        self.assertEqual(tenant.ask("fill", 7), "ok")
        self.assertEqual(tenant.ask("pin"), "ok")
        return tenant, lease

    def events(self, kind):
        return [event for event in self.t.cli("events").json["events"] if event["kind"] == kind]

    def assert_ended(self, tenant):
        self.assertEqual(tenant.process.wait(60), -signal.SIGKILL)

    def assert_back(self):
        """All memory is free, none of it was ever quarantined, and the next tenant finds zeros."""
        self.t.wait_free(timeout=60)
        self.assertEqual(self.events("lease_quarantined"), [])
        fresh = self.tenant()
        fresh.ask("grant", 64 * MIB, LONG, "fresh", 0, 0, 0)
        self.assertEqual(fresh.ask("check", 0), "same")
        self.assertEqual(fresh.ask("release"), "ok")
        self.t.wait_free(timeout=60)
        self.t.check_invariants()

    def test_a_revoke(self):
        tenant, lease = self.holder()
        shown = self.t.leases()[lease]
        self.assertEqual(shown["on_fence"], "kill")
        self.t.cli("lease", "revoke", lease, "--grace", "0s", "--reason", "needed")
        self.assert_ended(tenant)
        self.assert_back()
        ended = self.events("lease_holder_ended")
        self.assertEqual(len(ended), 1)
        self.assertEqual(ended[0]["lease"], lease)
        self.assertIn(f"session_client[{tenant.process.pid}]", ended[0]["message"])
        audit = self.t.cli("audit", "--subject", f"lease {lease}").json["entries"]
        named = [entry for entry in audit if entry["verb"] == "end-holder"]
        self.assertEqual(len(named), 1)
        self.assertIn(str(tenant.process.pid), named[0]["detail"])

    def test_a_grace_in_which_the_holder_gives_it_back_costs_it_nothing(self):
        tenant, lease = self.holder()
        self.t.cli("lease", "revoke", lease, "--grace", "60s")
        wait_until(lambda: tenant.notices, 60, "the notice")
        self.assertEqual(tenant.ask("release"), "ok")
        self.assert_back()
        self.assertIsNone(tenant.process.poll())
        self.assertEqual(self.events("lease_holder_ended"), [])

    def test_a_grace_that_is_over(self):
        tenant, lease = self.holder()
        self.t.cli("lease", "revoke", lease, "--grace", "1s")
        self.assert_ended(tenant)
        self.assertTrue(tenant.notices[0].startswith("revoking"), tenant.notices)
        self.assert_back()

    def test_a_release_by_somebody_else(self):
        tenant, lease = self.holder()
        self.t.cli("lease", "release", lease)
        self.assert_ended(tenant)
        self.assert_back()

    def test_an_expiry(self):
        tenant, lease = self.holder(ttl=SHORT)
        os.kill(tenant.process.pid, signal.SIGSTOP)  # nobody renews: and a stopped process is ended, too
        self.assert_ended(tenant)
        self.assert_back()
        self.assertEqual(self.events("lease_expired")[0]["lease"], lease)

    def test_who_did_not_agree_goes_on(self):
        plain, lease = self.holder(on_fence="keep")
        agreed, other = self.holder("two")
        self.t.cli("lease", "revoke", lease, "--grace", "0s")
        wait_until(lambda: lease not in self.t.leases(), 60, "the fence")
        self.assertEqual(plain.ask("state"), "lost")
        self.assertEqual(agreed.ask("state"), "live")
        self.assertEqual(self.events("lease_holder_ended"), [])
        # A lease of the other kind cannot be had without agreeing to it.
        self.assertEqual(plain.ask("attach", "two", "rw"), "error busy")
        agreed.kill()
        wait_until(lambda: plain.ask("attach", "two", "rw") == "error invalid_argument", 60, "the other's session gone")
        self.assertEqual(plain.ask("attach", "two", "rw", "kill").split()[0], str(other))
        self.t.cli("lease", "revoke", other, "--grace", "0s")
        self.assert_ended(plain)
        self.assert_back()

    def test_a_child_agreed_to_nothing(self):
        tenant, lease = self.holder()
        child = int(tenant.ask("fork"))
        self.addCleanup(lambda: runs(child) and os.kill(child, signal.SIGKILL))
        self.t.cli("lease", "revoke", lease, "--grace", "0s")
        self.assert_ended(tenant)
        self.assert_back()  # of memory that the kernel gives back page by page: its copies of pages are its own
        self.assertTrue(runs(child))

    def test_two_holders_and_two_leases_at_once(self):
        first, one = self.holder("one")
        second, two = self.holder("two")
        third = self.tenant()
        shared = int(third.ask("grant", 2 * MIB, LONG, "three", 0, 0, 1, "kill").split()[0])
        self.assertEqual(third.ask("fill", 9), "ok")
        revokes = [self.t.popen(self.t.terrace, "lease", "revoke",
                                str(lease), "--grace", "0s", stdout=subprocess.DEVNULL)
                   for lease in (one, two, shared)]
        for revoke in revokes:
            self.assertEqual(revoke.wait(60), 0)
        for tenant in (first, second, third):
            self.assert_ended(tenant)
        self.assert_back()
        self.assertEqual({event["lease"] for event in self.events("lease_holder_ended")}, {one, two, shared})

    def test_a_holder_that_ended_by_itself_changes_nothing(self):
        tenant, lease = self.holder()
        tenant.kill()
        self.t.cli("lease", "revoke", lease, "--grace", "0s")
        self.assert_back()
        self.assertEqual(self.events("lease_holder_ended"), [])

    def test_a_manager_that_was_restarted_knows_who_agreed(self):
        tenant, lease = self.holder()
        bystander, _ = self.holder("two", on_fence="keep")
        os.kill(tenant.process.pid, signal.SIGSTOP)  # it cannot say so again
        self.t.kill()
        self.t.start()
        self.t.cli("lease", "revoke", lease, "--grace", "0s")
        self.assert_ended(tenant)
        wait_until(lambda: lease not in self.t.leases(), 60, "the fence")
        self.assertEqual(bystander.ask("check", 7), "same")
        self.assertEqual(len(self.events("lease_holder_ended")), 1)

    def test_a_manager_that_dies_between_the_killing_and_the_fence(self):
        self.t.stop()
        self.t.start(failpoints="fence_after_end=crash")
        tenant, lease = self.holder()
        self.t.cli("lease", "revoke", lease, "--grace", "0s", check=False)
        self.assert_ended(tenant)
        self.t.wait_dead()
        self.t.start()
        self.assert_back()

    def test_another_boots_record_ends_nobody(self):
        tenant, lease = self.holder()
        self.t.kill()
        record = pathlib.Path(f"{self.t.state}-consents")
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        self.assertTrue(lines[0].startswith("boot "))
        self.assertIn(f" {tenant.process.pid} ", lines[1])
        os.kill(tenant.process.pid, signal.SIGSTOP)
        record.write_text("boot 00000000-0000-0000-0000-000000000000 0\n" + "".join(lines[1:]), encoding="utf-8")
        self.t.start()
        self.t.cli("lease", "revoke", lease, "--grace", "0s")
        wait_until(lambda: lease not in self.t.leases(), 60, "the fence")
        self.assertTrue(runs(tenant.process.pid))

    def test_a_lease_that_nobody_can_be_ended_for_by_a_path(self):
        lease = self.t.grant("2M", "p", "--ttl", "10m", "--on-fence", "kill")["id"]
        refused = self.t.cli("lease", "path", lease, check=False)
        self.assertNotEqual(refused.code, 0)
        self.assertIn("on_fence kill", refused.out + refused.err)
        movable = self.t.cli("lease", "grant", "--size", "2M", "--movable", "--on-fence", "kill", check=False)
        self.assertIn("cannot be moved", movable.out + movable.err)

    def test_a_program_of_lease_exec_ends_with_it(self):
        out = self.t.directory / "started"
        run = self.t.popen(self.t.terrace, "lease", "exec", "scratch", "--size", "2M", "--on-fence", "kill", "--", "/bin/sh", "-c",
                           f"echo $$ > {out}.new; mv {out}.new {out}; exec sleep 1000")
        self.addCleanup(lambda: run.poll() is None and run.kill())
        wait_until(lambda: os.path.exists(out), 60, "the program's start")
        program = int(pathlib.Path(out).read_text(encoding="utf-8"))
        self.t.cli("lease", "revoke", "scratch", "--grace", "0s")
        self.assertEqual(run.wait(60), -signal.SIGKILL)
        wait_until(lambda: not runs(program), 60, "the program's end")
        self.assert_back()

    @unittest.skipUnless(os.geteuid() == 0, "needs root to make namespaces")
    def test_a_holder_in_a_pid_namespace_of_its_own(self):
        program = harness.find_binary("tests/integration/session/session_client", self.t.build_dir)
        holder = self.t.popen(shutil.which("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc", str(program),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.stdin.close)
        self.addCleanup(lambda: holder.poll() is None and holder.kill())
        self.assertEqual(holder.stdout.readline().strip(), "ready")
        holder.stdin.write(f"grant {2 * MIB} {LONG} inside 0 0 1 kill\n")
        holder.stdin.flush()
        answer = holder.stdout.readline().strip()
        self.assertRegex(answer, r"^= \d+ \d+$")
        self.t.cli("lease", "revoke", int(answer.split()[1]), "--grace", "0s")
        self.assertNotEqual(holder.wait(60), 0)  # unshare's, which says so in its own way
        self.assertEqual(len(self.events("lease_holder_ended")), 1)
        self.assert_back()

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to act as another user")
    def test_a_program_that_raised_its_rights_is_left_alone(self):
        """As a set-user-ID program that a user starts in the place of the holder: no way to end another user's."""
        tenant, lease = self.holder()
        record = pathlib.Path(f"{self.t.state}-consents")
        self.t.kill()
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        words = lines[1].split(" ")
        self.assertEqual(words[6], "0")
        words[6] = "12345"  # who agreed, of a process that is root's now
        os.kill(tenant.process.pid, signal.SIGSTOP)
        record.write_text(lines[0] + " ".join(words), encoding="utf-8")
        self.t.start()
        self.t.cli("lease", "revoke", lease, "--grace", "0s")
        wait_until(lambda: lease not in self.t.leases(), 60, "the fence")
        self.assertTrue(runs(tenant.process.pid))

    def test_how_long_it_takes(self):
        """Prints, and asserts nothing of the times."""
        for on_fence in ("keep", "kill"):
            took = []
            for turn in range(5):
                tenant, lease = self.holder(f"{on_fence}{turn}", on_fence)
                begin = time.monotonic()
                self.t.cli("lease", "revoke", lease, "--grace", "0s")
                self.t.wait_free(timeout=60)
                took.append(time.monotonic() - begin)
                tenant.kill()
            print(f"revoke to free, 2 MiB of emulated memory, on_fence {on_fence}: median {sorted(took)[2] * 1000:.0f} ms",
                  flush=True)


if __name__ == "__main__":
    harness.main()
