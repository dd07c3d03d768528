# SPDX-License-Identifier: Apache-2.0
"""A manager and the agents of further hosts, in network namespaces.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/agents/agents_test.py [TestClass[.test]]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fabric as fabric_module  # noqa: E402
from fabric import Fabric, harness, sh, wait_until  # noqa: E402
from session_tenant import Tenant  # noqa: E402

MIB = 1 << 20
S = 10**9
WHY_NOT = fabric_module.why_not()


def extents(lease):
    return [(e["device"], e["offset_bytes"], e["offset_bytes"] + e["length_bytes"]) for e in lease["extents"]]


def overlap(one, other):
    return any(d1 == d2 and a1 < b2 and a2 < b1
               for d1, a1, b1 in extents(one) for d2, a2, b2 in extents(other))


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Case(unittest.TestCase):
    def setUp(self):
        self.fabric = self.enterContext(Fabric())

    def enterContext(self, manager):
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def tenant(self, host):
        tenant = self.enterContext(Tenant(host))
        self.assertEqual(tenant.first, "ready", host.log_tail())
        return tenant

    def two_hosts(self):
        manager = self.fabric.manager()
        manager.create_pool("p")
        return manager, self.fabric.agent("hostb"), self.fabric.agent("hostc")


class Grants(Case):
    def test_two_hosts_lease_from_one_pool_without_overlap(self):
        manager, b, c = self.two_hosts()
        on_b, on_c = self.tenant(b), self.tenant(c)
        first = on_b.ask("grant", 16 * MIB, 30 * S, "x")
        second = on_c.ask("grant", 16 * MIB, 30 * S, "y")
        self.assertTrue(first.endswith(f" {16 * MIB}"), first + b.log_tail())
        self.assertTrue(second.endswith(f" {16 * MIB}"), second)
        leases = manager.leases()
        self.assertEqual(sorted(lease["host"] for lease in leases.values()), ["hostb", "hostc"])
        one, other = leases.values()
        self.assertFalse(overlap(one, other), leases)
        for tenant, value in ((on_b, 17), (on_c, 42)):
            self.assertEqual(tenant.ask("check", 0), "same")
            self.assertEqual(tenant.ask("fill", value), "ok")
        self.assertEqual(on_b.ask("check", 17), "same")
        self.assertEqual(on_c.ask("check", 42), "same")
        listed = {host["name"]: host for host in manager.cli("host", "list").json["hosts"]}
        self.assertEqual(listed["hostb"]["leases"], 1)
        self.assertEqual(listed["hostb"]["devices"], ["emu:a", "emu:b"])
        self.assertEqual(on_b.ask("release"), "ok")
        self.assertEqual(on_c.ask("release"), "ok")
        manager.wait_free()
        manager.check_invariants()

    def test_administration_is_refused_with_the_managers_address(self):
        self.fabric.manager()
        b = self.fabric.agent("hostb")
        refused = b.cli("pool", "list", check=6)
        self.assertIn("10.77.0.1:7311", str(refused))
        self.assertIn("hostb", str(refused))

    def test_a_lease_is_attached_only_where_its_memory_is(self):
        manager, b, c = self.two_hosts()
        on_b, on_c = self.tenant(b), self.tenant(c)
        self.assertIn(str(8 * MIB), on_b.ask("grant", 8 * MIB, 30 * S, "x"))
        self.assertEqual(on_c.ask("attach", "x", "rw"), "error unsupported")
        on_m = self.tenant(manager)
        self.assertEqual(on_m.ask("attach", "x", "rw"), "error unsupported")

    def test_a_revoke_is_shown_on_the_file_of_a_lease_with_a_path(self):
        manager, b, _ = self.two_hosts()
        holder = b.popen(b.terrace, "--json", "lease", "hold", "held", "--size", "8M", stdout=subprocess.PIPE, text=True)
        for end in (holder.stdout.close, holder.wait, holder.kill):
            self.addCleanup(end)
        lease = json.loads(holder.stdout.readline())["held"]["id"]
        path = b.cli("lease", "path", "held").json["path"]
        self.assertLess(os.stat(path).st_mtime, time.time())
        manager.cli("lease", "revoke", lease, "--grace", "1h")
        wait_until(lambda: os.stat(path).st_mtime > time.time() + 3000, 60, "the end of the grace is shown")
        holder.terminate()
        self.assertEqual(holder.wait(60), 0)

    def test_a_pool_whose_devices_a_host_does_not_see_is_refused_there(self):
        manager = self.fabric.manager()
        manager.create_pool("p")
        b = self.fabric.agent("hostb", devices={"a": "64M"})
        refused = b.cli("lease", "grant", "--pool", "p", "--size", "8M", check=False)
        self.assertNotEqual(refused.code, 0)
        self.assertIn("does not see emu:b", str(refused))

    def test_what_a_run_on_another_host_reports_reaches_the_manager(self):
        manager, b, _ = self.two_hosts()
        run = b.popen(b.terrace, "run", "--ddr", "8M", "--cxl", "32M", "--policy", "static", "--", "/usr/bin/python3", "-c",
                      "kept = bytearray(20 << 20); input()", stdin=subprocess.PIPE,
                      env={"TERRACE_MALLOC_LIBRARY": harness.find_binary("libterrace_heap.so")})
        self.addCleanup(run.kill)
        reported = lambda: manager.cli("top", "--once").json["reported_runs"]
        [one] = wait_until(reported, 60, "the run at the manager")
        self.assertEqual((one["agent"], one["host"], one["pid"], one["uid"]), ("hostb", "hostb", None, None))
        self.assertEqual(one["figures"]["program"], "python3")
        self.assertGreater(one["figures"]["cxl_bytes"], 10 * MIB)
        run.communicate(b"\n", timeout=60)
        self.assertEqual(run.returncode, 0)
        wait_until(lambda: not reported(), 60, "its end")

    def test_a_programs_trace_on_another_host_reaches_the_manager(self):
        manager, b, _ = self.two_hosts()
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        tenant = self.enterContext(Tenant(b, env={"TRACEPARENT": f"00-{trace}-00f067aa0ba902b7-01"}))
        self.assertIn(str(8 * MIB), tenant.ask("grant", 8 * MIB, 60 * S, "x"))
        told = sh("curl", "-sS", "--unix-socket", manager.runtime / "http.sock", "http://localhost/api/v1/events?limit=500").stdout
        granted = [one for one in json.loads(told)["events"] if one["kind"] == "lease_granted"]
        self.assertEqual([one["trace_id"] for one in granted], [trace])

    def test_who_waits_on_another_host_leaves_the_queue_with_its_process_or_its_agent(self):
        manager, b, c = self.two_hosts()
        on_b = self.tenant(b)
        everything = manager.cli("pool", "show", "p").json["pool"]["free_bytes"]
        self.assertTrue(on_b.ask("grant", everything, 300 * S, "x").endswith(f" {everything}"))
        queue = lambda: manager.cli("queue", "list").json["waiting"]
        for ended in ("process", "agent"):
            with self.subTest(ended):
                waiting = self.tenant(c)
                waiting.send("grant", 8 * MIB, 60 * S, "y", 600 * S)
                wait_until(queue, 20, "the grant in the queue")
                self.assertEqual([(one["host"], one["calls"]) for one in queue()], [("hostc", 1)])
                if ended == "process":
                    waiting.kill()
                else:
                    c.kill()
                wait_until(lambda: not queue(), 30, "its end")
        self.assertEqual(on_b.ask("release"), "ok")

    def test_a_tenant_that_a_host_may_not_act_for_is_refused(self):
        conf = self.fabric.directory / "m.toml"
        conf.write_text('[hosts.hostb]\ntenants = ["other"]\n')
        manager = self.fabric.manager("--config", conf)
        manager.create_pool("p")
        b = self.fabric.agent("hostb")
        refused = b.cli("lease", "grant", "--pool", "p", "--size", "8M", check=False)
        self.assertIn("may not act for tenant uid-0", str(refused))

    def test_a_socket_of_an_agent_may_be_one_tenants(self):
        manager = self.fabric.manager()
        manager.create_pool("p")
        conf = self.fabric.directory / "b.toml"
        place = self.fabric.directory / "training/terraced.sock"
        conf.write_text(f'[[sockets]]\npath = "{place}"\ntenant = "training"\n')
        b = self.fabric.agent("hostb", "--config", conf)
        # Root at the agent's main socket may act for whom it likes, and at this one for nobody else.
        named = ("--pool", "p", "--size", "8M", "--tenant", "serving")
        opened = b.cli("--socket", place, "lease", "grant", "--pool", "p", "--size", "8M", "--ttl", "1h").json["lease"]
        self.assertEqual((opened["tenant"], opened["host"]), ("training", "hostb"))
        self.assertIn("this user acts as tenant 'training'", str(b.cli("--socket", place, "lease", "grant", *named, check=6)))
        self.assertEqual(self.enterContext(Tenant(b, b.socket, "serving")).first, "ready")
        self.assertEqual(self.enterContext(Tenant(b, place, "training")).first, "ready")
        self.assertEqual(self.enterContext(Tenant(b, place, "serving")).first, "error permission_denied")
        says = [one["meaning"] for one in b.cli("--socket", place, "doctor").json["checks"] if one["name"] == "socket"]
        self.assertIn("by the socket's role (tenant) no administrator, tenant training", says[0])

    def test_resize_move_and_revocation_reach_across(self):
        manager, b, _ = self.two_hosts()
        on_b = self.tenant(b)
        self.assertIn(str(8 * MIB), on_b.ask("grant", 8 * MIB, 60 * S, "x", 0, 1))
        self.assertEqual(on_b.ask("fill", 9), "ok")
        self.assertEqual(on_b.ask("resize", 16 * MIB), str(16 * MIB))
        self.assertEqual(on_b.ask("resize", 8 * MIB), str(8 * MIB))
        self.assertEqual(on_b.ask("check", 9), "same")
        before = next(iter(manager.leases().values()))
        self.assertEqual(on_b.ask("move"), "ok")
        after = manager.leases()[before["id"]]
        self.assertFalse(overlap(before, after))
        self.assertEqual(on_b.ask("check", 9), "same")
        manager.cli("lease", "revoke", "x", "--grace", "1s")
        wait_until(lambda: any(one.startswith("revoking") for one in on_b.notices), 10, "the notice of revocation")
        wait_until(lambda: on_b.ask("state") == "lost", 15, "the end of the lease")
        manager.wait_free()
        manager.check_invariants()


class Absence(Case):
    def grant_on(self, host, label, size=16 * MIB, ttl=60 * S):
        tenant = self.tenant(host)
        answer = tenant.ask("grant", size, ttl, label)
        self.assertTrue(answer.endswith(f" {size}"), answer + host.log_tail())
        return tenant

    def test_a_manager_that_is_away_for_less_than_the_host_lease_costs_nothing(self):
        manager, b, _ = self.two_hosts()
        on_b = self.grant_on(b, "x")
        self.assertEqual(on_b.ask("fill", 5), "ok")
        manager.kill()
        b.wait_log("cannot be reached")
        self.assertEqual(on_b.ask("renew"), "ok")
        self.assertEqual(on_b.ask("state"), "live")
        self.assertEqual(on_b.ask("fill", 6), "ok")
        second = self.tenant(b)
        self.assertEqual(second.ask("grant", 8 * MIB, 30 * S, "y"), "error unavailable")
        if pathlib.Path("/dev/userfaultfd").exists():  # its own host's, which no manager is needed for
            self.assertEqual(second.ask("userfault"), "waits 4 abcd")
        manager.start()
        self.fabric.wait_state("hostb", "connected")
        wait_until(lambda: second.ask("grant", 8 * MIB, 30 * S, "y").endswith(str(8 * MIB)), 10, "a grant again")
        self.assertEqual(on_b.ask("check", 6), "same")
        self.assertEqual(on_b.ask("renew"), "ok")
        self.assertEqual(on_b.ask("info").split()[0], "active")
        self.assertEqual(on_b.notices, [])
        manager.check_invariants()

    def partition(self, direction):
        """What a host had is another's only after the host lease, and then is fenced there already."""
        manager, b, c = self.two_hosts()
        on_b = self.grant_on(b, "x", 96 * MIB)
        self.assertEqual(on_b.ask("fill", 7), "ok")
        on_c = self.tenant(c)
        self.fabric.cut("hostb", direction)
        cut_at = time.monotonic()
        lease = next(iter(manager.leases().values()))
        manager.cli("lease", "revoke", str(lease["id"]))
        self.assertEqual(on_c.ask("grant", 64 * MIB, 30 * S, "early"), "error capacity_exhausted")
        # The agent is first: when the manager gives the room to another, the old holder has lost it.
        granted = on_c.ask("grant", 96 * MIB, 60 * S, "y", 30 * S)
        waited = time.monotonic() - cut_at
        self.assertTrue(granted.endswith(str(96 * MIB)), granted)
        self.assertGreater(waited, 3.0)
        self.assertEqual(on_b.ask("state"), "lost")
        self.assertTrue(any(one.startswith("lost") for one in on_b.notices), on_b.notices)
        self.assertEqual(on_c.ask("check", 0), "same")
        self.assertEqual(self.fabric.host("hostb")["state"], "self-fenced")
        self.fabric.reconnect("hostb")
        self.fabric.wait_state("hostb", "connected")
        self.assertEqual(on_c.ask("release"), "ok")
        manager.wait_free()
        again = self.grant_on(b, "again")
        self.assertEqual(again.ask("check", 0), "same")
        manager.check_invariants()

    def test_a_host_that_hears_nothing_loses_its_leases(self):
        self.partition("in")

    def test_a_host_that_is_not_heard_loses_its_leases(self):
        self.partition("out")

    def test_a_host_that_is_cut_off_loses_its_leases(self):
        self.partition("both")

    def test_a_short_cut_costs_nothing(self):
        # Of 12 s, the agent needs 4 s to its next heartbeat, and fences at 9.6 s: room for a slow machine.
        self.fabric.host_lease = "12s"
        manager, b, _ = self.two_hosts()
        on_b = self.grant_on(b, "x")
        self.assertEqual(on_b.ask("fill", 3), "ok")
        for direction in ("in", "out", "both"):
            self.fabric.cut("hostb", direction)
            time.sleep(1.5)
            self.fabric.reconnect("hostb")
            self.fabric.wait_state("hostb", "connected")
            self.assertEqual(on_b.ask("renew"), "ok")
        self.assertEqual(on_b.ask("check", 3), "same")
        self.assertEqual(on_b.notices, [])
        manager.check_invariants()

    def test_a_slow_network_costs_only_time(self):
        self.fabric.host_lease = "12s"
        manager = self.fabric.manager()
        manager.create_pool("p")
        b = self.fabric.agent("hostb", address=self.fabric.slow("hostb", 0.4))
        on_b = self.grant_on(b, "x")
        self.assertEqual(on_b.ask("fill", 5), "ok")
        for _ in range(5):
            self.assertEqual(on_b.ask("renew"), "ok")
        self.assertEqual(on_b.ask("check", 5), "same")
        self.assertEqual(on_b.notices, [])
        self.assertEqual(on_b.ask("release"), "ok")
        manager.wait_free()
        manager.check_invariants()

    def test_answers_later_than_the_host_lease_promise_nothing(self):
        manager = self.fabric.manager()
        manager.create_pool("p")
        b = self.fabric.agent("hostb", address=self.fabric.slow("hostb", 0))
        c = self.fabric.agent("hostc")
        on_b = self.grant_on(b, "x", 96 * MIB)
        self.assertEqual(on_b.ask("fill", 7), "ok")
        on_c = self.tenant(c)
        self.fabric.slow("hostb", 6)  # each way; the host lease has 4 s
        granted = on_c.ask("grant", 96 * MIB, 60 * S, "y", 40 * S)  # nothing was asked back: its host has lapsed
        self.assertTrue(granted.endswith(str(96 * MIB)), granted)
        self.assertEqual(on_b.ask("state"), "lost")
        self.assertEqual(b.object_bytes(), 0)
        self.assertEqual(on_c.ask("check", 0), "same")
        self.fabric.slow("hostb", 0)
        self.fabric.wait_state("hostb", "connected", 60)
        self.assertEqual(on_c.ask("check", 0), "same")
        self.assertEqual(on_c.ask("release"), "ok")
        manager.wait_free()
        manager.check_invariants()

    def test_a_killed_agent_is_fenced_by_its_guard_and_its_extents_are_reused_only_then(self):
        manager, b, c = self.two_hosts()
        on_b = self.grant_on(b, "x", 96 * MIB)
        self.assertEqual(on_b.ask("fill", 8), "ok")
        b.kill()
        self.assertEqual(on_b.ask("fill", 9), "ok")  # the program runs on, and writes
        on_c = self.tenant(c)
        granted = on_c.ask("grant", 96 * MIB, 60 * S, "y", 30 * S)
        if not granted.endswith(str(96 * MIB)):  # nothing was asked back yet
            self.fail(granted)
        # By now nobody on hostb can write any more: the guard truncated the object.
        self.assertEqual(b.object_bytes(), 0)
        self.assertEqual(on_c.ask("check", 0), "same")
        b.start()
        self.fabric.wait_state("hostb", "connected")
        self.assertEqual(on_c.ask("release"), "ok")
        manager.wait_free()
        manager.check_invariants()

    def agreed_on(self, host, label):
        """A program of the host that is ended before its lease is taken, and the lease's id."""
        tenant = self.tenant(host)
        lease = int(tenant.ask("grant", 4 * MIB, 60 * S, label, 0, 0, 1, "kill").split()[0])
        self.assertEqual(tenant.ask("fill", 5), "ok")
        self.assertEqual(tenant.ask("pin"), "ok")
        return tenant, lease

    def test_who_agreed_on_a_further_host_is_ended_there_and_named_here(self):
        manager, b, _ = self.two_hosts()
        tenant, lease = self.agreed_on(b, "x")
        self.assertEqual(manager.leases()[lease]["on_fence"], "kill")
        second, other = self.agreed_on(b, "y")
        manager.cli("lease", "revoke", lease, "--grace", "0s")
        self.assertEqual(tenant.process.wait(60), -signal.SIGKILL)
        wait_until(lambda: lease not in manager.leases(), 60, "the fence")
        events = manager.cli("events").json["events"]
        ended = [event for event in events if event["kind"] == "lease_holder_ended"]
        self.assertEqual([event["lease"] for event in ended], [lease])
        self.assertIn(f"[{tenant.process.pid}]", ended[0]["message"])
        # Who gives it back by itself goes on; and an agent that was restarted knows the others.
        b.kill()
        b.start()
        self.fabric.wait_state("hostb", "connected")
        wait_until(lambda: second.ask("connected") == "yes", 60, "the session being back")
        third, third_lease = self.agreed_on(b, "z")
        wait_until(lambda: third.ask("release") == "ok", 60, "the release")
        wait_until(lambda: third_lease not in manager.leases(), 60, "the fence")
        self.assertIsNone(third.process.poll())
        manager.cli("lease", "revoke", other, "--grace", "0s")
        self.assertEqual(second.process.wait(60), -signal.SIGKILL)
        manager.wait_free()
        manager.check_invariants()

    def test_the_guard_ends_who_agreed_when_the_host_lease_ends(self):
        manager, b, _ = self.two_hosts()
        tenant, _ = self.agreed_on(b, "x")
        plain = self.grant_on(b, "y")
        b.kill()
        self.assertEqual(tenant.process.wait(60), -signal.SIGKILL)
        wait_until(lambda: b.object_bytes() == 0, 60, "the guard's fence")
        self.assertIsNone(plain.process.poll())
        b.start()
        self.fabric.wait_state("hostb", "connected")
        manager.wait_free(timeout=60)
        manager.check_invariants()

    @unittest.skipUnless(os.geteuid() == 0, "needs root: what is asked for are rights of root")
    def test_the_guard_comes_to_it_in_time_on_a_busy_machine(self):
        _, b, _ = self.two_hosts()
        lock = next(pathlib.Path(b.runtime).glob("guard.lock"))
        pid = int(wait_until(lambda: lock.read_text().strip(), 20, "the guard's pid"))
        wait_until(lambda: os.sched_getscheduler(pid) == os.SCHED_FIFO, 20, "its real-time priority")
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        rights = int(re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.M).group(1), 16)
        if rights >> 24 & 1:  # CAP_SYS_RESOURCE, which root of a container may lack
            self.assertEqual(pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text().strip(), "-1000")
        if "san.so" not in pathlib.Path(f"/proc/{pid}/maps").read_text():  # sanitizers lock nothing
            locked = re.search(r"^VmLck:\s+(\d+) kB", status, re.M)
            self.assertGreater(int(locked.group(1)), 0)

    def test_an_agent_that_was_killed_and_comes_back_keeps_its_leases(self):
        manager, b, _ = self.two_hosts()
        on_b = self.grant_on(b, "x")
        self.assertEqual(on_b.ask("fill", 4), "ok")
        b.kill()
        b.start()
        self.fabric.wait_state("hostb", "connected")
        wait_until(lambda: on_b.ask("connected") == "yes", 20, "the session being back")
        wait_until(lambda: on_b.ask("renew") == "ok", 20, "a renewal")
        self.assertEqual(on_b.ask("check", 4), "same")
        self.assertEqual(on_b.ask("state"), "live")
        self.assertEqual(on_b.ask("release"), "ok")
        manager.wait_free()

    def test_a_stopped_agent_costs_only_its_own_leases(self):
        manager, b, c = self.two_hosts()
        self.grant_on(b, "x")
        os.kill(b.pid, signal.SIGSTOP)
        try:
            manager.cli("lease", "revoke", next(iter(manager.leases())))
            on_c = self.grant_on(c, "y")
            self.assertEqual(on_c.ask("release"), "ok")
            on_m = self.tenant(manager)
            self.assertTrue(on_m.ask("grant", 8 * MIB, 30 * S, "z").endswith(str(8 * MIB)))
            self.assertEqual(on_m.ask("release"), "ok")
            self.fabric.wait_state("hostb", "self-fenced")
            self.assertEqual(b.object_bytes(), 0)  # the guard does not need the agent
            manager.wait_free()
            # It might have gone on with an order whose memory is another's by now.
            self.assertEqual(b.wait_dead(), -9)
        except BaseException:
            os.kill(b.pid, signal.SIGCONT)
            raise
        b.start()
        self.fabric.wait_state("hostb", "connected")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Stores(unittest.TestCase):
    """Managers of other stores, and of older copies of the store, at the address that the agents know."""

    def setUp(self):
        self.fabric = self.enterContext(Fabric(host_lease="60s"))
        self.manager = self.fabric.manager()
        self.manager.create_pool("p")
        self.b = self.fabric.agent("hostb")
        self.own = self.manager.state, self.manager.runtime
        self.store = self.manager.cli("status").json["server"]["store_id"]

    def enterContext(self, manager):
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def holder(self, label):
        tenant = self.enterContext(Tenant(self.b))
        self.assertEqual(tenant.first, "ready", self.b.log_tail())
        self.assertTrue(tenant.ask("grant", 16 * MIB, 300 * S, label).endswith(f" {16 * MIB}"))
        self.assertEqual(tenant.ask("fill", 7), "ok")
        return tenant

    def another_manager(self):
        """Of an empty store, where the first one was."""
        self.use(self.manager.directory / "other.db", self.manager.directory / "run2")
        self.manager.start()
        self.manager.create_pool("p")

    def use(self, state, runtime):
        self.manager.state, self.manager.runtime = state, runtime
        self.manager.socket = runtime / "terraced.sock"

    def test_a_manager_of_an_empty_store_is_not_obeyed_and_destroys_nothing(self):
        holder = self.holder("x")
        self.manager.kill()
        self.another_manager()
        self.b.wait_log("it is not obeyed, nothing was touched")
        self.assertIn(self.store, self.b.text())
        self.assertIn("--destroy-orphans", self.b.text())
        self.assertEqual(self.b.object_bytes(), 16 * MIB)
        self.assertEqual(holder.ask("check", 7), "same")
        # Nor by an agent that was started again: what it knows is on disk.
        self.b.kill()
        self.b.start()
        wait_until(lambda: self.b.text().count("it is not obeyed, nothing was touched") >= 2, 30, "a second refusal")
        self.assertEqual(self.b.object_bytes(), 16 * MIB)
        self.manager.kill()
        self.use(*self.own)
        self.manager.start()
        self.fabric.wait_state("hostb", "connected")
        self.assertEqual(holder.ask("check", 7), "same")
        self.assertEqual(len(self.manager.leases()), 1)

    def test_the_operators_word_has_an_agent_obey_another_store(self):
        self.holder("x")
        self.manager.kill()
        self.another_manager()
        self.b.wait_log("it is not obeyed, nothing was touched")
        self.b.kill()
        self.b.start("--destroy-orphans")
        self.fabric.wait_state("hostb", "connected")
        self.assertEqual(self.b.objects(), {})
        self.b.restart(hard=True)
        self.fabric.wait_state("hostb", "connected")
        self.holder("y")

    def test_what_an_older_copy_of_the_store_does_not_know_stays_on_its_host(self):
        self.manager.stop()
        backup = self.manager.state.read_bytes()
        self.manager.start()
        self.fabric.wait_state("hostb", "connected")
        holder = self.holder("x")
        objects = self.b.objects()
        self.manager.kill()
        for path in self.manager.state.parent.glob(self.manager.state.name + "*"):
            path.unlink()
        self.manager.state.write_bytes(backup)
        self.manager.start()
        self.fabric.wait_state("hostb", "connected")
        self.assertEqual(self.b.objects(), objects)
        self.assertEqual(holder.ask("check", 7), "same")
        self.assertIn("stay there", self.fabric.host("hostb")["detail"])
        self.assertIn("belongs to no lease that this store knows, and stays", self.manager.text())
        self.manager.restart("--destroy-orphans", hard=True)
        self.fabric.wait_state("hostb", "connected")
        self.assertEqual(self.b.objects(), {})


class Certificates(Case):
    def test_what_is_refused_is_refused_in_both_logs(self):
        manager = self.fabric.manager()
        self.fabric.cert("init", self.fabric.directory / "other")
        self.fabric.cert("issue", "hostb", "--ca", self.fabric.directory / "other")
        stranger = self.fabric.agent("hostb", tls=self.fabric.tls("hostb", "other"), wait=False)
        stranger.wait_log("certificate was refused")
        manager.wait_log("was refused")
        self.assertIsNone(self.fabric.host("hostb"))

    def test_a_certificate_of_another_ca_is_refused_by_the_manager(self):
        manager = self.fabric.manager()
        self.fabric.cert("init", self.fabric.directory / "other")
        self.fabric.cert("issue", "hostb", "--ca", self.fabric.directory / "other")
        mixed = self.fabric.tls("hostb", "other")
        mixed[1] = self.fabric.directory / "both.pem"
        mixed[1].write_bytes((self.fabric.directory / "other" / "ca.pem").read_bytes())
        stranger = self.fabric.agent("hostb", tls=mixed, wait=False)
        stranger.wait_log("the manager at")
        manager.wait_log("was refused")
        self.assertIsNone(self.fabric.host("hostb"))

    def test_a_plain_client_is_refused(self):
        manager = self.fabric.manager()
        self.fabric.namespace("hostb")
        self.fabric.connect("hostb")
        talk = ("import socket; s = socket.create_connection(('10.77.0.1', 7311), 5); "
                "s.sendall(b'hello there, this is no TLS at all\\n'); s.settimeout(10); print(s.recv(100))")
        fabric_module.sh("ip", "netns", "exec", self.fabric.namespace("hostb"), sys.executable, "-c", talk, check=False)
        manager.wait_log("does not speak TLS")

    def test_a_managers_certificate_is_no_agents(self):
        manager = self.fabric.manager()
        refused = self.fabric.agent("m2", tls=self.fabric.tls("m"), start=False)
        with self.assertRaises(harness.HarnessError):
            refused.start()
        self.assertIn("this is an agent", refused.text())
        self.assertEqual(manager.cli("host", "list").json["hosts"], [])

    def test_a_certificate_is_valid_for_a_day_at_least(self):
        """`--days 0` made one of two years."""
        ca = self.fabric.directory / "ca"
        for days in ("0", "-1", "36501", "99999999999999999999"):
            for verb in (["init", self.fabric.directory / "short"], ["issue", "hostz", "--ca", ca]):
                self.assertNotEqual(self.fabric.cert(*verb, "--days", days, check=False).returncode, 0, (verb, days))
        self.assertFalse((self.fabric.directory / "short").exists())
        self.assertFalse((ca / "hostz.pem").exists())

    @unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed: nothing else makes expired certificates")
    def test_an_expired_certificate_ends_the_start_with_its_reason(self):
        self.fabric.manager()
        folder = self.fabric.directory / "ca"
        fabric_module.sh("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                         "-keyout", folder / "hostb.key", "-out", folder / "hostb.csr", "-subj", "/CN=host:hostb")
        fabric_module.sh("openssl", "x509", "-req", "-in", folder / "hostb.csr", "-CA", folder / "ca.pem",
                         "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "0", "-out", folder / "hostb.pem")
        (folder / "hostb.key").chmod(0o600)
        time.sleep(1.5)
        refused = self.fabric.agent("hostb", start=False)
        with self.assertRaises(harness.HarnessError):
            refused.start()
        self.assertIn("expired", refused.text())
        self.assertIn("terrace cert", refused.text())

    def test_a_second_agent_of_the_same_name_is_refused_while_the_first_is_there(self):
        manager = self.fabric.manager()
        first = self.fabric.agent("hostb")
        second = self.fabric.agent("twin", tls=self.fabric.tls("hostb"), wait=False)
        second.wait_log("has an agent already")
        manager.wait_log("has an agent already")
        self.assertEqual(self.fabric.host("hostb")["state"], "connected")
        first.stop()
        second.wait_log("is registered with the manager")


# Opens silent connections to the manager and keeps the newest 200; argv: seconds between two, source addresses.
SILENT = """
import collections, itertools, socket, sys, time
kept = collections.deque(maxlen=200)
for source in itertools.cycle(sys.argv[2:]):
    try:
        kept.append(socket.create_connection(("10.77.0.1", 7311), 5, (source, 0)))
    except OSError:
        pass
    time.sleep(float(sys.argv[1]))
"""

# Shows a host's certificate on several connections and says nothing; prints which stay. argv: count, ca, cert, key.
SHOWN = """
import socket, ssl, sys, time
context = ssl.create_default_context(cafile=sys.argv[2])
context.check_hostname = False
context.load_cert_chain(*sys.argv[3:])
shown = [context.wrap_socket(socket.create_connection(("10.77.0.1", 7311), 5)) for _ in range(int(sys.argv[1]))]
time.sleep(2)
for one in shown:
    one.settimeout(0.1)
    try:
        print("open" if one.recv(1) else "closed")
    except TimeoutError:
        print("open")
    except OSError:
        print("closed")
"""


class Bounds(Case):
    def python(self, host, program, *arguments):
        return subprocess.Popen(
            ["ip", "netns", "exec", self.fabric.namespace(host), sys.executable, "-c", program]
            + [str(argument) for argument in arguments], stdout=subprocess.PIPE, text=True)

    def test_silent_connections_keep_no_host_from_coming_back(self):
        manager = self.fabric.manager()
        b = self.fabric.agent("hostb")
        self.fabric.namespace("stranger")
        self.fabric.connect("stranger")
        sources = [f"10.77.0.{100 + i}" for i in range(12)]
        for source in sources:
            fabric_module.sh("ip", "-n", self.fabric.namespace("stranger"), "addr", "add", f"{source}/24", "dev", "up0")
        # From one address as fast as can be, and from so many that they take all places.
        for pause, taken in ((0, sources[:1]), (0.02, sources)):
            silent = self.python("stranger", SILENT, pause, *taken)
            try:
                manager.wait_log("it showed no certificate")
                time.sleep(1.0)
                b.stop()
                b.start()
                self.fabric.wait_state("hostb", "connected", timeout=60.0)
            finally:
                silent.kill()
                silent.communicate()

    def test_a_host_has_few_connections(self):
        manager = self.fabric.manager()
        self.fabric.cert("issue", "hostb", "--ca", self.fabric.directory / "ca")
        self.fabric.connect("hostb")
        files = self.fabric.tls("hostb")
        shown = self.python("hostb", SHOWN, 5, files[1], files[3], files[5])
        self.assertEqual(shown.communicate(timeout=30)[0].split(), ["open"] * 4 + ["closed"])
        manager.wait_log("host hostb has 4 others")
        self.assertIsNone(self.fabric.host("hostb"))


class Reattaching(Case):
    """What a session has is attached again when the manager is back."""

    def restart(self, manager, host):
        away = host.text().count("cannot be reached")
        manager.kill()
        wait_until(lambda: host.text().count("cannot be reached") > away, 30, "the agent's noticing")
        manager.start()

    def test_a_manager_that_takes_few_calls_at_once_costs_no_lease(self):
        conf = self.fabric.directory / "m.toml"
        conf.write_text("[limits]\ncalls_outstanding_max = 4\n")
        self.fabric.host_lease = "20s"
        manager = self.fabric.manager("--config", conf)
        manager.create_pool("p")
        b = self.fabric.agent("hostb")
        on_b = self.tenant(b)
        self.assertEqual(on_b.ask("hold", 50, 2 * MIB, 120 * S), "50 of 50")
        os.kill(b.pid, signal.SIGSTOP)
        manager.kill()
        # Who attaches waits for what is being committed: with somebody who renews all the time, always.
        manager.start(failpoints="journal_before_append=delay:150")
        on_m = self.tenant(manager)
        self.assertTrue(on_m.ask("grant", 2 * MIB, 120 * S, "busy").endswith(str(2 * MIB)))
        over = threading.Event()
        renewing = threading.Thread(target=lambda: [on_m.ask("renew") for _ in iter(over.is_set, True)], daemon=True)
        renewing.start()
        try:
            os.kill(b.pid, signal.SIGCONT)
            self.fabric.wait_state("hostb", "connected")
            time.sleep(2.0)
        finally:
            over.set()
            renewing.join()
        self.assertEqual(on_b.ask("held"), "50 of 50", on_b.notices[:1])
        # Only what is attached can be released.
        wait_until(lambda: on_b.ask("drop") == "0 of 0", 60, "all leases being attached", interval=0.5)
        self.assertEqual(on_b.notices, [])
        manager.check_invariants()

    def test_a_program_may_end_while_its_session_is_opened_again(self):
        self.fabric.host_lease = "20s"
        manager, b, _ = self.two_hosts()
        on_b = self.tenant(b)
        self.assertTrue(on_b.ask("grant", 8 * MIB, 120 * S, "x").endswith(str(8 * MIB)))
        # Slow towards the host: the answer after the one that ends the registration is some tenths of a second late.
        fabric_module.sh("tc", "-n", manager.namespace, "qdisc", "replace", "dev", b.outer, "root", "tbf",
                         "rate", "8kbit", "burst", "2kb", "latency", "9s")
        registered = b.text().count("is registered with the manager")
        self.restart(manager, b)
        wait_until(lambda: b.text().count("is registered with the manager") > registered, 30, "the agent's return",
                   interval=0.005)
        self.fabric.cut("hostb", "in")  # so it is lost
        on_b.close()
        away = b.text().count("cannot be reached")
        wait_until(lambda: b.pid is None or b.text().count("cannot be reached") > away, 30, "the agent's noticing")
        time.sleep(0.5)
        self.assertIsNotNone(b.pid, b.log_tail())
        self.fabric.reconnect("hostb")
        self.fabric.wait_state("hostb", "connected")
        again = self.tenant(b)
        self.assertTrue(again.ask("attach", "x", "rw").endswith(str(8 * MIB)))


class Crashes(Case):
    """Every failpoint of an agent, and of the manager where it gives orders."""

    def crash(self, point, side, act):
        manager, b, _ = self.two_hosts()
        victim = b if side == "agent" else manager
        if side == "agent":
            b.stop()
            self.fabric.wait_state("hostb", "away")
            b.start(failpoints=f"{point}=crash")
            self.fabric.wait_state("hostb", "connected")
        else:
            manager.stop()
            manager.start(failpoints=f"{point}=crash")
            self.fabric.wait_state("hostb", "connected")
        tenant = self.tenant(b)
        act(tenant)
        self.assertEqual(victim.wait_dead(), -9)
        victim.start()
        self.fabric.wait_state("hostb", "connected")
        tenant.kill()
        for lease in manager.leases().values():
            if lease["phase"] in ("active", "revoking"):
                manager.cli("lease", "revoke", lease["id"], check=False)
        manager.wait_free()
        wait_until(lambda: not b.objects(), 20, "no object left on hostb")
        manager.check_invariants()

    def carve(self, tenant):
        tenant.process.stdin.write(f"grant {16 * MIB} {30 * S} x\n")
        tenant.process.stdin.flush()

    def release(self, tenant):
        self.assertTrue(tenant.ask("grant", 16 * MIB, 30 * S, "x").endswith(str(16 * MIB)))
        tenant.process.stdin.write("release\n")
        tenant.process.stdin.flush()

    def test_agent_after_carve(self):
        self.crash("agent_after_carve", "agent", self.carve)

    def test_agent_after_fence(self):
        self.crash("agent_after_fence", "agent", self.release)

    def test_agent_after_erase(self):
        self.crash("agent_after_erase", "agent", self.release)

    def test_order_before_send(self):
        self.crash("order_before_send", "manager", self.carve)

    def test_order_after_reply(self):
        self.crash("order_after_reply", "manager", self.carve)


if __name__ == "__main__":
    harness.main()
