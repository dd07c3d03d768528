"""Every verb of `terrace` against a real daemon: human and JSON form, errors with their exit codes.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/cli_test.py [TestClass[.test]]
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, process_alive, wait_until  # noqa: E402

MIB = 1 << 20
S = 10**9

FAILED, USAGE, NOT_FOUND, CAPACITY, UNAVAILABLE, DENIED, CONFLICT, MISMATCH = range(1, 9)


class WithDaemon(unittest.TestCase):
    """One daemon for the class; each test cleans up the leases and pools that it made."""

    devices = {"a": "64M", "b": "64M"}

    @classmethod
    def setUpClass(cls):
        cls.t = Harness(devices=cls.devices, name="cli")
        cls.addClassCleanup(cls.t.close)
        cls.t.start()

    def tearDown(self):
        if not self.t.pid:
            return
        for lease in self.t.leases().values():
            self.t.cli("lease", "release", lease["id"], check=False)
        for pool in self.t.cli("pool", "list").json["pools"]:
            self.t.wait_free(pool["name"])
            self.t.cli("pool", "delete", pool["name"])

    def error(self, *arguments, code, name=None, contains=None, env=None):
        """Expects a failure in both forms, with the same exit code."""
        as_json = self.t.cli(*arguments, check=code, env=env)
        error = as_json.json["error"]
        self.assertEqual(error["exit_code"], code)
        self.assertTrue(error["message"])
        if name:
            self.assertEqual(error["code"], name)
        as_text = self.t.cli(*arguments, json=False, check=code, env=env)
        self.assertEqual(as_text.out, "", "errors go to stderr")
        self.assertTrue(as_text.err.startswith("terrace: "), as_text.err)
        self.assertIn(error["code"], as_text.err)
        if contains:
            self.assertIn(contains, error["message"])
            self.assertIn(contains, as_text.err)
        return error

    def text(self, *arguments):
        result = self.t.cli(*arguments, json=False)
        self.assertEqual(result.err, "")
        for line in result.out.splitlines():
            self.assertEqual(line, line.rstrip(), "no trailing blanks")
        return result.out


class Status(WithDaemon):
    def test_status_names_the_process_and_its_paths(self):
        document = self.t.cli("status").json
        self.assertEqual(document["server"]["pid"], self.t.pid)
        self.assertEqual(document["server"]["state_file"], str(self.t.state))
        self.assertEqual(document["server"]["runtime_directory"], str(self.t.runtime))
        self.assertEqual(document["socket"], str(self.t.socket))
        self.assertEqual(document["pools"], [])
        self.assertEqual(document["leases"], 0)
        text = self.text("status")
        self.assertIn(f"pid {self.t.pid}", text)
        self.assertIn("no pools", text)

    def test_status_shows_pools(self):
        self.t.create_pool("p")
        self.t.grant("8M")
        document = self.t.cli("status").json
        self.assertEqual(document["leases"], 1)
        self.assertEqual(document["pools"][0]["leased_bytes"], 8 * MIB)
        self.assertIn("1 lease\n", self.text("status"))

    def test_check_finds_every_invariant_kept(self):
        self.t.create_pool("p")
        self.t.grant("8M")
        self.assertEqual(self.t.cli("check").json, {"ok": True, "problems": []})
        self.assertIn("every invariant holds", self.text("check"))

    def test_global_options_may_follow_the_verb(self):
        env = {"TERRACE_SOCKET": "/nonexistent"}
        for arguments in (["--socket", self.t.socket, "status"], ["status", "--socket", self.t.socket],
                          ["lease", "list", f"--socket={self.t.socket}"]):
            self.assertEqual(self.t.cli(*arguments, env=env).code, 0)

    def test_doctor_shows_the_daemon(self):
        document = self.t.cli("doctor").json
        self.assertTrue(document["basic_service"])
        self.assertEqual(document["daemon"]["pid"], self.t.pid)
        states = {check["name"]: check["state"] for check in document["checks"]}
        self.assertEqual(states["socket"], "ok")
        self.assertIn(f"pid {self.t.pid}", self.text("doctor"))


class Devices(WithDaemon):
    def test_devices_are_seen_then_adopted(self):
        devices = {device["serial"]: device for device in self.t.cli("device", "list").json["devices"]}
        self.assertEqual(devices["emu:a"]["capacity_bytes"], 64 * MIB)
        self.assertTrue(devices["emu:a"]["present"])
        adopted = self.t.cli("device", "adopt", "emu:a", "emu:b").json["devices"]
        self.assertEqual([device["serial"] for device in adopted], ["emu:a", "emu:b"])
        self.assertTrue(all(device["adopted"] for device in adopted))
        self.assertIn("adopted", self.text("device", "list"))
        self.assertEqual(self.t.cli("device", "adopt", "emu:a").code, 0, "adopting again changes nothing")

    def test_unknown_device(self):
        self.error("device", "adopt", "emu:nope", code=NOT_FOUND, name="not_found", contains="emu:nope")
        self.error("device", "adopt", code=USAGE)


class Pools(WithDaemon):
    def test_create_list_show_delete(self):
        pool = self.t.create_pool("main")
        self.assertEqual(pool["name"], "main")
        self.assertEqual(pool["capacity_bytes"], 128 * MIB)
        self.assertEqual(sorted(pool["devices"]), ["emu:a", "emu:b"])
        self.assertEqual([p["name"] for p in self.t.cli("pool", "list").json["pools"]], ["main"])
        self.assertIn("main", self.text("pool", "list"))
        self.t.grant("4M", "main", "--label", "mine")
        shown = self.t.cli("pool", "show", "main").json
        self.assertEqual(len(shown["devices"]), 2)
        self.assertEqual(shown["leases"][0]["label"], "mine")
        text = self.text("pool", "show", "main")
        self.assertIn("emu:b", text)
        self.assertIn("mine", text)
        self.error("pool", "delete", "main", code=CONFLICT)
        self.t.cli("lease", "release", shown["leases"][0]["id"])
        self.t.wait_free("main")
        self.assertEqual(self.t.cli("pool", "delete", "main").json, {"deleted": "main"})
        self.assertEqual(self.t.cli("pool", "list").json["pools"], [])
        self.assertIn("no pools", self.text("pool", "list"))

    def test_errors(self):
        self.t.create_pool("main", ["a"])
        self.error("pool", "create", "main", "--device", "emu:b", "--adopt", code=CONFLICT, name="already_exists")
        self.error("pool", "create", "other", "--device", "emu:a", code=CONFLICT)
        self.error("pool", "create", "other", "--device", "emu:zz", code=NOT_FOUND)
        self.error("pool", "create", "a/b", "--device", "emu:b", code=USAGE, name="invalid_argument")
        self.error("pool", "create", "x" * 64, "--device", "emu:b", code=USAGE)
        self.error("pool", "create", "", "--device", "emu:b", code=USAGE)
        self.error("pool", "create", "other", code=USAGE, contains="--device")
        self.error("pool", "show", "mian", code=NOT_FOUND, contains="did you mean 'main'")
        self.error("pool", "delete", "nope", code=NOT_FOUND)
        self.error("pool", code=USAGE)

    def test_a_device_must_be_adopted_first(self):
        serial = "emu:b"
        devices = {device["serial"]: device for device in self.t.cli("device", "list").json["devices"]}
        if devices[serial]["adopted"]:  # another test of this class did it
            return
        self.error("pool", "create", "main", "--device", serial, code=NOT_FOUND, contains="adopt")


class Leases(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")

    def test_grant_and_show(self):
        lease = self.t.grant("7M", "p", "--ttl", "10m", "--label", "redis")
        self.assertEqual(lease["bytes"], 8 * MIB, "rounded up to granules")
        self.assertEqual(lease["ttl_ns"], 600 * S)
        self.assertEqual(lease["phase"], "active")
        self.assertEqual(lease["mode"], "exclusive")
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
        for mode in ("exclusive", "shared-ro", "shared-coherent"):
            self.assertEqual(self.t.grant("2M", "p", "--mode", mode)["mode"], mode)
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
        self.error("lease", "list", "--pool", "nope", code=NOT_FOUND)
        header, row = self.text("lease", "list").splitlines()
        self.assertEqual(header.split(), "ID LABEL POOL TENANT SIZE MODE PHASE EPOCH EXPIRES HOLDER".split())
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

    def test_revoke(self):
        lease = self.t.grant("2M", "p", "--persistent")
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
        self.assertIn("told the holder", self.text("lease", "revoke", str(other["id"])))

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


class NoDaemon(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="nodaemon")
        self.addCleanup(self.t.close)

    def check_unavailable(self, *arguments):
        result = self.t.cli(*arguments, check=UNAVAILABLE)
        self.assertEqual(result.json["error"]["code"], "unavailable")
        self.assertIn(str(self.t.socket), result.json["error"]["message"])
        self.assertIn("terrace daemon start", result.json["error"]["message"])
        text = self.t.cli(*arguments, json=False, check=UNAVAILABLE)
        self.assertIn(str(self.t.socket), text.err)

    def test_every_verb_says_which_socket_and_how_to_start(self):
        for arguments in (["status"], ["check"], ["device", "list"], ["device", "adopt", "emu:a"], ["pool", "list"],
                          ["pool", "create", "p", "--device", "emu:a"], ["pool", "show", "p"], ["pool", "delete", "p"],
                          ["lease", "list"], ["lease", "show", "1"], ["lease", "grant", "--size", "2M"],
                          ["lease", "renew", "1", "--ttl", "1m"], ["lease", "revoke", "1"], ["lease", "release", "1"],
                          ["daemon", "status"], ["daemon", "stop"]):
            with self.subTest(arguments):
                self.check_unavailable(*arguments)

    def test_a_socket_that_nobody_listens_on(self):
        self.t.runtime.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as left_over:
            left_over.bind(str(self.t.socket))
        self.check_unavailable("status")

    def test_a_path_that_cannot_be_a_socket(self):
        result = self.t.cli("--socket", "/tmp/" + "x" * 200, "status", check=USAGE)
        self.assertIn("cannot be a unix socket", result.json["error"]["message"])

    def test_a_stranger_on_the_socket_is_not_waited_for(self):
        """Somebody accepts and says nothing, or nonsense."""
        self.t.runtime.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.t.socket))
            server.listen(8)
            begin = time.monotonic()
            result = self.t.cli("--timeout", "500ms", "status", check=UNAVAILABLE)
            self.assertIn("did not answer within 500 ms", result.json["error"]["message"])
            self.assertLess(time.monotonic() - begin, 30)

            def babble():
                server.accept()[0].close()  # the connection of the silent part
                client, _ = server.accept()
                with client:
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 1000)

            thread = threading.Thread(target=babble, daemon=True)
            thread.start()
            result = self.t.cli("--timeout", "5s", "status", check=False)
            self.assertIn(result.code, (FAILED, UNAVAILABLE))
            thread.join(10)

    def test_doctor_needs_no_daemon(self):
        document = self.t.cli("doctor").json
        self.assertIsNone(document["daemon"])
        names = [check["name"] for check in document["checks"]]
        self.assertEqual(len(names), len(set(names)))
        for check in document["checks"]:
            self.assertIn(check["state"], ("ok", "limited", "missing"))
            self.assertTrue(check["meaning"])
            self.assertEqual(check["state"] == "ok", check["mend"] == "")
        self.assertIn("socket", names)
        self.assertIn("mend: terrace daemon start", self.t.cli("doctor", json=False).out)

    def test_words_that_mean_nothing(self):
        result = self.t.cli("leese", json=False, check=USAGE)
        self.assertIn("did you mean 'lease'", result.err)
        self.assertEqual(self.t.cli("leese", check=USAGE).json["error"]["code"], "invalid_argument")
        self.assertIn("Usage:", self.t.cli(json=False, check=USAGE).out)
        for help_of in ([], ["lease"], ["lease", "grant"]):
            text = self.t.cli(*help_of, "--help", json=False).out
            self.assertIn("Usage:", text)
            self.assertIn(" ".join(["terrace", *help_of]), text)
        self.assertRegex(self.t.cli("--version", json=False).out, r"^terrace \d")

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([self.t.terrace, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True,
                                  env=self.t.environment(), check=False)
        self.assertEqual(done.returncode, FAILED)
        self.assertIn("cannot write", done.stderr)

    def test_completion(self):
        script = self.t.cli("completion", "bash", json=False).out
        self.assertIn("complete -F _terrace terrace", script)
        syntax = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        self.assertEqual((syntax.returncode, syntax.stderr), (0, ""))
        self.assertEqual(self.t.cli("completion", "bash").json["script"], script)
        self.t.cli("completion", "tcsh", check=USAGE)


class DaemonVerbs(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="daemon")
        self.addCleanup(self.t.close)

    def start(self, *arguments, check=True):
        result = self.t.cli("daemon", "start", "--runtime-dir", self.t.runtime, "--state", self.t.state,
                            "--emulate", "a=32M", "--emulate", "b=32M", *arguments, check=check)
        if result.code == 0:
            self.t.track(result.json["pid"])
        return result.json

    def test_start_status_stop(self):
        started = self.start()
        self.assertTrue(process_alive(started["pid"]))
        self.assertEqual(started["socket"], str(self.t.socket))
        self.assertEqual(started["server"]["pid"], started["pid"])
        self.assertTrue(pathlib.Path(started["log"]).is_file())
        serials = [device["serial"] for device in self.t.cli("device", "list").json["devices"]]
        self.assertLessEqual({"emu:a", "emu:b"}, set(serials))
        shown = self.t.cli("daemon", "status", "--runtime-dir", self.t.runtime, env={"TERRACE_SOCKET": ""}).json
        self.assertEqual(shown["server"]["pid"], started["pid"])
        self.assertIn(f"pid {started['pid']}", self.t.cli("daemon", "status", json=False).out)
        again = self.start(check=CONFLICT)
        self.assertEqual(again["error"]["code"], "already_exists")
        self.assertIn(str(started["pid"]), again["error"]["message"])
        self.assertEqual(self.t.cli("daemon", "stop").json, {"stopped": started["pid"]})
        self.assertFalse(process_alive(started["pid"]))
        self.t.cli("daemon", "status", check=UNAVAILABLE)

    def test_leases_survive_stop_and_start(self):
        first = self.start()
        self.t.create_pool("p")
        lease = self.t.grant("4M", "p", "--ttl", "10m")
        self.assertIn("stopped terraced", self.t.cli("daemon", "stop", json=False).out)
        second = self.start()
        self.assertNotEqual(first["pid"], second["pid"])
        self.assertEqual(self.t.leases()[lease["id"]]["epoch"], lease["epoch"])
        self.t.check_invariants()

    def test_the_socket_says_where_to_start(self):
        result = self.t.cli("daemon", "start", "--state", self.t.state, "--emulate", "a=32M")
        self.t.track(result.json["pid"])
        self.assertEqual(result.json["socket"], str(self.t.socket))

    def test_a_daemon_that_cannot_start_says_why(self):
        error = self.start("--emulate", "nonsense", check=UNAVAILABLE)["error"]
        self.assertIn("exit status", error["message"])
        self.assertIn("nonsense", error["message"], "its last words are shown")
        missing = self.t.cli("daemon", "start", env={"TERRACED": "/nonexistent/terraced"}, check=NOT_FOUND).json
        self.assertIn("/nonexistent/terraced", missing["error"]["message"])

    def test_further_arguments_are_passed_on(self):
        error = self.start("--", "--no-such-flag", check=UNAVAILABLE)["error"]
        self.assertIn("--no-such-flag", error["message"])

    def test_run_becomes_the_daemon(self):
        command = [self.t.terrace, "daemon", "run", "--runtime-dir", str(self.t.runtime), "--state", str(self.t.state),
                   "--emulate", "a=32M"]
        with open(self.t.log, "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.t.environment())
        self.t.track(process.pid)
        self.t.process = process
        self.t.wait_ready()
        self.assertEqual(self.t.cli("status").json["server"]["pid"], process.pid, "the same process")
        self.assertEqual(self.t.stop(), 0)

    def test_stop_refuses_what_is_not_terraced(self):
        """A daemon under another name (a wrapper, another container): its pid is not signalled."""
        copy = self.t.directory / "elsewhere"
        copy.write_bytes(pathlib.Path(self.t.terraced).read_bytes())
        copy.chmod(0o755)
        self.t.terraced = str(copy)
        self.t.start()
        error = self.t.cli("daemon", "stop", check=NOT_FOUND).json["error"]
        self.assertIn("not terraced", error["message"])
        self.assertTrue(process_alive(self.t.pid))


class DaemonGone(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="gone")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")

    def test_killed_between_commands(self):
        lease = self.t.grant("4M", "p", "--ttl", "10m")
        self.t.kill()
        self.t.cli("status", check=UNAVAILABLE)
        self.t.start()
        self.assertIn(lease["id"], self.t.leases())
        self.t.check_invariants()

    def test_stopped_during_a_command(self):
        """The daemon is frozen, then killed, while commands wait for it."""
        os.kill(self.t.pid, signal.SIGSTOP)
        result = self.t.cli("--timeout", "1s", "status", check=UNAVAILABLE)
        self.assertIn("did not answer within 1 s", result.json["error"]["message"])
        waiting = self.t.popen(self.t.terrace, "--json", "status", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.5)
        self.t.kill()
        out, _ = waiting.communicate(timeout=60)
        self.assertEqual(waiting.returncode, UNAVAILABLE)
        self.assertIn("closed the connection", json.loads(out)["error"]["message"])

    def test_a_grant_that_times_out_is_said_to_be_undecided(self):
        os.kill(self.t.pid, signal.SIGSTOP)
        result = self.t.cli("--timeout", "1s", "lease", "grant", "--size", "2M", check=UNAVAILABLE)
        self.assertIn("may still happen", result.json["error"]["message"])
        os.kill(self.t.pid, signal.SIGCONT)
        self.t.check_invariants()


@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class OtherUser(unittest.TestCase):
    def test_a_user_who_is_no_administrator_is_denied(self):
        with Harness(name="user") as t:
            t.start()
            t.directory.chmod(0o755)
            env = t.environment()
            done = subprocess.run([t.terrace, "--json", "status"], env=env, text=True, capture_output=True, check=False,
                                  user=65534, group=65534, extra_groups=[])
            if done.returncode == 126 or "Permission denied" in done.stderr:
                self.skipTest("this user cannot run the program where it was built")
            self.assertEqual(done.returncode, DENIED, done.stdout + done.stderr)
            self.assertEqual(json.loads(done.stdout)["error"]["code"], "permission_denied")
            t.socket.chmod(0o600)
            done = subprocess.run([t.terrace, "--json", "status"], env=env, text=True, capture_output=True, check=False,
                                  user=65534, group=65534, extra_groups=[])
            self.assertEqual(done.returncode, DENIED, done.stdout + done.stderr)
            self.assertIn(str(t.socket), json.loads(done.stdout)["error"]["message"])


if __name__ == "__main__":
    harness.main()
