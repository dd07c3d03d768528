"""What POSIX, the kernel and glibc promise a program about its heap, under the preload libraries: the interface of
malloc, start-up and end, its own calls on its memory, futexes. The programs are *_cases.cc here; run as shim_test.py is,
with the same environment:
    TERRACE_BUILD_DIR=build/dev tests/integration/shim/posix_test.py [Class[.test]]
"""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from shim_test import HERE, MIGRATES, WHOLE_HEAP, ShimTest  # noqa: E402

# How often what is a matter of luck is tried; 500 by hand.
ROUNDS = int(os.environ.get("TERRACE_TEST_ROUNDS", "30"))


class Interface(ShimTest):
    """One program, run plainly and under the library: the same answers."""

    def test_answers_are_glibcs(self):
        self.maxDiff = 4000
        program = HERE / "shim_interface_cases"
        plain = self.plain([program]).stdout.splitlines()
        self.assertGreater(len(plain), 1500)
        for options in (("--ddr", "16M", "--cxl", "512M"), ("--ddr", "1G", "--cxl", "0"), ("--ddr", "0", "--cxl", "1G")):
            run = self.shim([program], *options)
            self.assertEqual(run.out.splitlines(), plain, options)


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1)
