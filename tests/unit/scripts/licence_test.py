# SPDX-License-Identifier: Apache-2.0
"""scripts/devlib/licence.py: which sources must name the licence, and where the line goes."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))
from devlib import licence  # noqa: E402


class Licence(unittest.TestCase):
    def test_the_line_goes_to_the_top_and_below_an_interpreter(self):
        self.assertEqual(licence.with_line("a.h", "// A.\n"), f"// {licence.LINE}\n// A.\n")
        self.assertEqual(licence.with_line("a.py", "#!/usr/bin/python3\nx\n"), f"#!/usr/bin/python3\n# {licence.LINE}\nx\n")
        for name in ("a.h", "a.py", "a.yml", "a.css", "a.html", "CMakeLists.txt"):
            for text in ("", "x\n", "#!/bin/sh\nx\n", "<!doctype html>\nx\n"):
                self.assertFalse(licence.lacks_line(name, licence.with_line(name, text)))

    def test_a_line_further_down_does_not_count(self):
        self.assertTrue(licence.lacks_line("a.h", f"//\n//\n// {licence.LINE}\n"))

    def test_it_is_asked_of_sources_and_written_there_once(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            names = ["libclient/include/a.h", "libclient/include/a.bin", "a.css", "a.html"]
            for name in names:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("x\n")
            self.assertEqual(licence.add_lines(root, names), ["libclient/include/a.h", "a.css", "a.html"])
            self.assertEqual(licence.add_lines(root, names), [])
            self.assertEqual((root / "libclient/include/a.bin").read_text(), "x\n")
            self.assertEqual((root / "a.css").read_text(), f"/* {licence.LINE} */\nx\n")


if __name__ == "__main__":
    unittest.main()
