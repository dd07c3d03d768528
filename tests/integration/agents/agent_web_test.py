# SPDX-License-Identifier: Apache-2.0
"""An agent over HTTP: whether it is ready, its metrics, what of /api/v1 it answers, and for whom.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/agents/agent_web_test.py [TestClass[.test]]
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "web")]
from agents_test import MIB, S, Case  # noqa: E402
from fabric import harness, sh, wait_until  # noqa: E402
from web_test import UnixConnection, ask, parse_metrics  # noqa: E402

PORT = 9464
OVER_TCP = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", 9464, timeout=30)
connection.request("GET", sys.argv[1], headers={"Host": sys.argv[2]})
answer = connection.getresponse()
print(answer.status, answer.read().decode(), end="")
"""


class AgentWeb(Case):
    def setUp(self):
        super().setUp()
        self.fabric.host_lease = "30s"
        self.manager = self.fabric.manager()
        self.manager.create_pool("p")
        self.b = self.fabric.agent("hostb")

    def get(self, path, **options):
        return ask(UnixConnection(self.b.runtime / "http.sock"), path, **options)

    def metrics(self):
        answer, text = self.get("/metrics")
        self.assertEqual(answer.status, 200, text)
        return parse_metrics(text)

    def value(self, name):
        return self.metrics().get(name)

    def test_ready_is_who_is_registered(self):
        for path in ("/healthz", "/readyz"):
            answer, body = self.get(path)
            self.assertEqual((answer.status, body), (200, "ok\n"), path)
        self.assertEqual(self.value("terrace_agent_manager_losses_total"), 0)
        self.manager.kill()
        wait_until(lambda: self.get("/readyz")[0].status == 503, 30, "an agent without a manager not being ready")
        self.assertEqual(self.get("/readyz")[1], "the manager is away\n")
        self.assertEqual(self.get("/healthz")[0].status, 200)
        got = self.metrics()
        self.assertEqual((got["terrace_agent_ready"], got["terrace_agent_manager_connected"]), (0, 0))
        left = got["terrace_agent_host_lease_left_seconds"]
        self.assertTrue(0 < left <= 30, left)
        self.assertEqual(got["terrace_agent_host_lease_seconds"], 30)
        wait_until(lambda: self.value("terrace_agent_host_lease_left_seconds") < left
                   and self.value("terrace_agent_manager_silent_seconds") > got["terrace_agent_manager_silent_seconds"],
                   30, "time passing")
        wait_until(lambda: 'terrace_health_findings{code="manager_away",severity="warning"}' in self.metrics(), 30,
                   "the finding as a metric")
        self.manager.start()
        wait_until(lambda: self.get("/readyz")[0].status == 200, 60, "being ready again")
        got = self.metrics()
        self.assertEqual((got["terrace_agent_ready"], got["terrace_agent_manager_losses_total"]), (1, 1))

    def test_metrics_follow_what_is_leased_here(self):
        got = self.metrics()
        self.assertEqual((got["terrace_agent_objects"], got["terrace_agent_object_bytes"]), (0, 0))
        tenant = self.tenant(self.b)
        self.assertIn(str(8 * MIB), tenant.ask("grant", 8 * MIB, 60 * S, "x"))
        got = self.metrics()
        self.assertEqual((got["terrace_agent_objects"], got["terrace_agent_object_bytes"]), (1, 8 * MIB))
        self.assertEqual((got["terrace_agent_sessions"], got["terrace_agent_attached_leases"]), (1, 1))
        self.assertEqual(got["terrace_agent_fence_seconds_count"], 0)
        self.assertEqual(got['terrace_rpc_seconds_count{method="TenantSession.grant"}'], 1)
        self.assertGreater(got["terrace_agent_fence_estimate_seconds"], 0)
        for what in ("certificate", "ca"):
            self.assertGreater(got[f'terrace_agent_certificate_left_seconds{{what="{what}"}}'], 30 * 86400)
        self.assertEqual(got["terrace_agent_guard_up"], 1)
        self.assertGreater(got["process_resident_memory_bytes"], MIB)
        self.manager.cli("lease", "revoke", "x", "--grace", "0s")
        wait_until(lambda: self.value("terrace_agent_objects") == 0, 30, "its end")
        got = self.metrics()
        self.assertEqual((got["terrace_agent_fence_seconds_count"], got["terrace_agent_fences_failed_total"]), (1, 0))
        self.assertEqual(got["terrace_agent_host_fences_total"], 0)

    def test_a_guard_that_cannot_run_is_told(self):
        lock = self.b.runtime / "guard.lock"
        guard = int(wait_until(lambda: lock.read_text().strip(), 20, "the guard's pid"))
        lock.rename(self.b.runtime / "guard.lock.away")
        lock.mkdir()
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: self.value("terrace_agent_guard_up") == 0, 30, "the guard being missed")
        wait_until(lambda: 'terrace_health_findings{code="guard_missing",severity="critical"}' in self.metrics(), 30,
                   "the finding")
        lock.rmdir()
        wait_until(lambda: self.value("terrace_agent_guard_up") == 1, 30, "the next one")

    def test_a_host_lease_that_ends_is_counted(self):
        # The fabric's shortest: the manager does not come back before it is over.
        self.manager.kill()
        wait_until(lambda: self.value("terrace_agent_host_fences_total") == 1, 60, "the fence of all")
        self.assertEqual(self.value("terrace_agent_host_lease_left_seconds"), 0)
        self.assertEqual(self.get("/readyz")[0].status, 503)

    def test_runs_that_are_passed_on_are_counted(self):
        run = self.b.popen(self.b.terrace, "run", "--ddr", "8M", "--cxl", "32M", "--policy", "static", "--",
                           "/usr/bin/python3", "-c", "kept = bytearray(20 << 20); input()", stdin=subprocess.PIPE,
                           env={"TERRACE_MALLOC_LIBRARY": harness.find_binary("libterrace_heap.so")})
        self.addCleanup(run.kill)
        self.assertEqual(self.value("terrace_agent_run_reports_total"), 0)
        wait_until(lambda: self.value("terrace_agent_run_reports_total") > 0, 60, "a report")
        run.communicate(b"\n", timeout=60)

    def test_json_is_what_the_agent_answers_at_its_socket(self):
        answer, body = self.get("/api/v1/status")
        self.assertEqual(answer.status, 200, body)
        over_http, shown = json.loads(body), self.b.cli("status").json
        self.assertEqual(over_http["server"]["agent"]["host"], "hostb")
        self.assertEqual((over_http["server"]["pid"], set(over_http)), (shown["server"]["pid"], set(shown) - {"socket"}))
        self.assertEqual(json.loads(self.get("/api/v1/health")[1])["findings"], [])
        answer, body = self.get("/api/v1/leases")
        self.assertEqual(answer.status, 404, body)
        self.assertIn("there are status, health", body)
        document = json.loads(self.get("/api/v1/openapi.json")[1])
        self.assertEqual(set(document["paths"]), {"/api/v1/status", "/api/v1/health"})
        self.assertIn("/readyz", self.get("/")[1])
        self.assertEqual(self.get("/console/")[0].status, 404)
        self.assertEqual(self.get("/metrics", method="POST")[0].status, 405)

    def test_another_user_sees_health_only(self):
        self.b.directory.chmod(0o755)
        script = """
import http.client, socket, sys
for path in sys.argv[2:]:
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(sys.argv[1])
    connection.request("GET", path)
    print(connection.getresponse().status)
"""
        done = subprocess.run(["/usr/bin/python3", "-B", "-c", script, str(self.b.runtime / "http.sock"), "/healthz",
                               "/readyz", "/metrics", "/api/v1/status"], capture_output=True, text=True, check=False,
                              user=65534, group=65534, extra_groups=[])
        self.assertEqual(done.stdout.split(), ["200", "200", "403", "403"], done.stderr)
        self.b.wait_log("denied metrics")

    @unittest.skipIf(shutil.which("promtool") is None, "promtool is not installed")
    def test_promtool_finds_nothing_wrong(self):
        for label in ("x", "y"):
            text = self.get("/metrics")[1]
            done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
            self.assertIn(str(8 * MIB), self.tenant(self.b).ask("grant", 8 * MIB, 60 * S, label))


class OverTcp(Case):
    def in_namespace(self, host, *command):
        return sh("nsenter", f"--net=/run/netns/{host.namespace}", *command).stdout

    def test_it_is_off_unless_the_configuration_says_where(self):
        self.fabric.manager()
        b = self.fabric.agent("hostb")
        self.assertEqual(self.in_namespace(b, "ss", "-Hltn").strip(), "")
        config = self.fabric.directory / "c.toml"
        config.write_text(f'[http]\nlisten = "127.0.0.1:{PORT}"\n')
        c = self.fabric.agent("hostc", "--config", str(config))
        ask_there = lambda path, host: self.in_namespace(c, sys.executable, "-c", OVER_TCP, path, host)
        self.assertEqual(ask_there("/readyz", "127.0.0.1"), "200 ok\n")
        self.assertIn("terrace_agent_ready 1\n", ask_there("/metrics", f"127.0.0.1:{PORT}"))
        self.assertTrue(ask_there("/metrics", "evil.example").startswith("421 "))


if __name__ == "__main__":
    harness.main()
