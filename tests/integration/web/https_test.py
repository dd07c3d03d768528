# SPDX-License-Identifier: Apache-2.0
"""The manager over HTTPS with clients' certificates: who is let in, what each may do there, and what other sites' pages, strangers
and silent peers cannot.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/web/https_test.py [TestClass[.test]]
"""

import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "support"))
sys.path.insert(0, str(HERE.parents[1] / "clients"))
sys.path.insert(0, str(HERE.parent))
import clients_test  # noqa: E402
import planner_test  # noqa: E402
from ports import free_ports  # noqa: E402
import terrace_harness as harness  # noqa: E402
from terrace_harness import wait_until  # noqa: E402

MIB = 1 << 20
OURS = {"Content-Type": "application/json", "X-Terrace-Action": "1"}
SOCKETS = """
[[sockets]]
listen = "127.0.0.1:{console}"
protocol = "https"
[[sockets]]
listen = "127.0.0.1:{masters}"
protocol = "https"
role = "administrator"
"""


class Case(clients_test.Case):
    def setUp(self):
        super().setUp()
        self.issue_manager("--address", "127.0.0.1", "--address", "pool.example", "--address", "localhost")
        self.console, self.masters = free_ports(2)
        self.good = self.config.read_text() + SOCKETS.format(console=self.console, masters=self.masters)
        self.write_config(self.good)

    def issue_manager(self, *addresses):
        """Another certificate for the manager, in the place of the one that it has."""
        fresh = self.t.directory / f"fresh-{time.monotonic_ns()}"
        fresh.mkdir()
        self.cert("issue", "m", "--manager", "--ca", self.ca, "--out", fresh, *addresses)
        for file in ("m.key", "m.pem"):
            shutil.move(fresh / file, self.ca / file)

    # -- asking

    def context(self, name, ca=None):
        context = ssl.create_default_context(cafile=str(self.ca / "ca.pem"))
        if name is not None:
            context.load_cert_chain((ca or self.ca) / f"{name}.pem", (ca or self.ca) / f"{name}.key")
        return context

    def connection(self, name, port=None, ca=None):
        return http.client.HTTPSConnection("127.0.0.1", port or self.console, timeout=60, context=self.context(name, ca))

    @staticmethod
    def over(connection, path, method="GET", headers=None, body=None):
        """(status, document or text, headers), and the connection stays."""
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
        return answer.status, json.loads(text) if is_json else text, answer.headers

    def ask(self, name, path, port=None, ca=None, **options):
        connection = self.connection(name, port, ca)
        try:
            return self.over(connection, path, **options)[:2]
        finally:
            connection.close()

    def act(self, name, path, body, port=None, headers=None):
        sent = {key: value for key, value in {**OURS, **(headers or {})}.items() if value is not None}
        return self.ask(name, f"/api/v1/{path}", port, method="POST", headers=sent, body=json.dumps(body))

    def done(self, name, path, body, port=None):
        status, document = self.act(name, path, body, port)
        self.assertEqual(status, 200, document)
        return document

    def refused(self, got, status, words):
        self.assertEqual(got[0], status, got)
        self.assertIn(words, got[1]["error"]["message"])

    def not_let_in(self, name, ca=None):
        """With TLS 1.3 a client hears only when it reads that its certificate is not taken."""
        with self.assertRaises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)) as raised:
            self.ask(name, "/healthz", ca=ca)
        return str(raised.exception)

    def device(self):
        return self.t.cli("device", "show", "emu:a").json["device"]["state"]


class Roles(Case):
    def test_pages_and_documents_are_the_unix_sockets(self):
        self.start()
        self.t.grant("4M", "p", "--tenant", "training", "--persistent")
        for name in ("ops", "admin"):
            connection = self.connection(name)  # one for all of them
            for path in ("/", "/healthz", "/readyz", "/metrics", "/api/v1/status", "/api/v1/openapi.json", "/api/v1/planner"):
                self.assertEqual(self.over(connection, path)[0], 200, path)
            leases = self.over(connection, "/api/v1/leases")[1]["leases"]
            self.assertEqual(leases, self.t.cli("lease", "list").json["leases"])
            self.assertIn(self.over(connection, "/console/")[0], (200, 404))  # a build without esbuild has none
            who = self.over(connection, "/api/v1/whoami")[1]["who"]
            self.assertEqual((who["role"], who["read_only"], who["tenant"]), ("operator", None, None))
            self.assertIn(f"client {name} as operator from 127.0.0.1 (http", who["name"])
            self.assertEqual(self.over(connection, "/api/v1/doctor")[0], 200)  # the manager's own look
            connection.close()
        self.assertEqual(self.ask("admin", "/api/v1/whoami", self.masters)[1]["who"]["role"], "administrator")
        self.assertEqual([one["path"] for one in self.t.cli("status").json["server"]["sockets"][-2:]],
                         [f"https://127.0.0.1:{self.console}", f"https://127.0.0.1:{self.masters}"])
        self.assertIn("a certificate ([[sockets]] with protocol", self.read_only_words())

    def read_only_words(self):
        """What plain TCP says of changes."""
        (port,) = free_ports(1)
        self.write_config(self.good + f'[http]\nlisten = "127.0.0.1:{port}"\n')
        self.t.restart()
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        words = self.over(plain, "/api/v1/drain", method="POST", headers=OURS, body='{"serial": "emu:a"}')
        plain.close()
        self.assertEqual(words[0], 403)
        return words[1]["error"]["message"]

    def test_acts_are_done_as_the_certificate_and_the_socket_allow_and_bear_its_name(self):
        self.start()
        self.client("trainer2", "--role", "operator", "--tenant", "training")
        preview = self.done("ops", "preview", {"drain": {"serial": "emu:a"}})["preview"]
        self.assertIsNone(preview["refusal"])
        for name, port in (("ops", self.console), ("ops", self.masters), ("admin", self.console)):
            self.done(name, "drain", {"serial": "emu:a"}, port)
            self.assertNotEqual(self.device(), "in_service")
            self.done(name, "undrain", {"serial": "emu:a"}, port)
            self.refused(self.act(name, "set_quota", {"tenant": "alice", "bytes_max": MIB}, port), 403, "needs the role administrator")
            self.refused(self.act(name, "grant", {"tenant": "alice", "bytes": 2 * MIB, "persistent": True}, port), 403, "")
        self.done("admin", "set_quota", {"tenant": "alice", "bytes_max": 8 * MIB}, self.masters)
        lease = self.done("admin", "grant", {"tenant": "alice", "bytes": 2 * MIB, "persistent": True}, self.masters)["info"]
        self.done("ops", "revoke", {"lease": lease["id"], "grace_ns": 0, "reason": "x"})
        own = self.done("trainer2", "grant", {"bytes": 2 * MIB, "persistent": True})["info"]
        self.assertEqual(own["tenant"], "training")
        self.done("trainer2", "release", {"lease": own["id"]})
        self.t.wait_free("p")
        actors = {row["verb"]: row["actor"] for row in self.t.cli("audit").json["entries"]}
        self.assertIn("client ops as operator from 127.0.0.1 (http", actors["revoke"])
        self.assertIn("client admin as administrator from 127.0.0.1 (http", actors["quota set"])
        self.assertIn("client trainer2 as operator of training from 127.0.0.1 (http", actors["release"])
        denied = [row for row in self.audit("denied admin") if "setQuota" in row["detail"]]
        self.assertTrue(any("client ops as operator" in row["actor"] for row in denied), denied)
        self.t.check_invariants()

    def test_a_tenant_and_who_is_no_client_see_nothing(self):
        self.start()
        self.t.grant("4M", "p", "--tenant", "training", "--ttl", "1h")
        self.assertEqual(self.ask("trainer", "/healthz")[0], 200)
        for path in ("/metrics", "/api/v1/leases", "/api/v1/whoami", "/api/v1/status", "/api/v1/planner", "/api/v1/doctor"):
            self.refused(self.ask("trainer", path), 403, "client trainer has the role tenant at https://")
        for path, body in (("preview", {"drain": {"serial": "emu:a"}}), ("drain", {"serial": "emu:a"}), ("grant", {"bytes": MIB})):
            self.refused(self.act("trainer", path, body), 403, "client trainer has the role tenant")
        trace = self.ask("trainer", "/api/v1/plan", method="POST", headers=planner_test.OURS, body=planner_test.requests_csv(20))
        self.refused(trace, 403, "client trainer has the role tenant")
        rows = [row for row in self.audit("denied admin") if row["tenant"] == "training"]
        self.assertTrue(rows and all("client trainer as tenant of training from 127.0.0.1 (http" in row["actor"] for row in rows), rows)
        self.cert("issue", "hostb", "--ca", self.ca)
        for path in ("/", "/healthz", "/console/", "/metrics", "/api/v1/leases", "/none"):
            self.refused(self.ask("hostb", path), 403, "its certificate is for 'host:hostb', not for a client")
        self.refused(self.act("hostb", "drain", {"serial": "emu:a"}), 403, "not for a client")
        self.assertTrue(any("'host:hostb'" in row["detail"] for row in self.audit("denied connection")))
        self.assertEqual(self.device(), "in_service")

    def test_a_trace_is_computed_for_a_client_and_no_longer_than_it_waits(self):
        self.start()
        status, plan = self.ask("ops", "/api/v1/plan?host-memory=32G", method="POST", headers=planner_test.OURS,
                                body=planner_test.requests_csv(40))
        self.assertEqual(status, 200, plan)
        self.assertTrue(plan["conclusion"])
        body = planner_test.accesses(60_000, 20_000)
        shares = ",".join(f"0.{share:02}" for share in range(1, 60))
        waiting = self.connection("ops")
        waiting.request("POST", f"/api/v1/tiersim?format=accesses&policy=benefit-density&ddr-fraction={shares}", body=body,
                        headers=planner_test.OURS)
        wait_until(lambda: self.ask("ops", "/api/v1/planner")[1].get("computing"), 60, "a calculation under way")
        waiting.close()
        wait_until(lambda: not self.ask("ops", "/api/v1/planner")[1]["busy"], 60, "its end with who asked")

    @unittest.skipIf(shutil.which("curl") is None, "not on this machine: curl")
    def test_curl_with_the_files_of_terrace_cert(self):
        self.start()
        self.client("page", "--pkcs12")  # with a name of its own
        made = self.client("browser", "--pkcs12")
        self.assertEqual(pathlib.Path(made["pkcs12"]).stat().st_mode & 0o777, 0o600)
        secret = self.t.directory / "secret"
        secret.write_text("correct horse\n")
        self.denied_cert("can be read by others", "client", "third", "--ca", self.ca, "--pkcs12-password-file", secret, code=6)
        secret.chmod(0o600)
        third = self.client("third", "--pkcs12-password-file", secret)
        self.assertNotIn("password", third)
        url = f"https://127.0.0.1:{self.console}/api/v1/whoami"
        for options in (["--cert", self.ca / "ops.pem", "--key", self.ca / "ops.key"],
                        ["--cert-type", "P12", "--cert", f"{made['pkcs12']}:{made['password']}"],
                        ["--cert-type", "P12", "--cert", f"{third['pkcs12']}:correct horse"]):
            # Twice: a second request may take the connection, and a third one another.
            done = subprocess.run(["curl", "-sS", "--cacert", self.ca / "ca.pem", *options, url, url], capture_output=True, text=True,
                                  timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count('"role"'), 2, done.stdout)
        self.denied_cert("exists; nothing is overwritten", "client", "page", "--ca", self.ca, "--pkcs12")

    def denied_cert(self, words, *arguments, code=None):
        got = self.t.cli("cert", *arguments, check=False)
        self.assertNotEqual(got.code, 0)
        if code is not None:
            self.assertEqual(got.code, code)
        self.assertIn(words, got.json["error"]["message"])


class Strangers(Case):
    def test_who_has_no_certificate_of_the_ca_is_not_let_in(self):
        self.start()
        self.not_let_in(None)
        self.wait_log(f"to https://127.0.0.1:{self.console} was refused: the other side showed no certificate")
        other = self.t.directory / "other"
        self.cert("init", other)
        self.client("ops", "--role", "administrator", ca=other)
        self.not_let_in("ops", ca=other)
        self.wait_log("of another CA than ours")
        self.assertEqual(self.audit("denied connection"), [])
        with socket.create_connection(("127.0.0.1", self.console), timeout=60) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            got = b""
            try:
                while part := plain.recv(4096):
                    got += part
            except ConnectionResetError:
                pass
        self.assertIn(b" 400 ", got)
        self.assertIn(b"this port speaks HTTPS", got)
        self.wait_log("speaks plain HTTP, and does not speak TLS")
        self.assertEqual(self.ask("ops", "/healthz"), (200, "ok\n"))
        # Each port has its own protocol.
        self.at("admin", "status", port=self.console, code=clients_test.UNAVAILABLE)

    @unittest.skipIf(shutil.which("openssl") is None, "not on this machine: openssl")
    def test_an_expired_certificate_is_refused_and_one_that_expires_is_cut_off(self):
        self.start()
        self.made_by_openssl("late", -10)
        self.not_let_in("late")
        wait_until(lambda: any("has expired" in row["detail"] for row in self.audit("denied connection")), 30, "the audit log's row")
        self.made_by_openssl("soon", 12)
        kept = self.connection("soon")
        self.ends(kept, 90)
        self.not_let_in("soon")
        self.assertTrue(any(row["actor"].startswith("client soon ") for row in self.audit("denied connection")))

    def ends(self, kept, timeout):
        """Asked again and again, the connection ends."""
        def ended():
            try:
                return self.over(kept, "/healthz")[0] != 200
            except (OSError, http.client.HTTPException):
                return True
        kept.auto_open = 0
        kept.connect()
        self.assertFalse(ended())
        wait_until(ended, timeout, "the end of a connection that is kept", interval=0.5)
        kept.close()

    def test_a_revoked_certificate_ends_the_connection_that_is_kept(self):
        self.start()
        kept, other = self.connection("ops"), self.connection("admin")
        self.assertEqual(self.over(other, "/healthz")[0], 200)
        self.revoke("ops", "--client")
        self.ends(kept, 60)
        self.not_let_in("ops")
        wait_until(lambda: any("was revoked" in row["detail"] for row in self.audit("denied connection")), 30, "the audit log's row")
        self.assertEqual(self.ask("admin", "/healthz")[0], 200)
        other.close()

    def test_no_session_is_taken_up_again_without_its_certificate(self):
        self.start()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = self.context("ops")
            context.minimum_version = context.maximum_version = version
            session = None
            for _ in range(3):
                with self.subTest(version), socket.create_connection(("127.0.0.1", self.console), timeout=60) as plain:
                    with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as stream:
                        stream.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                        self.assertTrue(stream.recv(4096).startswith(b"HTTP/1.1 200"))
                        self.assertFalse(stream.session_reused)
                        session = stream.session

    @staticmethod
    def has_ended(stream):
        stream.settimeout(0.02)
        try:
            return stream.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def test_silent_connections_hold_up_nobody(self):
        self.start()
        silent = [socket.create_connection(("127.0.0.1", self.console), timeout=60) for _ in range(100)]
        streams = {}
        for name in ("trainer", "other", "third"):
            if name != "trainer":
                self.client(name, "--role", "tenant", "--tenant", name)
            context = self.context(name)
            streams[name] = []
            for _ in range(34):  # more than it may have: those are closed
                one = socket.create_connection(("127.0.0.1", self.console), timeout=60)
                streams[name].append(context.wrap_socket(one, server_hostname="127.0.0.1"))
            silent += streams[name]
        try:
            began = time.monotonic()
            for name in ("ops", "admin"):
                self.assertEqual(self.ask(name, "/api/v1/status")[0], 200)
            self.t.cli("lease", "list")
            self.assertLess(time.monotonic() - began, 30)
            wait_until(lambda: sum(map(self.has_ended, streams["trainer"])) >= 2, 60, "the end of those beyond the bound")
            self.assertLess(sum(map(self.has_ended, streams["trainer"])), 34)
        finally:
            for one in silent:
                one.close()


class OtherSites(Case):
    def test_no_page_of_another_site_uses_the_visitors_certificate(self):
        self.start()
        body, here = {"serial": "emu:a"}, f"127.0.0.1:{self.console}"
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": f"http://{here}"},
                        {"Origin": f"https://127.0.0.1:{self.masters}"}, {"Sec-Fetch-Site": "cross-site"},
                        {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"}, {"X-Terrace-Action": None},
                        {"Content-Type": "text/plain"}, {"Host": "evil.example"},
                        {"Host": "evil.example", "Origin": "https://evil.example"}):
            with self.subTest(headers):
                self.assertIn(self.act("ops", "drain", body, headers=headers)[0], (403, 415, 421))
                self.assertEqual(self.device(), "in_service")
        for headers in ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "script"}, {"Sec-Fetch-Site": "same-site"},
                        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}):
            self.refused(self.ask("ops", "/api/v1/leases", headers=headers), 403, "a page of another site loads this")
        for headers in ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, {"Sec-Fetch-Site": "none"},
                        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"}):
            self.assertEqual(self.ask("ops", "/api/v1/leases", headers=headers)[0], 200, headers)
        self.assertEqual(self.act("ops", "drain", body, headers={"Origin": f"https://{here}", "Sec-Fetch-Site": "same-origin"})[0], 200)

    def test_it_answers_to_the_names_in_its_certificate_of_now(self):
        self.start()
        for name in ("pool.example", f"POOL.example:{self.console}", "m", "localhost", "10.1.2.3", "[::1]:7", socket.gethostname()):
            self.assertEqual(self.ask("ops", "/healthz", headers={"Host": name})[0], 200, name)
        for name in ("evil.example", "pool.example.evil.example", "xpool.example", "new.example"):
            self.assertEqual(self.ask("ops", "/healthz", headers={"Host": name})[0], 421, name)
        self.issue_manager("--address", "127.0.0.1", "--address", "New.example")
        wait_until(lambda: self.ask("ops", "/healthz", headers={"Host": "new.example"})[0] == 200, 30, "the names of the new certificate")
        self.assertEqual(self.ask("ops", "/healthz", headers={"Host": "pool.example"})[0], 421)


class Certificates(Case):
    def test_addresses_are_alternative_names_and_are_shown(self):
        shown = self.cert("show", self.ca / "m.pem")
        self.assertEqual(shown["addresses"], ["m", "127.0.0.1", "pool.example", "localhost"])
        self.assertIn("for     m, 127.0.0.1, pool.example, localhost\n", self.t.cli("cert", "show", self.ca / "m.pem", json=False).out)
        self.cert("issue", "six", "--manager", "--ca", self.ca, "--address", "fd00::7", "--address", "six", "--address", "fd00::7")
        self.assertEqual(self.cert("show", self.ca / "six.pem")["addresses"], ["six", "fd00::7"])
        self.assertEqual(self.cert("show", self.ca / "ops.pem")["addresses"], [])
        for address in ("a b", "pool.example:7443", "https://pool", "*.example", "-a", "a..b", "10.0.0", "10.0.0.256", "x,DNS:y",
                        "a" * 64, "fd00::zz"):
            with self.subTest(address):
                error = self.t.cli("cert", "issue", "bad", "--manager", "--ca", self.ca, f"--address={address}", check=2).json["error"]
                self.assertIn("is neither a DNS name nor an IP address", error["message"])
        error = self.t.cli("cert", "issue", "hostb", "--ca", self.ca, "--address", "a", check=2).json["error"]
        self.assertIn("--address is for a manager's certificate", error["message"])
        self.assertFalse((self.ca / "bad.pem").exists() or (self.ca / "hostb.pem").exists())


class Configuration(Case):
    def fails(self, text, *says):
        self.write_config(text)
        said = self.t.fails_to_start()
        for words in says:
            self.assertIn(words, said)

    def test_what_is_wrong_with_a_protocol_is_said_at_its_line(self):
        listens = f'[[sockets]]\nlisten = "127.0.0.1:{free_ports(1)[0]}"\n'
        line = len(self.good.splitlines()) + 3
        self.fails(self.good + listens + 'protocol = "ftp"\n', f"terraced.toml:{line}:", "sockets.protocol 'ftp' is no protocol")
        self.fails(self.good + f'[[sockets]]\npath = "{self.t.directory}/x/x.sock"\nprotocol = "https"\n', f"terraced.toml:{line}:",
                   "HTTPS is served at a TCP port")
        self.fails(self.good + listens + 'protocol = "https"\nrole = "tenant"\n', f"terraced.toml:{line}:", "the console is for operators")
        self.fails(listens + 'protocol = "https"\n', "managers, agents and clients know each other by certificates")
        self.fails('role = "agent"\n' + listens + 'protocol = "https"\n', "terraced.toml:4:", "an agent has no console")
        self.write_config(self.good)
        self.start()

    def test_a_reload_names_what_waits_for_a_start(self):
        self.start()
        self.write_config(self.good.replace('protocol = "https"\n', "", 1))
        os.kill(self.t.pid, signal.SIGHUP)
        self.wait_log("as before until terraced is started again: sockets")
        self.assertEqual(self.ask("ops", "/healthz")[0], 200)
        self.write_config(self.good.replace('protocol = "https"', 'protocol = "gopher"', 1))
        os.kill(self.t.pid, signal.SIGHUP)
        self.wait_log("'gopher' is no protocol")
        self.assertEqual(self.ask("ops", "/healthz")[0], 200)


if __name__ == "__main__":
    harness.main()
