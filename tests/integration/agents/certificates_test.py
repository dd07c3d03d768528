# SPDX-License-Identifier: Apache-2.0
"""Who is let in: revoked certificates, removed hosts, files that are read again, and warnings before an end.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/agents/certificates_test.py [TestClass[.test]]
"""

import json
import pathlib
import shutil
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fabric as fabric_module  # noqa: E402
from agents_test import MIB, S, Case as AgentsCase  # noqa: E402
from fabric import harness, wait_until  # noqa: E402
from old_certificate import old_certificate  # noqa: E402


class Case(AgentsCase):
    def setUp(self):
        super().setUp()
        self.ca = self.fabric.directory / "ca"
        self.list = self.fabric.directory / "revoked.pem"  # the manager's copy
        shutil.copy(self.ca / "revoked.pem", self.list)

    def cert(self, *arguments, check=True):
        done = self.fabric.cert("--json", *arguments, check=check)
        return json.loads(done.stdout) if done.returncode == 0 else done

    def revoke(self, *arguments):
        """Revokes, and copies the list to where it is read."""
        said = self.cert("revoke", *arguments, "--ca", self.ca)
        shutil.copy(self.ca / "revoked.pem", self.list)
        return said

    def serial(self, file):
        return self.cert("show", file)["serial"]

    def manager(self, *arguments):
        manager = self.fabric.manager("--tls-revoked", self.list, *arguments)
        manager.create_pool("p")
        return manager

    def replace_certificate(self, name):
        """Another one for the host, over the files that its agent has."""
        fresh = self.fabric.directory / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        self.cert("issue", name, "--ca", self.ca, "--out", fresh)
        for file in (f"{name}.key", f"{name}.pem"):
            shutil.copy(fresh / file, self.ca / file)


class Revoked(Case):
    def test_a_connected_agent_is_cut_off_and_only_a_new_certificate_lets_it_in(self):
        manager = self.manager()
        b, c = self.fabric.agent("hostb"), self.fabric.agent("hostc")
        on_b, on_c = self.tenant(b), self.tenant(c)
        self.assertTrue(on_b.ask("grant", 16 * MIB, 60 * S, "x").endswith(f" {16 * MIB}"))
        self.assertTrue(on_c.ask("grant", 16 * MIB, 60 * S, "y").endswith(f" {16 * MIB}"))
        serial = self.serial(self.ca / "hostb.pem")
        stolen = self.fabric.directory / "stolen"
        stolen.mkdir()
        for file in ("ca.pem", "hostb.pem", "hostb.key"):
            shutil.copy(self.ca / file, stolen / file)
        began = time.monotonic()
        self.assertEqual(self.revoke("hostb")["revoked"], [serial])
        manager.wait_log(f"(host:hostb, serial {serial}) was revoked", 10)
        wait_until(lambda: self.fabric.host("hostb")["state"] != "connected", 10, "hostb being cut off")
        self.assertLess(time.monotonic() - began, 10)
        b.wait_log("refused our certificate: it was revoked", 20)
        # Its leases take the course of a host that is lost; nobody else's do.
        self.fabric.wait_state("hostb", "self-fenced")
        wait_until(lambda: len(manager.leases()) == 1, 30, "the end of hostb's lease")
        self.assertEqual(self.fabric.host("hostc")["state"], "connected")
        self.assertEqual(on_c.ask("check", 0), "same")
        # The host comes back with another certificate, and its agent reads that by itself.
        self.replace_certificate("hostb")
        self.fabric.wait_state("hostb", "connected")
        self.assertTrue(self.tenant(b).ask("grant", 16 * MIB, 60 * S, "z").endswith(f" {16 * MIB}"))
        # The thief does not.
        b.stop()
        thief = self.fabric.agent("thief", tls=self.fabric.tls("hostb", "stolen"), wait=False)
        thief.wait_log("refused our certificate: it was revoked", 20)
        self.assertNotEqual(self.fabric.host("hostb")["state"], "connected")

    def test_a_list_that_cannot_be_used_keeps_the_one_before(self):
        manager = self.manager()
        b = self.fabric.agent("hostb")
        older = self.list.read_bytes()
        self.revoke("--certificate", self.ca / "hostb.pem")
        b.wait_log("refused our certificate: it was revoked", 20)
        self.fabric.cert("init", self.fabric.directory / "other")
        for content, words in ((b"this is no list\n", "is no PEM list"),
                               ((self.fabric.directory / "other" / "revoked.pem").read_bytes(), "is of another CA"),
                               (older, "is older")):
            with self.subTest(words):
                refused = b.text().count("is registered with the manager")
                self.list.write_bytes(content)
                manager.wait_log(words, 10)
                time.sleep(2.5)
                self.assertNotEqual(self.fabric.host("hostb")["state"], "connected")
                self.assertEqual(b.text().count("is registered with the manager"), refused)
        self.list.unlink()
        manager.wait_log("cannot be read", 10)
        self.assertNotEqual(self.fabric.host("hostb")["state"], "connected")

    def test_a_certificate_that_cannot_be_used_keeps_the_one_before_and_no_list_from_being_read(self):
        manager = self.manager()
        b = self.fabric.agent("hostb")
        (self.ca / "m.pem").write_text("this is no certificate\n")
        manager.wait_log("is no PEM certificate", 10)
        c = self.fabric.agent("hostc")  # with the one before
        self.revoke("hostb")
        b.wait_log("refused our certificate: it was revoked", 20)
        self.assertEqual(self.fabric.host("hostc")["state"], "connected", c.text()[-500:])

    def test_a_list_that_cannot_be_used_ends_the_start_with_its_reason(self):
        for content in (b"this is no list\n", None):
            with self.subTest(content):
                self.list.write_bytes(content) if content else self.list.unlink()
                with self.assertRaises(harness.HarnessError):
                    self.fabric.manager("--tls-revoked", self.list)
                self.assertIn("terrace cert revoke --none", self.fabric.hosts["m"].text())
                self.fabric.hosts.pop("m").close()

    def test_an_agent_leaves_a_manager_whose_certificate_is_revoked(self):
        self.manager()
        own = self.fabric.directory / "own-list.pem"
        shutil.copy(self.ca / "revoked.pem", own)
        b = self.fabric.agent("hostb", "--tls-revoked", own)
        serial = self.serial(self.ca / "m.pem")
        self.cert("revoke", "m", "--manager", "--ca", self.ca)
        shutil.copy(self.ca / "revoked.pem", own)
        b.wait_log(f"(manager:m, serial {serial}) was revoked", 15)
        self.fabric.wait_state("hostb", "self-fenced")
        self.assertEqual(b.text().count("is registered with the manager"), 1)


class Removed(Case):
    def remembered(self, manager):
        return pathlib.Path(str(manager.state) + ".hosts").read_text().split()

    def test_a_removed_host_is_refused_until_it_is_allowed_again(self):
        manager = self.manager()
        b = self.fabric.agent("hostb")
        self.assertEqual(manager.cli("host", "remove", "hostb").json, {"removed": "hostb"})
        b.wait_log("was removed by an operator", 20)
        self.assertEqual(self.fabric.host("hostb")["state"], "removed")
        # Nobody waits for it at a start once its host lease has run out.
        wait_until(lambda: self.remembered(manager) == ["!hostb"], 20, "the host being forgotten")
        manager.stop()
        manager.start()
        told = b.text().count("was removed by an operator")
        wait_until(lambda: b.pid is None or "was removed by an operator" in b.text()[-2000:], 20, "another refusal")
        self.assertGreaterEqual(b.text().count("was removed by an operator"), told)
        time.sleep(3)
        self.assertEqual(self.fabric.host("hostb")["state"], "removed")
        self.assertEqual(manager.cli("host", "allow", "hostb").json, {"allowed": "hostb"})
        self.fabric.wait_state("hostb", "connected")
        told = [(one["verb"], one["subject"]) for one in manager.cli("audit", "--subject", "host hostb").json["entries"]]
        self.assertEqual(told, [("remove-host", "host hostb"), ("allow-host", "host hostb")])

    def test_what_is_no_host_can_be_neither_removed_nor_allowed(self):
        manager = self.manager()
        for verb in ("remove", "allow"):
            self.assertIn("no host 'hostz'", str(manager.cli("host", verb, "hostz", check=3)))

    def test_a_host_with_leases_is_removed_when_they_may_be_taken_back(self):
        manager = self.manager()
        b = self.fabric.agent("hostb")
        on_b = self.tenant(b)
        self.assertTrue(on_b.ask("grant", 16 * MIB, 60 * S, "x").endswith(f" {16 * MIB}"))
        refused = manager.cli("host", "remove", "hostb", check=False)
        self.assertIn("has 1 lease", str(refused))
        self.assertEqual(self.fabric.host("hostb")["state"], "connected")
        manager.cli("host", "remove", "hostb", "--revoke", "--yes")
        self.assertEqual(self.fabric.host("hostb")["state"], "removed")
        manager.wait_free()
        wait_until(lambda: self.remembered(manager) == ["!hostb"], 20, "the host being forgotten")
        manager.check_invariants()


@unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed: nothing else makes old certificates")
class Warned(Case):
    def old_certificate(self, name, days, role="host", usage="extendedKeyUsage = clientAuth"):
        old_certificate(self.ca, self.fabric.directory, name, days, role, usage)

    def test_a_certificate_that_ends_soon_is_told_of_on_both_sides(self):
        manager = self.manager()
        self.old_certificate("hostb", 5)
        b, _ = self.fabric.agent("hostb"), self.fabric.agent("hostc")
        for host in (manager, b):
            host.wait_log("the certificate of host:hostb ends within 5 days", 10)
        self.assertNotIn("host:hostc ends", manager.text())
        shown = {name: self.fabric.host(name) for name in ("hostb", "hostc")}
        self.assertEqual((shown["hostb"]["certificate_days_left"], shown["hostb"]["certificate_ends_soon"]), (5, True))
        self.assertFalse(shown["hostc"]["certificate_ends_soon"])
        self.assertGreater(shown["hostc"]["certificate_days_left"], 80)
        ends = {one["what"]: one for one in manager.cli("status").json["server"]["certificates"]}
        self.assertEqual(set(ends), {"certificate", "ca", "revocation list"})
        self.assertGreater(ends["ca"]["days_left"], 3600)
        self.assertFalse(any(one["soon"] for one in ends.values()))
        checks = {one["name"]: one for one in manager.cli("doctor").json["checks"]}
        self.assertEqual(checks["certificates"]["state"], "limited")
        self.assertIn("hostb for 5 days", checks["certificates"]["found"])
        # A new one is read without a restart, at the next connection.
        self.replace_certificate("hostb")
        b.wait_log("were read again", 10)
        manager.stop()
        manager.start()
        self.fabric.wait_state("hostb", "connected")
        self.assertFalse(self.fabric.host("hostb")["certificate_ends_soon"])

    def test_a_manager_with_the_ca_key_renews_the_certificates_of_its_hosts_and_its_own(self):
        for file in ("m.pem", "m.key"):
            (self.ca / file).unlink()
        self.old_certificate("m", 5, "manager", "extendedKeyUsage = serverAuth\nsubjectAltName = "
                             "DNS:terrace-manager,DNS:pool.example,IP:10.0.0.1")
        self.old_certificate("hostb", 5)
        key = (self.ca / "hostb.key").read_bytes()
        old = self.serial(self.ca / "hostb.pem")
        conf = self.fabric.directory / "m.toml"
        conf.write_text(f'[tls]\nca_key = "{self.ca}/ca.key"\nrenew_days = 20\n')
        manager = self.manager("--config", conf)
        b, c = self.fabric.agent("hostb"), self.fabric.agent("hostc")
        for host, name in ((manager, "manager:m"), (b, "host:hostb")):
            host.wait_log(f"the certificate was renewed: ({name}, serial", 20)
            host.wait_log("were read again", 10)
        new = self.serial(self.ca / "hostb.pem")
        self.assertNotEqual(new, old)
        shown = self.cert("show", self.ca / "hostb.pem")
        self.assertEqual((shown["name"], shown["role"], shown["days_left"]), ("hostb", "agent", 19))
        self.assertEqual((self.ca / "hostb.key").read_bytes(), key)
        self.assertEqual(self.fabric.host("hostb")["certificate_days_left"], 19)
        self.assertEqual(self.fabric.host("hostb")["state"], "connected", "the connection stays")
        self.assertNotIn("renewed", c.text())
        told = manager.cli("audit", "--verb", "renew-certificate").json["entries"]
        self.assertEqual([(one["subject"], one["detail"]) for one in told], [("host hostb", f"serial {new}")])
        ends = {one["what"]: one for one in manager.cli("status").json["server"]["certificates"]}
        self.assertEqual(ends["certificate"]["days_left"], 19)
        self.assertEqual(self.cert("show", self.ca / "m.pem")["addresses"], ["pool.example", "10.0.0.1"])
        # Both are good with the new ones, and what was renewed is known where it may be revoked.
        b.stop()
        manager.stop()
        manager.start()
        b.start()
        self.fabric.wait_state("hostb", "connected")
        self.assertIn(new, self.revoke("hostb")["revoked"])
        manager.wait_log(f"(host:hostb, serial {new}) was revoked", 10)

    def test_a_manager_without_the_ca_key_says_that_it_renews_nothing(self):
        self.manager()
        self.old_certificate("hostb", 5)
        b = self.fabric.agent("hostb")
        b.wait_log("could not be renewed by its manager: this manager has no CA key", 20)
        self.assertEqual(self.fabric.host("hostb")["state"], "connected")


if __name__ == "__main__":
    harness.main()
