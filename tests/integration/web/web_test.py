# SPDX-License-Identifier: Apache-2.0
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
from ports import free_port  # noqa: E402
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


def ask(connection, path, method="GET", headers=None, body=None):
    connection.request(method, path, body=body, headers=headers or {})
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
        self.port = free_port()
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
                if "get" not in methods:
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
        harness.need_build_for_all()  # or its tests
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

    # --- what changes something

    def act(self, path, body=None, headers=None, way=None):
        """A POST as the console sends it. (status, document)"""
        sent = {"Content-Type": "application/json", "X-Terrace-Action": "1", **(headers or {})}
        sent = {name: value for name, value in sent.items() if value is not None}
        data = body if isinstance(body, (bytes, str)) else json.dumps(body or {})
        answer, text = (way or self.unix)(f"/api/v1/{path}", method="POST", headers=sent, body=data)
        return answer.status, json.loads(text)

    def done(self, path, body=None):
        status, document = self.act(path, body)
        self.assertEqual(status, 200, document)
        return document

    def leases(self):
        return json.loads(self.unix("/api/v1/leases")[1])["leases"]

    def previewed(self, **act):
        commits = lambda: self.t.cli("status").json["server"]["store_commits"]
        for _ in range(10):  # what an earlier act left to do, as erasing, may end meanwhile
            before = commits()
            preview = self.done("preview", act)["preview"]
            if commits() == before:
                return preview
        self.fail("a preview changes something")

    def test_each_act_does_what_its_preview_says(self):
        self.t.cli("pool", "add-device", "p", "emu:b", "--adopt")
        wanted = {"tenant": "alice", "bytes": 8 * MIB, "persistent": True, "movable": True, "label": "one"}
        preview = self.previewed(grant=wanted)
        self.assertEqual((preview["bytes"], preview["refusal"], preview["of_leases"][0]["lease"]), (8 * MIB, None, None))
        lease = self.done("grant", wanted)["info"]
        self.assertEqual((lease["tenant"], lease["label"], lease["phase"]), ("alice", "one", "active"))
        self.assertEqual({extent["device"] for extent in lease["extents"]}, {place["device"] for place in preview["to"]})
        keyed = {"tenant": "bob", "bytes": 4 * MIB, "ttl_ns": 10**12, "request_high": 2**53 - 1, "request_low": 5}
        twice = [self.done("grant", keyed)["info"]["id"] for _ in range(2)]
        self.assertEqual(twice[0], twice[1], "a POST that is repeated grants once")
        preview = self.previewed(grant={"tenant": "bob", "bytes": 1 << 40})
        self.assertEqual(preview["code"], "capacity_exhausted")
        status, refused = self.act("grant", {"tenant": "bob", "bytes": 1 << 40})
        self.assertEqual((status, refused["error"]["message"]), (409, preview["refusal"]))

        device = lease["extents"][0]["device"]
        preview = self.previewed(drain={"serial": device})
        self.assertEqual({tenant["tenant"] for tenant in preview["tenants"]}, {"alice", "bob"})
        self.assertEqual((preview["leases"], preview["blocked_leases"]), (1, 1))
        self.assertEqual(self.t.cli("device", "drain", device, "--dry-run").json["preview"], preview)
        to = next(one["to"] for one in preview["of_leases"] if one["lease"] == lease["id"])
        self.done("drain", {"serial": device})
        moved = lambda: next(one for one in self.leases() if one["id"] == lease["id"])["extents"]
        wait_until(lambda: {extent["device"] for extent in moved()} == {place["device"] for place in to}, 60, "the move")
        self.assertEqual(self.done("undrain", {"serial": device})["device"]["state"], "in_service")

        preview = self.previewed(set_quota={"tenant": "alice", "bytes_max": 4 * MIB})
        self.assertTrue(preview["tenants"][0]["over"])
        self.assertEqual(self.t.cli("quota", "set", "alice", "--bytes", "4M", "--dry-run").json["preview"], preview)
        self.t.cli("lease", "grant", "--size", "1T", "--persistent", "--dry-run", check=4)
        self.t.cli("lease", "revoke", "one", "--dry-run")
        self.assertEqual(len(self.leases()), 2)
        self.done("set_quota", {"tenant": "alice", "bytes_max": 4 * MIB, "leases_max": None})
        self.assertEqual(self.act("grant", {"tenant": "alice", "bytes": 2 * MIB})[0], 429)
        self.done("set_quota", {"tenant": "alice"})
        self.assertEqual(json.loads(self.unix("/api/v1/quotas")[1])["quotas"], [])
        kept = self.done("reserve", {"pool": "p", "tenant": "carol", "bytes": 4 * MIB})["reservation"]
        self.done("unreserve", {"reservation": kept["id"]})

        preview = self.previewed(revoke={"lease": lease["id"], "grace_ns": 10**9})
        self.assertEqual(preview["of_leases"][0]["state"], "fenced at once", "nobody has it")
        self.assertEqual(self.done("revoke", {"lease": lease["id"], "grace_ns": 10**9, "reason": "x"})["info"]["phase"], "fencing")
        self.previewed(release={"lease": twice[0]})
        self.done("release", {"lease": twice[0]})
        self.t.wait_free("p")
        self.assertEqual(self.leases(), [])
        entries = self.t.cli("audit").json["entries"]
        done = {entry["verb"] for entry in entries if re.fullmatch(rf"(admin )?uid {os.geteuid()} \(http\[\d+\]\)", entry["actor"])}
        self.assertTrue({"grant", "device drain", "device undrain", "quota set", "revoke", "release"} <= done, done)

    def test_a_compaction_does_what_its_preview_says(self):
        for index in range(8):
            self.done("grant", {"tenant": "alice", "bytes": 4 * MIB, "persistent": True, "movable": True, "label": f"l{index}"})
        for index in (0, 3, 6):
            self.t.cli("lease", "release", f"l{index}")
        used = lambda: json.loads(self.unix("/api/v1/devices")[1])["devices"]
        wait_until(lambda: next(one for one in used() if one["serial"] == "emu:a")["used_bytes"] == 20 * MIB, 60, "the holes")
        wanted = {"pool": "p", "run_bytes": 40 * MIB}
        preview = self.previewed(compact=wanted)
        self.assertEqual((preview["leases"], preview["bytes"], preview["blocked_leases"], preview["refusal"]), (1, 4 * MIB, 0, None))
        self.assertEqual(preview["run"]["length_bytes"], 40 * MIB)
        dry = self.t.cli("pool", "compact", "p", "--run", "40M", "--dry-run")
        self.assertEqual(dry.json["preview"], preview)
        moved = preview["of_leases"][0]
        lies = lambda: next(one for one in self.leases() if one["id"] == moved["lease"])["extents"]
        self.assertEqual(lies(), moved["from_extents"])
        begun = self.done("compact", wanted)["compaction"]
        self.assertEqual({"device": begun["device"], "offset_bytes": begun["offset_bytes"], "length_bytes": begun["length_bytes"]},
                         preview["run"])
        self.assertEqual([move["lease"] for move in begun["moves"]], [moved["lease"]])
        wait_until(lambda: lies() == moved["to_extents"], 60, "the move")
        pool = lambda: json.loads(self.unix("/api/v1/pools")[1])["pools"][0]
        wait_until(lambda: pool()["largest_free_bytes"] >= 40 * MIB, 60, "the run")
        # What is there already, what cannot be, and an end to what is under way.
        self.assertEqual((self.previewed(compact=wanted)["summary"], self.previewed(compact=wanted)["run"]), ("moves nothing", None))
        refused = self.previewed(compact={"pool": "p", "run_bytes": 60 * MIB})
        self.assertEqual(self.act("compact", {"pool": "p", "run_bytes": 60 * MIB})[1]["error"]["message"], refused["refusal"])
        self.t.cli("pool", "compact", "p", "--run", "60M", "--dry-run", check=4)
        self.t.cli("pool", "compact", "p", "--dry-run", "--wait", check=2)
        self.done("end_compaction", {"pool": "p"})

    def test_only_who_is_known_may_change_something(self):
        body = {"serial": "emu:a"}
        status, document = self.act("drain", body, way=self.tcp)
        self.assertEqual(status, 403)
        self.assertIn("over plain TCP nobody is known", document["error"]["message"])
        who = json.loads(self.tcp("/api/v1/whoami")[1])["who"]
        self.assertIn("over plain TCP", who["read_only"])
        self.assertIsNone(who["tenant"])
        who = json.loads(self.unix("/api/v1/whoami")[1])["who"]
        self.assertEqual((who["role"], who["read_only"], who["tenant"]), ("administrator", None, f"uid-{os.geteuid()}"))
        self.assertIn("set_quota", who["methods"])
        self.assertEqual(self.t.cli("device", "show", "emu:a").json["device"]["state"], "in_service")

    @unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    def test_another_user_changes_nothing(self):
        script = (f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
                  "import web_test\n"
                  "for path in ('drain', 'preview'):\n"
                  "    answer, body = web_test.ask(web_test.UnixConnection(sys.argv[1]), '/api/v1/' + path, method='POST',\n"
                  "        headers={'Content-Type': 'application/json', 'X-Terrace-Action': '1'}, body='{\"serial\": \"emu:a\"}')\n"
                  "    print(answer.status)\n")
        done = subprocess.run(["/usr/bin/python3", "-B", "-c", script, str(self.t.runtime / "http.sock")],
                              user=USER, group=USER, extra_groups=[], capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout.split(), done.stderr), (["403", "403"], ""))
        self.assertEqual(self.t.cli("device", "show", "emu:a").json["device"]["state"], "in_service")
        denied = self.t.cli("audit", "--tenant", f"uid-{USER}").json["entries"]
        self.assertEqual([entry["verb"] for entry in denied], ["denied admin"] * 2)

    def test_an_operator_does_the_days_work_and_no_more(self):
        self.t.stop()
        config = self.t.directory / "terraced.toml"
        config.write_text('socket_role = "operator"\nsocket_mode = 0o600\n'
                          f'[[sockets]]\npath = "{self.t.runtime}/admin/a.sock"\nrole = "administrator"\n'
                          f'[tenants.uids]\n{os.geteuid()} = "ops"\n')
        self.t.start()
        who = json.loads(self.unix("/api/v1/whoami")[1])["who"]
        self.assertEqual(who["role"], "operator")
        self.assertNotIn("set_quota", who["methods"])
        self.assertEqual(self.act("drain", {"serial": "emu:a"})[0], 200)
        self.assertEqual(self.act("undrain", {"serial": "emu:a"})[0], 200)
        for path, body in (("set_quota", {"tenant": "alice", "bytes_max": 1}), ("fail_device", {"serial": "emu:a"}),
                           ("grant", {"tenant": "alice", "bytes": 2 * MIB})):
            status, document = self.act(path, body)
            self.assertEqual((status, document["error"]["code"]), (403, "permission_denied"), path)
        self.assertEqual(self.done("grant", {"bytes": 2 * MIB, "persistent": True})["info"]["tenant"], "ops")

    def test_no_page_of_another_site_changes_something(self):
        body = {"serial": "emu:a"}
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:1"},
                        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
                        {"X-Terrace-Action": None}, {"X-Terrace-Action": "0"}, {"Content-Type": None},
                        {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"},
                        {"Host": "evil.example"}, {"Host": "evil.example", "Origin": "http://evil.example"}):
            with self.subTest(headers):
                status, document = self.act("drain", body, headers)
                self.assertIn(status, (403, 415, 421))
                self.assertEqual(self.t.cli("device", "show", "emu:a").json["device"]["state"], "in_service")
        # What ssh forwards of the unix socket is a port that a page whose name resolves to it can read.
        self.assertEqual(self.unix("/api/v1/leases", headers={"Host": "evil.example:9464"})[0].status, 421)
        # A browser asks first whether another site's page may send our header: nobody says yes.
        answer, _ = self.unix("/api/v1/drain", method="OPTIONS", headers={
            "Origin": "http://evil.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-terrace-action"})
        self.assertEqual(answer.status, 405)
        self.assertEqual([name for name in answer.headers if name.lower().startswith("access-control")], [])
        self.assertEqual(self.act("drain", body, {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"})[0], 200)

    def test_what_is_no_act_is_refused_with_the_key_that_is_wrong(self):
        for body, part in ((b"", "is no JSON"), (b"{", "is no JSON"), (b"\xff\xfe", "is no JSON"), (b"[" * 60_000, "deep"),
                           (b"{\"a\":" * 8000, "deep"), (b"[]", "is no object"), (b"null", "is no object"),
                           ({"serial": 7}, "serial: 7 is no text"), ({"serials": "emu:a"}, 'no key "serials"; there are serial'),
                           ({"serial": None}, "serial: null is no text"), ({"serial": "emu:a", "x" * 5000: 1}, "no key"),
                           (b'{"serial": "emu:a"} trailing', "is no JSON")):
            with self.subTest(str(body)[:40]):
                status, document = self.act("drain", body)
                self.assertEqual((status, document["error"]["code"]), (400, "invalid_argument"), document)
                self.assertIn(part, document["error"]["message"])
                self.assertLess(len(document["error"]["message"]), 600)
        self.assertIn("bytes_max, leases_max", self.act("set_quota", {"tenant": "a", "bytes": 5})[1]["error"]["message"])
        self.assertIn("wait_ns", self.act("grant", {"bytes": 5, "wait_ns": 5})[1]["error"]["message"])
        self.assertEqual(self.act("preview", {})[0], 400)
        self.assertEqual(self.act("drain?serial=emu:a", {})[0], 400)
        self.assertEqual(self.act("drain", "x" * 70_000)[0], 413)
        self.assertEqual(self.act("drain", {"serial": "none"})[0], 404)
        answer, _ = self.unix("/api/v1/drain")
        self.assertEqual((answer.status, answer.getheader("Allow")), (405, "POST"))
        connection = UnixConnection(self.t.runtime / "http.sock")  # without a length, in pieces
        connection.request("POST", "/api/v1/drain", body=iter([b" " * 1000] * 100), encode_chunked=True, headers={
            "Content-Type": "application/json", "X-Terrace-Action": "1", "Transfer-Encoding": "chunked"})
        self.assertEqual(connection.getresponse().status, 413)
        connection.close()
        self.assertEqual(self.t.cli("device", "show", "emu:a").json["device"]["state"], "in_service")

    def test_a_body_that_never_ends_holds_nobody_up(self):
        stalled = []
        for _ in range(8):
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(str(self.t.runtime / "http.sock"))
            stream.sendall(b"POST /api/v1/drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"X-Terrace-Action: 1\r\nContent-Length: 100\r\n\r\n{")
            stalled.append(stream)
        self.assertEqual(self.act("drain", {"serial": "emu:a"})[0], 200)
        for stream in stalled:
            stream.settimeout(30)
            while stream.recv(65536):
                pass
            stream.close()

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
