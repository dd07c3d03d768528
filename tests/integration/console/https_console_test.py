# SPDX-License-Identifier: Apache-2.0
"""The console in a browser over HTTPS, with a certificate as `terrace cert client --pkcs12` makes it: it is imported, chosen, and what
is done is done in its name.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/console/https_console_test.py [TestClass[.test]]
"""

import http.server
import pathlib
import sys
import threading
import unittest

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "web"))
sys.path.insert(0, str(HERE.parents[2] / "support"))
import browser  # noqa: E402
import console_test  # noqa: E402
import https_test  # noqa: E402
import terrace_harness as harness  # noqa: E402

LACKING = browser.lacking() or browser.lacking_for_certificates()


class Evil(http.server.BaseHTTPRequestHandler):
    """A page of another site."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>cats</title>")

    def log_message(self, *_):
        pass


@unittest.skipIf(LACKING, LACKING)
class Https(console_test.Dialogs, https_test.Case):
    def setUp(self):
        super().setUp()
        self.start()
        if self.ask("ops", "/console/")[0] != 200:
            self.skipTest("not on this machine: esbuild")

    def browse(self, name, *arguments):
        made = self.client(name, "--pkcs12", *arguments)
        home = self.t.directory / f"home-{name}"
        browser.import_certificate(home, self.ca / "ca.pem", made["pkcs12"], made["password"])
        site = f"https://127.0.0.1:{self.console}"
        self.b = browser.Browser(home=home, certificate_for=site)
        self.addCleanup(self.b.close)
        self.b.open(site + "/console/#/topology")

    def buttons(self):
        return set(self.b.js("return [...document.querySelectorAll('button[data-act]')].map(b => b.dataset.act)"))

    def test_a_device_is_drained_in_the_name_of_the_certificate(self):
        self.t.grant("4M", "p", "--persistent", "--label", "one", "--tenant", "alice", "--movable")
        self.browse("anna")
        self.b.wait(lambda: self.buttons() == {"drain"}, "the operator's button")
        self.open_act("drain")
        self.confirm("Drain emu:")
        row = self.audit("device drain")[0]
        self.assertIn("client anna as operator from 127.0.0.1 (http", row["actor"])
        self.b.open(f"https://127.0.0.1:{self.console}/console/#/leases")
        self.b.wait_text("alice")
        self.assertEqual(self.b.complaints(), [])

    def test_a_page_of_another_site_that_is_visited_does_nothing_by_the_certificate(self):
        self.browse("anna")
        self.b.wait(lambda: self.buttons() == {"drain"}, "the operator's button")
        other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
        threading.Thread(target=other.serve_forever, daemon=True).start()
        self.addCleanup(other.server_close)
        self.addCleanup(other.shutdown)
        self.b.open(f"http://localhost:{other.server_address[1]}/")
        drain = f"https://127.0.0.1:{self.console}/api/v1/drain"
        asked = """return fetch(arguments[0], {method: 'POST', mode: arguments[1], body: '{"serial": "emu:a"}', credentials: 'include',
                                               headers: arguments[2]}).then(a => a.type, e => 'no answer')"""
        # An answer that the page may not look into: the certificate was shown, or TLS would have ended.
        self.assertEqual(self.b.js(asked, drain, "no-cors", {"Content-Type": "text/plain"}), "opaque")
        self.assertEqual(self.b.js(asked, drain, "cors", {"Content-Type": "application/json", "X-Terrace-Action": "1"}), "no answer")
        self.assertFalse(self.b.js("""const s = document.createElement('script'); s.src = arguments[0];
            const done = new Promise(end => { s.onload = () => end(true); s.onerror = () => end(false); });
            document.head.append(s); return done""", drain.replace("drain", "leases")))
        self.b.js("""const f = document.createElement('form'); f.method = 'POST'; f.action = arguments[0]; f.enctype = 'text/plain';
            const i = document.createElement('input'); i.name = '{"serial": "emu:a", "x'; i.value = '":1}'; f.append(i);
            document.body.append(f); f.submit()""", drain)
        self.b.wait_text("a page of another site asks")
        self.assertEqual(self.device(), "in_service")

    def test_a_tenants_certificate_is_shown_the_page_and_nothing_else(self):
        self.t.grant("4M", "p", "--persistent", "--label", "one", "--tenant", "alice")
        self.browse("tom", "--role", "tenant", "--tenant", "training")
        self.b.wait_text("client tom has the role tenant")
        self.assertEqual(self.buttons(), set())
        self.assertNotIn("alice", self.b.text())


if __name__ == "__main__":
    harness.main()
