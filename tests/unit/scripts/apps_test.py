# SPDX-License-Identifier: Apache-2.0
"""What scripts/dev apps makes of programs that lie, fail, hang or are not there."""

import argparse
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devlib.apps import main  # noqa: E402
from devlib.apps.memory import MemorySampler, children_of  # noqa: E402
from devlib.apps.registry import App, all_apps  # noqa: E402
from devlib.apps.side import PYTHON, AppFailure, AppSkipped, Side  # noqa: E402
from terrace_harness import process_alive  # noqa: E402


def counted(**more):
    return {"unsupervised": 0, "runs": 1, "live_bytes_peak": 1, "allocations_cxl": 1, "demotions": 0, "promotions": 0,
            "leased_bytes_peak": 0, "refused": 0, "forks_refused": 0, "fallbacks": 0, "no_stats": 0, **more}


def one_side(results, **more):
    return {"results": results, "seconds": 2.0, "rss_bytes_peak": 1 << 20, "rates": {}, "terrace": counted(**more), "said": [],
            "commands": []}


class CompareTest(unittest.TestCase):
    def test_the_same(self):
        self.assertEqual(main._compare([(one_side({"a": "1"}), one_side({"a": "1"}))])["result"], "same")

    def test_one_round_that_differs_is_enough(self):
        same = (one_side({"a": "1"}), one_side({"a": "1"}))
        report = main._compare([(one_side({"a": "1"}), one_side({"a": "2"})), same])
        self.assertEqual(report["result"], "differs")
        self.assertEqual(report["differences"], [{"what": "a", "plain": "1", "terrace": "2"}])

    def test_a_result_that_one_side_lacks(self):
        for plain, tiered in (({"a": "1"}, {}), ({}, {"a": "1"})):
            self.assertEqual(main._compare([(one_side(plain), one_side(tiered))])["result"], "differs")

    def test_runs_that_prove_little_say_so(self):
        for more, text in (({"unsupervised": 1}, "ran without"), ({"live_bytes_peak": 0}, "nothing in the arena"),
                           ({"allocations_cxl": 0}, "within DDR")):
            report = main._compare([(one_side({}), one_side({}, **more))])
            self.assertIn(text, report["reason"])
        self.assertEqual(main._compare([(one_side({}), one_side({}))]).get("reason", ""), "")


class SideTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="terrace-apps-test-")
        self.addCleanup(folder.cleanup)
        self.side = Side(pathlib.Path(folder.name))
        self.addCleanup(self.side.end)

    def test_a_wrong_exit_code_is_a_failure_with_the_command(self):
        with self.assertRaisesRegex(AppFailure, r"(?s)exit code 3 instead of 0: .*sh -c.*told"):
            self.side.run("/bin/sh", "-c", "echo told; exit 3")
        self.assertEqual(self.side.run("/bin/sh", "-c", "echo told; exit 3", code=3), b"told\n")

    def test_a_hang_is_a_failure_and_leaves_no_process(self):
        with self.assertRaisesRegex(AppFailure, "still running"):
            self.side.run("/bin/sh", "-c", "echo $$ >pid; sleep 60 & echo $! >>pid; wait", timeout=1)
        pids = [int(word) for word in (self.side.folder / "pid").read_text().split()]
        self.assertEqual([pid for pid in pids if process_alive(pid)], [])

    def test_a_program_that_is_not_there_is_a_skip(self):
        with self.assertRaises(AppSkipped):
            self.side.run("no-such-program-at-all")

    def test_a_server_that_ends_too_soon_is_not_waited_for(self):
        process = self.side.start("/bin/sh", "-c", "echo why >&2; exit 1")
        with self.assertRaisesRegex(AppFailure, r"(?s)ended with 1 before an answer.*why"):
            self.side.wait_for(lambda: None, process, "an answer")

    def test_memory_of_children_is_counted(self):
        script = ("import subprocess,sys\nif len(sys.argv)>1: a=bytearray(b'x')*(80<<20)\n"
                  "else: subprocess.run([sys.executable,__file__,'x'])\nimport time; time.sleep(0.3)")
        path = self.side.script("p.py", script)
        measured = self.side.measured(lambda side: {"out": side.run(PYTHON, path).decode()})
        self.assertGreater(measured["rss_bytes_peak"], 80 << 20)
        self.assertLess(measured["rss_bytes_peak"], 160 << 20)

    def test_sampling_a_process_that_is_gone(self):
        with MemorySampler() as sampler:
            sampler.watch(2**22 + 1, False)
        self.assertEqual(children_of(2**22 + 1), [])


class VerbTest(unittest.TestCase):
    def arguments(self, *words):
        parser = argparse.ArgumentParser()
        main.add_arguments(parser)
        return parser.parse_args(words)

    def test_what_is_missing_is_named(self):
        app = App("x", "", None, programs={"no-such-program-at-all": "package-a", "sh": "dash"},
                  modules={"no_such_module": "package-b", "json": "python3"}, files={"/nonexistent": "package-c"})
        report = main._one(app, self.arguments())
        self.assertEqual((report["result"], report["reason"]),
                         ("skipped", "apt-get install package-a package-b package-c"))
        report = main._one(App("x", "", None, built={"/nonexistent": "thing"}), self.arguments())
        self.assertEqual(report["reason"], "no thing: docs/operations/apps.md tells how to build it")

    def test_budgets_that_are_given_replace_the_defaults(self):
        app = App("x", "", None, ddr="4M")
        self.assertEqual(main._options(app, ""), ["--ddr", "4M", "--cxl", "1G"])
        self.assertEqual(main._options(app, "--ddr=1G --min-size 4096"), ["--cxl", "1G", "--ddr=1G", "--min-size", "4096"])

    def test_an_unknown_name_is_refused(self):
        with self.assertRaisesRegex(Exception, "no program zz; there are redis"):
            main.apps(self.arguments("zz"))

    def test_the_list_has_every_program(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main.apps(self.arguments("--list"))
        for name in all_apps():
            self.assertRegex(out.getvalue(), rf"(?m)^{name} ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
