# SPDX-License-Identifier: Apache-2.0
"""The planner over HTTP: its figures are the command line's, it is bounded, and it holds nobody up.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/web/planner_test.py [TestClass[.test]]
"""

import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from ports import free_port  # noqa: E402
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402
from web_test import UnixConnection, ask  # noqa: E402

MIB = 1 << 20
USER = 65534
OURS = {"Content-Type": "application/vnd.terrace.trace", "X-Terrace-Action": "1"}


def requests_csv(count=160):
    """Requests of memory on and off, the same ones each time."""
    draw = random.Random(7)
    lines = ["memory_mib,creation_time,deletion_time"]
    for at in range(count):
        begin = at * 3
        lines.append(f"{draw.choice((512, 2048, 8192, 16384))},{begin},{begin + draw.randrange(20, 400)}")
    return "\n".join(lines) + "\n"


def accesses(count, objects):
    draw = random.Random(11)
    return "".join(f"{at * 100} o{int(objects * draw.random() ** 3)} r\n" for at in range(count))


class Planner(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="planner", devices={"a": "64M"})
        self.addCleanup(self.t.close)
        self.t.directory.chmod(0o755)
        self.port = free_port()
        config = self.t.directory / "terraced.toml"
        config.write_text(f'[http]\nlisten = "127.0.0.1:{self.port}"\n')
        self.t.daemon_args += ["--config", str(config)]
        self.t.start()
        self.t.create_pool("p", ["a"])

    def post(self, path, body, headers=None, connection=None):
        connection = connection or UnixConnection(self.t.runtime / "http.sock")
        connection.connect()
        connection.sock.settimeout(300)  # the helper comes after everything else on the machine
        connection.request("POST", path, body=body, headers=OURS if headers is None else headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text)

    def tcp(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def progress(self):
        return json.loads(ask(UnixConnection(self.t.runtime / "http.sock"), "/api/v1/planner")[1])

    def helpers(self):
        found = []
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError):
                continue
            if b"--helper" in words and parent == self.t.pid:
                found.append(pid)
        return found

    def begin_long(self):
        """A request that computes for minutes: its connection."""
        body = accesses(60_000, 20_000).encode()
        shares = ",".join(f"0.{share:02}" for share in range(1, 60))
        stream = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        head = "".join(f"{name}: {value}\r\n" for name, value in OURS.items())
        stream.sendall(f"POST /api/v1/tiersim?format=accesses&policy=benefit-density&ddr-fraction={shares} HTTP/1.1\r\n"
                       f"Host: localhost\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: self.helpers() and self.progress().get("total", 0) > 0, 60, "a calculation under way")
        return stream

    def test_a_plan_is_the_command_lines(self):
        text = requests_csv()
        trace = self.t.directory / "pods.csv"
        trace.write_text(text)
        for options in ({}, {"host-memory": "32G", "local-fractions": "0.8,0.5", "placement": "best-fit", "spill": "even", "pool-devices": "2"},
                        {"hosts": "12", "host-memory": "24G", "pool-sizes": "16G,64G"}):
            with self.subTest(options):
                words = [word for name, value in options.items() for word in (f"--{name}", value)]
                wanted = self.t.cli("plan", "--trace", trace, *words).json
                query = "&".join(f"{name}={value}" for name, value in {**options, "name": "pods.csv"}.items())
                status, got = self.post(f"/api/v1/plan?{query}", text)
                self.assertEqual(status, 200, got)
                self.assertEqual(got, wanted)
                self.assertTrue(got["conclusion"])
        self.assertEqual(self.progress(), {"busy": False})

    def test_a_comparison_is_the_command_lines(self):
        text = accesses(6000, 900)
        trace = self.t.directory / "heap.txt"
        trace.write_text(text)
        wanted = self.t.cli("tiersim", "--trace", trace, "--format", "accesses", "--look-ahead", "4", "--ddr-fraction", "0.05,0.2").json
        status, got = self.post("/api/v1/tiersim?format=accesses&look-ahead=4&ddr-fraction=0.05,0.2&name=heap.txt", text, connection=self.tcp())
        self.assertEqual(status, 200, got)
        self.assertEqual(got.pop("trace"), "heap.txt")
        wanted.pop("trace")
        self.assertEqual(got, wanted)

    def test_what_is_wrong_is_told_with_its_line(self):
        good = requests_csv(20)
        for path, body, part in (
                ("plan?name=pods.csv", "memory_mib,creation_time,deletion_time\n512,0,9\nmany,1,2\n", "pods.csv, line 3"),
                ("plan", "a,b\n1,2\n", "memory_mib"),
                ("plan", b"\x00\xff" * 4000, "memory_mib"),
                ("plan", "", ""),
                ("plan?hosts=none", good, "hosts: 'none' is no whole number"),
                ("plan?hots=3", good, "no option 'hots'; there are hosts"),
                ("plan?host-cores=8", good, "cpu_milli"),
                ("plan?local-fractions=2", good, "'2' is no share"),
                ("tiersim?name=m.jsonl", '{"timestamp": 0, "hash_ids": [1]}\nnonsense\n', "m.jsonl, line 2"),
                ("tiersim?policy=lru,best", "", "no policy 'best'"),
                ("tiersim?format=xml", "", "neither mooncake nor accesses"),
                ("tiersim?name=%00%1b[31mx&policy=%00", "", "cannot be one")):
            with self.subTest(path):
                status, got = self.post(f"/api/v1/{path}", body)
                self.assertEqual(status, 400, got)
                self.assertIn(part, got["error"]["message"])
        status, got = self.post("/api/v1/plan?name=%1b[31mx", "garbage\n")
        self.assertNotIn("\x1b", got["error"]["message"])

    def test_a_page_of_another_site_gets_nothing_computed(self):
        body = requests_csv(20)
        own = f"localhost:{self.port}"
        for headers, status in (
                ({}, 403), ({"Content-Type": OURS["Content-Type"]}, 403),
                ({"X-Terrace-Action": "1"}, 415), ({"X-Terrace-Action": "1", "Content-Type": "text/plain"}, 415),
                ({**OURS, "Origin": "http://evil.example"}, 403), ({**OURS, "Origin": "null"}, 403),
                ({**OURS, "Origin": f"http://{own}.evil.example"}, 403),
                ({**OURS, "Sec-Fetch-Site": "cross-site"}, 403), ({**OURS, "Sec-Fetch-Site": "same-site"}, 403),
                ({**OURS, "Host": "evil.example"}, 421),
                ({**OURS, "Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}, 200)):
            with self.subTest(headers):
                self.assertEqual(self.post("/api/v1/plan?host-memory=32G", body, headers, self.tcp())[0], status)
        connection = self.tcp()  # a browser asks first, and is told no
        connection.request("OPTIONS", "/api/v1/plan", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST",
                                                               "Access-Control-Request-Headers": "x-terrace-action"})
        answer = connection.getresponse()
        self.assertEqual((answer.status, answer.getheader("Access-Control-Allow-Origin")), (405, None))

    def test_a_trace_that_is_too_large_is_refused(self):
        for headers, chunks in (({**OURS, "Content-Length": str(40 * MIB)}, 0), ({**OURS, "Transfer-Encoding": "chunked"}, 40)):
            with self.subTest(headers), socket.create_connection(("127.0.0.1", self.port), timeout=60) as stream:
                head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "localhost", **headers}.items())
                stream.sendall(f"POST /api/v1/plan HTTP/1.1\r\n{head}\r\n".encode())
                try:
                    for _ in range(chunks):
                        stream.sendall(b"100000\r\n" + b"x" * MIB + b"\r\n")
                except OSError:
                    pass  # it has heard enough
                try:
                    self.assertIn(b" 413 ", stream.recv(4096))
                except ConnectionError:
                    self.assertGreater(chunks, 0)
        wait_until(lambda: not self.progress()["busy"], 10, "the place to be free")
        self.assertEqual(self.helpers(), [])

    def test_one_at_a_time_and_it_ends_with_who_asked(self):
        first = self.begin_long()
        progress = self.progress()
        self.assertEqual((progress["busy"], progress["tool"], progress["computing"]), (True, "tiersim", True))
        self.assertIn("benefit-density at 0.0", progress["what"])
        [helper] = self.helpers()
        self.assertEqual(os.getpriority(os.PRIO_PROCESS, helper), 19)
        status, got = self.post("/api/v1/plan", requests_csv(20))
        self.assertEqual(status, 503)
        self.assertIn("one at a time", got["error"]["message"])
        began = time.monotonic()
        self.t.grant("4M", "p", "--persistent")  # beside it
        self.assertLess(time.monotonic() - began, 20)
        first.close()
        wait_until(lambda: self.helpers() == [], 20, "the helper to end with who asked")
        wait_until(lambda: not self.progress()["busy"], 20, "the place to be free")
        self.assertEqual(self.post("/api/v1/plan?host-memory=32G", requests_csv(20))[0], 200)

    def test_a_manager_that_ends_or_is_killed_takes_the_helper_with_it(self):
        for end in (self.t.stop, self.t.kill):
            stream = self.begin_long()
            [helper] = self.helpers()
            began = time.monotonic()
            end()
            self.assertLess(time.monotonic() - began, 30)
            wait_until(lambda: not pathlib.Path(f"/proc/{helper}").exists()
                       or pathlib.Path(f"/proc/{helper}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z", 20, "the helper's end")
            stream.close()
            self.t.start()

    @unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    def test_another_user_gets_nothing_computed(self):
        harness.need_build_for_all()  # or its tests
        script = (f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
                  "import web_test\n"
                  f"ours = {OURS!r}\n"
                  "for method, path in (('POST', '/api/v1/plan'), ('POST', '/api/v1/tiersim'), ('GET', '/api/v1/planner')):\n"
                  "    print(web_test.ask(web_test.UnixConnection(sys.argv[1]), path, method, ours)[0].status)\n")
        done = subprocess.run(["/usr/bin/python3", "-B", "-c", script, str(self.t.runtime / "http.sock")],
                              user=USER, group=USER, extra_groups=[], capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout.split(), done.stderr), (["403"] * 3, ""))
        self.assertEqual(len(self.t.cli("audit", "--tenant", f"uid-{USER}").json["entries"]), 3)


if __name__ == "__main__":
    harness.main()
