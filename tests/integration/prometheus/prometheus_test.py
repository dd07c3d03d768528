# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus and a real Alertmanager beside a manager: scraped, every alert with a test of its own, and alerts
fired and resolved by faults. And what is shipped for Grafana and compose.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/prometheus/prometheus_test.py [TestClass[.test]]
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from old_certificate import old_certificate  # noqa: E402
from ports import free_ports  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
DEPLOY = HERE.parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "terrace.rules.yml"
BOARD = DEPLOY / "grafana" / "terrace.json"
COMPOSE = DEPLOY / "compose"
LACKING = [name for name in ("prometheus", "promtool", "prometheus-alertmanager") if shutil.which(name) is None]


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)


def board_expressions():
    """(title of the panel, expression) of all that the board asks for, its variables replaced by "any"."""
    def panels(of):
        for panel in of.get("panels", []):
            yield panel
            yield from panels(panel)
    for panel in panels(json.loads(BOARD.read_text())):
        for target in panel.get("targets", []):
            expression = re.sub(r"\$(instance|pool)\b", ".*", target["expr"])
            yield panel["title"], expression.replace("$__rate_interval", "1m")


@unittest.skipIf(LACKING, f"not installed: {', '.join(LACKING)}")
class Rules(unittest.TestCase):
    def test_each_alert_fires_in_time_and_not_before(self):
        done = run("promtool", "check", "rules", "--lint-fatal", RULES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        tests = HERE / "terrace.rules.test.yml"
        with tempfile.TemporaryDirectory() as place:
            for file in (RULES, tests):
                shutil.copy(file, place)
            done = run("promtool", "test", "rules", pathlib.Path(place) / tests.name)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
        fired = set(re.findall(r"- alertname: (\w+)\n", tests.read_text()))
        self.assertEqual(alerts, fired)


@unittest.skipIf(LACKING, f"not installed: {', '.join(LACKING)}")
class Monitored(unittest.TestCase):
    """Prometheus looks each second, and the rules' times are cut to one second: Rules has them as they are."""

    def setUp(self):
        self.t = Harness(name="prometheus", devices={"a": "64M", "b": "64M"})
        self.addCleanup(self.t.close)
        self.ports = dict(zip(("terraced", "prometheus", "alertmanager", "agents"), free_ports(4)))
        config = self.t.directory / "terraced.toml"
        config.write_text(f'[http]\nlisten = "127.0.0.1:{self.ports["terraced"]}"\n[health]\ninterval = "200ms"\nwindow = "5s"\n')
        self.t.daemon_args += ["--config", str(config)]
        self.prepare()
        self.t.start()
        self.t.create_pool("p", ["a", "b"])
        self.start_alertmanager()
        self.start_prometheus()
        wait_until(lambda: self.value("up") == 1, 60, "the first scrape")

    def prepare(self):
        """What a case's manager needs before it starts."""

    def start_alertmanager(self):
        config = self.t.directory / "alertmanager.yml"
        config.write_text("route: {receiver: nobody, group_wait: 0s, group_interval: 1s}\nreceivers: [{name: nobody}]\n")
        self.start("prometheus-alertmanager", "--config.file", config, "--storage.path", self.t.directory / "alerts",
                   "--web.listen-address", f"127.0.0.1:{self.ports['alertmanager']}", "--cluster.listen-address=",
                   ready=f"http://127.0.0.1:{self.ports['alertmanager']}/-/ready")

    def start_prometheus(self):
        rules = self.t.directory / "terrace.rules.yml"
        rules.write_text(re.sub(r"\bfor: \w+", "for: 1s", RULES.read_text()))
        config = self.t.directory / "prometheus.yml"
        config.write_text(f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 200ms}}
rule_files: [{rules}]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{self.ports['alertmanager']}"]}}]}}]}}
scrape_configs: [{{job_name: terrace, static_configs: [{{targets: ["127.0.0.1:{self.ports['terraced']}"]}}]}}]
""")
        done = run("promtool", "check", "config", config)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.start("prometheus", "--config.file", config, "--storage.tsdb.path", self.t.directory / "tsdb",
                   "--web.listen-address", f"127.0.0.1:{self.ports['prometheus']}", "--log.level", "warn",
                   ready=f"http://127.0.0.1:{self.ports['prometheus']}/-/ready")

    def start(self, program, *arguments, ready):
        log = self.t.directory / f"{program}.log"
        with log.open("w") as out:
            process = subprocess.Popen([program, *map(str, arguments)], stdout=out, stderr=out, cwd=self.t.directory)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def answers():
            self.assertIsNone(process.poll(), log.read_text())
            try:
                return get(ready) is not None
            except (urllib.error.URLError, OSError):
                return False
        wait_until(answers, 60, f"{program} being ready")

    def query(self, expression):
        url = f"http://127.0.0.1:{self.ports['prometheus']}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            answer = json.loads(get(url))
        except urllib.error.HTTPError as error:
            self.fail(f"{expression}: {error.read().decode()}")
        return answer["data"]["result"]

    def value(self, expression):
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def alerts(self):
        """name -> its labels, of what Alertmanager has as active."""
        url = f"http://127.0.0.1:{self.ports['alertmanager']}/api/v2/alerts?active=true"
        return {one["labels"]["alertname"]: one["labels"] for one in json.loads(get(url))}

    def fired(self, name):
        return wait_until(lambda: self.alerts().get(name), 60, f"{name} at Alertmanager, which has {self.alerts()}")

    def resolved(self, name):
        wait_until(lambda: name not in self.alerts(), 60, f"the end of {name}")

    def test_what_is_scraped_is_what_status_says(self):
        self.t.grant("8M", "p", "--persistent", "--tenant", "training")
        wait_until(lambda: self.value("terrace_leases") == 1, 30, "the lease at Prometheus")
        pool = self.t.cli("status").json["pools"][0]
        self.assertEqual(self.value('terrace_pool_bytes{pool="p",state="leased"}'), pool["leased_bytes"])
        self.assertEqual(self.value('terrace_pool_capacity_bytes{pool="p"}'), pool["capacity_bytes"])
        self.assertEqual(self.value('terrace_tenant_bytes{tenant="training"}'), 8 << 20)
        done = run("promtool", "check", "metrics", input=get(f"http://127.0.0.1:{self.ports['terraced']}/metrics"))
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_alerts_fire_by_faults_and_are_resolved(self):
        self.assertEqual(self.alerts(), {})
        # A device that is pulled out.
        objects = pathlib.Path(self.t.cli("status").json["server"]["object_directory"])
        mark = objects / "a.unplugged"
        self.addCleanup(mark.unlink, missing_ok=True)
        mark.touch()
        self.assertEqual(self.fired("TerraceDeviceAbsent")["device"], "emu:a")
        self.assertEqual(self.fired("TerraceHealthWarning")["code"], "device_absent")
        mark.unlink()
        self.resolved("TerraceDeviceAbsent")
        # A pool that is full, and one who waits.
        lease = self.t.grant("124M", "p", "--persistent")
        self.assertEqual(self.fired("TerracePoolNearlyFull")["pool"], "p")
        waiting = self.t.popen(self.t.terrace, "lease", "grant", "--pool", "p", "--size", "32M", "--persistent", "--wait",
                               "10m", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertEqual(self.fired("TerraceQueueStuck")["pool"], "p")
        self.t.cli("lease", "release", lease["id"])
        self.assertEqual(waiting.wait(60), 0)
        self.resolved("TerraceQueueStuck")
        self.resolved("TerracePoolNearlyFull")
        # A device that does not get empty.
        self.t.cli("device", "drain", "emu:a")
        self.t.cli("device", "drain", "emu:b")
        self.assertIn(self.fired("TerraceDeviceDraining")["device"], ("emu:a", "emu:b"))
        for device in ("emu:a", "emu:b"):
            self.t.cli("device", "undrain", device)
        self.resolved("TerraceDeviceDraining")
        # The manager itself.
        self.t.kill()
        self.assertEqual(self.fired("TerraceManagerDown")["severity"], "critical")
        self.t.start()
        self.resolved("TerraceManagerDown")
        wait_until(lambda: self.alerts() == {}, 60, f"no alert being left, there are {self.alerts()}")

    def test_alerts_fire_by_work_that_fails_and_are_resolved(self):
        if not self.t.cli("status").json["server"]["failpoints"]:
            self.skipTest("this build has no failpoints")
        # Memory that is not erased for long, and at last is.
        self.t.restart(failpoints="scrub_before_verify=delay:8000")
        self.t.cli("lease", "release", self.t.grant("48M", "p", "--ttl", "1h")["id"])
        self.fired("TerraceScrubBacklog")
        self.resolved("TerraceScrubBacklog")
        # Memory that its holder may still reach.
        self.t.restart(failpoints="fence_before_truncate=error:EIO")
        self.t.cli("lease", "release", self.t.grant("8M", "p", "--ttl", "1h")["id"])
        self.assertEqual(self.fired("TerraceHealthCritical")["code"], "fence_failed")
        self.assertEqual(self.fired("TerraceQuarantine")["pool"], "p")
        self.t.restart()
        kept = [lease["id"] for lease in self.t.cli("lease", "quarantined").json["leases"]]
        self.assertEqual(len(kept), 1)
        self.t.cli("lease", "release", *kept)
        self.resolved("TerraceQuarantine")
        self.resolved("TerraceHealthCritical")
        # A store that takes nothing, and is not readable either.
        self.t.restart(failpoints="journal_before_append=error:EIO@2")
        whole = self.t.state.read_bytes()
        with open(self.t.state, "r+b") as store:
            store.write(bytes(64))
        for size in range(1, 5):
            self.t.cli("quota", "set", "training", "--bytes", f"{size}G", check=False)
        self.assertEqual(self.fired("TerraceNotReady")["severity"], "critical")
        self.t.kill()
        with open(self.t.state, "r+b") as store:
            store.write(whole[:64])
        self.t.start()
        self.resolved("TerraceNotReady")
        wait_until(lambda: self.alerts() == {}, 60, f"no alert being left, there are {self.alerts()}")

    def certificate(self, *words):
        return self.t.cli("cert", *words, "--ca", self.t.directory / "ca")

    @unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed: nothing else makes old certificates")
    def test_alerts_fire_by_a_host_that_goes_and_a_certificate_that_ends(self):
        ca, port = self.t.directory / "ca", self.ports["agents"]
        self.t.cli("cert", "init", ca)
        self.certificate("issue", "hostb")
        of_manager = "extendedKeyUsage = serverAuth\nsubjectAltName = DNS:terrace-manager"
        old_certificate(ca, self.t.directory, "m", 5, "manager", of_manager)
        tls = lambda name: ["--tls-ca", str(ca / "ca.pem"), "--tls-cert", str(ca / f"{name}.pem"), "--tls-key", str(ca / f"{name}.key")]
        self.t.daemon_args += ["--listen", f"127.0.0.1:{port}", "--host-lease", "4s", *tls("m")]
        self.t.env["TERRACE_SHORT_HOST_LEASE"] = "1"
        self.t.restart()
        self.assertEqual(self.fired("TerraceCertificateEnds")["what"], "certificate")
        fresh = self.t.directory / "fresh"
        fresh.mkdir()
        self.certificate("issue", "m", "--manager", "--out", fresh)
        for file in ("m.key", "m.pem"):
            shutil.copy(fresh / file, ca / file)
        self.resolved("TerraceCertificateEnds")
        agent = Harness(name="hostb", devices={"a": "64M", "b": "64M"}, env={"TERRACE_SHORT_HOST_LEASE": "1"})
        self.addCleanup(agent.close)
        agent.daemon_args += ["--role", "agent", "--manager", f"127.0.0.1:{port}", *tls("hostb")]
        agent.start()
        wait_until(lambda: self.value('terrace_host_connected{host="hostb"}') == 1, 60, "the agent")
        agent.kill()
        self.assertEqual(self.fired("TerraceHostAway")["host"], "hostb")
        agent.start()
        self.resolved("TerraceHostAway")

    def test_the_board_asks_for_what_there_is(self):
        self.t.grant("8M", "p", "--persistent", "--tenant", "training")
        wait_until(lambda: self.value("terrace_leases") == 1, 30, "the lease at Prometheus")
        known = json.loads(get(f"http://127.0.0.1:{self.ports['prometheus']}/api/v1/label/__name__/values"))["data"]
        for title, expression in board_expressions():
            with self.subTest(panel=title, expression=expression):
                self.query(expression)  # it can be read
                # A family without a series here is one of hosts, quotas or findings; a name that is not served at all is a mistake.
                unknown = set(re.findall(r"\b(?:terrace|process)_\w+", expression)) - set(known)
                self.assertEqual({name for name in unknown if not self.is_served(name)}, set())

    def is_served(self, name):
        text = get(f"http://127.0.0.1:{self.ports['terraced']}/metrics")
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        return any(f"# TYPE {one} " in text for one in (name, family))


class Shipped(unittest.TestCase):
    def test_the_board_is_whole(self):
        board = json.loads(BOARD.read_text())
        panels = board["panels"]
        ids = [panel["id"] for panel in panels]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertTrue(board["uid"] and board["title"])
        cells = {}
        for panel in panels:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
                self.assertNotIn(cell, cells, f"{panel['title']} lies on {cells.get(cell)}")
                cells[cell] = panel["title"]
            if panel["type"] != "row":
                self.assertTrue(panel["targets"] and panel["description"], panel["title"])
                self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${source}"}, panel["title"])

    def test_compose_names_files_that_are_there(self):
        text = (COMPOSE / "compose.yaml").read_text()
        mounted = re.findall(r"^\s+- (\.\.?/[^:\s]+):/", text, re.MULTILINE)
        self.assertGreaterEqual(len(mounted), 5)
        for path in mounted:
            self.assertTrue((COMPOSE / path).exists(), path)
        self.assertTrue((COMPOSE / re.search(r"dockerfile: (\S+)", text)[1]).resolve().exists() or
                        (COMPOSE / re.search(r"context: (\S+)", text)[1] / re.search(r"dockerfile: (\S+)", text)[1]).exists())
        for image in re.findall(r"image: (\S+)", text):
            self.assertRegex(image, r":[\w.-]*\d", f"{image} names no version")


if __name__ == "__main__":
    harness.main()
