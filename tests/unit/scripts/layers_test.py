# SPDX-License-Identifier: Apache-2.0
"""The layer checker: planted wrong includes are caught, and named with file, line and rule."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devlib import layers, lint  # noqa: E402

RULES = """
[modules]
core/base     :
core/os       : core/base
daemon/state  : core/base
daemon/rpc    : core/base
                daemon/state      # a continued line
tests         : *

[libraries]
sqlite3.h     : daemon/rpc
sys/          : *
sys/mman.h    : core/os

[pure]
daemon/state  : core/base/clock.h chrono
"""


class LayersTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="terrace-layers-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        for name in ("core/base/ids.h", "core/base/clock.h", "core/os/map.h", "daemon/state/rows.h",
                     "daemon/rpc/server.h", "elsewhere/x.h"):
            self.write(name, "")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def problems(self, name, text):
        self.write(name, text)
        return layers.check_tree(layers.Rules(RULES), self.root, [name])

    def test_allowed_edges_pass(self):
        self.assertEqual([], self.problems("daemon/rpc/a.cc", '#include <vector>\n#include <sqlite3.h>\n'
                                           '#include <sys/socket.h>\n#include "core/base/ids.h"\n'
                                           '#include "daemon/state/rows.h"\n#include "daemon/rpc/server.h"\n'))

    def test_an_edge_upwards_is_named_with_file_line_and_rule(self):
        found = self.problems("core/base/a.cc", '// text\n#include "daemon/state/rows.h"\n')
        self.assertEqual(1, len(found))
        self.assertTrue(found[0].startswith("core/base/a.cc:2: includes daemon/state/rows.h: [modules] core/base"),
                        found[0])

    def test_a_nested_folder_belongs_to_the_module_above_it(self):
        self.assertEqual(1, len(self.problems("daemon/state/deep/a.cc", '#include "core/os/map.h"\n')))

    def test_a_library_stays_in_its_module(self):
        found = self.problems("core/os/a.cc", "#include <sqlite3.h>\n")
        self.assertIn("[libraries] sqlite3.h is for daemon/rpc", found[0])

    def test_the_longest_library_line_decides(self):
        self.assertEqual(1, len(self.problems("daemon/rpc/a.cc", "#include <sys/mman.h>\n")))
        self.assertEqual([], self.problems("core/os/a.cc", "#include <sys/mman.h>\n"))

    def test_an_unknown_header_is_an_error(self):
        self.assertIn("has no line for <boost/any.hpp>", self.problems("core/os/a.cc", "#include <boost/any.hpp>\n")[0])

    def test_a_pure_module_gets_no_clock_and_no_kernel(self):
        for header in ('"core/base/clock.h"', "<chrono>", "<sys/socket.h>"):
            with self.subTest(header=header):
                self.assertEqual(1, len(self.problems("daemon/state/a.cc", f"#include {header}\n")))

    def test_includes_are_written_from_the_root(self):
        self.assertIn("from the repository root", self.problems("daemon/state/a.cc", '#include "rows.h"\n')[0])

    def test_a_project_header_that_does_not_exist_is_an_error(self):
        self.assertIn("no such file", self.problems("daemon/rpc/a.cc", '#include "daemon/state/gone.h"\n')[0])

    def test_a_folder_that_is_not_listed_is_an_error(self):
        self.assertEqual(1, len(self.problems("elsewhere/a.cc", "#include <vector>\n")))
        self.assertEqual(1, len(self.problems("tests/a.cc", '#include "elsewhere/x.h"\n')))

    def test_a_list_that_contradicts_itself_is_refused(self):
        for text in ("core/base :\n", "[modules]\na : b\n", "[modules]\na :\na :\n", "[libraries]\nx.h : nobody\n"):
            with self.subTest(text=text), self.assertRaises(layers.RulesError):
                layers.Rules(text)


class RoomsTest(unittest.TestCase):
    def problems(self, count, readme_lines, folder="daemon/a"):
        return lint.crowded_folders([f"{folder}/file_{i}.cc" for i in range(count)] + [f"{folder}/b/c.h", f"{folder}/x.py"],
                                    lambda of: readme_lines if of == folder else None)

    def test_small_folders_need_no_page(self):
        self.assertEqual([], self.problems(8, None))

    def test_larger_ones_do_and_it_is_short(self):
        self.assertEqual(["daemon/a: 9 source files and no README.md"], self.problems(9, None))
        self.assertEqual([], self.problems(9, 40))
        self.assertEqual(["daemon/a/README.md: 41 lines, at most 40"], self.problems(9, 41))

    def test_a_crowd_is_named(self):
        self.assertEqual([], self.problems(25, 10))
        self.assertEqual(["daemon/a: 26 source files, at most 25"], self.problems(26, 10))

    def test_unit_tests_mirror_the_tree_and_explain_nothing(self):
        self.assertEqual([], self.problems(25, None, "tests/unit/state"))


class OrdersTest(unittest.TestCase):
    def test_an_order_without_its_partner_is_found(self):
        for order in ("std::memory_order_acquire", "std::memory_order::release", "__ATOMIC_SEQ_CST"):
            with self.subTest(order=order):
                self.assertEqual([1], lint.lonely_orders([f"word.load({order});"]))
        self.assertEqual([2], lint.lonely_orders(["// acquire: the links are seen.", "head.load(std::memory_order_acquire);"]))

    def test_the_partner_is_on_the_line_or_in_the_two_above(self):
        load = "word.load(std::memory_order_acquire);"
        self.assertEqual([], lint.lonely_orders([load + "  // pairs with claim()"]))
        self.assertEqual([], lint.lonely_orders(["// acquire: pairs with claim()", "if (x)", load]))
        self.assertEqual([], lint.lonely_orders(["// acquire: no partner, one thread", load]))
        self.assertEqual([4], lint.lonely_orders(["// acquire: pairs with claim()", "a;", "b;", load]))

    def test_relaxed_ones_and_comments_need_none(self):
        self.assertEqual([], lint.lonely_orders(["word.load(std::memory_order_relaxed);", "// std::memory_order_release"]))


if __name__ == "__main__":
    unittest.main()
