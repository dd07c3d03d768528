# SPDX-License-Identifier: Apache-2.0
"""Clients on other machines, over mutual TLS: who is let in, what its certificate gives, and what nobody can do over TCP.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/clients/clients_test.py [TestClass[.test]]
"""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from ports import free_ports  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402
from session_tenant import Tenant  # noqa: E402

DENIED, UNAVAILABLE, USAGE, FAILED = 6, 5, 2, 1
MIB = 1 << 20
S = 10**9

CONFIG = """
[listen]
address = "127.0.0.1:{agents}"
[tls]
ca = "{ca}/ca.pem"
certificate = "{ca}/m.pem"
key = "{ca}/m.key"
revoked = "{revoked}"
[[sockets]]
listen = "127.0.0.1:{whole}"
role = "administrator"
[[sockets]]
listen = "127.0.0.1:{watch}"
[[sockets]]
listen = "127.0.0.1:{training}"
tenant = "training"
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="clients")
        self.addCleanup(self.t.close)
        self.ca = self.t.directory / "ca"
        self.cert("init", self.ca)
        self.cert("issue", "m", "--manager", "--ca", self.ca)
        self.revoked = self.t.directory / "revoked.pem"
        shutil.copy(self.ca / "revoked.pem", self.revoked)
        self.client("admin", "--role", "administrator")
        self.client("ops")
        self.client("trainer", "--role", "tenant", "--tenant", "training")
        self.agents, self.whole, self.watch, self.training = free_ports(4)
        self.config = self.t.directory / "terraced.toml"
        self.write_config(CONFIG.format(ca=self.ca, revoked=self.revoked, agents=self.agents, whole=self.whole,
                                        watch=self.watch, training=self.training))
        self.t.daemon_args += ["--config", str(self.config)]

    def write_config(self, text):
        self.config.write_text(text)

    def start(self):
        self.t.start()
        self.t.create_pool("p")

    # -- certificates

    def cert(self, *arguments, check=True):
        return self.t.cli("cert", *arguments, check=check).json

    def client(self, name, *arguments, ca=None):
        return self.cert("client", name, "--ca", ca or self.ca, *arguments)

    def revoke(self, *arguments):
        self.cert("revoke", *arguments, "--ca", self.ca)
        shutil.copy(self.ca / "revoked.pem", self.revoked)

    def made_by_openssl(self, name, ends_in_s, rights="role=operator", began_s=3600):
        """A client's certificate that ends to the second; `terrace cert` makes them by days."""
        folder = self.t.directory / f"openssl-{name}"
        folder.mkdir(exist_ok=True)
        (folder / "index").write_text("")
        (folder / "serial").write_text(f"77{os.urandom(6).hex()}\n")
        (folder / "ca.cnf").write_text(
            f"[ca]\ndefault_ca = d\n[d]\ndatabase = {folder}/index\nserial = {folder}/serial\n"
            f"new_certs_dir = {folder}\ndefault_md = sha256\npolicy = p\nx509_extensions = x\n"
            f"[p]\ncommonName = supplied\n[x]\nextendedKeyUsage = clientAuth\n"
            f"subjectAltName = URI:terrace:{rights}\n")
        def openssl(*words):
            subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                self.ca / f"{name}.key", "-out", folder / "csr", "-subj", f"/CN=client:{name}")
        def moment(seconds):
            return time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + seconds))
        openssl("ca", "-batch", "-notext", "-config", folder / "ca.cnf", "-cert", self.ca / "ca.pem", "-keyfile",
                self.ca / "ca.key", "-in", folder / "csr", "-out", self.ca / f"{name}.pem", "-startdate",
                moment(min(-began_s, ends_in_s - 60)), "-enddate", moment(ends_in_s))
        (self.ca / f"{name}.key").chmod(0o600)

    # -- calls

    def options(self, name, port, ca=None, trust=None):
        """`ca`: the folder of its certificate; `trust`: of the CA that the manager must be of."""
        folder = ca or self.ca
        return ["--connect", f"tls://127.0.0.1:{port}", "--tls-cert", folder / f"{name}.pem", "--tls-key",
                folder / f"{name}.key", "--tls-ca", (trust or self.ca) / "ca.pem"]

    def at(self, name, *arguments, port=None, code=0, ca=None):
        """`terrace --json` with the certificate of client `name`: its document."""
        return self.t.cli(*self.options(name, port or self.whole, ca), *arguments, check=code).json

    def denied(self, name, *arguments, says, port=None, code=DENIED, ca=None):
        error = self.at(name, *arguments, port=port, code=code, ca=ca)["error"]
        self.assertIn(says, error["message"])
        return error

    def audit(self, verb):
        return [row for row in self.t.cli("audit").json["entries"] if row["verb"] == verb]

    def denials(self):
        return self.t.cli("events", "--kind", "call_denied").json["events"]

    def wait_log(self, words, timeout=30.0):
        wait_until(lambda: words in self.t.log.read_text(errors="replace"), timeout, f"'{words}' in the log")


class Roles(Case):
    def test_each_certificate_gives_its_role_within_its_sockets(self):
        self.start()
        listed = self.at("admin", "status")["server"]["sockets"]
        self.assertEqual(listed[1:], [
            {"path": f"tls://127.0.0.1:{self.whole}", "role": "administrator", "tenant": None},
            {"path": f"tls://127.0.0.1:{self.watch}", "role": "operator", "tenant": None},
            {"path": f"tls://127.0.0.1:{self.training}", "role": "tenant", "tenant": "training"}])
        lease = self.t.grant("2M", "p", "--tenant", "training", "--label", "x", "--ttl", "1h")["id"]
        looks = (["status"], ["health"], ["lease", "list"], ["queue", "list"], ["quota", "list"], ["pool", "list"],
                 ["device", "list"], ["events"], ["audit"], ["check"], ["host", "list"], ["daemon", "status"])
        works = (["device", "drain", "emu:a"], ["device", "undrain", "emu:a"], ["lease", "renew", lease, "--ttl", "2h"])
        masters = (["quota", "set", "training", "--bytes", "32M"], ["pool", "set", "p", "--trust", "mutual"])
        for name, port in (("admin", self.whole), ("admin", self.watch), ("ops", self.whole), ("ops", self.watch)):
            master = name == "admin" and port == self.whole
            for verb in looks + works + masters:
                with self.subTest((name, port, verb)):
                    if verb in masters and not master:
                        self.denied(name, *verb, port=port, says="needs the role administrator")
                    else:
                        self.at(name, *verb, port=port)
        for port in (self.whole, self.watch, self.training):
            for verb in looks[:1] + works[:1] + masters[:1]:
                with self.subTest((port, verb)):
                    self.denied("trainer", *verb, port=port, says="client trainer has the role tenant at tls://")
            self.assertEqual([one["id"] for one in self.at("trainer", "lease", "list", port=port)["leases"]], [lease])
        for name in ("admin", "ops"):
            self.denied(name, "status", port=self.training,
                        says=f"is of tenant training only, and the certificate of client {name} names no tenant")
        # Who did it, and who was refused, has the name in the certificate.
        drains = [row["actor"] for row in self.audit("device drain")]
        self.assertEqual(len(drains), 4)
        self.assertIn("client admin as operator from 127.0.0.1 (terrace", drains[1])
        self.assertIn("client ops as operator from 127.0.0.1 (terrace", drains[2])
        refused = [row["actor"] for row in self.audit("denied admin") if "setQuota" in row["detail"]]
        self.assertTrue(any("client ops as operator from" in actor for actor in refused), refused)
        self.at("ops", "lease", "revoke", lease, "--grace", "0s")
        self.t.wait_free("p")
        self.t.check_invariants()

    def test_a_tenants_grant_is_the_managers_own_and_no_memory_comes_with_it(self):
        self.start()
        self.t.cli("quota", "set", "training", "--bytes", "4M")
        lease = self.at("trainer", "lease", "grant", "--pool", "p", "--size", "2M", "--label", "far")["lease"]
        self.assertEqual((lease["tenant"], lease["holders"]), ("training", 0))
        self.assertEqual(lease["host"], self.t.grant("2M", "p")["host"])  # not the client's machine
        self.denied("trainer", "lease", "grant", "--pool", "p", "--size", "4M", says="quota", code=4)
        self.denied("trainer", "lease", "grant", "--pool", "p", "--size", "2M", "--tenant", "serving", says="serving")
        self.at("trainer", "lease", "renew", "far", "--ttl", "1h")
        self.assertEqual(self.at("trainer", "lease", "show", "far")["leases"][0]["holders"], 0)
        self.assertEqual(self.at("trainer", "lease", "resize", "far", "4M", "--yes")["lease"]["bytes"], 4 * MIB)
        self.denied("trainer", "lease", "resize", "far", "6M", "--yes", says="quota", code=4)
        self.at("trainer", "lease", "resize", "far", "2M", "--yes")
        others = self.t.grant("2M", "p", "--tenant", "serving")["id"]
        self.denied("trainer", "lease", "release", others, says="has no lease", code=3)
        with Tenant(self.t, self.t.socket, "training") as holder:  # what a process holds alone is its own
            self.assertTrue(holder.ask("grant", 2 * MIB, 60 * S, "held").endswith(f" {2 * MIB}"))
            self.denied("trainer", "lease", "resize", "held", "+2M", says="held", code=7)
            self.assertEqual(holder.ask("check", 0), "same")
            self.assertEqual(holder.ask("release"), "ok")
        self.at("trainer", "lease", "transfer", "far", "--to-tenant", "serving", "--yes")
        self.at("trainer", "lease", "withdraw", "far")
        self.at("trainer", "lease", "release", "far")
        self.assertEqual(self.at("trainer", "lease", "list")["leases"], [])
        for verb in (["tensor", "list", "far"],
                     ["state", "backup", self.t.directory / "backup"], ["daemon", "stop"], ["doctor"]):
            with self.subTest(verb):
                self.denied("admin", *verb, code=FAILED, says="works on the manager's own machine")
        self.assertIsNotNone(self.t.pid)

    def test_without_options_the_environment_says_where_and_then_files_of_the_user(self):
        self.start()
        home = self.t.directory / "home"
        (home / ".config/terrace").mkdir(parents=True)
        self.cert("client", "client", "--ca", self.ca, "--out", home / ".config/terrace", "--role", "operator")
        shutil.copy(self.ca / "ca.pem", home / ".config/terrace/ca.pem")
        env = {"HOME": home, "XDG_CONFIG_HOME": "", "TERRACE_CONNECT": f"tls://127.0.0.1:{self.watch}"}
        self.assertEqual(self.t.cli("status", env=env).json["socket"], env["TERRACE_CONNECT"])
        self.assertEqual(self.t.cli("--socket", self.t.socket, "status", env=env).json["socket"], str(self.t.socket))
        files = {"TERRACE_TLS_CERT": self.ca / "trainer.pem", "TERRACE_TLS_KEY": self.ca / "trainer.key"}
        self.assertIn("client trainer has the role tenant",
                      self.t.cli("status", env=env | files, check=DENIED).json["error"]["message"])
        both = self.t.cli("--socket", self.t.socket, "--connect", env["TERRACE_CONNECT"], "status", check=USAGE)
        self.assertIn("two managers", both.json["error"]["message"])
        (home / ".config/terrace/client.key").chmod(0o644)
        self.assertIn("can be read by others", self.t.cli("status", env=env, check=DENIED).json["error"]["message"])
        (home / ".config/terrace/client.key").unlink()
        self.assertIn("client.key cannot be read", self.t.cli("status", env=env, check=3).json["error"]["message"])

    def test_follow_goes_on_over_a_restart_of_the_manager(self):
        self.start()
        command = [self.t.terrace, "--json", *self.options("ops", self.watch), "events", "--follow"]
        follower = self.t.popen(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(follower.stdout), daemon=True)
        reader.start()
        try:
            def told(kind):
                return [line for line in list(lines) if json.loads(line)["kind"] == kind]
            wait_until(lambda: told("pool_created"), 60, "what was before")
            self.t.restart(hard=True)
            wait_until(lambda: len(told("manager_started")) == 2, 60, "the second start")
            self.t.cli("device", "drain", "emu:a")
            wait_until(lambda: told("device_draining"), 60, "what happens after it")
        finally:
            follower.send_signal(signal.SIGKILL)
            follower.wait(60)
            reader.join(60)
            follower.stdout.close()
            follower.stderr.close()


@unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed: nothing else makes certificates that end soon")
class Renewed(Case):
    """Short certificates of clients, renewed by the commands that use them."""

    def start(self, renews=True):
        if renews:
            self.write_config(self.config.read_text().replace("[tls]", f'[tls]\nca_key = "{self.ca}/ca.key"\nrenew_days = 7\n'
                                                              "renew_clients = true"))
        super().start()

    def shown(self, name):
        return self.cert("show", self.ca / f"{name}.pem")

    def test_any_command_renews_what_is_about_to_end_and_keeps_its_rights(self):
        self.start()
        self.made_by_openssl("short", 600, "role=tenant;tenant=training")
        old, key = self.shown("short"), (self.ca / "short.key").read_bytes()
        (self.ca / "short.pem").chmod(0o644)
        self.at("short", "lease", "list", port=self.training)
        new = self.shown("short")
        self.assertNotEqual(new["serial"], old["serial"])
        self.assertIn(new["days_left"], (6, 7))  # the one a second later
        for same in ("name", "role", "client_role", "tenant", "issuer"):
            self.assertEqual(new[same], old[same], same)
        self.assertEqual((self.ca / "short.key").read_bytes(), key)
        self.assertEqual([path.name for path in self.ca.glob("short.pem*")], ["short.pem"])
        rows = self.audit("renew-certificate")
        self.assertEqual([(row["subject"], row["detail"]) for row in rows], [("client short", f"serial {new['serial']}")])
        self.assertTrue(rows[0]["actor"].startswith("client short from 127.0.0.1"), rows)
        # Not again before it is time; by hand no sooner.
        self.at("short", "lease", "list", port=self.training)
        self.assertEqual(self.shown("short")["serial"], new["serial"])
        self.denied("short", "cert", "renew", port=self.training, says="more than half of its life left", code=7)
        self.assertIn("renewed by a manager over TLS", self.t.cli("cert", "renew", check=USAGE).json["error"]["message"])
        # The CA knows it: its name takes it back.
        self.revoke("short", "--client")
        self.wait_log("was read again: 1 entries")
        self.denied("short", "cert", "renew", port=self.training, says="refused our certificate: it was revoked")
        self.assertEqual(len(self.audit("renew-certificate")), 1)

    # Found by reading: each connection with the old certificate had another one made, and issued.pem grew by it.
    def test_who_comes_again_with_an_old_certificate_gets_what_was_made_then(self):
        self.start()
        self.made_by_openssl("short", 600)
        old = (self.ca / "short.pem").read_bytes()
        serials = set()
        for round_ in range(4):
            (self.ca / "short.pem").write_bytes(old)
            self.at("short", "status")
            serials.add(self.shown("short")["serial"])
            if round_ == 1:
                self.t.restart(hard=True)
        self.assertEqual(len(serials), 1)
        self.assertEqual({row["detail"] for row in self.audit("renew-certificate")}, {f"serial {serials.pop()}"})
        self.assertEqual((self.ca / "issued.pem").read_text().count("BEGIN"), 5)  # m, three clients, the renewed one
        # When another is possible is said: at half of its life of seven days.
        error = self.denied("short", "cert", "renew", says="more than half of its life left; it can be renewed from 20", code=7)
        moment = time.mktime(time.strptime(error["message"].split("renewed from ")[1].split("Z")[0] + " UTC", "%Y-%m-%d %H:%M:%S %Z"))
        self.assertAlmostEqual((moment - time.mktime(time.gmtime())) / 86400, 3.5, delta=0.1)
        # One that was revoked is not handed out again.
        self.revoke("--serial", self.shown("short")["serial"])
        self.wait_log("was read again: 1 entries")
        (self.ca / "short.pem").write_bytes(old)
        self.denied("short", "cert", "renew", says="the certificate that it was renewed to was revoked")
        # The same name with another key is another holder: what was made for one is of no use to it.
        self.made_by_openssl("short", 600)
        self.at("short", "cert", "renew")
        self.assertEqual((self.ca / "issued.pem").read_text().count("BEGIN"), 6)

    def test_what_ended_long_ago_leaves_the_list_of_what_was_issued(self):
        self.made_by_openssl("gone", -31 * 86400)
        self.made_by_openssl("lately", -86400)
        issued = self.ca / "issued.pem"
        before = issued.read_bytes()
        pems = [(self.ca / f"{name}.pem").read_bytes() for name in ("gone", "lately")]
        for name in ("gone", "lately"):
            (self.ca / f"{name}.pem").unlink()
        issued.write_bytes(pems[0] + before + pems[0] + pems[1])
        self.start()
        self.wait_log("2 certificates that ended more than 30 days ago were dropped from")
        self.assertEqual(issued.read_bytes(), before + pems[1])
        self.assertEqual(issued.stat().st_mode & 0o777, 0o600)
        self.t.stop()
        # One that is torn is nothing to throw away by mistake: then all of it stays.
        torn = pems[0] + before[:-200] + b"\n" + pems[1]
        issued.write_bytes(torn)
        self.t.start()
        self.assertEqual(issued.read_bytes(), torn)

    def test_a_torn_entry_of_what_was_issued_hides_none_behind_it(self):
        self.start()
        issued = self.ca / "issued.pem"
        for name in ("first", "torn", "last"):
            self.made_by_openssl(name, 86400)
        pems = {name: (self.ca / f"{name}.pem").read_bytes() for name in ("first", "torn", "last")}
        for name in pems:
            (self.ca / f"{name}.pem").unlink()
        begun = issued.read_bytes()  # openssl notes nothing there
        for end in (b"", b"\n"):
            issued.write_bytes(begun + pems["first"] + pems["torn"][:-100].rstrip() + end + pems["last"])
            listed = {one["name"] for one in self.t.cli("cert", "list", "--ca", self.ca).json["certificates"]}
            self.assertIn("last", listed)
            self.assertNotIn("torn", listed)
        self.revoke("last", "--client")
        self.assertEqual([one["state"] for one in self.t.cli("cert", "list", "--ca", self.ca).json["certificates"] if one["name"] == "last"],
                         ["revoked"])

    def test_while_the_ca_is_in_use_nothing_is_made(self):
        self.start()
        self.made_by_openssl("short", 600)
        before = (self.ca / "short.pem").read_bytes()
        folder = os.open(self.ca, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self.denied("short", "cert", "renew", says="in use by `terrace cert`; try again", code=7)
        finally:
            os.close(folder)
        self.assertEqual((self.ca / "short.pem").read_bytes(), before)
        self.at("short", "cert", "renew")

    def test_by_hand_the_end_is_told(self):
        self.start()
        self.made_by_openssl("short", 2200)  # of 5,800 seconds: not due by itself
        self.at("short", "status")
        self.assertEqual(self.audit("renew-certificate"), [])
        told = self.at("short", "cert", "renew")
        self.assertEqual(told["certificate"], str(self.ca / "short.pem"))
        self.assertIn(told["days_left"], (6, 7))
        self.assertIn(self.shown("short")["days_left"], (6, 7))

    def test_what_follows_events_outlives_the_certificate_with_which_it_began(self):
        self.start()
        self.made_by_openssl("short", 20)
        follower = self.t.popen(self.t.terrace, "--json", *self.options("short", self.watch), "events", "--follow",
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines, errors = [], []
        readers = [threading.Thread(target=lambda: lines.extend(follower.stdout), daemon=True),
                   threading.Thread(target=lambda: errors.extend(follower.stderr), daemon=True)]
        for reader in readers:
            reader.start()
        try:
            wait_until(lambda: any("the manager answers again" in line for line in errors) or follower.poll() is not None, 90,
                       "the end of the first certificate")
            self.assertTrue(any("its certificate has expired" in row["detail"] for row in self.audit("denied connection")))
            self.t.cli("device", "drain", "emu:a")
            wait_until(lambda: any(json.loads(line)["kind"] == "device_draining" for line in list(lines)), 60, "what happens after it")
        finally:
            follower.send_signal(signal.SIGKILL)
            follower.wait(60)
            for reader in readers:
                reader.join(60)
            follower.stdout.close()
            follower.stderr.close()

    def test_a_manager_that_renews_none_says_so_and_the_command_warns(self):
        self.start(renews=False)
        self.made_by_openssl("short", 600)
        before = (self.ca / "short.pem").read_bytes()
        said = self.t.cli(*self.options("short", self.whole), "status", check=0)
        self.assertIn(f"the certificate {self.ca}/short.pem of client:short ends within 1 day, and it was not renewed", said.err)
        self.assertIn("renew_clients", said.err)
        self.denied("short", "cert", "renew", says="renew_clients", code=FAILED)
        self.assertEqual(self.t.cli(*self.options("ops", self.whole), "status").err, "")  # 90 days
        self.assertEqual((self.ca / "short.pem").read_bytes(), before)
        self.assertEqual(self.audit("renew-certificate"), [])

    @unittest.skipUnless(harness.can_mount(), "needs a mount namespace")
    def test_files_that_cannot_be_written_stay_and_nothing_is_asked(self):
        self.start()
        self.made_by_openssl("short", 600)
        read_only = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        done = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", read_only, self.ca, self.t.terrace,
                               *self.options("short", self.whole), "status"], env=self.t.environment(), capture_output=True,
                              text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ends within 1 day, and it was not renewed: this user cannot write", done.stderr)
        self.assertEqual(self.audit("renew-certificate"), [])

    def test_without_the_cas_key_it_does_not_start(self):
        self.write_config(self.config.read_text().replace("[tls]", "[tls]\nrenew_clients = true"))
        self.assertIn("renew_clients needs the CA's key", self.t.fails_to_start())


class Refused(Case):
    def test_strangers_are_refused_as_events_and_leave_the_audit_log_alone(self):
        self.start()
        other = self.t.directory / "other"
        self.cert("init", other)
        self.client("ops", "--role", "administrator", ca=other)
        self.denied("ops", "status", says="refused our certificate: it is of another CA", ca=other)
        for bytes_ in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 200, os.urandom(2000)):
            with socket.create_connection(("127.0.0.1", self.whole), timeout=30) as garbage:
                garbage.sendall(bytes_)
                garbage.settimeout(30)
                try:
                    while garbage.recv(4096):  # an alert, perhaps; then the end
                        pass
                except ConnectionResetError:
                    pass
        self.wait_log("does not speak TLS")
        said = " ".join(event["message"] for event in self.denials())
        self.assertIn("another CA than ours", said)
        self.assertEqual(self.audit("denied connection"), [])
        self.at("ops", "status")
        # The other way round: what the client finds there is no manager of its CA.
        self.assertIn("is not a manager of the CA", self.t.cli(
            *self.options("ops", self.whole, trust=other), "status", check=DENIED).json["error"]["message"])
        self.at("ops", "--tls-name", "m", "status")
        self.denied("ops", "--tls-name", "elsewhere", "status", says="is not a manager of the CA")

    def test_a_hosts_certificate_is_no_clients_and_the_other_way_round(self):
        self.start()
        self.cert("issue", "hostb", "--ca", self.ca)
        self.denied("hostb", "status", says="its certificate is for 'host:hostb', not for a client")
        self.denied("m", "status", says="refused our certificate")
        row = self.audit("denied connection")[0]
        self.assertIn("'host:hostb', not for a client", row["detail"])
        self.at("admin", "status", port=self.agents, code=UNAVAILABLE)
        self.wait_log("its certificate is for 'client:admin', not for a host")

    def test_a_revoked_certificate_is_cut_off_and_refused_with_its_reason(self):
        self.start()
        follower = self.t.popen(self.t.terrace, *self.options("ops", self.watch), "events", "--follow",
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            follower.stdout.readline()
            self.revoke("ops", "--client")
            err = follower.communicate(timeout=60)[1]
        finally:
            follower.kill()
        self.assertEqual(follower.returncode, DENIED, err)
        self.assertIn("refused our certificate: it was revoked", err)
        self.denied("ops", "status", says="refused our certificate: it was revoked. `terrace cert client`")
        self.at("admin", "status")
        rows = self.audit("denied connection")
        self.assertTrue(all(row["actor"].startswith("client ops from 127.0.0.1") for row in rows), rows)
        self.assertTrue(all("was revoked" in row["detail"] for row in rows), rows)
        self.assertGreaterEqual(len(rows), 2)
        self.assertTrue(any("was revoked" in event["message"] for event in self.denials()))
        # Another certificate of that name is another matter.
        fresh = self.t.directory / "fresh"
        fresh.mkdir()
        self.client("ops", "--out", fresh)
        self.at("ops", "status", ca=fresh)

    @unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed: nothing else makes expired certificates")
    def test_an_expired_certificate_is_refused_and_one_that_expires_is_cut_off(self):
        self.start()
        self.made_by_openssl("late", -10)
        self.denied("late", "status", says="refused our certificate: it has expired")
        self.assertIn("has expired", self.audit("denied connection")[0]["detail"])
        self.assertTrue(any("has expired" in event["message"] for event in self.denials()))
        self.made_by_openssl("soon", 12)
        follower = self.t.popen(self.t.terrace, *self.options("soon", self.watch), "events", "--follow",
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            self.assertTrue(follower.stdout.readline())
            err = follower.communicate(timeout=90)[1]
        finally:
            follower.kill()
        self.assertEqual(follower.returncode, DENIED, err)
        self.assertIn("it has expired", err)
        self.assertTrue(any(row["actor"].startswith("client soon ") for row in self.audit("denied connection")))

    def test_two_hundred_silent_connections_hold_up_nobody(self):
        self.start()
        silent = [socket.create_connection(("127.0.0.1", self.whole), timeout=30) for _ in range(200)]
        try:
            for _ in range(5):
                self.t.cli("lease", "list")
                self.at("ops", "lease", "list")
            began = time.monotonic()
            for one in silent:  # none of them keeps its place
                one.settimeout(60)
                try:
                    self.assertEqual(one.recv(1), b"")
                except ConnectionResetError:
                    pass
            self.assertLess(time.monotonic() - began, 60)
        finally:
            for one in silent:
                one.close()
        self.assertLess(self.t.cli("status").json["server"]["connections"], 5)


NOBODYS = "192.0.2.1"  # of documentation (RFC 5737)


def can_be_bound(address):
    """Whether a socket may be bound to an address; some sandboxes, and net.ipv4.ip_nonlocal_bind, allow any."""
    try:
        socket.create_server((address, 0)).close()
        return True
    except OSError:
        return False


class Configuration(Case):
    def refused(self, text, *says, code=None):
        self.write_config(text)
        said = self.t.fails_to_start()
        for words in says:
            self.assertIn(words, said)

    def test_what_cannot_be_served_ends_the_start_with_its_reason(self):
        good = self.config.read_text()
        (port,) = free_ports(1)
        self.refused(good.replace(f"{self.ca}/m.key", "/nowhere/m.key"), "the key /nowhere/m.key cannot be read")
        (self.ca / "m.key").chmod(0o644)
        self.refused(good, f"the key {self.ca}/m.key can be read by others", "chmod 600")
        (self.ca / "m.key").chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            other = taken.getsockname()[1]
            self.refused(good.replace(f"127.0.0.1:{self.watch}", f"127.0.0.1:{other}"),
                         f"cannot listen for clients at 127.0.0.1:{other} ([[sockets]] listen)", "Address already in use")
        if not can_be_bound(NOBODYS):
            self.refused(good.replace(f"127.0.0.1:{self.watch}", f"{NOBODYS}:{port}"), f"clients at {NOBODYS}:{port}")
        alone = f'[[sockets]]\nlisten = "127.0.0.1:{port}"\n'
        self.refused(alone, "managers, agents and clients know each other by certificates")
        for lines, words in (('path = "/run/x.sock"\n', "a socket has a path or listens at an address, not both"),
                             ('role = "by-uid"\n', "has a certificate and no uid"),
                             ("mode = 0o600\n", "mode, owner and group are of a socket's file"),
                             ('role = "operator"\ntenant = "training"\n', "has no tenant of its own")):
            with self.subTest(words):
                self.refused(alone + lines, words, "terraced.toml:")
        self.refused(good + f'[[sockets]]\nlisten = "127.0.0.1:{self.agents}"\n', "two listen at 127.0.0.1")
        self.refused('[[sockets]]\nlisten = "nowhere"\n', "listen 'nowhere' must be HOST:PORT")
        self.write_config(good)
        self.start()
        self.at("ops", "status")


if __name__ == "__main__":
    harness.main()
