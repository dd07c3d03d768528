# SPDX-License-Identifier: Apache-2.0
"""What `scripts/dev build --timings` reads from Ninja's log."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devlib.timings import by_folder, read_log  # noqa: E402

LOG = """# ninja log v5
0\t2500\t0\tcli/CMakeFiles/terrace_cli.dir/run.cc.o\tabc
100\t600\t0\tdaemon/rpc/CMakeFiles/terrace_rpc.dir/wire.cc.o\tabc
600\t1600\t0\tdaemon/rpc/CMakeFiles/terrace_rpc.dir/moves.cc.o\tabc
0\t9000\t0\ttests/unit/rpc/CMakeFiles/unit_rpc.dir/rpc_test.cc.o\tabc
1600\t1700\t0\tcli/terrace\tabc
3000\t3100\t0\tdaemon/rpc/CMakeFiles/terrace_rpc.dir/wire.cc.o\tdef
torn
"""


class Log(unittest.TestCase):
    def test_steps_by_folder(self):
        steps = read_log(LOG)
        self.assertEqual(len(steps), 5)
        self.assertEqual(by_folder(steps), [("tests/unit/rpc", 1, 9.0), ("cli", 1, 2.5), ("daemon/rpc", 2, 1.1),
                                            ("(links and generated files)", 1, 0.1)])

    def test_an_empty_log(self):
        self.assertEqual(by_folder(read_log("# ninja log v5\n")), [])


if __name__ == "__main__":
    unittest.main()
