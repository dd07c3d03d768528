# SPDX-License-Identifier: Apache-2.0
"""device and pool: seen, adopted, composed, taken apart.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/pool_test.py [TestClass[.test]]
"""

from cli_base import CONFLICT, MIB, NOT_FOUND, USAGE, WithDaemon
import terrace_harness as harness


class Devices(WithDaemon):
    def test_devices_are_seen_then_adopted(self):
        devices = {device["serial"]: device for device in self.t.cli("device", "list").json["devices"]}
        self.assertEqual(devices["emu:a"]["capacity_bytes"], 64 * MIB)
        self.assertTrue(devices["emu:a"]["present"])
        adopted = self.t.cli("device", "adopt", "emu:a", "emu:b").json["devices"]
        self.assertEqual([device["serial"] for device in adopted], ["emu:a", "emu:b"])
        self.assertTrue(all(device["adopted"] for device in adopted))
        self.assertTrue(all(device["figures"]["source"] == "measured" for device in adopted), adopted)
        self.assertIn("adopted", self.text("device", "list"))
        self.assertEqual(self.t.cli("device", "adopt", "emu:a").code, 0, "adopting again changes nothing")

    def test_show_and_its_errors(self):
        self.t.cli("device", "adopt", "emu:a")
        shown = self.t.cli("device", "show", "emu:a").json
        self.assertEqual(shown["device"]["serial"], "emu:a")
        self.assertEqual((shown["leases"], shown["drain"]), ([], None))
        text = self.text("device", "show", "emu:a")
        self.assertIn("capacity", text)
        self.assertRegex(text, r"tier +\d+ ns, .*\(measured\)")
        self.assertIn("no leases", text)
        self.error("device", "show", "emu:aa", code=NOT_FOUND, contains="did you mean 'emu:a'")

    def test_a_device_is_measured_once_when_it_is_adopted(self):
        def tier():
            return self.t.cli("device", "show", "emu:b").json["device"]["figures"]
        self.t.cli("device", "adopt", "emu:b")
        measured = tier()
        self.assertEqual(measured["source"], "measured")
        self.t.stop()
        self.t.start()
        self.assertEqual(tier(), measured)
        self.assertRegex(self.text("device", "list"), rf"emu:b .* {measured['latency_ns']} ns .* measured ")

    def test_a_list_line_is_short(self):
        for line in self.text("device", "list").splitlines():
            self.assertLess(len(line), 160, line)

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
        self.assertEqual(shown["pool"]["figures"]["source"], "measured")
        text = self.text("pool", "show", "main")
        self.assertRegex(text, r"tier +\d+ ns, .*\(measured\)")
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
        self.error("pool", "create", "other", "--device", "emu:b", "--placement", "round", code=USAGE)
        self.error("pool", "create", "other", "--device", "emu:b", "--stripe", "4M", code=USAGE, contains="striped")
        self.error("pool", "show", "mian", code=NOT_FOUND, contains="did you mean 'main'")
        self.error("pool", "delete", "nope", code=NOT_FOUND)
        self.error("pool", code=USAGE)

    def test_a_device_must_be_adopted_first(self):
        serial = "emu:b"
        devices = {device["serial"]: device for device in self.t.cli("device", "list").json["devices"]}
        if devices[serial]["adopted"]:  # another test of this class did it
            return
        self.error("pool", "create", "main", "--device", serial, code=NOT_FOUND, contains="adopt")


if __name__ == "__main__":
    harness.main()
