# SPDX-License-Identifier: Apache-2.0
"""Pools in use: devices added, drained, failed, removed, unplugged; compaction; leases that change size or owner.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/compose_test.py [TestClass[.test]]
"""

import pathlib
import time

from cli_base import CAPACITY, CONFLICT, MIB, NOT_FOUND, USAGE, WithDaemon
import terrace_harness as harness
from terrace_harness import wait_until


class Placement(WithDaemon):
    def create(self, *arguments):
        devices = [part for name in self.devices for part in ("--device", f"emu:{name}")]
        return self.t.cli("pool", "create", "p", "--adopt", *devices, *arguments).json["pool"]

    def test_striped(self):
        pool = self.create("--placement", "striped", "--stripe", "4M")
        self.assertEqual((pool["placement"], pool["stripe_bytes"]), ("striped", 4 * MIB))
        lease = self.t.grant("16M")
        self.assertEqual({extent["length_bytes"] for extent in lease["extents"]}, {4 * MIB})
        self.assertEqual({extent["device"] for extent in lease["extents"]}, {"emu:a", "emu:b"})
        self.assertIn("striped over 2 devices, stripe 4 MiB", self.text("pool", "show", "p"))

    def test_spread(self):
        self.assertEqual(self.create("--placement", "spread")["placement"], "spread")
        devices = [self.t.grant("8M")["extents"][0]["device"] for _ in range(2)]
        self.assertEqual(sorted(devices), ["emu:a", "emu:b"])

    def test_linear_is_what_is_not_said(self):
        pool = self.create()
        self.assertEqual((pool["placement"], pool["stripe_bytes"]), ("linear", None))

    def test_show_says_how_broken_up_it_is(self):
        self.create()
        leases = [self.t.grant("8M", "p", "--persistent")["id"] for _ in range(4)]
        self.t.cli("lease", "release", leases[1])
        wait_until(lambda: self.t.cli("pool", "show", "p").json["pool"]["free_bytes"] == 104 * MIB, 20, "the scrub")
        pool = self.t.cli("pool", "show", "p").json["pool"]
        self.assertEqual(sum(runs["bytes"] for runs in pool["free_runs"]), pool["free_bytes"])
        self.assertEqual(pool["grantable_bytes"], pool["free_bytes"])
        text = self.text("pool", "show", "p")
        self.assertIn("fragmentation", text)
        self.assertIn("FREE RUNS FROM", text)
        self.assertRegex(text, r"\[#+\.+\]")


class DeviceLife(WithDaemon):
    devices = {"a": "64M", "b": "64M", "c": "64M"}

    def setUp(self):
        self.t.create_pool("p", ["a", "b"])
        self.addCleanup(self.back_into_service)

    def back_into_service(self):
        for device in self.t.cli("device", "list").json["devices"]:
            if device["state"] not in (None, "in_service"):
                self.t.cli("device", "undrain", device["serial"], check=False)

    def place(self, device, *arguments):
        """A lease on `device`."""
        lease = self.t.grant("8M", "p", "--persistent", *arguments)
        if lease["extents"][0]["device"] != f"emu:{device}":
            self.skipTest("the first lease is elsewhere")
        return lease

    def test_add_device_to_a_pool_in_use(self):
        self.t.grant("8M")
        self.error("pool", "add-device", "nope", "emu:c", code=NOT_FOUND)
        pool = self.t.cli("pool", "add-device", "p", "emu:c", "--adopt").json["pool"]
        self.assertEqual((len(pool["devices"]), pool["capacity_bytes"]), (3, 192 * MIB))
        self.assertEqual(self.t.cli("pool", "add-device", "p", "emu:c").code, 0, "adding again changes nothing")
        self.t.cli("device", "remove", "emu:c")
        self.t.cli("pool", "create", "other", "--adopt", "--device", "emu:c")
        self.error("pool", "add-device", "p", "emu:c", code=CONFLICT)

    def test_a_drain_moves_what_is_movable_and_names_what_blocks(self):
        stays = self.place("a", "--label", "stays")
        goes = self.place("a", "--label", "goes", "--movable")
        serial = stays["extents"][0]["device"]
        result = self.t.cli("device", "drain", serial, "--wait", "--timeout", "15s", check=CONFLICT).json
        self.assertEqual(result["error"]["code"], "busy")
        self.assertIn("lease %d" % stays["id"], result["error"]["message"])
        moves = {move["lease"]: move for move in result["progress"]["moves"]}
        self.assertTrue(moves[stays["id"]]["blocked"])
        moved = self.t.cli("lease", "show", goes["id"]).json["leases"][0]
        self.assertNotEqual(moved["extents"][0]["device"], serial, "the manager moved it")
        self.assertGreater(moved["epoch"], goes["epoch"])
        self.assertEqual(self.t.cli("device", "show", serial).json["device"]["state"], "draining")
        text = self.text("device", "drain", serial)
        self.assertIn("stays", text)
        self.assertIn("lease revoke", text)
        self.error("device", "remove", serial, code=CONFLICT)
        self.t.cli("lease", "release", stays["id"])
        done = self.t.cli("device", "drain", serial, "--wait", "--timeout", "30s").json["progress"]
        self.assertEqual((done["left_bytes"], done["moves"]), (0, []))
        self.assertEqual(self.t.cli("device", "remove", serial).json, {"removed": serial})
        self.assertEqual(len(self.t.cli("pool", "show", "p").json["pool"]["devices"]), 1)
        self.t.check_invariants()

    def test_a_drain_of_what_nobody_holds_takes_the_time_of_its_copies(self):
        """It waited the five seconds in which a holder may come back, and then moved four leases a second."""
        first = self.t.grant("8M", "p", "--persistent", "--movable")
        serial = first["extents"][0]["device"]
        others = [self.t.grant("8M", "p", "--persistent", "--movable") for _ in range(5)]
        self.assertEqual({lease["extents"][0]["device"] for lease in others}, {serial})
        began = time.monotonic()
        done = self.t.cli("device", "drain", serial, "--wait", "--timeout", "30s").json["progress"]
        self.assertLess(time.monotonic() - began, 4.5)
        self.assertEqual((done["left_bytes"], done["moves"]), (0, []))
        self.t.check_invariants()

    def test_undrain(self):
        self.t.cli("device", "drain", "emu:b")
        self.assertIn("draining", self.text("device", "list"))
        self.assertEqual(self.t.cli("pool", "show", "p").json["pool"]["grantable_bytes"], 64 * MIB)
        self.assertEqual(self.t.cli("device", "undrain", "emu:b").json["device"]["state"], "in_service")
        self.error("device", "drain", "emu:nope", code=NOT_FOUND)

    def test_fail_asks_and_ends_only_its_own_leases(self):
        lease = self.t.grant("8M", "p", "--persistent")
        serial = lease["extents"][0]["device"]
        self.error("device", "fail", serial, code=USAGE, contains="--yes")
        self.assertEqual(self.t.cli("device", "show", serial).json["device"]["state"], "in_service")
        result = self.t.cli("device", "fail", serial, "--yes").json
        self.assertEqual(result["device"]["state"], "failed")
        self.assertEqual([one["id"] for one in result["ended"]], [lease["id"]])
        self.assertIn("failed", self.text("device", "list"))
        other = self.t.grant("8M", "p")
        self.assertNotEqual(other["extents"][0]["device"], serial)
        self.assertEqual(self.t.cli("device", "undrain", serial).json["device"]["state"], "in_service")

    def test_a_device_that_vanishes_takes_only_its_own_leases(self):
        lease = self.t.grant("8M", "p", "--persistent", "--label", "lost")
        serial = lease["extents"][0]["device"]
        directory = self.t.cli("status").json["server"]["object_directory"]
        unplugged = pathlib.Path(directory) / f"{serial[len('emu:'):]}.unplugged"
        unplugged.touch()
        self.addCleanup(unplugged.unlink, missing_ok=True)

        def lost():
            found = self.t.cli("lease", "show", lease["id"], check=False).json
            return "error" in found or found["leases"][0]["cause"] == "device_lost"
        wait_until(lost, 30, "the lease's end")
        wait_until(lambda: not self.t.cli("device", "show", serial).json["device"]["present"], 30, "absence")
        quarantined = wait_until(lambda: self.t.cli("lease", "quarantined").json["leases"], 30, "quarantine")
        self.assertEqual(quarantined[0]["id"], lease["id"])
        text = self.text("lease", "quarantined")
        self.assertIn("device lost", text.replace("_", " "))
        self.assertIn("lease release ID", text)
        self.assertIn("absent", self.text("device", "list"))
        unplugged.unlink()
        wait_until(lambda: not self.t.cli("lease", "quarantined").json["leases"], 30, "the device's return")
        self.t.wait_free("p")
        self.assertIn("nothing is quarantined", self.text("lease", "quarantined"))

    def tearDown(self):
        self.back_into_service()
        super().tearDown()


class Compaction(WithDaemon):
    devices = {"a": "64M"}

    def test_a_longer_run_is_made(self):
        self.t.create_pool("p")
        leases = [self.t.grant("8M", "p", "--persistent", "--movable") for _ in range(8)]
        by_place = sorted(leases, key=lambda lease: lease["extents"][0]["offset_bytes"])
        for lease in by_place[::2]:
            self.t.cli("lease", "release", lease["id"])
        wait_until(lambda: self.t.cli("pool", "show", "p").json["pool"]["free_bytes"] == 32 * MIB, 30, "the scrub")
        self.assertLess(self.t.cli("pool", "show", "p").json["pool"]["largest_free_bytes"], 24 * MIB)
        done = self.t.cli("pool", "compact", "p", "--run", "16M", "--wait", "--timeout", "40s").json
        self.assertFalse(done["compaction"]["active"])
        self.assertGreaterEqual(done["pool"]["largest_free_bytes"], 16 * MIB)
        self.assertIn("already", self.text("pool", "compact", "p", "--run", "16M"))
        self.assertIn("no compaction", self.text("pool", "compact", "p", "--status"))
        self.assertEqual(self.t.cli("pool", "compact", "p", "--end").json, {"ended": "p"})
        self.t.check_invariants()

    def test_what_may_not_move_is_named(self):
        self.t.create_pool("p")
        leases = [self.t.grant("8M", "p", "--persistent") for _ in range(8)]
        by_place = sorted(leases, key=lambda lease: lease["extents"][0]["offset_bytes"])
        for lease in by_place[::2]:
            self.t.cli("lease", "release", lease["id"])
        wait_until(lambda: self.t.cli("pool", "show", "p").json["pool"]["free_bytes"] == 32 * MIB, 30, "the scrub")
        result = self.t.cli("pool", "compact", "p", "--run", "32M", "--wait", "--timeout", "2s", check=False)
        self.assertIn(result.code, (CAPACITY, CONFLICT), result)
        self.assertTrue(result.json["error"]["message"])

    def test_errors(self):
        self.t.create_pool("p")
        self.error("pool", "compact", "nope", code=NOT_FOUND)
        self.error("pool", "compact", "p", "--status", "--end", code=USAGE)
        self.error("pool", "compact", "p", "--run", "x", code=USAGE)


class Changes(WithDaemon):
    def setUp(self):
        self.t.create_pool("p")

    def test_grow_and_shrink(self):
        lease = self.t.grant("8M", "p", "--label", "one")
        grown = self.t.cli("lease", "resize", "one", "+8M").json
        self.assertEqual((grown["lease"]["bytes"], grown["bytes_before"]), (16 * MIB, 8 * MIB))
        self.assertIn("24 MiB now, 16 MiB before", self.text("lease", "resize", str(lease["id"]), "24M"))
        self.error("lease", "resize", "one", "8M", code=USAGE, contains="--yes")
        shrunk = self.t.cli("lease", "resize", "one", "-16M", "--yes").json["lease"]
        self.assertEqual(shrunk["bytes"], 8 * MIB)
        shown = self.t.cli("lease", "show", "one").json["leases"][0]
        self.assertEqual((shown["bytes"], shown["object_bytes"]), (8 * MIB, 8 * MIB))
        self.assertIn("already", self.text("lease", "resize", "one", "8M"))
        for wrong in ("0", "-8M", "-1G", "x"):
            self.error("lease", "resize", "one", wrong, code=USAGE)
        self.error("lease", "resize", "one", "1G", code=CAPACITY)
        self.error("lease", "resize", "two", "1G", code=NOT_FOUND)
        self.t.check_invariants()

    def test_transfer(self):
        lease = self.t.grant("8M", "p", "--persistent", "--label", "one")
        self.error("lease", "transfer", "one", "--to-tenant", "team-b", code=USAGE, contains="--yes")
        self.error("lease", "transfer", "one", code=USAGE, contains="--to-tenant")
        given = self.t.cli("lease", "transfer", "one", "--to-tenant", "team-b", "--to-host", "node-8", "--yes").json
        self.assertEqual((given["lease"]["tenant"], given["lease"]["host"]), ("team-b", "node-8"))
        self.assertEqual(given["lease"]["id"], lease["id"])
        self.assertGreater(given["lease"]["epoch"], lease["epoch"])
        self.t.check_invariants()

    def test_a_grant_waits_for_room(self):
        first = self.t.grant("128M", "p", "--persistent")
        self.error("lease", "grant", "--size", "8M", code=CAPACITY)
        begin = time.monotonic()
        self.error("lease", "grant", "--size", "8M", "--wait", "500ms", code=CAPACITY)
        self.assertGreater(time.monotonic() - begin, 1.0, "both forms waited")
        waiting = self.t.popen(self.t.terrace, "lease", "grant", "--size", "8M", "--wait", "60s", "--label", "late",
                               stdout=-1, stderr=-1, text=True)
        wait_until(lambda: self.t.cli("status").json["pools"][0]["waiting"] == 1, 20, "the grant in the queue")
        time.sleep(2.5)
        self.t.cli("lease", "release", first["id"])
        out, err = waiting.communicate(timeout=60)
        self.assertEqual(waiting.returncode, 0, err)
        self.assertIn("first in the queue", err)
        self.assertIn("granted lease", out)

    def test_who_gives_up_leaves_the_queue(self):
        self.t.grant("128M", "p")
        waiting = self.t.popen(self.t.terrace, "lease", "grant", "--size", "8M", "--wait", "60s", stdout=-1, stderr=-1)
        wait_until(lambda: self.t.cli("status").json["server"]["waiting"] == 1, 20, "the grant in the queue")
        waiting.terminate()
        waiting.communicate(timeout=30)
        wait_until(lambda: self.t.cli("status").json["server"]["waiting"] == 0, 20, "its end")


if __name__ == "__main__":
    harness.main()
