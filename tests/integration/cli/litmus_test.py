# SPDX-License-Identifier: Apache-2.0
"""Litmus runs: of devices through the manager, at adoption into a coherent pool, and of two sides on a path.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/litmus_test.py [TestClass[.test]]
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

from cli_base import CAPACITY, CONFLICT, FAILED, MIB, MISMATCH, NOT_FOUND, UNAVAILABLE, USAGE, WithDaemon
import terrace_harness as harness
from terrace_harness import wait_until

SHAPES = ["message_passing", "store_buffering", "load_buffering", "one_location", "write_order", "torn_record",
          "compare_and_swap"]
REGION_BYTES = 20 << 10
LINE_BYTES = 64
PHASE_AT = 4 * 8  # in a side's line


class Devices(WithDaemon):
    def setUp(self):
        self.addCleanup(self.forget_devices)

    def forget_devices(self):
        """After tearDown, so that no pool is left."""
        for mark in self.objects().glob("*.noncoherent"):
            mark.unlink()
        for device in self.t.cli("device", "list", "--adopted").json["devices"]:
            self.t.cli("device", "remove", device["serial"])

    def objects(self):
        return pathlib.Path(self.t.cli("status").json["server"]["object_directory"])

    def mark(self, name):
        (self.objects() / f"{name}.noncoherent").touch()

    def look(self, *arguments):
        """A run that finds nothing: coherent, or inconclusive (1) on a machine with one CPU."""
        result = self.t.cli("device", "litmus", *arguments, check=False)
        self.assertIn(result.code, (0, FAILED), result)
        litmus = result.json["litmus"]
        self.assertEqual(litmus["verdict"], {0: "coherent", FAILED: "inconclusive"}[result.code])
        self.assertEqual([shape["name"] for shape in litmus["shapes"]], SHAPES)
        self.assertEqual([shape["forbidden"] for shape in litmus["shapes"]], [0] * len(SHAPES))
        return litmus

    def allow_cpus(self, cpus):
        for task in pathlib.Path(f"/proc/{self.t.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cpus)

    def pools(self):
        return [pool["name"] for pool in self.t.cli("pool", "list").json["pools"]]


class ByManager(Devices):
    def test_what_is_not_adopted_is_not_written(self):
        self.error("device", "litmus", "emu:a", code=NOT_FOUND, name="not_found", contains="not adopted")
        self.assertEqual(list(self.objects().glob("*.obj")), [])

    def test_a_device_in_no_pool(self):
        self.t.cli("device", "adopt", "emu:a")
        litmus = self.look("emu:a")
        self.assertEqual({shape["rounds"] for shape in litmus["shapes"]}, {1280})
        self.assertEqual(litmus["device"], "emu:a")
        self.assertGreater(litmus["took_ns"], 0)
        self.assertEqual(list(self.objects().glob("*.obj")), [], "what it was run on is gone")
        self.t.check_invariants()
        self.assertEqual(self.look("emu:a", "--rounds", 64)["verdict"], "inconclusive")

    def test_text(self):
        self.t.cli("device", "adopt", "emu:a")
        result = self.t.cli("device", "litmus", "emu:a", json=False, check=False)
        self.assertIn(result.code, (0, FAILED))
        self.assertRegex(result.out, r"SHAPE +ROUNDS +MET +FORBIDDEN +VERDICT\nmessage_passing +1280 +\d+ +0 +coherent")
        if result.code == 0:
            self.assertIn("'terrace device litmus --path' on two of them says", result.out)

    def test_a_device_in_use_is_looked_at_where_it_is_free(self):
        self.t.create_pool("p", ["a", "b"])
        self.t.cli("device", "drain", "emu:a")
        full = self.t.grant("64M", "p", "--persistent")
        self.assertEqual({extent["device"] for extent in full["extents"]}, {"emu:b"})
        self.t.cli("device", "undrain", "emu:a")
        self.error("device", "litmus", "emu:b", code=CAPACITY, contains="device emu:b has")
        self.look("emu:a")
        wait_until(lambda: list(self.t.leases()) == [full["id"]], 30, "the run's lease to be erased")
        self.t.check_invariants()
        grants = self.t.cli("audit", "--tenant", "terrace").json["entries"]
        self.assertEqual([entry["verb"] for entry in grants][:2], ["grant", "release"])

    def test_a_device_that_takes_no_leases_is_not_looked_at(self):
        self.t.create_pool("p", ["a", "b"])
        self.t.cli("device", "drain", "emu:a")
        self.error("device", "litmus", "emu:a", code=CONFLICT, contains="being drained")
        self.t.cli("device", "undrain", "emu:a")

    def test_wrong_words(self):
        self.error("device", "litmus", code=USAGE)
        self.error("device", "litmus", "emu:a", "--role", "first", code=USAGE, contains="--role is for --path")
        self.error("device", "litmus", "emu:a", "--path", "/dev/dax0.0", "--role", "first", code=USAGE)
        self.error("device", "litmus", "--path", "/dev/dax0.0", code=USAGE, contains="needs --role")
        self.t.cli("device", "adopt", "emu:a")
        self.error("device", "litmus", "emu:a", "--rounds", 10**6, code=USAGE, contains="at most 100000 rounds")

    def test_nothing_changes_the_device_meanwhile_and_a_killed_manager_leaves_nothing(self):
        self.t.cli("device", "adopt", "emu:a", "emu:b")
        self.t.kill()
        self.t.start(failpoints="carve_after_create=delay:60000")  # the kill below ends the run's wait
        run = self.t.popen(self.t.terrace, "device", "litmus", "emu:a",
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: list(self.objects().glob("litmus-*.obj")), 60, "the run's object")
        for words in (("device", "litmus", "emu:a"), ("device", "remove", "emu:a"),
                      ("pool", "create", "q", "--device", "emu:a")):
            self.assertIn("is under way", self.t.cli(*words, check=CONFLICT).json["error"]["message"])
        self.assertIsNone(run.poll(), "the run was over before it was looked at")
        objects = self.objects()
        self.t.kill()
        self.assertNotEqual(run.wait(60), 0)
        self.assertTrue(list(objects.glob("litmus-*.obj")))
        self.t.start()
        self.assertEqual(list(self.objects().glob("*.obj")), [])
        self.t.check_invariants()
        self.t.cli("pool", "create", "q", "--device", "emu:a")


class CoherentPools(Devices):
    def test_a_device_is_looked_at_when_it_joins(self):
        self.t.cli("device", "adopt", "emu:a", "emu:b")
        made = self.t.cli("pool", "create", "p", "--device", "emu:a", "--coherence", "coherent").json
        self.assertEqual(made["pool"]["coherence"], "coherent")
        self.assertNotIn("emu:a (not looked at)", made["not_known_coherent"])
        added = self.t.cli("pool", "add-device", "p", "emu:b").json
        self.assertEqual(sorted(added["pool"]["devices"]), ["emu:a", "emu:b"])
        self.assertNotIn("emu:b (not looked at)", added["not_known_coherent"])

    def test_one_that_fails_is_refused(self):
        self.t.cli("device", "adopt", "emu:a", "emu:b")
        self.mark("b")
        error = self.error("pool", "create", "p", "--device", "emu:a", "--device", "emu:b", "--coherence", "coherent",
                           code=FAILED, name="unsupported", contains="device emu:b does not behave as coherent memory")
        self.assertIn("message_passing: 1280 of 1280 rounds (round 1: ", error["message"])
        self.assertIn("--coherence noncoherent", error["message"])
        self.assertEqual(self.pools(), [])
        self.t.cli("pool", "create", "p", "--device", "emu:a", "--coherence", "coherent")
        self.error("pool", "add-device", "p", "emu:b", code=FAILED, name="unsupported", contains="emu:b does not behave")
        self.assertEqual(self.t.cli("pool", "show", "p").json["pool"]["devices"], ["emu:a"])
        self.t.cli("pool", "create", "q", "--device", "emu:b", "--coherence", "noncoherent")
        self.t.check_invariants()

    def test_a_pool_is_not_called_coherent_over_one_that_failed(self):
        self.t.create_pool("p", ["a", "b"])
        said = self.t.cli("pool", "set", "p", "--coherence", "coherent").json
        self.assertEqual(said["not_known_coherent"], ["emu:a (not looked at)", "emu:b (not looked at)"])
        self.assertIn("emu:a (not looked at), emu:b (not looked at); 'terrace device litmus SERIAL' looks",
                      self.text("pool", "set", "p", "--coherence", "coherent"))
        self.mark("b")
        failed = self.t.cli("device", "litmus", "emu:b", check=MISMATCH).json["litmus"]
        self.assertEqual(failed["verdict"], "not_coherent")
        self.assertTrue(all(shape["forbidden"] > 0 for shape in failed["shapes"]))
        self.assertTrue(failed["shapes"][0]["example"].startswith("round 1: "))
        said = self.t.cli("pool", "set", "p", "--coherence", "noncoherent").json
        self.assertNotIn("not_known_coherent", said)
        self.error("pool", "set", "p", "--coherence", "coherent", code=FAILED, name="unsupported", contains="emu:b")
        (self.objects() / "b.noncoherent").unlink()
        self.allow_cpus({min(os.sched_getaffinity(0))})  # where nothing can be seen, nothing is taken back
        self.assertEqual(self.look("emu:b")["verdict"], "inconclusive")
        self.error("pool", "set", "p", "--coherence", "coherent", code=FAILED, name="unsupported", contains="emu:b")
        self.allow_cpus(os.sched_getaffinity(0))
        if self.look("emu:b")["verdict"] == "coherent":
            said = self.t.cli("pool", "set", "p", "--coherence", "coherent").json
            self.assertEqual(said["not_known_coherent"], ["emu:a (not looked at)"])


class TwoSides(Devices):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-litmus-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = self.folder / "memory"
        self.path.write_bytes(os.urandom(1 << 20))

    def side(self, role, *arguments, path=None):
        return self.t.popen(self.t.terrace, "--json", "device", "litmus", "--path", path or self.path, "--role", role,
                            "--yes", *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)

    def end(self, side):
        out, err = side.communicate(timeout=240)
        return side.returncode, json.loads(out), err

    def phase(self, role):
        with open(self.path, "rb") as file:
            file.seek(role * LINE_BYTES + PHASE_AT)
            return struct.unpack("<Q", file.read(8))[0]

    def test_both_come_to_the_same(self):
        before = self.path.read_bytes()
        sides = [self.side(role, "--offset", "4K", "--rounds", rounds)
                 for role, rounds in (("second", 64), ("first", 1280))]
        (code, second, _), (other_code, first, _) = [self.end(side) for side in sides]
        self.assertEqual(code, other_code)
        self.assertIn(code, (0, FAILED))
        first, second = first["litmus"], second["litmus"]
        self.assertEqual(first["shapes"], second["shapes"], "the first side's rounds, judged alike")
        self.assertEqual({shape["rounds"] for shape in first["shapes"]}, {1280})
        self.assertEqual((first["role"], second["role"], first["offset_bytes"]), ("first", "second", 4096))
        after = self.path.read_bytes()
        self.assertEqual(before[:4096], after[:4096])
        self.assertEqual(before[4096 + REGION_BYTES:], after[4096 + REGION_BYTES:])
        self.assertNotEqual(before, after)

    def test_a_side_that_is_killed_is_missed(self):
        first, second = self.side("first", "--rounds", 1000000), self.side("second")
        # What was there before is random; both begin at 0 and stay far below.
        wait_until(lambda: 100 < self.phase(0) < 1 << 40 and 100 < self.phase(1) < 1 << 40, 120, "both sides at it")
        second.kill()
        second.communicate()
        code, document, _ = self.end(first)
        self.assertEqual(code, UNAVAILABLE, document)
        self.assertIn("the second side is not heard of any more", document["error"]["message"])

    def test_a_side_that_does_not_come(self):
        code, document, _ = self.end(self.side("first", "--wait", "1s"))
        self.assertEqual(code, UNAVAILABLE)
        self.assertIn("the second side was not heard of in time", document["error"]["message"])

    def test_the_same_side_twice(self):
        sides = [self.side("first", "--wait", "60s") for _ in range(2)]
        wait_until(lambda: any(side.poll() is not None for side in sides), 60, "one to notice")
        ended, other = sorted(sides, key=lambda side: side.poll() is None)
        code, document, _ = self.end(ended)
        self.assertEqual(code, CONFLICT, document)
        self.assertIn("another process runs that side", document["error"]["message"])
        second = self.side("second")
        self.assertIn(self.end(second)[0], (0, FAILED))
        self.assertIn(self.end(other)[0], (0, FAILED))

    def test_a_side_that_is_started_again(self):
        first, second = self.side("first", "--rounds", 1000000), self.side("second")
        wait_until(lambda: 100 < self.phase(0) < 1 << 40 and 100 < self.phase(1) < 1 << 40, 120, "both sides at it")
        second.kill()
        second.communicate()
        second = self.side("second", "--wait", "20s")
        code, document, _ = self.end(first)
        self.assertEqual(code, CONFLICT, document)
        self.assertIn("was started again meanwhile", document["error"]["message"])
        second.kill()
        second.communicate()

    def test_it_is_agreed_to_first(self):
        before = self.path.read_bytes()
        self.error("device", "litmus", "--path", self.path, "--role", "first", code=USAGE, contains="--yes")
        self.assertEqual(self.path.read_bytes(), before)

    def test_paths_and_ranges_that_cannot_be_used(self):
        one = ("device", "litmus", "--role", "first", "--yes")
        self.error(*one, "--path", self.folder / "none", code=NOT_FOUND)
        self.error(*one, "--path", "/dev/null", code=USAGE, contains="neither a dax device nor a file")
        self.error(*one, "--path", self.folder, code=FAILED)
        self.error(*one, "--path", self.path, "--offset", "100", code=USAGE, contains="multiple of 4 KiB")
        self.error(*one, "--path", self.path, "--offset", "1020K", code=USAGE, contains="needs 20 KiB")
        self.error(*one, "--path", self.path, "--offset", "1T", code=USAGE, contains="has 1 MiB")
        self.error(*one, "--path", self.path, "--rounds", 0, code=USAGE)

    def test_what_a_manager_here_has_adopted_is_not_overwritten(self):
        self.t.create_pool("p", ["a"])
        self.t.grant("2M", "p", "--persistent")
        (held,) = self.objects().glob("*.obj")
        link = self.folder / "link"
        link.symlink_to(held)
        for path in (held, link):
            self.error("device", "litmus", "--path", path, "--role", "first", "--yes", code=CONFLICT,
                       contains="has adopted")


if __name__ == "__main__":
    harness.main()
