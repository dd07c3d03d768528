# SPDX-License-Identifier: Apache-2.0
"""Traces: a client's TRACEPARENT in events, log and audit; spans at a collector, whose documents are checked against OTLP's
rules for JSON; and collectors that are slow, away or answer wrongly, which must cost spans only.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/traces/traces_test.py [TestClass[.test]]
"""

import http.server
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parent / "web")]
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402
from session_tenant import Tenant  # noqa: E402
from web_test import UnixConnection, ask, parse_metrics  # noqa: E402

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"


class Collector:
    """An OTLP/HTTP server. `answer(handler)`, where it is set, answers instead."""

    def __init__(self, port=0):
        self.documents, self.problems, self.answer = [], [], None
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.answer is not None:
                    collector.answer(self)
                    return
                try:
                    if self.path != "/v1/traces" or self.headers["Content-Type"] != "application/json":
                        raise AssertionError(f"asked for {self.path} with {self.headers['Content-Type']}")
                    document = json.loads(body)
                    check_document(document)
                    collector.documents.append(document)
                except (AssertionError, KeyError, ValueError) as error:
                    collector.problems.append(f"{error!r}: {body[:2000]}")
                self.reply(200, b"{}")

            def reply(self, status, body):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def spans(self):
        return [span for document in self.documents for resource in document["resourceSpans"]
                for scope in resource["scopeSpans"] for span in scope["spans"]]

    def named(self, name):
        return [span for span in self.spans() if span["name"] == name]


def check_document(document):
    """opentelemetry-proto's trace.proto in JSON: ids are hex, 64 bit numbers are texts, enums are numbers."""
    def only(what, known):
        assert set(what) <= set(known), f"unknown keys {set(what) - set(known)}"

    def attributes(listed):
        for one in listed:
            only(one, ["key", "value"])
            assert isinstance(one["key"], str) and one["key"]
            [(kind, value)] = one["value"].items()
            assert kind in ("stringValue", "intValue") and isinstance(value, str), one
            assert kind != "intValue" or re.fullmatch(r"-?\d{1,19}", value), one
        keys = [one["key"] for one in listed]
        assert len(keys) == len(set(keys)), keys

    only(document, ["resourceSpans"])
    assert document["resourceSpans"]
    for resource in document["resourceSpans"]:
        only(resource, ["resource", "scopeSpans"])
        only(resource["resource"], ["attributes"])
        attributes(resource["resource"]["attributes"])
        assert "service.name" in [one["key"] for one in resource["resource"]["attributes"]]
        for scope in resource["scopeSpans"]:
            only(scope, ["scope", "spans"])
            only(scope["scope"], ["name", "version"])
            assert scope["spans"]
            for span in scope["spans"]:
                only(span, ["traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano",
                            "attributes", "status"])
                assert re.fullmatch(r"[0-9a-f]{32}", span["traceId"]) and set(span["traceId"]) != {"0"}, span
                for key in ("spanId", "parentSpanId"):
                    if key in span:
                        assert re.fullmatch(r"[0-9a-f]{16}", span[key]) and set(span[key]) != {"0"}, span
                assert span["name"] and type(span["kind"]) is int and 0 <= span["kind"] <= 5, span
                for key in ("startTimeUnixNano", "endTimeUnixNano"):
                    assert isinstance(span[key], str) and re.fullmatch(r"\d{19}", span[key]), span
                began, ended = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                assert began <= ended <= time.time_ns() + 10**9 and time.time_ns() - began < 3600 * 10**9, span
                attributes(span["attributes"])
                only(span["status"], ["code", "message"])
                assert span["status"].get("code", 0) in (0, 1, 2), span


def attributes_of(span):
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


class Traces(unittest.TestCase):
    def setUp(self):
        self.collector = Collector()
        self.addCleanup(self.collector.close)
        self.t = Harness(name="traces", devices={"a": "64M"})
        self.addCleanup(self.t.close)
        self.config = self.t.directory / "terraced.toml"
        self.configure()
        self.t.daemon_args += ["--config", str(self.config), "--log-level", "debug"]
        self.addCleanup(lambda: self.assertEqual(self.collector.problems, []))

    def configure(self, endpoint="", sample=None):
        endpoint = endpoint or f"http://127.0.0.1:{self.collector.port}/v1/traces"
        self.config.write_text(f'[traces]\nendpoint = "{endpoint}"\n' + ("" if sample is None else f"sample = {sample}\n"))

    def start(self):
        self.t.start()
        self.t.create_pool("p", ["a"])

    def cli(self, *arguments, trace=None, **options):
        return self.t.cli(*arguments, env={"TRACEPARENT": trace or ""}, **options)

    def grant(self, trace=None, **options):
        return self.cli("lease", "grant", "--pool", "p", "--size", "2M", "--persistent", "--tenant", "x", trace=trace,
                        **options)

    def events(self, kind=None):
        events = json.loads(ask(UnixConnection(self.t.runtime / "http.sock"), "/api/v1/events?limit=500")[1])["events"]
        return [event for event in events if kind in (None, event["kind"])]

    def metrics(self):
        return parse_metrics(ask(UnixConnection(self.t.runtime / "http.sock"), "/metrics")[1])

    def dropped(self):
        return self.metrics()["terrace_trace_spans_dropped_total"]

    def wait_span(self, name, count=1):
        return wait_until(lambda: spans if len(spans := self.collector.named(name)) >= count else None, 30,
                          f"{count} spans {name}, there are {[span['name'] for span in self.collector.spans()]}")

    def wait_log(self, words):
        wait_until(lambda: words in self.t.log.read_text(), 30, f"'{words}' in the log")


class FromClients(Traces):
    def test_a_clients_trace_is_in_events_log_and_audit_and_spans_are_its_children(self):
        self.start()
        lease = self.grant(SAMPLED).json["lease"]["id"]
        self.cli("lease", "release", lease, trace=SAMPLED)
        for kind in ("lease_granted", "lease_released", "lease_fenced", "lease_erased"):
            [event] = wait_until(lambda kind=kind: self.events(kind), 30, kind)
            self.assertEqual(event["trace_id"], TRACE, event)
        self.assertNotEqual(self.events("pool_created")[0]["trace_id"], TRACE)  # of a call without one: a trace of its own
        listed = self.t.cli("events", "--where", f"trace_id={TRACE}").json["events"]
        self.assertIn("lease_granted", [event["kind"] for event in listed])
        self.assertRegex(self.t.log.read_text(), rf"event=lease_granted .*trace_id={TRACE}")
        entries = self.t.cli("audit", "--limit", "0").json["entries"]
        self.assertEqual({entry["verb"] for entry in entries if f"trace_id={TRACE}" in entry["detail"]} & {"grant", "release"},
                         {"grant", "release"})
        [call] = self.wait_span("TenantSession.grant")
        self.assertEqual((call["traceId"], call["parentSpanId"], call["kind"], call["status"]), (TRACE, PARENT, 2, {}))
        of = attributes_of(call)
        self.assertEqual((of["terrace.tenant"], of["terrace.pool"], of["terrace.lease"]), ("x", "p", str(lease)))
        for part in ("carve", "commit", "fence", "scrub"):
            spans = self.wait_span(part)
            parents = {span["spanId"] for span in self.collector.spans() if span["kind"] == 2}
            self.assertTrue(any(span["traceId"] == TRACE and span["parentSpanId"] in parents for span in spans), spans)
        carve = next(span for span in self.collector.named("carve") if span["parentSpanId"] == call["spanId"])
        self.assertLessEqual(int(call["startTimeUnixNano"]), int(carve["startTimeUnixNano"]))

    def test_what_is_refused_says_why(self):
        self.start()
        self.cli("lease", "grant", "--pool", "p", "--size", "1G", "--persistent", trace=SAMPLED, check=4)
        [call] = self.wait_span("TenantSession.grant")
        self.assertEqual(call["status"], {"code": 2, "message": "capacity_exhausted"})
        self.assertEqual(attributes_of(call)["error.type"], "capacity_exhausted")

    def test_calls_that_change_nothing_have_no_span(self):
        self.start()
        for _ in range(5):
            self.cli("status", trace=SAMPLED)
        self.grant(SAMPLED)
        self.wait_span("TenantSession.grant")
        names = {span["name"] for span in self.collector.spans()}
        self.assertFalse(names & {"Admin.status", "Gateway.hello", "Gateway.openAdmin"}, names)

    def test_a_traceparent_that_is_none_is_a_new_trace_and_never_an_error(self):
        self.start()
        for bad in ("nonsense", SAMPLED.upper(), SAMPLED + "-more", f"00-{'0' * 32}-{PARENT}-01", "ff" + SAMPLED[2:], "x" * 10000):
            self.grant(bad)
        calls = self.wait_span("TenantSession.grant", 6)
        traces = {span["traceId"] for span in calls}
        self.assertEqual(len(traces), 6)
        self.assertNotIn(TRACE, traces)
        self.assertTrue(all("parentSpanId" not in span for span in calls), calls)
        self.assertEqual({event["trace_id"] for event in self.events("lease_granted")}, traces)

    def test_a_trace_that_is_not_sampled_is_named_but_has_no_spans(self):
        self.start()
        self.grant(UNSAMPLED)
        self.assertEqual(self.events("lease_granted")[-1]["trace_id"], TRACE)
        self.grant(SAMPLED)
        self.assertEqual(len(self.wait_span("TenantSession.grant")), 1)

    def test_a_program_with_libterrace_passes_it_on(self):
        self.start()
        tenant = Tenant(self.t, env={"TRACEPARENT": SAMPLED})
        self.addCleanup(tenant.kill)
        self.assertTrue(tenant.ask("grant", 2 << 20, 60 * 10**9, "x").endswith(str(2 << 20)))
        self.assertEqual(tenant.ask("release"), "ok")
        for kind in ("lease_granted", "lease_released", "lease_fenced", "lease_erased"):
            [event] = wait_until(lambda kind=kind: self.events(kind), 30, kind)
            self.assertEqual(event["trace_id"], TRACE, event)
        for method in ("TenantSession.grant", "Lease.release"):
            [call] = self.wait_span(method)
            self.assertEqual((call["traceId"], call["parentSpanId"]), (TRACE, PARENT))

    def test_programs_of_terrace_run_pass_it_on(self):
        self.start()
        done = self.t.popen(self.t.terrace, "run", "--ddr", "8M", "--cxl", "16M", "--", "/usr/bin/python3", "-c", "bytearray(12 << 20)",
                            env={"TRACEPARENT": SAMPLED, "TERRACE_MALLOC_LIBRARY": harness.find_binary("libterrace_heap.so")})
        self.assertEqual(done.wait(60), 0)
        self.assertEqual({event["trace_id"] for event in self.events("lease_granted")}, {TRACE})


class Settings(Traces):
    def test_the_ratio_and_the_endpoint_follow_sighup(self):
        self.configure(sample=0)
        self.start()
        self.grant()
        self.grant(SAMPLED)
        self.assertEqual(len(self.wait_span("TenantSession.grant")), 1)  # of the client's trace only
        self.configure(sample=1)
        self.t.process.send_signal(signal.SIGHUP)
        self.wait_log("in force now: traces.sample")
        self.grant()
        self.wait_span("TenantSession.grant", 2)
        self.config.write_text("")
        self.t.process.send_signal(signal.SIGHUP)
        self.wait_log("in force now: traces.endpoint")
        before = self.metrics()["terrace_trace_spans_total"]
        self.grant(SAMPLED)
        self.assertEqual(self.events("lease_granted")[-1]["trace_id"], TRACE)
        self.assertEqual(self.metrics()["terrace_trace_spans_total"], before)

    def test_what_cannot_be_is_refused_with_its_line(self):
        for text, words in (('endpoint = "127.0.0.1:4318"', "must be http://"), ("sample = 1.5", "from 0 to 1"),
                            ("sample = \"all\"", "from 0 to 1"), ("ratio = 1", "unknown key 'ratio' in [traces]")):
            self.config.write_text(f"[traces]\n{text}\n")
            done = self.t.popen(harness.find_binary("terraced"), "--config", str(self.config), "--check-config", stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
            out = b"".join(done.communicate(timeout=60)).decode()
            self.assertNotEqual(done.returncode, 0, text)
            self.assertIn(words, out)


class Collectors(Traces):
    """None of these may hold up a call."""

    def grants(self, count):
        """Seconds that each took at the manager, from its own histogram: (count, sum)."""
        before = self.metrics()
        for _ in range(count):
            self.cli("lease", "release", self.grant().json["lease"]["id"])
        after = self.metrics()
        name = 'terrace_grant_seconds_{}{{waited="no"}}'
        return [after[name.format(what)] - before.get(name.format(what), 0) for what in ("count", "sum")]

    def check_failing(self, words):
        count, seconds = self.grants(5)
        self.assertEqual(count, 5)
        self.assertLess(seconds / count, 1, "a grant waited for the collector")
        self.wait_log("wait for it")
        self.assertIn(words, self.t.log.read_text())
        self.assertEqual(self.t.log.read_text().count("spans wait for it"), 1)

    def test_one_that_answers_500_and_recovers(self):
        self.collector.answer = lambda handler: handler.reply(500, b"")
        self.start()
        self.check_failing("answers with the status 500")
        self.assertEqual(self.dropped(), 0)
        self.collector.answer = None
        self.wait_span("TenantSession.grant", 5)  # what waited comes
        self.wait_log("takes spans again")

    def test_one_that_refuses_costs_what_it_refused(self):
        self.collector.answer = lambda handler: handler.reply(400, b"no")
        self.start()
        self.grants(1)
        wait_until(lambda: self.dropped() > 0, 30, "spans being dropped")
        self.collector.answer = None
        self.grant(SAMPLED)
        wait_until(lambda: any(span["traceId"] == TRACE for span in self.collector.spans()), 30, "the next one")

    def test_one_that_answers_garbage(self):
        def garbage(handler):
            handler.wfile.write(b"\x00\xffSSH-2.0 what\r\n\r\n" * 100)
            handler.close_connection = True
        self.collector.answer = garbage
        self.start()
        self.check_failing("spans wait for it")
        self.collector.answer = None
        self.wait_span("TenantSession.grant", 5)

    def test_one_that_is_away_comes(self):
        port = self.collector.port
        self.collector.close()
        self.start()
        self.check_failing("spans wait for it")
        self.collector = Collector(port)
        self.wait_span("TenantSession.grant", 5)

    def test_one_that_never_answers_holds_up_no_grant(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        self.configure(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces")
        self.start()
        count, seconds = self.grants(3)
        self.assertEqual(count, 3)
        self.assertLess(seconds / count, 1, "a grant waited for the collector")
        self.assertGreater(self.metrics()["terrace_trace_spans_total"], 0)



if __name__ == "__main__":
    harness.main()
