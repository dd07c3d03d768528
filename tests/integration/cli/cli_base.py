# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: one daemon a class, errors in both forms, exit codes."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from terrace_harness import Harness  # noqa: E402

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
