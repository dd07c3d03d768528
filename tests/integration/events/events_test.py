# SPDX-License-Identifier: Apache-2.0
"""What happened in the manager: `terrace events`, readers that follow, and sinks that hang, fail and fill up.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/events/events_test.py [TestClass[.test]]
"""

import http.client
import http.server
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ports import free_port  # noqa: E402
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

MIB = 1 << 20
USER = 65534


class Follower:
    """`terrace events --follow --json`, with what it printed so far."""

    def __init__(self, t, *arguments):
        # The search for leaks at the end of a sanitized build is for other tests: this one is ended by a signal.
        self.process = t.popen(t.terrace, "--json", "events", "--follow", *arguments, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env={"ASAN_OPTIONS": "detect_leaks=0"})
        self.events, self.said = [], []
        self.threads = [threading.Thread(target=self._read, args=(self.process.stdout, self._event)),
                        threading.Thread(target=self._read, args=(self.process.stderr, self.said.append))]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _read(stream, take):
        for line in stream:
            take(line)

    def _event(self, line):
        self.events.append(json.loads(line))  # each line is one whole object

    def kinds(self):
        return [event["kind"] for event in list(self.events)]

    def wait_for(self, kind, count=1):
        wait_until(lambda: self.kinds().count(kind) >= count, 60, f"{count} {kind} of {self.kinds()}, {self.said}")

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        for thread in self.threads:
            thread.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code


class EventsTest(unittest.TestCase):
    devices = {"a": "64M", "b": "32M"}

    def make(self, config="", **options):
        t = Harness(name="events", devices=self.devices, **options)
        self.addCleanup(t.close)
        t.directory.chmod(0o755)
        if config:
            path = t.directory / "terraced.toml"
            path.write_text(config.replace("DIRECTORY", str(t.directory)))
            t.daemon_args += ["--config", str(path)]
        self.t = t
        return t

    def events(self, *arguments):
        return self.t.cli("events", "--limit", "0", *arguments).json["events"]

    def kinds(self, *arguments):
        return [event["kind"] for event in self.events(*arguments)]

    def wait_for(self, kind, *arguments, count=1):
        def found():
            events = [event for event in self.events(*arguments) if event["kind"] == kind]
            return events if len(events) >= count else None
        return wait_until(found, 60, f"{count} events {kind}")

    def follow(self, *arguments):
        follower = Follower(self.t, *arguments)
        self.addCleanup(follower.close)
        return follower


class Kinds(EventsTest):
    def test_each_act_is_an_event_with_its_fields(self):
        t = self.make()
        t.start()
        t.create_pool("p", ["a"])
        lease = t.grant("8M", "p", "--persistent", "--tenant", "x")["id"]
        granted = self.wait_for("lease_granted")[0]
        self.assertEqual((granted["lease"], granted["tenant"], granted["pool"], granted["bytes"]),
                         (lease, "x", "p", 8 * MIB))
        self.assertEqual(granted["severity"], "info")
        t.cli("lease", "resize", lease, "4M", "--yes")
        t.cli("lease", "transfer", lease, "--to-tenant", "y", "--yes")
        self.wait_for("lease_transferred")
        wait_until(lambda: t.leases()[lease]["phase"] == "active", 60, "the hand-over")
        t.cli("lease", "revoke", lease, "--grace", "0s", "--reason", "for the test")
        fenced = self.wait_for("lease_fenced", "--lease", str(lease))[-1]
        self.assertGreater(fenced["took_ns"], 0)
        self.assertEqual(fenced["cause"], "revoked")
        self.wait_for("lease_erased")
        short = t.grant("2M", "p", "--ttl", "1s")["id"]
        expired = self.wait_for("lease_expired")[0]
        self.assertEqual((expired["lease"], expired["cause"]), (short, "expired"))
        t.cli("device", "adopt", "emu:b")
        t.cli("pool", "add-device", "p", "emu:b")
        t.cli("device", "drain", "emu:b")
        t.cli("device", "undrain", "emu:b")
        t.cli("pool", "set", "p", "--trust", "mutual")
        t.cli("device", "fail", "emu:b", "--yes")
        t.cli("state", "backup", str(t.directory / "backup"))
        t.process.send_signal(signal.SIGHUP)
        self.wait_for("configuration_reloaded")
        kinds = set(self.kinds())
        for kind in ("manager_started", "device_adopted", "pool_created", "lease_granted", "lease_resized",
                     "lease_transferred", "lease_revoked", "lease_fenced", "lease_erased", "lease_expired",
                     "device_added", "device_draining", "device_in_service", "pool_trust_changed",
                     "device_failed", "backup_taken", "configuration_reloaded"):
            self.assertIn(kind, kinds)
        self.assertNotIn("lease_renewed", kinds)
        events = self.events()
        self.assertEqual([event["id"] for event in events], list(range(1, len(events) + 1)))
        self.assertEqual(len({event["run"] for event in events}), 1)

    def test_a_device_that_vanishes_and_comes_back(self):
        t = self.make()
        t.start()
        t.create_pool("p", ["a", "b"])
        lease = t.grant("40M", "p", "--persistent")["id"]
        objects = pathlib.Path(t.cli("status").json["server"]["object_directory"])
        (objects / "a.unplugged").touch()
        lost = self.wait_for("device_lost")[0]
        self.assertEqual((lost["device"], lost["severity"]), ("emu:a", "critical"))
        ended = self.wait_for("lease_revoked")[0]
        self.assertEqual((ended["lease"], ended["cause"], ended["severity"]), (lease, "device_lost", "critical"))
        raised = self.wait_for("health_raised")[0]
        self.assertEqual((raised["code"], raised["device"]), ("device_absent", "emu:a"))
        (objects / "a.unplugged").unlink()
        self.wait_for("device_returned")
        self.wait_for("health_cleared")
        log = t.log.read_text()
        self.assertRegex(log, r"error device emu:a vanished; its leases are fenced event=device_lost .*device=emu:a")
        self.assertNotIn("event=lease_granted", log)  # routine: at level debug only

    def test_lists_choose_as_all_lists_do(self):
        t = self.make()
        t.start()
        t.create_pool("p", ["a"])
        for _ in range(3):
            t.grant("2M", "p", "--persistent")
        self.assertEqual(self.kinds("--where", "pool=p", "--where", "kind=lease_granted"), ["lease_granted"] * 3)
        self.assertEqual(self.kinds("--kind", "device_"), ["device_adopted"])
        newest = t.cli("events", "--limit", "2").json["events"]
        self.assertEqual([event["kind"] for event in newest], ["lease_granted"] * 2)
        last = newest[-1]["id"]
        self.assertEqual([event["id"] for event in self.events("--since", str(last - 1))], [last])
        self.assertEqual(self.events("--severity", "critical"), [])
        names = t.cli("events", "-o", "name", json=False).out.split()
        self.assertIn(str(last), names)
        table = t.cli("events", json=False).out
        self.assertIn("lease_granted", table)
        self.assertEqual(len(self.events("--since", "1h")), last)
        for wrong in (["--kind", "nonsense"], ["--severity", "bad"], ["--since", "yesterday"],
                      ["--follow", "--sort", "id"]):
            t.cli("events", *wrong, check=2)

    def test_json_over_http_is_the_same(self):
        t = self.make()
        t.start()
        t.create_pool("p", ["a"])

        class Unix(http.client.HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.connect(str(t.runtime / "http.sock"))

        def ask(path):
            connection = Unix("localhost", timeout=30)
            connection.request("GET", path)
            answer = connection.getresponse()
            body = json.loads(answer.read())
            connection.close()
            return answer.status, body

        status, body = ask("/api/v1/events")
        self.assertEqual(status, 200, body)
        self.assertEqual(body["events"], self.events())
        self.assertEqual((body["lost"], body["next"], body["more"]), (0, len(body["events"]), False))
        self.assertEqual(body["run"], body["events"][0]["run"])
        status, page = ask("/api/v1/events?limit=1&since=1")
        self.assertEqual([event["id"] for event in page["events"]], [2])
        self.assertTrue(page["more"])
        self.assertEqual(ask("/api/v1/events?wait_ms=5")[0], 400)

    @unittest.skipIf(os.geteuid() != 0, "needs other uids")
    def test_a_flood_of_refused_calls_leaves_the_rest_and_is_refused(self):
        t = self.make()
        t.daemon_args += ["--allow-unmapped-uids"] if "--allow-unmapped-uids" in t.run(
            t.terraced, "--help").out else []
        t.start()
        t.create_pool("p", ["a"])
        before = self.kinds()

        def as_user(*arguments):
            return subprocess.run(["setpriv", f"--reuid={USER}", "--clear-groups", t.terrace, *arguments],
                                  env=t.environment(ASAN_OPTIONS="detect_leaks=0"), capture_output=True, text=True,
                                  check=False, timeout=120)

        self.assertEqual(as_user("events").returncode, 6)
        for _ in range(20):
            as_user("status")
        self.assertEqual(self.kinds()[:len(before)], before)
        denied = self.wait_for("call_denied", count=2)  # the first at once, the others together
        self.assertEqual(denied[0]["count"], 1)
        self.assertLess(len(denied), 10)
        wait_until(lambda: sum(e["count"] for e in self.events("--kind", "call_denied")) == 21, 60, "all are counted")
        self.assertEqual(denied[0]["code"], "permission_denied")


class Follow(EventsTest):
    def test_it_goes_on_over_a_kill_and_a_restart(self):
        t = self.make()
        t.start()
        t.create_pool("p", ["a"])
        follower = self.follow()
        follower.wait_for("pool_created")  # the newest ones come first
        t.grant("2M", "p", "--persistent")
        follower.wait_for("lease_granted")
        t.kill()
        t.start()
        follower.wait_for("manager_started", 2)
        t.grant("2M", "p", "--persistent")
        follower.wait_for("lease_granted", 2)
        said = "".join(follower.said)
        self.assertIn("the manager does not answer", said)
        self.assertIn("ids of events begin anew", said)
        runs = [event["run"] for event in follower.events]
        self.assertEqual(len(set(runs)), 2)
        for run in set(runs):
            ids = [event["id"] for event in follower.events if event["run"] == run]
            self.assertEqual(ids, sorted(set(ids)))  # none twice
        self.assertEqual(follower.close(), -signal.SIGINT)

    def test_it_sees_each_of_many_once(self):
        t = self.make()
        t.start()
        t.create_pool("p", ["a"])
        follower = self.follow("--since", "1h", "--kind", "lease_granted")
        wait_until(lambda: follower.process.poll() is None, 10, "it runs")
        for _ in range(25):
            t.cli("lease", "release", t.grant("2M", "p", "--persistent")["id"])
        wanted = [event["id"] for event in self.events("--kind", "lease_granted")]
        self.assertEqual(len(wanted), 25)
        wait_until(lambda: len(follower.events) >= len(wanted), 60, "all events")
        self.assertEqual([event["id"] for event in follower.events], wanted[-len(follower.events):])

    def test_it_ends_when_its_reader_has_gone(self):
        t = self.make()
        t.start()
        process = t.popen(t.terrace, "events", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={"ASAN_OPTIONS": "detect_leaks=0"})
        process.stdout.readline()
        process.stdout.close()
        process.wait(60)  # though nothing more happens
        self.assertEqual(process.stderr.read(), b"")
        process.stderr.close()


class Server:
    """An HTTP server that answers as `mode` says: "take", "fail", "refuse", "hang"."""

    def __init__(self, mode="take"):
        self.mode, self.events, self.runs = mode, [], set()
        self.asked = queue.Queue()
        released = self.released = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.put(self.path)
                if outer.mode == "hang":
                    released.wait(60)
                    return
                if outer.mode == "take":
                    outer.runs.add(body["run"])
                    outer.events += body["events"]
                self.send_response({"take": 204, "fail": 503, "refuse": 400}.get(outer.mode, 503))
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def kinds(self):
        return [event["kind"] for event in list(self.events)]

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Sinks(EventsTest):
    def serve(self, mode="take"):
        server = Server(mode)
        self.addCleanup(server.close)
        return server

    def test_a_webhook_that_fails_gets_all_once_it_takes_them(self):
        server = self.serve("fail")
        t = self.make(f'[events]\nwebhook = "http://127.0.0.1:{server.port}/hook?a=b"\n')
        t.start()
        self.assertEqual(server.asked.get(timeout=60), "/hook?a=b")
        t.create_pool("p", ["a"])
        server.mode = "take"
        wait_until(lambda: "pool_created" in server.kinds(), 60, "the events")
        self.assertEqual(server.kinds(), self.kinds())
        self.assertEqual(server.events, self.events())  # the same JSON
        self.assertEqual(server.runs, {server.events[0]["run"]})
        t.stop()
        self.assertEqual(server.kinds()[-1], "manager_stopping")

    def test_a_webhook_that_hangs_keeps_nobody(self):
        server = self.serve("hang")
        t = self.make(f'[events]\nwebhook = "http://127.0.0.1:{server.port}/"\n')
        t.start()
        server.asked.get(timeout=60)
        t.create_pool("p", ["a"])
        for _ in range(5):
            t.cli("lease", "release", t.grant("2M", "p", "--persistent")["id"])
        self.assertEqual(t.stop(), 0)

    def test_what_a_webhook_refuses_is_dropped_counted_and_told(self):
        server = self.serve("refuse")
        t = self.make(f'[events]\nwebhook = "http://127.0.0.1:{server.port}/"\n')
        t.start()
        dropped = self.wait_for("events_dropped")[0]
        self.assertEqual((dropped["code"], dropped["severity"]), ("webhook", "warning"))
        self.assertGreaterEqual(dropped["count"], 1)
        self.assertRegex(t.log.read_text(), r"answers with the status 400; \d+ events are not sent")

    def test_a_webhook_that_is_not_there(self):
        t = self.make(f'[events]\nwebhook = "http://127.0.0.1:{free_port()}/"\n')
        t.start()
        t.create_pool("p", ["a"])
        wait_until(lambda: "events wait for it" in t.log.read_text(), 60, "a line of the log")
        self.assertEqual(t.stop(), 0)

    def test_the_journal_has_fields(self):
        t = self.make('[events]\njournal = true\njournal_socket = "DIRECTORY/journal"\n')
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
            journal.bind(str(t.directory / "journal"))
            journal.settimeout(60)
            t.start()
            t.create_pool("p", ["a"])
            lease = t.grant("2M", "p", "--persistent", "--tenant", "x")["id"]
            while True:
                fields = dict(line.split("=", 1) for line in journal.recv(65536).decode().splitlines())
                self.assertEqual(fields["SYSLOG_IDENTIFIER"], "terraced")
                if fields["TERRACE_EVENT"] == "lease_granted":
                    break
        self.assertEqual((fields["TERRACE_LEASE"], fields["TERRACE_TENANT"], fields["TERRACE_POOL"], fields["PRIORITY"]),
                         (str(lease), "x", "p", "6"))
        self.assertIn("MESSAGE", fields)

    def test_a_file_has_a_line_each_and_goes_on_behind_a_rotation(self):
        t = self.make('[events]\nfile = "DIRECTORY/events.jsonl"\n')
        t.start()
        t.create_pool("p", ["a"])
        path = t.directory / "events.jsonl"
        lines = lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        wait_until(lambda: lines() == self.events(), 60, "the same events in the file")
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        path.rename(t.directory / "rotated")
        t.grant("2M", "p", "--persistent")
        wait_until(lambda: [event["kind"] for event in lines()] == ["lease_granted"], 60, "a new file")

    @unittest.skipUnless(harness.can_mount(), "needs a file system of its own")
    def test_a_full_disk_holds_nobody_up_and_loses_nothing(self):
        t = self.make('[events]\nfile = "DIRECTORY/full/events.jsonl"\n')
        full = t.directory / "full"
        full.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(full)], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", str(full)], check=False)
        filler = full / "filler"
        filler.write_bytes(b"x" * (64 << 10))
        t.start()
        t.create_pool("p", ["a"])
        wait_until(lambda: "cannot write the file of events" in t.log.read_text() or
                   "cannot open the file of events" in t.log.read_text(), 60, "a line of the log")
        t.grant("2M", "p", "--persistent")
        filler.unlink()
        path = full / "events.jsonl"
        wait_until(lambda: path.exists() and "lease_granted" in path.read_text(), 60, "the events")
        self.assertEqual([json.loads(line)["kind"] for line in path.read_text().splitlines()], self.kinds())


class Log(EventsTest):
    def test_lines_have_priorities_where_the_log_is_the_journal(self):
        t = self.make('[log]\nformat = "json"\n')
        read, write = socket.socketpair()
        status = os.fstat(write.fileno())
        env = t.environment(JOURNAL_STREAM=f"{status.st_dev}:{status.st_ino}")
        process = subprocess.Popen(t.daemon_command(), stderr=write, stdout=subprocess.DEVNULL, env=env)
        write.close()
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        with read, read.makefile() as lines:
            for line in lines:
                self.assertRegex(line, r"^<[2-7]>\{")
                entry = json.loads(line[3:])
                if entry.get("event") == "manager_started":
                    break
        self.assertEqual((line[:3], entry["id"]), ("<6>", 1))
        self.assertTrue(entry["message"].startswith("serving at "))


if __name__ == "__main__":
    harness.main()
