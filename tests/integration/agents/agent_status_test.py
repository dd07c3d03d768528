# SPDX-License-Identifier: Apache-2.0
"""What an agent says of itself to an operator of its host: status, health, and `daemon stop`.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/agents/agent_status_test.py [TestClass[.test]]
"""

import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from agents_test import MIB, S, Case  # noqa: E402
from fabric import harness, wait_until  # noqa: E402


class AgentStatus(Case):
    def setUp(self):
        super().setUp()
        self.fabric.host_lease = "30s"
        self.manager = self.fabric.manager()
        self.manager.create_pool("p")
        self.b = self.fabric.agent("hostb")

    def agent(self):
        return self.b.cli("status").json["server"]["agent"]

    def findings(self):
        """code -> severity"""
        return {one["code"]: one["severity"] for one in self.b.cli("health", check=False).json["findings"]}

    def wait_findings(self, expected):
        wait_until(lambda: self.findings() == expected, 30, f"findings {expected}, there are {self.findings()}")

    def test_status_says_whose_agent_it_is_and_what_is_promised(self):
        status = self.b.cli("status").json
        agent = status["server"]["agent"]
        self.assertEqual((agent["host"], agent["manager"], agent["connected"], agent["trouble"], agent["guarded"]),
                         ("hostb", "10.77.0.1:7311", True, None, True))
        self.assertEqual(status["server"]["pid"], self.b.pid)
        self.assertEqual((status["pools"], status["leases"], status["health"]["severity"]), ([], 0, "healthy"))
        self.assertTrue(any(one["what"] == "certificate" for one in status["server"]["certificates"]), status)
        self.assertIsNone(self.manager.cli("status").json["server"]["agent"])
        self.assertEqual(self.b.cli("daemon", "status").json["server"]["agent"]["host"], "hostb")

        sessions = agent["sessions"]
        tenant = self.tenant(self.b)
        self.assertIn(str(8 * MIB), tenant.ask("grant", 8 * MIB, 60 * S, "x"))
        agent = wait_until(lambda: self.agent() if self.agent()["sessions"] == sessions + 1 else None, 20, "its session")
        self.assertTrue(0 < agent["host_lease_left_ns"] <= 30 * S, agent)
        text = self.b.cli("status", json=False).out
        for words in ("the agent of host hostb", "10.77.0.1:7311, connected", "guard", "runs", "health: nothing to do"):
            self.assertIn(words, text)
        self.assertNotIn("no pools", text)

    def test_what_is_the_managers_is_refused_with_its_address(self):
        for verb in (["pool", "list"], ["device", "list"], ["quota", "list"], ["audit"], ["check"], ["host", "list"],
                     ["queue", "list"], ["lease", "quarantined"]):
            with self.subTest(verb=verb):
                refused = self.b.cli(*verb, check=6)
                self.assertIn("10.77.0.1:7311", str(refused))
                self.assertIn("the agent of host hostb", str(refused))

    def test_a_user_who_is_no_operator_learns_nothing(self):
        harness.need_build_for_all()
        self.b.directory.chmod(0o755)
        done = subprocess.run([str(harness.find_binary("terrace")), "--socket", str(self.b.socket), "status"],
                              capture_output=True, text=True, check=False, user=65534, group=65534, extra_groups=[])
        self.assertEqual(done.returncode, 6, done)
        self.assertIn("no administrator here", done.stderr)

    def test_a_manager_that_is_away_is_found_and_grows_worse_until_it_is_back(self):
        self.assertEqual(self.findings(), {})
        tenant = self.tenant(self.b)
        self.assertIn(str(8 * MIB), tenant.ask("grant", 8 * MIB, 60 * S, "x"))
        self.manager.kill()
        wait_until(lambda: "manager_away" in self.findings(), 30, "the finding")
        self.assertEqual(self.b.cli("health", check=False).code, 1)
        agent = self.agent()
        self.assertFalse(agent["connected"])
        self.assertTrue(agent["trouble"])
        self.assertIn("away: ", self.b.cli("status", json=False).out)
        self.wait_findings({"manager_away": "critical"})  # past the half of 30 s
        self.assertEqual(self.b.cli("health", check=False).code, 2)
        self.b.wait_log("health: manager_away, critical")
        self.manager.start()
        self.wait_findings({})
        self.b.wait_log("health: manager_away, over")
        self.assertTrue(self.agent()["connected"])

    def test_a_guard_that_cannot_run_is_found(self):
        lock = self.b.runtime / "guard.lock"
        guard = int(wait_until(lambda: lock.read_text().strip(), 20, "the guard's pid"))
        lock.rename(self.b.runtime / "guard.lock.away")
        lock.mkdir()  # no guard can be started
        os.kill(guard, signal.SIGKILL)
        self.wait_findings({"guard_missing": "critical"})
        self.assertFalse(self.agent()["guarded"])
        lock.rmdir()
        self.wait_findings({})
        self.assertTrue(self.agent()["guarded"])
        again = int(wait_until(lambda: lock.read_text().strip(), 20, "the next guard's pid"))
        self.assertNotEqual(again, guard)

    def test_daemon_stop_ends_it(self):
        pid = self.b.pid
        self.assertEqual(self.b.cli("daemon", "stop").json["stopped"], pid)
        self.b.wait_dead()
        self.assertEqual(self.b.cli("status", check=False).code, 5)
        self.b.start()
        self.fabric.wait_state("hostb", "connected")


if __name__ == "__main__":
    harness.main()
