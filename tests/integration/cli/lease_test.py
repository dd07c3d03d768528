# SPDX-License-Identifier: Apache-2.0
"""lease: granted, listed, renewed, revoked, released; more than one page of them.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/lease_test.py [TestClass[.test]]
"""

import os
import pathlib
import signal
import subprocess
import threading

from cli_base import CAPACITY, CONFLICT, MIB, NOT_FOUND, S, USAGE, WithDaemon
import terrace_harness as harness
from session_tenant import Tenant
from terrace_harness import wait_until


class Leases(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")

    def test_grant_and_show(self):
        lease = self.t.grant("7M", "p", "--ttl", "10m", "--label", "redis")
        self.assertEqual(lease["bytes"], 8 * MIB, "rounded up to granules")
        self.assertEqual(lease["ttl_ns"], 600 * S)
        self.assertEqual(lease["phase"], "active")
        self.assertEqual(lease["mode"], "exclusive")
        self.assertIsNone(lease["agent"], "the manager's own memory")
        self.assertGreater(lease["epoch"], 0)
        self.assertFalse(lease["persistent"])
        for name in (lease["id"], "redis"):
            shown = self.t.cli("lease", "show", name).json["leases"][0]
            self.assertEqual(shown["id"], lease["id"])
            self.assertEqual(shown["object_bytes"], 8 * MIB, "all of it is really there")
            self.assertEqual(sum(extent["length_bytes"] for extent in shown["extents"]), 8 * MIB)
            self.assertIsNone(shown["usage"])
            self.assertGreater(shown["expires_in_ns"], 500 * S)
        text = self.text("lease", "show", "redis")
        self.assertIn(f"lease {lease['id']}\n", text)
        self.assertIn("8 MiB of the pool's memory", text)
        self.assertIn("emu:", text)
        self.assertIn("has not reported", text)

    def test_how_fast_its_memory_is_and_who_says_so(self):
        lease = self.t.grant("8M", "p")
        for figures in (lease["figures"], self.t.leases()[lease["id"]]["figures"],
                        self.t.cli("lease", "show", lease["id"]).json["leases"][0]["figures"]):
            self.assertEqual((figures["source"], figures["isolation"]), ("measured", "file"))
            self.assertGreater(figures["latency_ns"], 1)
            self.assertGreater(figures["bandwidth_bytes_per_s"], MIB)
            self.assertEqual((figures["numa_node"], figures["persistent"]), (None, False))
        text = self.text("lease", "show", lease["id"])
        self.assertRegex(text, r"tier +cxl, \d+ ns, [\d.]+ [GM]iB/s \(measured\)")
        self.assertIn("kernel; a private file in ordinary memory", text)

    def test_grant_says_that_the_lease_outlives_the_command(self):
        text = self.text("lease", "grant", "--pool", "p", "--size", "2M", "--ttl", "5m")
        self.assertIn("not by this command", text)
        self.assertIn("lease renew", text)
        text = self.text("lease", "grant", "--pool", "p", "--size", "2M", "--persistent")
        self.assertIn("lease release", text)
        self.assertEqual(len(self.t.leases()), 2)

    def test_the_only_pool_is_found(self):
        self.assertEqual(self.t.cli("lease", "grant", "--size", "2M").json["lease"]["pool"], "p")

    def test_modes(self):
        for mode in ("exclusive", "shared_read_only", "shared_coherent"):
            self.assertEqual(self.t.grant("2M", "p", "--mode", mode)["mode"], mode)
        for older, mode in (("shared-ro", "shared_read_only"), ("shared-coherent", "shared_coherent")):
            self.assertEqual(self.t.grant("2M", "p", "--mode", older)["mode"], mode)
        self.error("lease", "grant", "--size", "2M", "--mode", "shared", code=USAGE)

    def test_persistent_leases_do_not_expire(self):
        lease = self.t.grant("2M", "p", "--persistent")
        self.assertTrue(lease["persistent"])
        self.assertEqual(lease["ttl_ns"], 0)
        self.assertIsNone(lease["expires_in_ns"])
        self.assertIn("persistent", self.text("lease", "list"))

    def test_show_several_and_some_that_are_not_there(self):
        first = self.t.grant("2M", "p", "--label", "one")
        self.t.grant("2M", "p", "--label", "two")
        shown = self.t.cli("lease", "show", first["id"], "two").json["leases"]
        self.assertEqual([lease["label"] for lease in shown], ["one", "two"])
        result = self.t.cli("lease", "show", "one", "three", json=False, check=NOT_FOUND)
        self.assertIn("one", result.out)
        self.assertIn("three", result.err)
        self.assertEqual(self.t.cli("lease", "show", "one", "three", check=NOT_FOUND).json["error"]["code"], "not_found")

    def test_list_and_its_filters(self):
        self.assertIn("no leases", self.text("lease", "list"))
        lease = self.t.grant("2M", "p", "--label", "one")
        tenant = lease["tenant"]
        self.assertEqual(len(self.t.cli("lease", "list", "--pool", "p").json["leases"]), 1)
        self.assertEqual(len(self.t.cli("lease", "list", "--tenant", tenant).json["leases"]), 1)
        self.assertEqual(self.t.cli("lease", "list", "--tenant", "nobody").json["leases"], [])
        self.assertEqual(len(self.t.cli("lease", "list", "--phase", "active").json["leases"]), 1)
        self.assertEqual(self.t.cli("lease", "list", "--phase", "quarantined").json["leases"], [])
        self.assertEqual(self.t.cli("lease", "list", "--phase", "waiting").json["leases"], [])
        self.error("lease", "list", "--phase", "pending", code=USAGE)
        self.error("lease", "list", "--phase", "gone", code=USAGE)
        self.error("lease", "list", "--pool", "nope", code=NOT_FOUND)
        header, row = self.text("lease", "list").splitlines()
        self.assertEqual(header.split(), "ID LABEL POOL TENANT SIZE MODE PHASE CAUSE EPOCH EXPIRES HOLDER".split())
        self.assertIn("2 MiB", row)

    def test_another_tenant_may_be_named_by_an_administrator(self):
        self.assertEqual(self.t.grant("2M", "p", "--tenant", "team-a")["tenant"], "team-a")
        self.assertEqual(len(self.t.cli("lease", "list", "--tenant", "team-a").json["leases"]), 1)

    def test_renew(self):
        lease = self.t.grant("2M", "p", "--ttl", "1m")
        renewed = self.t.cli("lease", "renew", lease["id"], "--ttl", "1h").json["lease"]
        self.assertEqual(renewed["ttl_ns"], 3600 * S)
        self.assertGreater(renewed["expires_in_ns"], 3590 * S)
        self.assertIn("expires in", self.text("lease", "renew", str(lease["id"]), "--ttl", "2h"))
        self.error("lease", "renew", 99999, "--ttl", "1m", code=NOT_FOUND)
        self.error("lease", "renew", lease["id"], code=USAGE, contains="--ttl")
        self.error("lease", "renew", lease["id"], "--ttl", "60", code=USAGE, contains="not a duration")
        self.error("lease", "renew", lease["id"], "--ttl", "1ms", code=USAGE)
        self.error("lease", "renew", lease["id"], "--ttl", "400d", code=USAGE)

    def test_a_lease_expires(self):
        lease = self.t.grant("2M", "p", "--ttl", "1s")
        wait_until(lambda: lease["id"] not in self.t.leases(), 20, "the lease's end")
        error = self.error("lease", "renew", lease["id"], "--ttl", "1m", code=NOT_FOUND)
        self.assertIn(error["code"], ("not_found", "lease_expired"))
        self.t.wait_free("p")

    def test_release(self):
        lease = self.t.grant("2M")
        self.assertEqual(self.t.cli("lease", "release", lease["id"]).json, {"released": lease["id"]})
        self.t.wait_free("p")
        self.error("lease", "release", lease["id"], code=NOT_FOUND)
        other = self.t.grant("2M")
        self.assertIn("scrubbed", self.text("lease", "release", str(other["id"])))
        self.error("lease", "release", "", code=USAGE)
        for missing in ("x", "0", "-1", "1.5", "99999999999999999999999"):
            self.error("lease", "release", missing, code=NOT_FOUND)

    def test_a_label_is_taken_wherever_an_id_is(self):
        lease = self.t.grant("2M", "p", "--label", "scratch")
        renewed = self.t.cli("lease", "renew", "scratch", "--ttl", "1h").json["lease"]
        self.assertEqual((renewed["id"], renewed["ttl_ns"]), (lease["id"], 3600 * S))
        self.assertEqual(self.t.cli("lease", "revoke", "scratch", "--grace", "0s").json["lease"]["id"], lease["id"])
        other = self.t.grant("2M", "p", "--label", "other")
        self.assertEqual(self.t.cli("lease", "release", "other").json, {"released": other["id"]})
        self.error("lease", "grant", "--size", "2M", "--label", "123", code=USAGE, contains="lease's id")

    def test_names_in_errors_cannot_forge_lines(self):
        result = self.t.cli("pool", "create", "x\ny", "--device", "emu:a", json=False, check=USAGE)
        self.assertIn("x\\ny", result.err)
        self.assertEqual(result.err.count("\n"), 1)

    def held(self):
        """Every lease's memory, open in this process as long as the list lives."""
        directory = pathlib.Path(self.t.cli("status").json["server"]["object_directory"])
        return [open(path, "rb") for path in directory.rglob("*") if path.is_file()]

    def test_nobody_waits_for_the_grace_of_what_nobody_holds(self):
        lease = self.t.grant("2M", "p", "--persistent")
        revoked = self.t.cli("lease", "revoke", lease["id"], "--grace", "1h").json["lease"]
        self.assertEqual(revoked["phase"], "fencing")
        self.t.grant("2M", "p", "--label", "text")
        self.assertIn("nobody held lease", self.text("lease", "revoke", "text", "--grace", "1h"))
        self.t.wait_free("p")
        kept = self.t.grant("2M", "p")
        held = self.held()
        self.assertEqual(self.t.cli("lease", "revoke", kept["id"], "--grace", "1h").json["lease"]["phase"], "revoking")
        for file in held:
            file.close()
        self.t.cli("lease", "revoke", kept["id"], "--grace", "0s")

    def test_revoke(self):
        lease = self.t.grant("2M", "p", "--persistent")
        held = self.held()
        self.addCleanup(lambda: [file.close() for file in held])
        revoked = self.t.cli("lease", "revoke", lease["id"], "--grace", "1m", "--reason", "maintenance").json["lease"]
        self.assertEqual(revoked["phase"], "revoking")
        self.assertEqual(revoked["reason"], "maintenance")
        self.assertIn("maintenance", self.text("lease", "show", str(lease["id"])))
        self.t.cli("lease", "revoke", lease["id"], "--grace", "0s")
        self.t.wait_free("p")
        self.error("lease", "revoke", 99999, code=NOT_FOUND)
        self.error("lease", "revoke", lease["id"], "--grace", "5", code=USAGE)
        other = self.t.grant("2M", "p")
        self.error("lease", "revoke", other["id"], "--grace", "10000h", code=USAGE)
        held.extend(self.held())
        self.assertIn("no session here that could be told", self.text("lease", "revoke", str(other["id"])))

    def test_a_revocation_says_whom_it_told(self):
        with Tenant(self.t) as tenant:
            lease = tenant.ask("grant", 2 * MIB, 300 * S, "held").split()[0]
            self.assertIn("told the holder", self.text("lease", "revoke", lease, "--grace", "1m"))

    def test_without_a_pool_it_says_how_to_get_one(self):
        self.t.cli("pool", "delete", "p")
        self.error("lease", "grant", "--size", "2M", code=NOT_FOUND, contains="terrace pool create")
        self.t.create_pool("p", ["a"])
        self.t.create_pool("q", ["b"])
        self.error("lease", "grant", "--size", "2M", code=NOT_FOUND, contains="--pool")

    def test_capacity_and_limits(self):
        self.error("lease", "grant", "--size", "1G", code=CAPACITY, name="capacity_exhausted")
        self.assertEqual(self.t.leases(), {})
        self.t.grant("128M")
        self.error("lease", "grant", "--size", "2M", code=CAPACITY)

    def test_labels(self):
        self.t.grant("2M", "p", "--label", "one")
        self.error("lease", "grant", "--size", "2M", "--label", "one", code=CONFLICT, name="already_exists")
        self.error("lease", "grant", "--size", "2M", "--label", "x" * 128, code=USAGE)
        self.assertEqual(self.t.grant("2M", "p", "--label", "größe 7")["label"], "größe 7")
        self.assertEqual(self.t.cli("lease", "show", "größe 7").json["leases"][0]["label"], "größe 7")

    def test_malformed_arguments(self):
        for wrong in ("", "x", "12Q", "-4M", "1e9", "9999999999T", "0", "4M4"):
            self.error("lease", "grant", "--pool", "p", f"--size={wrong}", code=USAGE)
        for wrong in ("", "5", "1y", "-1s", "0s", "1ms", "31d"):
            self.error("lease", "grant", "--pool", "p", "--size", "2M", f"--ttl={wrong}", code=USAGE)
        self.error("lease", "grant", "--pool", "nope", "--size", "2M", code=NOT_FOUND)
        self.error("lease", "grant", "--size", "2M", "--ttl", "1m", "--persistent", code=USAGE)
        self.error("lease", "grant", code=USAGE, contains="--size")
        self.error("lease", "gramt", "--size", "2M", code=USAGE, contains="did you mean 'grant'")
        self.error("lease", "grant", "--sise", "2M", code=USAGE, contains="did you mean '--size'")
        self.error("lease", "show", code=USAGE)
        self.error("lease", "show", "0", code=NOT_FOUND)
        self.error("lease", "show", "18446744073709551615", code=NOT_FOUND)
        self.error("lease", "show", "99999999999999999999", code=NOT_FOUND)
        self.assertEqual(self.t.leases(), {}, "nothing was granted")


class ManyLeases(WithDaemon):
    devices = {"big": "1G"}

    def test_more_leases_than_one_page(self):
        """256 leases are one page of the client: more than that arrive complete and in order."""
        self.t.create_pool("p")
        count, failures = 300, []

        def grant_some(number):
            for _ in range(number):
                result = self.t.cli("lease", "grant", "--pool", "p", "--size", "2M", "--persistent", check=False)
                if result.code:
                    failures.append(str(result))

        threads = [threading.Thread(target=grant_some, args=(count // 4,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        ids = [lease["id"] for lease in self.t.cli("lease", "list").json["leases"]]
        self.assertEqual(len(ids), count)
        self.assertEqual(ids, sorted(set(ids)))
        self.assertEqual(len(self.text("lease", "list", "--pool", "p").splitlines()), count + 1)

    def test_a_closed_pipe_ends_it_quietly(self):
        for arguments in (["status"], ["doctor"], ["--json", "lease", "list"]):
            read_end, write_end = os.pipe()
            os.close(read_end)
            process = self.t.popen(self.t.terrace, *arguments, stdout=write_end, stderr=subprocess.PIPE, text=True)
            os.close(write_end)
            _, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, err), (-signal.SIGPIPE, ""), arguments)

    def tearDown(self):
        pass  # the daemon goes away with its state


if __name__ == "__main__":
    harness.main()
