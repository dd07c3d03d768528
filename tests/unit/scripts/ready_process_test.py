# SPDX-License-Identifier: Apache-2.0
"""tests/support/ready_process.py: a fork does, says and is caught at what a started program is."""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ready_process import ReadyProcess  # noqa: E402

BUILD = pathlib.Path(os.environ["TERRACE_BUILD_DIR"]) / "tests/support"
PROGRAM, LIBRARY = BUILD / "ready_process_planted", BUILD / "libterrace_ready_process.so"


class ReadyProcessTest(unittest.TestCase):
    def setUp(self):
        self.ready = ReadyProcess(PROGRAM, LIBRARY, dict(os.environ))
        self.addCleanup(self.ready.close)

    def both(self, *words, stdin=None, environment=None):
        """(code, out, err) of the fork, having compared code and output with those of a start."""
        environment = {**os.environ, **(environment or {})}
        command = [str(PROGRAM), *words]
        started = subprocess.run(command, input=stdin, stdin=subprocess.DEVNULL if stdin is None else None, text=True,
                                 capture_output=True, env=environment, check=False, timeout=60)
        forked = self.ready.run(command, environment, 60, stdin)
        self.assertEqual(forked[:2], (started.returncode, started.stdout), forked[2] + started.stderr)
        return forked

    def test_arguments_environment_and_exit_code_are_passed(self):
        self.assertEqual(self.both("", "ä b", "c")[0], 4)
        self.assertIn("with 1=2", self.both(environment={"READY_TEST": "1=2"})[1])
        self.assertIn("with nothing", self.both()[1], "nothing is left of an earlier one")

    def test_stdin_is_given_and_stderr_kept_apart(self):
        _, out, err = self.both("echo", stdin="one\ntwo\n")
        self.assertEqual((out.splitlines()[1:], err), (["echo"], "one\ntwo\n"))
        self.assertEqual(self.both("echo")[2], "")

    def test_it_is_in_the_folder_of_whoever_asks(self):
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                self.assertIn(f"in {folder} ", self.both()[1])
            finally:
                os.chdir(before)

    def test_a_signal_is_told(self):
        self.assertLess(self.both("abort")[0], 0)

    def test_mistakes_are_found(self):
        for word, text in (("after_free", "heap-use-after-free"), ("behind_a_global", "global-buffer-overflow"),
                           ("overflow", "signed integer overflow")):
            code, _, err = self.both(word)
            self.assertNotEqual(code, 0, word)
            self.assertIn(text, err)
            self.assertIn("planted.cc", err, "the report names the line")

    def test_one_that_does_not_end_is_killed_while_others_go_on(self):
        results = []

        def wait():
            with self.assertRaises(subprocess.TimeoutExpired):
                self.ready.run([PROGRAM, "wait"], dict(os.environ), 2.0)
            results.append("killed")

        begin = time.monotonic()
        waits = [threading.Thread(target=wait) for _ in range(3)]
        for thread in waits:
            thread.start()
        while time.monotonic() - begin < 1.0:
            self.assertNotIn("open", self.both("descriptors")[1], "descriptors of those that wait")
        for thread in waits:
            thread.join()
        self.assertEqual(results, ["killed"] * 3)
        self.assertEqual(self.ready.run([PROGRAM, "1"], dict(os.environ), 60)[0], 2)

    def test_a_request_that_is_too_long_is_refused(self):
        with self.assertRaises(ValueError):
            self.ready.run([PROGRAM, "x" * (1 << 20)], dict(os.environ), 60)
        self.assertEqual(self.both("x" * 50_000)[0], 2)


if __name__ == "__main__":
    unittest.main()
