"""The manager over HTTP: health, metrics and JSON, for whom they are, and what they agree with.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/web/web_test.py [TestClass[.test]]
"""

import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

MIB = 1 << 20
USER = 65534


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def ask(connection, path, method="GET", headers=None):
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def parse_metrics(text):
    """{name{labels}: value}; every family has its help and type before its samples."""
    samples, family = {}, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family and line.split()[3] in ("gauge", "counter", "histogram"), line
            kind = line.split()[3]
        else:
            name, value = line.rsplit(" ", 1)
            suffix = "_(bucket|sum|count)" if kind == "histogram" else ""
            assert re.fullmatch(re.escape(family) + suffix + r'(\{([a-z]+="([^"\\\n]|\\.)*",?)+\})?', name), line
            assert name not in samples, line
            samples[name] = float(value)
    return samples


class Web(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="web", devices={"a": "64M", "b": "32M"})
        self.addCleanup(self.t.close)
        self.t.directory.chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        config = self.t.directory / "terraced.toml"
        config.write_text(f'[http]\nlisten = "127.0.0.1:{self.port}"\n')
        self.t.daemon_args += ["--config", str(config)]
        self.t.start()
        self.t.create_pool("p", ["a"])

    def unix(self, path, **options):
        return ask(UnixConnection(self.t.runtime / "http.sock"), path, **options)

    def tcp(self, path, **options):
        return ask(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30), path, **options)

    def metrics(self):
        answer, text = self.unix("/metrics")
        self.assertEqual(answer.status, 200, text)
        self.assertEqual(answer.getheader("Content-Type"), "text/plain; version=0.0.4; charset=utf-8")
        return parse_metrics(text)

    def test_health_is_anybodys(self):
        for way in (self.unix, self.tcp):
            for path in ("/healthz", "/readyz"):
                answer, body = way(path)
                self.assertEqual((answer.status, body), (200, "ok\n"))
                self.assertEqual(answer.getheader("Cache-Control"), "no-store")

    def test_metrics_agree_with_status_at_each_step(self):
        def compare():
            got = self.metrics()
            status = self.t.cli("status").json
            self.assertEqual(got["terrace_leases"], status["leases"])
            for pool in status["pools"]:
                of = lambda name, **labels: got[name + "{" + ",".join(
                    f'{key}="{value}"' for key, value in {"pool": pool["name"], **labels}.items()) + "}"]
                self.assertEqual(of("terrace_pool_capacity_bytes"), pool["capacity_bytes"])
                self.assertEqual(of("terrace_pool_bytes", state="free"), pool["free_bytes"])
                self.assertEqual(of("terrace_pool_bytes", state="leased"), pool["leased_bytes"])
                self.assertEqual(of("terrace_pool_bytes", state="quarantined"), pool["quarantined_bytes"])
                self.assertEqual(of("terrace_pool_grantable_bytes"), pool["grantable_bytes"])
                self.assertEqual(of("terrace_pool_leases"), pool["leases"])
            return got

        compare()
        self.t.grant("8M", "p", "--persistent", "--label", "one", "--tenant", 'odd.name')
        got = compare()
        self.assertEqual(got['terrace_tenant_bytes{tenant="odd.name"}'], 8 * MIB)
        self.assertEqual(got['terrace_device_used_bytes{device="emu:a",pool="p"}'], 8 * MIB)
        self.assertEqual(got['terrace_device_present{device="emu:a",pool="p"}'], 1)
        commits = got["terrace_store_commits_total"]
        self.t.cli("quota", "set", "odd.name", "--bytes", "16M")
        self.t.cli("device", "drain", "emu:a")
        got = compare()
        self.assertGreater(got["terrace_store_commits_total"], commits)
        self.assertEqual(got['terrace_quota_bytes{tenant="odd.name"}'], 16 * MIB)
        self.assertEqual(got['terrace_device_draining{device="emu:a",pool="p"}'], 1)
        self.assertEqual(got['terrace_pool_grantable_bytes{pool="p"}'], 0, "nothing is granted on a draining device")
        self.t.cli("lease", "release", "one")
        self.t.wait_free("p")
        got = compare()
        self.assertGreaterEqual(got["terrace_scrubbed_bytes_total"], 8 * MIB)
        self.assertNotIn('terrace_tenant_bytes{tenant="odd.name"}', got)
        self.assertGreater(got["process_resident_memory_bytes"], MIB)
        self.assertGreater(got["process_open_fds"], 5)

    def test_what_took_time_is_counted(self):
        before = self.metrics()
        lease = self.t.grant("8M", "p", "--persistent")["id"]
        self.t.cli("lease", "grant", "--pool", "p", "--size", "1G", "--persistent", check=4)
        waiting = self.t.popen(self.t.terrace, "lease", "grant", "--pool", "p", "--size", "64M", "--ttl", "1h", "--wait", "5m",
                               stdout=subprocess.DEVNULL)
        wait_until(lambda: self.metrics()['terrace_pool_waiting_grants{pool="p"}'] == 1, 30, "the queue")
        self.t.cli("lease", "revoke", lease)
        self.assertEqual(waiting.wait(60), 0)
        waited = next(iter(self.t.leases()))
        self.t.cli("lease", "renew", waited, "--ttl", "1h")
        self.t.cli("lease", "release", waited)
        self.t.wait_free("p")
        got = self.metrics()
        more = lambda name: got[name] - before.get(name, 0)
        self.assertEqual(more('terrace_grant_seconds_count{waited="no"}'), 1)
        self.assertEqual(more('terrace_grant_seconds_count{waited="yes"}'), 1)
        self.assertGreater(more('terrace_grant_seconds_sum{waited="yes"}'), 0)
        self.assertEqual(more('terrace_grant_refusals_total{reason="capacity_exhausted"}'), 1)
        self.assertEqual(more('terrace_leases_ended_total{cause="revoked"}'), 1)
        self.assertEqual(more('terrace_leases_ended_total{cause="released"}'), 1)
        self.assertEqual(more("terrace_fence_seconds_count"), 2)
        self.assertEqual(more("terrace_renewals_total"), 1)
        self.assertEqual(more("terrace_scrub_seconds_count"), 2)
        self.assertGreaterEqual(more('terrace_rpc_seconds_count{method="Admin.revoke"}'), 1)
        self.assertGreaterEqual(more('terrace_rpc_seconds_count{method="Gateway.hello"}'), 4)
        self.assertGreater(got['terrace_rpc_seconds_sum{method="Gateway.hello"}'], 0)
        self.assertEqual(got["terrace_store_commit_seconds_count"], got["terrace_store_commits_total"])
        for name in ("terrace_fence_seconds", "terrace_store_commit_seconds"):
            buckets = [value for sample, value in got.items() if sample.startswith(name + "_bucket")]
            self.assertEqual(buckets, sorted(buckets), name)
            self.assertEqual(buckets[-1], got[name + "_count"])

    def test_json_is_the_command_lines(self):
        self.t.grant("8M", "p", "--persistent", "--label", "one")
        self.t.grant("4M", "p", "--persistent", "--label", "two")
        leases = json.loads(self.unix("/api/v1/leases")[1])["leases"]
        self.assertEqual({lease["label"] for lease in leases}, {"one", "two"})
        self.assertEqual(leases, self.t.cli("lease", "list").json["leases"])
        first = json.loads(self.unix("/api/v1/leases?pool=p&limit=1")[1])["leases"]
        self.assertEqual(len(first), 1)
        rest = json.loads(self.unix(f"/api/v1/leases?after={first[0]['id']}")[1])["leases"]
        self.assertEqual([lease["label"] for lease in rest], ["two"])
        one = json.loads(self.unix("/api/v1/lease?label=%6fne")[1])
        self.assertEqual(one["info"]["bytes"], 8 * MIB)
        some = json.loads(self.unix("/api/v1/leases?limit=1&fields=id,extents,tenant")[1])["leases"]
        self.assertEqual(some, [{key: first[0][key] for key in ("id", "extents", "tenant")}])
        page = json.loads(self.unix("/api/v1/audit?fields=verb&limit=2")[1])
        self.assertEqual([set(entry) for entry in page["entries"]], [{"verb"}, {"verb"}])
        self.assertIn("newest", page)
        audit = json.loads(self.tcp("/api/v1/audit?verb=grant&limit=10")[1])["entries"]
        self.assertEqual([entry["verb"] for entry in audit], ["grant", "grant"])
        self.assertEqual(json.loads(self.tcp("/api/v1/pools")[1])["pools"], self.t.cli("pool", "list").json["pools"])

    def test_the_doctor_looks_once_for_many_who_ask(self):
        first = json.loads(self.unix("/api/v1/doctor")[1])
        self.assertTrue(first["basic_service"])
        self.assertEqual(first["uid"], os.geteuid())
        said = self.t.cli("doctor", "--manager").json
        self.assertEqual(said["checks"], first["checks"], "the same look")
        self.assertGreater(said["age_ns"], first["age_ns"])
        self.assertIn("memory", {check["group"] for check in first["checks"]})
        self.assertEqual(first["checks"][0], {**first["checks"][0], "name": "kernel", "group": "machine", "essential": True})
        text = self.t.cli("doctor", "--manager", json=False).out
        self.assertIn("Looked at by the manager, as uid", text)
        # What a look leaves behind: nothing.
        children = pathlib.Path(f"/proc/{self.t.pid}/task/{self.t.pid}/children").read_text().split()
        self.assertEqual([pid for pid in children if "--helper" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()], [])

    def test_every_path_of_the_document_answers_as_it_says(self):
        document = json.loads(self.tcp("/api/v1/openapi.json")[1])
        self.assertEqual(document["openapi"], "3.1.0")
        self.assertIn("PoolInfo", document["components"]["schemas"])
        asked = {"/api/v1/lease": "?lease=1", "/api/v1/progress": "?serial=emu:a"}
        self.t.grant("4M", "p", "--persistent")
        self.t.cli("device", "drain", "emu:a")
        for path, methods in document["paths"].items():
            with self.subTest(path):
                if path in ("/api/v1/plan", "/api/v1/tiersim"):  # planner_test.py
                    self.assertEqual(list(methods), ["post"])
                    continue
                self.assertEqual(list(methods), ["get"])
                answer, body = self.unix(path + asked.get(path, ""))
                self.assertEqual(answer.status, 200, body)
                shape = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
                self.check_shape(document, shape, json.loads(body), path)

    def check_shape(self, document, shape, value, where):
        if "$ref" in shape:
            shape = document["components"]["schemas"][shape["$ref"].rsplit("/", 1)[1]]
        if "anyOf" in shape:
            if value is not None:
                self.check_shape(document, shape["anyOf"][0], value, where)
            return
        kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
        self.assertIsInstance(value, kinds[shape["type"]], where)
        if shape["type"] == "object":
            for key, inner in value.items():
                self.assertIn(key, shape["properties"], where)
                self.check_shape(document, shape["properties"][key], inner, f"{where}.{key}")
        if shape["type"] == "array":
            for inner in value:
                self.check_shape(document, shape["items"], inner, where + "[]")
        if "enum" in shape:
            self.assertIn(value, shape["enum"], where)

    def test_what_is_wrong_is_told(self):
        for path, status, part in (("/api/v1/leasse", 404, "there are status, health"),
                                   ("/api/v1/leases?limt=1", 400, "there are pool, tenant, after, limit"),
                                   ("/api/v1/leases?limit=many", 400, "'many' is no value"),
                                   ("/api/v1/leases?fields=id,byte", 400, "no field 'byte'; there are id, pool"),
                                   ("/api/v1/leases?fields=", 400, "no field ''"),
                                   ("/api/v1/status?fields=serial", 400, "no field 'serial'; there are name"),
                                   ("/api/v1/lease?lease=99", 404, "99"),
                                   ("/api/v1/status?x=1", 400, "there are fields"),
                                   ("/api/v1/health?x=1", 400, "there are fields"),
                                   ("/api/v1/inventory?x=1", 400, "there is none"),
                                   ("/etc/passwd", 404, "/ has a list"),
                                   ("/api/v1/lease?label=" + "x" * 4000, 400, "")):
            with self.subTest(path[:60]):
                answer, body = self.unix(path)
                error = json.loads(body)["error"]
                self.assertIn(answer.status, (status, 404) if len(path) > 1000 else (status,), body)
                self.assertIn(part, error["message"])
        for method in ("POST", "PUT", "DELETE"):
            answer, body = self.tcp("/api/v1/pools", method=method)
            self.assertEqual((answer.status, answer.getheader("Allow")), (405, "GET, HEAD"))
        answer, body = self.tcp("/metrics", method="HEAD")
        self.assertEqual((answer.status, body), (200, ""))
        # A foreign page that had its name resolve to this address.
        self.assertEqual(self.tcp("/metrics", headers={"Host": "evil.example:80"})[0].status, 421)
        self.assertEqual(self.tcp("/metrics", headers={"Host": socket.gethostname() + ".evil.example"})[0].status, 421)
        for name in (f"localhost:{self.port}", f"LOCALHOST:{self.port}", "127.0.0.1", socket.gethostname()):
            self.assertEqual(self.tcp("/metrics", headers={"Host": name})[0].status, 200, name)

    def test_the_page(self):
        answer, body = self.tcp("/")
        self.assertEqual(answer.status, 200)
        self.assertIn("default-src 'none'", answer.getheader("Content-Security-Policy"))
        for path in re.findall(r'href="([^"]+)"', body):
            if path not in ("/api/v1/lease", "/api/v1/progress"):  # which need to be told of what
                self.assertEqual(self.tcp(path)[0].status, 200, path)

    @unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    def test_another_user_sees_health_only(self):
        script = (f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
                  "import web_test\n"
                  "for path in sys.argv[2:]:\n"
                  "    answer, body = web_test.ask(web_test.UnixConnection(sys.argv[1]), path)\n"
                  "    print(answer.status, body.strip()[:60])\n")
        done = subprocess.run(["/usr/bin/python3", "-B", "-c", script, str(self.t.runtime / "http.sock"), "/healthz",
                               "/metrics", "/api/v1/leases", "/api/v1/openapi.json"],
                              user=USER, group=USER, extra_groups=[], capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        codes = [line.split()[0] for line in done.stdout.splitlines()]
        self.assertEqual(codes, ["200", "403", "403", "200"], done.stdout)
        denied = self.t.cli("audit", "--tenant", f"uid-{USER}").json["entries"]
        self.assertEqual([(entry["verb"], entry["actor"]) for entry in denied],
                         [("denied admin", f"uid {USER} (http)")] * 2)

    def test_garbage_and_floods_cost_their_sender_only(self):
        for bytes_sent in (b"\0" * 4096, b"GET " + b"/" * 100_000, b"\xff\xfe\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", self.port), timeout=30) as stream:
                try:
                    stream.sendall(bytes_sent)
                    stream.shutdown(socket.SHUT_WR)
                    while stream.recv(65536):
                        pass
                except OSError:
                    pass  # closed
        silent = [socket.create_connection(("127.0.0.1", self.port), timeout=30) for _ in range(100)]
        try:
            answer, _ = self.unix("/healthz")  # the unix socket has a share of its own
            self.assertEqual(answer.status, 200)
            self.assertEqual(len(self.t.cli("pool", "list").json["pools"]), 1)
        finally:
            for stream in silent:
                stream.close()
        wait_until(lambda: self.tcp("/healthz")[0].status == 200, what="TCP to answer again")


if __name__ == "__main__":
    harness.main()
