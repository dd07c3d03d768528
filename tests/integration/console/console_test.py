# SPDX-License-Identifier: Apache-2.0
"""The console in a browser: what it shows of a real daemon, by pointer and by keyboard, at both colour schemes and a phone's
width, and while the daemon is away.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/console/console_test.py [TestClass[.test]]
"""

import gzip
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "web"))
from ports import free_port  # noqa: E402
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness  # noqa: E402
import browser  # noqa: E402
from browser import Browser  # noqa: E402
from many_leases import ManyLeases  # noqa: E402
import planner_test  # noqa: E402

PAGES = ("Overview", "Pool map", "Topology", "Leases", "Tenants", "Tiering", "Hosts", "Planner", "Doctor", "Events", "Audit log")
EVIL = "<img src=x onerror=alert(1)>"


def serve(test):
    """A daemon with a pool of two devices, over TCP."""
    t = Harness(name="console", devices={"a": "64M", "b": "32M"})
    test.addCleanup(t.close)
    t.port = free_port()
    config = t.directory / "terraced.toml"
    config.write_text(f'[http]\nlisten = "127.0.0.1:{t.port}"\n')
    t.daemon_args += ["--config", str(config)]
    t.start()
    t.create_pool("p")
    return t


class Tunnel:
    """A TCP port of this machine that leads to a unix socket, as `ssh -L` makes one: whoever reaches it comes with our uid."""

    def __init__(self, path):
        self.path = str(path)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                ours, _ = self.listener.accept()
                theirs = socket.socket(socket.AF_UNIX)
                theirs.connect(self.path)
            except OSError:
                return
            for source, target in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self.pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def pass_on(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        finally:
            source.close()

    def close(self):
        self.listener.close()


def ask(t, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", t.port, timeout=30)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def has_console(t):
    return ask(t, "/console/")[0].status == 200


class Files(unittest.TestCase):
    """What is sent, without a browser."""

    def setUp(self):
        self.t = serve(self)
        if not has_console(self.t):
            self.skipTest("not on this machine: esbuild")

    def test_the_files_are_packed_small_tagged_and_strict(self):
        total = 0
        for path, kind in (("", "text/html"), ("app.js", "text/javascript"), ("app.css", "text/css"), ("icon.svg", "image/svg+xml")):
            with self.subTest(path):
                plain, body = ask(self.t, f"/console/{path}")
                self.assertEqual(plain.status, 200)
                self.assertTrue(plain.getheader("Content-Type").startswith(kind))
                self.assertIsNone(plain.getheader("Content-Encoding"))
                packed, small = ask(self.t, f"/console/{path}", Accept_Encoding="br, gzip;q=0.8")
                self.assertEqual(packed.getheader("Content-Encoding"), "gzip")
                self.assertEqual(gzip.decompress(small), body)
                total += len(small)
                self.assertIsNone(ask(self.t, f"/console/{path}", Accept_Encoding="gzip;q=0")[0].getheader("Content-Encoding"))
                for answer in (plain, packed):
                    policy = answer.getheader("Content-Security-Policy")
                    self.assertIn("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'", policy)
                    self.assertNotIn("unsafe", policy)
                    self.assertEqual(answer.getheader("X-Content-Type-Options"), "nosniff")
                    self.assertEqual(answer.getheader("Cache-Control"), "no-cache")
                    self.assertEqual(answer.getheader("Vary"), "Accept-Encoding")
                tag = plain.getheader("ETag")
                again, nothing = ask(self.t, f"/console/{path}", If_None_Match=f'"other", W/{tag}')
                self.assertEqual((again.status, nothing), (304, b""))
                self.assertEqual(ask(self.t, f"/console/{path}", If_None_Match='"other"')[0].status, 200)
        self.assertLess(total, 150_000)

    def test_nothing_comes_from_elsewhere(self):
        for path in ("", "app.js", "app.css"):
            text = ask(self.t, f"/console/{path}")[1].decode()
            self.assertEqual(re.findall(r"(?:https?:)?//[a-z][\w.-]+", text.replace("http://www.w3.org/2000/svg", "")), [], path)

    def test_the_way_there(self):
        self.assertIn(b'href="/console/"', ask(self.t, "/")[1])
        answer, _ = ask(self.t, "/console")
        self.assertEqual((answer.status, answer.getheader("Location")), (308, "/console/"))
        for path in ("/console/none.js", "/console/../metrics", "/console/%2e%2e/metrics", "/console//"):
            self.assertEqual(ask(self.t, path)[0].status, 404, path)
        self.assertEqual(ask(self.t, "/console/", Host="evil.example")[0].status, 421)


@unittest.skipIf(browser.lacking(), browser.lacking())
class Console(unittest.TestCase):
    """One browser for all, since its start costs 5 s of a processor; each test has a daemon at a port of its own, hence a
    console that the browser keeps nothing of."""

    @classmethod
    def setUpClass(cls):
        cls.b = Browser()
        cls.addClassCleanup(cls.b.close)

    def setUp(self):
        self.t = serve(self)
        if not has_console(self.t):
            self.skipTest("not on this machine: esbuild")
        self.addCleanup(self.b.leave)

    def at(self, page=""):
        self.b.open(f"http://127.0.0.1:{self.t.port}/console/#/{page}")

    def go(self, title):
        """By a click."""
        self.b.js("[...document.querySelectorAll('nav a')].find(a => a.innerText === arguments[0]).click()", title)
        self.b.wait(lambda: self.b.find("h1").text == title, f"the page {title}")

    def assert_clean(self):
        self.assertEqual(self.b.complaints(), [])

    def legend(self, name):
        """The colour that the map's legend says `name` has."""
        return self.b.js("const e = [...document.querySelectorAll('.legend li')].find(e => e.dataset.name === arguments[0]);"
                         "return e && e.dataset.colour", name)

    def pixels(self, colour):
        return self.b.colours_of("#map").get(colour, 0)

    def test_each_page_by_pointer_and_by_keyboard(self):
        self.t.grant("8M", "p", "--persistent", "--label", "one", "--tenant", "alice")
        self.at()
        for title in PAGES:
            self.go(title)
            self.b.wait_no_text("Asking the manager")
        self.assert_clean()
        self.at("overview")
        self.b.wait_text("Capacity")
        reached = []
        for _ in range(60):
            self.b.press(browser.Keys.TAB)
            focus = self.b.focused()
            if focus["text"] in PAGES:
                self.assertTrue(focus["seen"], f"{focus} has the focus, and nothing shows it")
                reached.append(focus["text"])
                self.b.press(browser.Keys.ENTER)
                self.b.wait(lambda: self.b.find("h1").text == reached[-1], f"the page {reached[-1]} by Enter")
                self.assertEqual(self.b.focused()["text"], reached[-1], "the focus stays where it was")
            if len(reached) == len(PAGES):
                break
        self.assertEqual(tuple(reached), PAGES)

    def test_the_map_has_what_is_granted_and_loses_what_is_released(self):
        self.at("map")
        self.b.wait_text("longest free run")
        free = self.legend("free")
        self.b.wait(lambda: self.pixels(free) > 1000, "a map of free granules")
        before = self.pixels(free)
        self.t.grant("16M", "p", "--persistent", "--label", "one", "--tenant", "alice")
        self.b.wait(lambda: self.legend("alice"), "alice in the legend")
        alice = self.legend("alice")
        self.b.wait(lambda: self.pixels(alice) > 100, "alice's colour in the map")
        self.assertLess(self.pixels(free), before)
        # 16 of 96 MiB.
        self.assertAlmostEqual(self.pixels(alice) / (self.pixels(alice) + self.pixels(free)), 16 / 96, delta=0.03)
        self.t.grant("16M", "p", "--persistent", "--label", "two", "--tenant", "bob")
        self.b.wait(lambda: self.legend("bob") and self.pixels(self.legend("bob")) > 100, "bob's colour in the map")
        self.assertNotEqual(self.legend("bob"), self.legend("alice"))
        self.t.cli("lease", "release", "one")
        self.b.wait(lambda: self.pixels(alice) == 0, "alice's colour to leave the map")
        self.assertGreater(self.pixels(self.legend("bob")), 100)

    def test_the_map_by_pointer_and_by_keyboard(self):
        self.t.grant("16M", "p", "--persistent", "--label", "one", "--tenant", "alice", "--movable")
        self.t.grant("8M", "p", "--ttl", "30m", "--label", "two", "--tenant", "bob")
        self.at("map")
        self.b.wait(lambda: self.legend("bob") and self.pixels(self.legend("bob")) > 50, "the map")
        marks = self.b.find("#marks")
        move = browser.webdriver.ActionChains(self.b.driver)
        move.move_to_element_with_offset(marks, -marks.size["width"] // 2 + 4, -marks.size["height"] // 2 + 30).perform()
        self.b.wait_text("16 MiB at 0 B")
        self.assertIn("alice", self.b.find(".detail").text)
        self.b.js("document.getElementById('marks').focus()")
        self.b.press(browser.Keys.END)
        self.b.wait(lambda: "bob" in self.b.find(".detail").text, "bob's lease by the End key")
        self.b.press(browser.Keys.HOME)
        self.b.wait(lambda: "alice" in self.b.find(".detail").text, "alice's lease by the Home key")
        self.b.js("""const s = [...document.querySelectorAll('select')].find(s => [...s.options].some(o => o.value === 'emu:a'));
                  s.value = 'emu:a'; s.dispatchEvent(new Event('change'))""")
        self.b.wait_text("A drain of emu:a would move 2 leases, 24 MiB in all")
        self.assertIn("1 of them are not movable", self.b.text())
        self.b.js("document.getElementById('marks').focus()")
        self.b.press(browser.Keys.ENTER)
        self.b.wait_text("Where it lies")
        self.b.wait_text("grant")  # of its life
        self.assert_clean()

    def test_ten_thousand_leases_are_drawn_at_once(self):
        """The page's own processor time of a change of colours: all of it sorted, drawn and laid out anew."""
        self.t.grant("2M", "p", "--persistent", "--label", "one", "--tenant", "alice")
        many = ManyLeases(self.t.port)
        self.addCleanup(many.close)
        self.b.open(f"http://127.0.0.1:{many.port}/console/#/map")
        self.b.wait(lambda: self.legend("tenant-36") and self.pixels(self.legend("tenant-36")) > 100, "the map")
        took = []
        for by in ("state", "time", "tenant") * 2:
            before = self.b.busy_ms()
            self.b.js("""const s = [...document.querySelectorAll('select')].find(s => [...s.options].some(o => o.value === 'state'));
                      s.value = arguments[0]; s.dispatchEvent(new Event('change'));
                      return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))""", by)
            took.append(self.b.busy_ms() - before)
        self.assertTrue(self.legend("tenant-36"), "it has been drawn anew")
        print("redraws of 10,000 leases, ms of the page:", *map(round, took), file=sys.stderr)
        self.assertLess(min(took), 200)
        self.assert_clean()

    def test_lists_are_found_sorted_and_escaped(self):
        self.t.grant("8M", "p", "--persistent", "--label", EVIL, "--tenant", "alice")
        self.t.grant("4M", "p", "--persistent", "--label", "small", "--tenant", "bob")
        self.at("leases")
        self.b.wait_text(EVIL)
        self.assertEqual(self.b.js("return document.images.length"), 1, "the only picture is the console's own")
        sizes = lambda: self.b.js("return [...document.querySelectorAll('tbody tr')].map(r => r.cells[4].innerText)")
        self.b.js("[...document.querySelectorAll('.sort')].find(b => b.innerText.startsWith('Size')).click()")
        self.b.wait(lambda: sizes() == ["8 MiB", "4 MiB"], "the largest first")
        self.b.js("[...document.querySelectorAll('.sort')].find(b => b.innerText.startsWith('Size')).click()")
        self.b.wait(lambda: sizes() == ["4 MiB", "8 MiB"], "the smallest first")
        self.b.find("input[type=search]").send_keys("bob")
        self.b.wait(lambda: sizes() == ["4 MiB"], "bob's lease alone")
        self.assertEqual(self.b.focused()["tag"], "input", "who types keeps the focus over new answers")
        for page in ("overview", "map", "audit", "tenants"):
            self.at(page)
            self.b.wait_no_text("Asking the manager")
            self.assertEqual(self.b.js("return document.images.length"), 1, page)
        self.assert_clean()

    def test_what_happened_is_listed_as_it_happens_and_found(self):
        self.at("events")
        self.b.wait_text("pool created")
        lease = self.t.grant("8M", "p", "--persistent", "--label", "one", "--tenant", "alice")["id"]
        self.b.wait_text("lease granted")
        self.t.cli("lease", "revoke", "one", "--reason", EVIL)
        self.b.wait_text("lease revoked")
        self.assertIn(EVIL, self.b.text())
        self.assertEqual(self.b.js("return document.images.length"), 1)
        kinds = lambda: self.b.js("return [...document.querySelectorAll('tbody tr')].map(r => r.cells[2].innerText)")
        self.assertEqual(kinds()[-1], "manager started", "the newest first")
        self.b.find("input[type=search]").send_keys("alice")
        self.b.wait(lambda: kinds() and set(kinds()) <= {"lease granted", "lease revoked", "lease fenced", "lease erased"},
                    "what is about alice alone")
        self.b.js("[...document.querySelectorAll('tbody a')].find(a => a.innerText === arguments[0]).click()", f"lease {lease}")
        self.b.wait_text("granted")  # of its life, from events and audit log
        self.assert_clean()

    def test_runs_are_told_with_what_they_have(self):
        run = self.t.popen(self.t.terrace, "run", "--ddr", "8M", "--cxl", "32M", "--policy", "static", "--", "/usr/bin/python3", "-c",
                           "kept = bytearray(20 << 20); input()", stdin=subprocess.PIPE,
                           env={"TERRACE_MALLOC_LIBRARY": harness.find_binary("libterrace_heap.so")})
        self.addCleanup(run.kill)
        self.at("tiering")
        rows = lambda: self.b.js("return [...document.querySelectorAll('tbody tr')].filter(r => r.cells[0].innerText === 'python3')"
                                 ".map(r => [...r.cells].map(c => c.innerText))")
        self.b.wait(lambda: len(rows()) == 1, "the run on its page")
        [row] = rows()
        self.assertRegex(row[3], r"^\d(\.\d+)? MiB$")  # of at most 8
        self.assertRegex(row[4], r"^2\d(\.\d+)? MiB$")  # the array, in one piece
        self.assertEqual(row[5], "–")
        self.assert_clean()
        run.communicate(b"\n", timeout=60)
        self.b.wait(lambda: rows() == [], "the end of the run on its page")

    def test_where_accesses_go_is_drawn_over_time(self):
        """Answers of the manager's own, with bands put into their runs: a report each time that the page asks."""
        run = self.t.popen(self.t.terrace, "run", "--ddr", "8M", "--cxl", "32M", "--policy", "static", "--", "/usr/bin/python3", "-c",
                           "kept = bytearray(20 << 20); input()", stdin=subprocess.PIPE,
                           env={"TERRACE_MALLOC_LIBRARY": harness.find_binary("libterrace_heap.so")})
        self.addCleanup(run.kill)
        self.at("tiering")
        self.b.wait_text("No run says it.")
        self.assertFalse(self.b.js("return !!document.querySelector('#heat')"))
        # Of four bands of 1 MiB: hot in DDR, hot in leased memory, cold in leased memory, no memory.
        self.b.js("""const asked = window.fetch;
            window.heat = {band_bytes: 1 << 20, heat: [97, 97, 0, 0], ddr_percent: [100, 0, 0, 0], cxl_percent: [0, 100, 100, 0]};
            window.fetch = async (path, options) => {
              const answer = await asked(path, options);
              if (path !== '/api/v1/runs') return answer;
              const said = await answer.json(), age = 1e6;
              for (const run of said.runs) Object.assign(run, {age_ns: age, figures: {...run.figures, sampled_bytes: 3 << 20, heat: window.heat}});
              return new Response(JSON.stringify(said), {status: 200});
            }""")
        pixels = lambda: self.b.colours_of("#heat")
        self.b.wait(lambda: self.legend("in DDR") and pixels().get(self.legend("in DDR"), 0) > 100, "the first report in the picture")
        ddr, cxl, cold = self.legend("in DDR"), self.legend("in leased memory"), "#e6eaf0"
        first = pixels()
        self.assertEqual(set(first), {ddr, cxl, cold})
        self.assertEqual(first[ddr], first[cxl])
        self.assertEqual(first[cold], first[cxl])
        self.assertIn("4 bands of 1 MiB. Of the hottest quarter of what is used now 100 % lies in DDR.", self.b.find("#heat-said").text)
        self.b.wait(lambda: pixels()[ddr] > first[ddr] * 1.5, "the next report beside it")
        # What was hot is cold now, and the other way round: earlier reports stay as they were.
        self.b.js("window.heat = {...window.heat, heat: [0, 0, 97, 0]}")
        self.b.wait_text("Of the hottest quarter of what is used now 0 % lies in DDR.")
        now = pixels()
        self.assertGreater(now[ddr], 0)
        self.assertGreater(now[cold], now[ddr] - first[ddr])
        self.assertRegex(self.b.find("#heat").get_attribute("aria-label"), r"^Heat map of python3 · .*, \d+ reports\.")
        move = browser.webdriver.ActionChains(self.b.driver)
        canvas = self.b.find("#heat")
        move.move_to_element_with_offset(canvas, canvas.size["width"] // 2 - 4, -canvas.size["height"] // 2 + 3).perform()
        self.b.wait_text("0 B to 1 MiB, ")
        self.b.wait_text("0 /s to a granule, 100 % in DDR, 0 % in leased memory.")
        self.assert_clean()
        run.communicate(b"\n", timeout=60)
        self.b.wait_text("No program reports. Those under terrace run do, once they hold leases.")
        self.assertFalse(self.b.js("return !!document.querySelector('#heat')"))

    def compute(self, trace, **options):
        """Chooses a file, sets options by their names, and waits for the figures."""
        self.b.find("#trace").send_keys(str(trace))
        for name, value in options.items():
            self.b.find(f"input[name='{name.replace('_', '-')}']").send_keys(value)
        self.b.find("#compute").click()

    def test_a_plan_of_a_trace_is_the_command_lines(self):
        trace = self.t.directory / "pods.csv"
        trace.write_text(planner_test.requests_csv())
        self.at("planner")
        self.b.wait_text("Drop a trace here")
        self.assertFalse(self.b.find("#compute").is_enabled())
        self.compute(trace, host_memory="32G", local_fractions="0.8,0.5")
        self.b.wait(lambda: self.b.js("return document.querySelector('#figures')?.dataset.of") == "pods.csv", "the figures")
        wanted = self.t.cli("plan", "--trace", trace, "--host-memory", "32G", "--local-fractions", "0.8,0.5").json
        self.assertEqual(self.b.find("#conclusion").text, wanted["conclusion"])
        shown = self.b.js("return [...document.querySelectorAll('[data-kind]')].map(e => [+e.dataset.total, +e.dataset.pool, e.dataset.saving ? +e.dataset.saving : null])")
        of = lambda point: [point["total_bytes"], point["setup"]["pool_bytes"], point["saving"]]
        rows = [row["point"] for row in wanted["rows"] if row["point"]]
        self.assertEqual(shown, [[wanted["baseline"]["total_bytes"], 0, None], of(wanted["without_pool"]), *map(of, rows)])
        plots = self.b.js("return [...document.querySelectorAll('[data-plot]')].map(e => [e.dataset.plot, e.querySelectorAll('polyline').length])")
        self.assertEqual({name for name, _ in plots}, {"Memory saved", "Requests rejected", "Memory in use", "Stranded and fragmented"})
        self.assertTrue(all(lines >= 2 for _, lines in plots), plots)
        self.assert_clean()
        self.b.size(390, 844, 2)
        self.assertLessEqual(self.b.js("return document.documentElement.scrollWidth"), 390)

    def test_policies_on_a_trace_are_the_command_lines_and_can_be_dropped_in(self):
        text = planner_test.accesses(4000, 700)
        trace = self.t.directory / "heap.txt"
        trace.write_text(text)
        self.at("planner")
        self.b.wait_text("Drop a trace here")
        self.b.js("""const data = new DataTransfer(); data.items.add(new File([arguments[0]], 'heap.txt'));
            const area = document.querySelector('.drop');
            for (const name of ['dragover', 'drop']) area.dispatchEvent(new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));""", text)
        self.b.wait(lambda: self.b.js("return document.querySelector('#tool').value") == "tiersim", "the question that suits the file")
        self.b.find("#compute").click()
        self.b.wait(lambda: self.b.js("return document.querySelector('#figures')?.dataset.of") == "heap.txt", "the figures")
        wanted = self.t.cli("tiersim", "--trace", trace, "--format", "accesses").json["results"]
        shown = self.b.js("return [...document.querySelectorAll('[data-policy]')].map(e => [e.dataset.policy, +e.dataset.share, +e.dataset.hits])")
        self.assertEqual(shown, [[one["policy"], one["ddr_fraction"], one["hits"]] for one in wanted])
        self.assert_clean()

    def test_a_trace_is_refused_with_its_line_and_a_long_one_can_be_cancelled(self):
        bad = self.t.directory / "bad.csv"
        bad.write_text("memory_mib,creation_time,deletion_time\n512,0,9\n<b>many</b>,1,2\n")
        self.at("planner")
        self.b.wait_text("Drop a trace here")
        self.compute(bad)
        self.b.wait_text("bad.csv, line 3")
        self.assertEqual(self.b.js("return document.querySelectorAll('main b b').length"), 0, "what is in the trace is text")
        long = self.t.directory / "long.txt"
        long.write_text(planner_test.accesses(60_000, 20_000))
        self.b.js("location.reload()")
        self.b.wait_text("Drop a trace here")
        self.compute(long)
        self.b.wait(lambda: re.search(r"Computing \d+ % ", self.b.find("#planner-state").text), "how far it is")
        self.b.find("#cancel").click()
        self.b.wait_text("Cancelled.")
        self.b.wait(lambda: json.loads(ask(self.t, "/api/v1/planner")[1]) == {"busy": False}, "the manager to have ended it")

    def test_the_doctor_is_the_command_lines(self):
        self.at("doctor")
        self.b.wait_text("What is not here")
        shown = self.b.js("""return Object.fromEntries([...document.querySelectorAll('[data-check]')].map(e =>
            [e.dataset.check, [e.querySelector('.badge').innerText, e.querySelector('.found').innerText,
             (e.querySelector('.advice') || {innerText: ''}).innerText.replace('What to do: ', '')]]))""")
        counts = self.b.js("return Object.fromEntries([...document.querySelectorAll('[data-count]')].map(e => [e.dataset.count, +e.innerText]))")
        # Both look at this machine as this user; how much memory is free differs from one look to the next.
        said = {one["name"]: one for one in self.t.cli("doctor").json["checks"] if one["name"] not in ("socket", "userfaultfd_device", "certificates")}
        self.assertEqual(set(shown), set(said))
        flat = lambda text: " ".join(text.split())
        for name, (state, found, fix) in shown.items():
            with self.subTest(name):
                if name == "migration":  # counts what this user is given, too
                    continue
                self.assertEqual(state, said[name]["state"])
                self.assertEqual(flat(fix), flat(said[name]["fix"]))
                if name not in ("memory", "dev_shm", "numa", "open_files"):
                    self.assertEqual(flat(found), flat(said[name]["found"]))
        states = [state for state, _, _ in shown.values()]
        self.assertEqual(counts, {state: states.count(state) for state in ("ok", "limited", "missing")})
        self.assert_clean()

    def test_what_is_wrong_is_told(self):
        self.t.grant("94M", "p", "--persistent", "--tenant", "alice")
        self.at()
        self.b.wait_text("pool nearly full: p")
        self.assertIn("1 warning", self.b.text())

    def test_it_says_that_the_manager_is_away_and_recovers(self):
        self.t.grant("8M", "p", "--persistent", "--label", "one", "--tenant", "alice")
        self.at("leases")
        self.b.wait_text("alice")
        self.t.kill()
        self.b.wait_text("The manager does not answer.")
        self.assertIn("alice", self.b.text(), "what was known stays")
        self.t.start()
        self.b.wait_no_text("The manager does not answer.")
        self.t.grant("4M", "p", "--persistent", "--label", "two", "--tenant", "carol")
        self.b.wait_text("carol")

    def test_it_says_that_the_manager_is_stopped(self):
        self.at("leases")
        self.b.wait_text("There is no lease.")
        os.kill(self.t.pid, signal.SIGSTOP)
        try:
            self.b.wait_text("The manager does not answer.")
        finally:
            os.kill(self.t.pid, signal.SIGCONT)
        self.b.wait_no_text("The manager does not answer.")

    def test_both_schemes_and_a_phone(self):
        self.t.grant("8M", "p", "--persistent", "--label", "a-label-as-long-as-" + "they-get-" * 5, "--tenant", "alice")
        grounds = {}
        for scheme in ("light", "dark"):
            self.b.scheme(scheme)
            self.at("map")
            self.b.wait(lambda: self.legend("alice") and self.pixels(self.legend("alice")) > 50, f"the map, {scheme}")
            grounds[scheme] = (self.b.js("return getComputedStyle(document.body).backgroundColor"), self.legend("alice"))
        self.assertNotEqual(grounds["light"][0], grounds["dark"][0])
        self.assertNotEqual(grounds["light"][1], grounds["dark"][1])
        self.b.scheme("light")  # without a reload
        self.b.wait(lambda: self.pixels(grounds["light"][1]) > 50, "the map in the other scheme")
        self.b.size(390, 844, 2)
        for title in PAGES:
            self.go(title)
            self.b.wait_no_text("Asking the manager")
            self.assertLessEqual(self.b.js("return document.documentElement.scrollWidth"), 390, title)


class Dialogs:
    """What is done in the dialog of an act, in the browser `b`."""

    def open_act(self, act, at=0):
        self.b.wait(lambda: self.b.js("return document.querySelectorAll(`button[data-act='${arguments[0]}']`).length", act) > at, f"a button for {act}")
        self.b.js("document.querySelectorAll(`button[data-act='${arguments[0]}']`)[arguments[1]].click()", act, at)
        self.b.wait(lambda: self.b.find("dialog[open]"), f"the dialog of {act}")

    def type_into(self, name, text):
        field = self.b.find(f"dialog input[name={name}]")
        field.send_keys(browser.Keys.CONTROL, "a")
        field.send_keys(text or browser.Keys.DELETE)

    def confirm_text(self):
        return self.b.js("const b = document.querySelector('dialog .confirm'); return b && !b.disabled ? b.innerText : ''")

    def confirm(self, begins):
        self.b.wait(lambda: self.confirm_text().startswith(begins), f"a button that begins with {begins!r}")
        self.b.find("dialog .confirm").click()
        self.b.wait(lambda: self.b.find("dialog .outcome"), "the outcome")
        outcome = self.b.find("dialog .outcome").text
        self.b.press(browser.Keys.ESCAPE)
        self.b.wait(lambda: not self.b.js("return document.querySelector('dialog')"), "the dialog to close")
        return outcome


@unittest.skipIf(browser.lacking(), browser.lacking())
class Acts(Dialogs, unittest.TestCase):
    """What is changed from the page, over the unix socket as ssh forwards it."""

    def setUp(self):
        self.t = serve(self)
        if not has_console(self.t):
            self.skipTest("not on this machine: esbuild")
        self.tunnel = Tunnel(self.t.runtime / "http.sock")
        self.addCleanup(self.tunnel.close)
        self.b = Browser()
        self.addCleanup(self.b.close)

    def at(self, page="", port=None):
        self.b.open(f"http://localhost:{port or self.tunnel.port}/console/#/{page}")

    def free_pixels(self):
        colour = self.b.js("const e = [...document.querySelectorAll('.legend li')].find(e => e.dataset.name === 'free'); return e && e.dataset.colour")
        return self.b.colours_of("#map").get(colour, 0)

    def lease(self, label):
        return next((one for one in self.t.cli("lease", "list").json["leases"] if one["label"] == label), None)

    def test_a_grant_by_pointer_is_in_the_map_and_a_revocation_takes_it_out(self):
        self.at("map")
        self.b.wait(lambda: self.free_pixels() > 1000, "a map of free granules")
        before = self.free_pixels()
        self.at("leases")
        self.open_act("grant")
        self.type_into("tenant", "alice")
        self.type_into("bytes", "64 elephants")
        self.b.wait(lambda: "cannot be read" in self.b.find("dialog").text, "what is wrong with the size")
        self.assertEqual(self.confirm_text(), "")
        self.type_into("bytes", "1T")
        self.b.wait(lambda: "It would be refused" in self.b.find("dialog").text, "the refusal")
        self.assertEqual(self.confirm_text(), "")
        self.type_into("bytes", "16M")
        self.type_into("label", EVIL)
        self.assertIn("Granted lease", self.confirm("Grant: grants 16 MiB to alice, from emu:"))
        self.b.wait_text(EVIL)
        self.assertEqual(self.b.js("return document.images.length"), 1)
        self.at("map")
        self.b.wait(lambda: 0 < self.free_pixels() < before, "the lease in the map")
        lease = self.lease(EVIL)
        self.assertEqual((lease["tenant"], lease["bytes"], lease["movable"]), ("alice", 16 << 20, True))
        self.at(f"leases/{lease['id']}")
        self.open_act("revoke")
        self.type_into("reason", "the test is over")
        self.confirm(f"Revoke lease {lease['id']}: takes lease {lease['id']}")
        self.t.wait_free("p")
        revoked = [one for one in self.t.cli("audit", "--verb", "revoke").json["entries"]]
        self.assertIn("the test is over", revoked[0]["detail"])
        self.at("map")
        self.b.wait(lambda: self.free_pixels() == before, "the map without the lease")
        self.assertEqual(self.b.complaints(), [])

    def test_a_drain_by_keyboard_alone(self):
        self.t.grant("8M", "p", "--persistent", "--label", "goes", "--tenant", "alice", "--movable")
        self.t.grant("4M", "p", "--persistent", "--label", "stays", "--tenant", "bob")
        device = self.t.cli("lease", "show", "goes").json["leases"][0]["extents"][0]["device"]
        self.at("topology")
        self.b.wait(lambda: self.b.js("return !!document.querySelector(`button[data-act=drain]`)"), "the button")
        for _ in range(80):
            self.b.press(browser.Keys.TAB)
            row = self.b.js("const e = document.activeElement; return e.dataset.act === 'drain' ? e.closest('tr').innerText : ''")
            if device in row:
                break
        self.assertTrue(self.b.focused()["seen"])
        self.b.press(browser.Keys.ENTER)
        self.b.wait(lambda: self.confirm_text().startswith(f"Drain {device}: moves 1 lease, 8 MiB; 1 lease, 4 MiB"), "the preview")
        said = self.b.find("dialog").text
        self.assertIn("not movable", said)
        self.assertIn("alice", said)
        inside = lambda: self.b.js("return document.querySelector('dialog').contains(document.activeElement)")
        reached = set()
        for keys in ((browser.Keys.TAB,) * 6, (browser.Keys.SHIFT + browser.Keys.TAB + browser.Keys.SHIFT,) * 3):
            for key in keys:
                self.b.press(key)
                self.assertTrue(inside(), "the focus stays in the dialog")
                self.assertTrue(self.b.focused()["seen"])
                reached.add(self.b.focused()["text"])
        self.assertEqual(len(reached), 2, reached)
        self.b.press(browser.Keys.ESCAPE)
        self.b.wait(lambda: not self.b.js("return document.querySelector('dialog')"), "Escape to close it")
        self.b.wait(lambda: self.b.js("return document.activeElement.dataset.act") == "drain", "the focus where it was")
        self.assertEqual(self.t.cli("device", "show", device).json["device"]["state"], "in_service", "Escape does nothing")
        self.b.press(browser.Keys.ENTER)
        self.b.wait(lambda: self.confirm_text() != "", "the button")
        for _ in range(4):
            if self.b.focused()["text"].startswith("Drain"):
                break
            self.b.press(browser.Keys.TAB)
        self.b.press(browser.Keys.ENTER)
        self.b.wait(lambda: self.b.find("dialog .outcome"), "the outcome")
        self.assertEqual(self.t.cli("device", "show", device).json["device"]["state"], "draining")
        self.b.press(browser.Keys.ESCAPE)
        self.b.wait_text("draining")
        self.assertEqual(self.b.complaints(), [])

    def test_the_map_shows_what_a_compaction_would_move_and_then_that_moves(self):
        for index in range(12):
            self.t.grant("4M", "p", "--persistent", "--label", f"l{index}", "--tenant", "alice", "--movable")
        for index in (0, 3, 6, 9):
            self.t.cli("lease", "release", f"l{index}")
        free = lambda: self.t.cli("pool", "show", "p").json["pool"]["free_bytes"]
        self.b.wait(lambda: free() == 64 << 20, "the holes")
        self.at("map")
        self.b.wait(lambda: self.free_pixels() > 1000, "the map")
        outlined = lambda: sum(self.b.colours_of("#marks").get(ink, 0) for ink in ("#b57912", "#e8b54a"))
        self.b.wait(lambda: self.b.find("input[name=run]"), "the field")
        self.assertEqual(outlined(), 0)
        field = self.b.find("input[name=run]")
        field.send_keys("many")
        self.b.wait_text("“many” is no size")
        field.send_keys(browser.Keys.CONTROL, "a")
        field.send_keys("1T")
        self.b.wait_text("A compaction would be refused")
        field.send_keys(browser.Keys.CONTROL, "a")
        field.send_keys("44M")
        preview = self.t.cli("pool", "compact", "p", "--run", "44M", "--dry-run").json["preview"]
        self.b.wait_text(f"A compaction for 44 MiB {preview['summary']}: 44 MiB on {preview['run']['device']} are cleared")
        self.b.wait(lambda: outlined() > 100, "what moves in the map")
        self.open_act("compact")
        self.confirm(f"Compact p: {preview['summary']}")
        lay = {one["lease"]: one["from_extents"] for one in preview["of_leases"]}
        lies = lambda: {one["id"]: one["extents"] for one in self.t.cli("lease", "list").json["leases"]}
        self.assertTrue(lay)
        self.b.wait(lambda: all(lies()[lease] != extents for lease, extents in lay.items()), "the moves")
        self.b.wait_text("is free already")
        self.b.wait(lambda: outlined() == 0, "a map without outlines")
        self.assertEqual(self.b.complaints(), [])

    def test_a_quota_is_set_and_what_is_refused_is_told(self):
        self.t.grant("8M", "p", "--persistent", "--label", "one", "--tenant", "alice")
        self.at("tenants")
        self.open_act("set_quota", 1)  # the first is that of all others
        self.type_into("bytes_max", "4M")
        self.b.wait(lambda: "nothing is taken away" in self.b.find("dialog").text, "what it means")
        self.confirm("Set the quota of alice: lets alice have 4 MiB")
        self.assertEqual(self.t.cli("quota", "list").json["quotas"][0]["bytes_max"], 4 << 20)
        self.b.wait_text("of 4 MiB")
        # Between the preview and the act somebody else was faster: the manager's words are shown, and the dialog stays.
        self.at(f"leases/{self.lease('one')['id']}")
        self.open_act("revoke")
        self.b.wait(lambda: self.confirm_text() != "", "the preview")
        self.t.cli("lease", "release", "one")
        self.b.find("dialog .confirm").click()
        self.b.wait(lambda: self.b.find("dialog [role=alert]").text, "the refusal")
        self.b.press(browser.Keys.ESCAPE)

    def test_over_tcp_and_for_an_operator_there_are_the_buttons_that_work(self):
        buttons = lambda: set(self.b.js("return [...document.querySelectorAll('button[data-act]')].map(b => b.dataset.act)"))
        self.at("topology", self.t.port)
        self.b.wait_text("read only")
        self.assertEqual(buttons(), set())
        self.t.stop()
        config = self.t.directory / "terraced.toml"
        config.write_text(f'socket_role = "operator"\nsocket_mode = 0o600\n[[sockets]]\npath = "{self.t.runtime}/admin/a.sock"\nrole = "administrator"\n')
        self.t.start()
        self.at("topology")
        self.b.wait(lambda: buttons() == {"drain"}, "the operator's button")
        self.at("tenants")
        self.b.wait(lambda: self.b.find("h1").text == "Tenants", "the other page")
        self.b.wait_no_text("Asking the manager")
        self.assertEqual(buttons(), set(), "an operator sets no quotas")

    def test_the_dialog_in_both_schemes_and_on_a_phone(self):
        for index in range(8):
            self.t.grant("2M", "p", "--persistent", "--label", f"a-label-as-long-as-they-get-{index}", "--tenant", "alice", "--movable")
        grounds = set()
        for scheme in ("light", "dark"):
            self.b.scheme(scheme)
            self.at("topology")
            self.open_act("drain")
            self.b.wait(lambda: self.confirm_text() != "", "the preview")
            grounds.add(self.b.js("return getComputedStyle(document.querySelector('dialog')).backgroundColor"))
        self.assertEqual(len(grounds), 2)
        self.b.size(390, 844, 2)
        box = self.b.js("const r = document.querySelector('dialog').getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]")
        self.assertTrue(0 <= box[0] and box[1] <= 390 and 0 <= box[2] and box[3] <= 844, box)
        self.assertLessEqual(self.b.js("return document.documentElement.scrollWidth"), 390)
        self.assertEqual(self.b.complaints(), [])


if __name__ == "__main__":
    harness.main()
