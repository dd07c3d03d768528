# SPDX-License-Identifier: Apache-2.0
"""Skipped cases are found in ctest's log, and those that the machine could have run are told."""

import contextlib
import io
import pathlib
import re
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devlib import skips  # noqa: E402

LOG = """\
[doctest] Status: SUCCESS!
skipped case\troot\tRange: a fork: the child gets a signal\tneeds root to become somebody else
skipped in part\tcpu_kinds\terase: all kinds\tthis processor lacks kind 2
test_a (__main__.Fork.test_a) ... skipped 'nothing is folded'
test_b (__main__.Fork.test_b)
With a docstring. ... skipped "it's not known here"
test_c (__main__.Fork.test_c) ... ok
test_d (__main__.Real.test_d) ... skipped 'not on this machine: sh, no-such-program'
"""


class SkipsTest(unittest.TestCase):
    def test_both_kinds_are_found(self):
        found = [(skip.name, skip.needs, skip.reason, skip.whole) for skip in skips.read_log(LOG)]
        self.assertEqual(found, [
            ("Range: a fork: the child gets a signal", "root", "needs root to become somebody else", True),
            ("erase: all kinds", "cpu_kinds", "this processor lacks kind 2", False),
            ("test_a", "", "nothing is folded", True),
            ("test_b", "", "it's not known here", True),
            ("test_d", "", "not on this machine: sh, no-such-program", True)])

    def report(self, log):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            return [skip.reason for skip in skips.report(log)], out.getvalue()

    def test_what_the_machine_has_is_told(self):
        with mock.patch.dict(skips.NEEDS, {"root": lambda: True}):
            could_run, out = self.report(LOG)
        self.assertEqual(could_run, ["needs root to become somebody else"])
        self.assertEqual(out.count("nobody has said"), 1)
        self.assertIn("skipped cases: 4, and 1 in part", out)
        with mock.patch.dict(skips.NEEDS, {"root": lambda: False}):
            self.assertEqual(self.report(LOG)[0], [])

    def test_programs_that_are_here_are_no_reason(self):
        self.assertTrue(skips.could_have_run("", "not on this machine: sh"))
        self.assertFalse(skips.could_have_run("", "not on this machine: sh, no-such-program"))

    def test_each_word_of_the_header_has_its_look(self):
        header = (ROOT / "tests/support/skip.h").read_text(encoding="utf-8")
        words = re.search(r"enum class Needs \{(.*?)\};", header, re.S).group(1)
        names = re.findall(r"^\s*(\w+)", re.sub(r"//.*", "", words), re.M)
        self.assertEqual(sorted(names), sorted(skips.NEEDS))
        for look in skips.NEEDS.values():
            self.assertIn(look(), (True, False))


if __name__ == "__main__":
    unittest.main()
