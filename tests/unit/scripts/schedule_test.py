# SPDX-License-Identifier: Apache-2.0
"""What scripts/dev test tells ctest of tests before they run (scripts/devlib/schedule.py, tests/schedule)."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devlib import schedule  # noqa: E402

COSTS = ROOT / "tests/schedule/costs.txt"


class CostsTest(unittest.TestCase):
    def lines(self):
        return [line.split() for line in COSTS.read_text("utf-8").splitlines() if re.match("[A-Za-z]", line)]

    def test_each_test_has_one_line(self):
        names = [name for name, _, _ in self.lines()]
        self.assertEqual(len(names), len(set(names)))
        folder = os.environ.get("TERRACE_BUILD_DIR")
        if not folder:
            self.skipTest("TERRACE_BUILD_DIR says no build whose tests could be asked for")
        listed = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], capture_output=True, text=True,
                                stdin=subprocess.DEVNULL, check=True).stdout
        lacking = schedule.without_a_line(json.loads(listed))
        self.assertEqual(lacking, [], "tests/schedule/costs.txt has no line for these: NAME, seconds on a quiet machine, "
                                      "percent of a core")

    def test_the_smallest_machine_has_room_for_each(self):
        most = schedule.resources(1)["local"][0]["cores"][0]["slots"]
        for name, seconds, percent in self.lines():
            self.assertTrue(1 <= int(percent) <= most, name)
            self.assertGreater(int(seconds), 0, name)


class CtestTest(unittest.TestCase):
    """What ctest makes of it."""

    TESTS = {"computes": (30, 90), "computes_too": (20, 90), "computes_three": (15, 90), "computes_later": (10, 90), "waits": (5, 10),
             "waits_too": (4, 10)}

    def started(self, folder, *options):
        """The tests in the order of their starts, and how many had started when the first ended."""
        (folder / "CTestTestfile.cmake").write_text("".join(
            f'add_test({name} sleep 1)\nset_tests_properties({name} PROPERTIES COST {cost} RESOURCE_GROUPS "cores:{percent}")\n'
            for name, (cost, percent) in self.TESTS.items()), "utf-8")
        told = subprocess.run(["ctest", "--test-dir", str(folder), *options], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=True).stdout
        begun = re.findall(r"^ +Start +\d+: (\w+)", told, re.MULTILINE)
        first = told.index("Passed")
        return begun, len(re.findall(r"^ +Start ", told[:first], re.MULTILINE))

    def test_the_longest_begin_and_who_waits_beside_them(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            begun, beside = self.started(folder, *schedule.options(folder, 2))
        # 3 * 90 + 10 + 10 of 300; a fourth 90 has to wait.
        self.assertEqual(begun[:beside], ["computes", "computes_too", "computes_three", "waits", "waits_too"])
        self.assertEqual(begun[beside:], ["computes_later"])

    def test_by_hand_programs_are_counted(self):
        with tempfile.TemporaryDirectory() as name:
            begun, beside = self.started(pathlib.Path(name), "-j3")
        self.assertEqual(begun[:beside], ["computes", "computes_too", "computes_three"])


if __name__ == "__main__":
    unittest.main()
