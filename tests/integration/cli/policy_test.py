# SPDX-License-Identifier: Apache-2.0
"""quota, reserve, audit, fsck; and what a user who is no administrator may do.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/policy_test.py [TestClass[.test]]
"""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import unittest

from cli_base import CAPACITY, DENIED, MIB, MISMATCH, NOT_FOUND, USAGE, WithDaemon
import terrace_harness as harness
from terrace_harness import Harness, wait_until


class Quotas(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")

    def tearDown(self):
        for quota in self.t.cli("quota", "list").json["quotas"]:
            self.t.cli("quota", "remove", quota["tenant"])
        super().tearDown()

    def test_set_list_remove(self):
        self.assertIn("no quotas", self.text("quota", "list"))
        quota = self.t.cli("quota", "set", "team-a", "--bytes", "16M").json["quota"]
        self.assertEqual((quota["bytes_max"], quota["leases_max"]), (16 * MIB, None))
        quota = self.t.cli("quota", "set", "team-a", "--leases", "3").json["quota"]
        self.assertEqual((quota["bytes_max"], quota["leases_max"]), (16 * MIB, 3), "the other bound stays")
        self.t.grant("8M", "p", "--tenant", "team-a")
        self.t.cli("quota", "set", "*", "--bytes", "8M")
        text = self.text("quota", "list")
        self.assertIn("16 MiB", text)
        self.assertIn("no bound", text)
        used = {quota["tenant"]: quota["bytes"] for quota in self.t.cli("quota", "list").json["quotas"]}
        self.assertEqual(used, {"team-a": 8 * MIB, "*": None})
        self.error("lease", "grant", "--size", "16M", "--tenant", "team-a", code=CAPACITY, name="limit_exceeded")
        self.error("lease", "grant", "--size", "16M", "--tenant", "team-b", code=CAPACITY)
        self.assertEqual(self.t.cli("quota", "remove", "team-a").json, {"removed": "team-a"})
        self.error("quota", "remove", "team-a", code=NOT_FOUND)
        self.assertIn("more than that now", self.text("quota", "set", "team-a", "--bytes", "2M"))

    def test_none_is_no_bound(self):
        self.t.cli("quota", "set", "*", "--bytes", "8M", "--leases", "3")
        quota = self.t.cli("quota", "set", "*", "--bytes", "none").json["quota"]
        self.assertEqual((quota["bytes_max"], quota["leases_max"]), (None, 3))
        self.t.cli("quota", "set", "*", "--leases", "none")
        self.assertEqual(self.t.cli("quota", "list").json["quotas"], [])

    def test_errors(self):
        self.error("quota", "set", "team-a", code=USAGE, contains="--bytes")
        self.error("quota", "set", "team-a", "--bytes", "x", code=USAGE)
        self.error("quota", "set", "team-a", "--leases", "x", code=USAGE)
        self.error("quota", "set", "a b/c", "--leases", "1", code=USAGE)


class Reservations(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")

    def tearDown(self):
        for reservation in self.t.cli("reserve", "list").json["reservations"]:
            self.t.cli("reserve", "remove", reservation["id"])
        super().tearDown()

    def test_create_list_remove(self):
        self.assertIn("no reservations", self.text("reserve", "list"))
        made = self.t.cli("reserve", "create", "p", "team-a", "96M", "--ttl", "1h").json["reservation"]
        self.assertEqual((made["pool"], made["tenant"], made["bytes"]), ("p", "team-a", 96 * MIB))
        self.assertGreater(made["expires_in_ns"], 0)
        self.assertIn("team-a", self.text("reserve", "list"))
        self.assertIn("96 MiB of it reserved", self.text("pool", "show", "p"))
        self.error("lease", "grant", "--size", "64M", "--tenant", "team-b", code=CAPACITY)
        self.t.grant("64M", "p", "--tenant", "team-a")
        self.assertEqual(self.t.cli("reserve", "list").json["reservations"][0]["used_bytes"], 64 * MIB)
        self.assertEqual(self.t.cli("reserve", "remove", made["id"]).json, {"removed": made["id"]})
        self.error("reserve", "remove", made["id"], code=NOT_FOUND)

    def test_errors(self):
        self.error("reserve", "create", "nope", "team-a", "2M", code=NOT_FOUND)
        self.error("reserve", "create", "p", "team-a", "1G", code=CAPACITY)
        self.error("reserve", "create", "p", "team-a", "x", code=USAGE)
        self.error("reserve", "create", "p", "team-a", code=USAGE)
        self.error("reserve", "remove", "x", code=USAGE)


class Audit(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")

    def test_filters_and_order(self):
        lease = self.t.grant("8M", "p", "--tenant", "team-a")
        self.t.cli("lease", "release", lease["id"])
        entries = self.t.cli("audit").json["entries"]
        self.assertEqual([entry["sequence"] for entry in entries], sorted(entry["sequence"] for entry in entries))
        own = self.t.cli("audit", "--tenant", "team-a").json["entries"]
        self.assertTrue(own)
        self.assertTrue(all(entry["tenant"] == "team-a" for entry in own))
        verb = own[0]["verb"]
        self.assertTrue(self.t.cli("audit", "--verb", verb, "--since", "1h").json["entries"])
        subject = f"lease {lease['id']}"
        about = self.t.cli("audit", "--subject", subject).json["entries"]
        self.assertEqual({entry["subject"] for entry in about}, {subject})
        self.assertEqual(self.t.cli("audit", "--since", "2199-01-01").json["entries"], [])
        newest = self.t.cli("audit", "--limit", "1").json["entries"]
        self.assertEqual([entry["sequence"] for entry in newest], [entries[-1]["sequence"]])
        self.assertGreaterEqual(len(self.t.cli("audit", "--limit", "0").json["entries"]), len(entries))
        text = self.text("audit", "--limit", "2")
        self.assertEqual(text.splitlines()[0].split(), "TIME ACTOR TENANT VERB SUBJECT DETAIL".split())
        self.assertIn("--limit 0", text)
        self.assertIn("no entries", self.text("audit", "--tenant", "nobody"))
        self.error("audit", "--since", "yesterday", code=USAGE, contains="neither a duration")

    def test_follow(self):
        follower = self.t.popen(self.t.terrace, "--json", "audit", "--follow", "--limit", "1", stdout=-1, text=True)
        self.addCleanup(follower.stdout.close)
        self.addCleanup(follower.wait)
        self.addCleanup(follower.kill)
        first = json.loads(follower.stdout.readline())
        lease = self.t.grant("2M", "p", "--tenant", "team-f")
        for line in follower.stdout:
            entry = json.loads(line)
            self.assertGreater(entry["sequence"], first["sequence"])
            if entry["tenant"] == "team-f":
                break
        self.assertIn(str(lease["id"]), entry["subject"])


class AuditCopies(unittest.TestCase):
    def test_the_logging_service_is_told_what_was_granted_and_what_was_denied(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "log"
            config = pathlib.Path(folder) / "terraced.toml"
            config.write_text(f'[audit]\nsyslog = true\nsyslog_socket = "{path}"\n')
            t = Harness(name="syslog", daemon_args=["--config", config])
            self.addCleanup(t.close)
            t.start()  # the service is away, and that holds up nobody
            t.create_pool("p")
            t.cli("quota", "set", "team-a", "--bytes", "8M")
            lease = t.grant("8M", "p", "--tenant", "team-a")
            self.assertNotEqual(t.cli("lease", "grant", "--pool", "p", "--size", "2M", "--tenant", "team-a",
                                      check=False).code, 0)
            told = {}
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
                service.bind(str(path))
                service.settimeout(20)
                while "denied grant" not in told:
                    head, entry = service.recv(65536).decode().split("]: ", 1)
                    entry = json.loads(entry)
                    told[entry["verb"]] = (head[:4], entry)
            self.assertIn(f"terraced-audit[{t.pid}", head)
            self.assertEqual(told["grant"][0], "<86>")
            self.assertEqual((told["grant"][1]["tenant"], told["grant"][1]["subject"]), ("team-a", f"lease {lease['id']}"))
            self.assertEqual(told["denied grant"][0], "<85>")
            self.assertEqual(told["denied grant"][1]["tenant"], "team-a")

    def test_the_journal_has_the_fields_of_each_entry(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "journal"
            config = pathlib.Path(folder) / "terraced.toml"
            config.write_text(f'[audit]\njournal = true\n[events]\njournal_socket = "{path}"\n')
            t = Harness(name="journal", daemon_args=["--config", config])
            self.addCleanup(t.close)
            t.start()
            t.create_pool("p")
            t.cli("quota", "set", "team-a", "--bytes", "8M")
            lease = t.grant("8M", "p", "--tenant", "team-a")
            t.cli("lease", "grant", "--pool", "p", "--size", "2M", "--tenant", "team-a", check=False)
            told = {}
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
                service.bind(str(path))
                service.settimeout(20)
                while "denied grant" not in told:
                    fields = dict(line.split("=", 1) for line in service.recv(65536).decode().splitlines())
                    self.assertEqual(fields["SYSLOG_IDENTIFIER"], "terraced-audit")
                    told[fields["TERRACE_VERB"]] = fields
            granted = told["grant"]
            self.assertEqual((granted["TERRACE_LEASE"], granted["TERRACE_TENANT"], granted["PRIORITY"]), (str(lease["id"]), "team-a", "6"))
            self.assertIn(f"grant: lease {lease['id']}", granted["MESSAGE"])
            self.assertRegex(granted["TERRACE_ACTOR"], rf"uid {os.geteuid()} ")
            self.assertEqual((told["denied grant"]["PRIORITY"], told["denied grant"]["TERRACE_POOL"]), ("5", "p"))
            self.assertEqual(told["pool create"]["TERRACE_POOL"], "p")


class Fsck(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="fsck")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")

    def offline(self, *arguments, check=True, json=True):
        return self.t.cli("fsck", "--runtime-dir", self.t.runtime, "--state", self.t.state, "--emulate", "a=64M",
                          "--emulate", "b=64M", *arguments, check=check, json=json)

    def test_clean_with_and_without_a_daemon(self):
        self.t.grant("8M", "p", "--persistent")
        online = self.t.cli("fsck").json
        self.assertEqual((online["clean"], online["checked_by"]), (True, "daemon"), online)
        self.assertIn("clean", self.t.cli("fsck", json=False).out)
        self.t.kill()
        offline = self.offline().json
        self.assertEqual(offline["checked_by"], "terraced --fsck")
        self.assertFalse([one for one in offline["findings"] if one["severity"] == "error"], offline)

    def test_a_missing_object_is_found(self):
        lease = self.t.grant("8M", "p", "--persistent")
        directory = pathlib.Path(self.t.cli("status").json["server"]["object_directory"])
        (directory / f"{lease['object']}.obj").unlink()
        found = self.t.cli("fsck", check=MISMATCH).json
        self.assertFalse(found["clean"])
        errors = [one for one in found["findings"] if one["severity"] == "error"]
        self.assertTrue(any(str(lease["id"]) in one["subject"] for one in errors), found)
        text = self.t.cli("fsck", json=False, check=MISMATCH).out
        self.assertIn("error", text)
        self.assertIn("fix:", text)
        self.assertIn("object is missing", self.t.cli("lease", "show", lease["id"], json=False).out)
        self.t.kill()
        self.assertFalse(self.offline(check=MISMATCH).json["clean"])

    def test_a_store_that_cannot_be_read(self):
        self.t.stop()
        self.t.state.write_bytes(b"not a store" * 1000)
        result = self.offline(check=False)
        self.assertNotEqual(result.code, 0, result)


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class TenantWithoutRights(unittest.TestCase):
    USER = 65534

    def setUp(self):
        self.t = Harness(name="tenant", daemon_args=["--allow-unmapped-uids"])
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.t.directory.chmod(0o755)

    def as_user(self, *arguments, code=0, user=None):
        harness.need_build_for_all()
        done = subprocess.run([self.t.terrace, "--json", *map(str, arguments)], env=self.t.environment(), text=True,
                              capture_output=True, check=False, user=user or self.USER, group=self.USER, extra_groups=[])
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_the_lease_verbs_work_on_its_own_leases(self):
        foreign = self.t.grant("2M", "p", "--label", "foreign")
        lease = self.as_user("lease", "grant", "--size", "8M", "--label", "mine")["lease"]
        self.assertEqual([one["label"] for one in self.as_user("lease", "list")["leases"]], ["mine"])
        shown = self.as_user("lease", "show", "mine")["leases"][0]
        self.assertEqual((shown["id"], shown["object_bytes"]), (lease["id"], 8 * MIB))
        self.assertEqual(self.as_user("lease", "renew", "mine", "--ttl", "1h")["lease"]["ttl_ns"], 3600 * 10**9)
        self.assertEqual(self.as_user("lease", "resize", "mine", "+2M")["lease"]["bytes"], 10 * MIB)
        for verb in (["show"], ["release"], ["resize", "--yes", "4M"]):
            self.as_user("lease", verb[0], foreign["id"], *verb[1:], code=NOT_FOUND)
        other_user = self.USER + 1
        self.as_user("lease", "transfer", "mine", "--to-tenant", "team-b", "--yes", code=NOT_FOUND)
        given = self.as_user("lease", "transfer", "mine", "--to-tenant", f"uid-{other_user}", "--yes")["lease"]
        self.assertEqual((given["tenant"], given["offered_to"]), (lease["tenant"], f"uid-{other_user}"))
        self.assertEqual(self.as_user("lease", "withdraw", "mine"), {"withdrawn": lease["id"]})
        self.as_user("lease", "accept", "mine", code=NOT_FOUND, user=other_user)
        self.as_user("lease", "transfer", "mine", "--to-tenant", f"uid-{other_user}", "--yes")
        self.assertEqual(len(self.as_user("lease", "list")["leases"]), 1)
        self.assertEqual(self.as_user("lease", "offers")["leases"], [])
        self.assertEqual([one["id"] for one in self.as_user("lease", "offers", user=other_user)["leases"]], [lease["id"]])
        taken = self.as_user("lease", "accept", "mine", user=other_user)["lease"]
        self.assertEqual((taken["id"], taken["tenant"]), (lease["id"], f"uid-{other_user}"))
        self.assertEqual(self.as_user("lease", "list")["leases"], [])
        verbs = [entry["verb"] for entry in self.t.cli("audit", "--subject", f"lease {lease['id']}").json["entries"]]
        self.assertEqual([verb for verb in verbs if verb in ("offer", "withdraw", "accept")],
                         ["offer", "withdraw", "offer", "accept"])
        other = self.as_user("lease", "grant", "--size", "2M")["lease"]
        self.assertEqual(self.as_user("lease", "release", other["id"]), {"released": other["id"]})
        self.assertIn(foreign["id"], self.t.leases())

    def test_what_is_for_administrators_says_so(self):
        for arguments in (["lease", "list", "--tenant", "team-b"], ["lease", "grant", "--size", "2M", "--tenant", "team-b"],
                          ["lease", "revoke", "1"], ["lease", "quarantined"], ["quota", "list"], ["queue", "list"],
                          ["queue", "cancel", "1"], ["pool", "list"], ["device", "list"], ["audit"], ["fsck"]):
            with self.subTest(arguments):
                self.assertEqual(self.as_user(*arguments, code=DENIED)["error"]["code"], "permission_denied")


if __name__ == "__main__":
    harness.main()
