#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A tutorial of docs/tutorials, run command by command against this build: tutorial_test.py --page operator.

What a page needs beside the build is in NEEDS; a machine without it skips the page. `--verbose` shows each command.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import tutorial
from tutorial import PageError

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
SKIP_EXIT_CODE = 77

# Page -> what it runs beside Terrace: (program or file below the build, the package that has it).
NEEDS = {
    "operator": [],
    "existing_program": [("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")],
    "cpp": [("cmake", "cmake"), ("ninja", "ninja-build")],
    "python": [("bindings/python/terrace", "python3-dev and pybind11-dev, before the build"),
               ("/usr/lib/python3/dist-packages/numpy", "python3-numpy")],
}
MIGRATES = {"existing_program", "cpp", "python"}  # pages that show memory that moves


class TheRunnerItself(unittest.TestCase):
    """A page that is wrong must not pass."""

    def page(self, text):
        file = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "page.md"
        file.write_text(text, encoding="utf-8")
        return file

    def run_text(self, text):
        return tutorial.run_page(self.page(text), {"PATH": os.environ["PATH"]})

    def refused(self, text, *words):
        with self.assertRaises(PageError) as caught:
            self.run_text(text)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_a_session_keeps_variables_and_its_directory(self):
        self.assertEqual(self.run_text("```console\n$ mkdir a && cd a && x=1\n```\ntext\n```console\n"
                                       "$ echo $x; basename $PWD\n1\na\n$ cat <<'END'\n> two\n> END\ntwo\n```\n"), 3)

    def test_dots_stand_for_text_and_for_lines(self):
        self.run_text("```console\n$ printf 'a   b c\\nd\\ne\\nf\\n'\na ... c\n...\nf\n$ true\n...\n```\n")
        self.refused("```console\n$ printf 'a\\nb\\n'\na...\n```\n", "page.md:2", "wanted", "got")

    def test_other_output_is_told_with_page_and_line(self):
        self.refused("text\n\n```console\n$ echo one\ntwo\n```\n", "page.md:4", "two", "one")
        self.refused("```console\n$ echo one\n```\n", "page.md:2", "one")
        self.refused("```console\n$ true\none\n```\n", "page.md:2", "(nothing)")

    def test_a_failure_has_to_be_announced(self):
        self.refused("```console\n$ false\n```\n", "exit status 1")
        self.run_text("```console\n$ (exit 4)\n$ echo $?\n4\n```\n")

    def test_a_page_without_commands_is_refused(self):
        self.refused("```sh\n$ true\n```\n", "no command")
        self.refused("```console\ntrue\n```\n", "output without a command")
        self.refused("```console\n$ true\n", "no end")

    def test_what_a_page_leaves_behind_is_ended_and_told(self):
        self.refused("```console\n$ (sleep 1000 > /dev/null 2>&1 &)\n```\n", "leaves behind", "sleep 1000")
        self.assertEqual(tutorial.descendants(os.getpid()), [])


def environment(arguments, tools):
    """What the pages may count on: the build, and this Python under the name that they use."""
    python = tools / "python3"
    python.write_text(f'#!/bin/sh\nexec env {arguments.python_env} /usr/bin/python3 -B "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if key in ("LANG", "USER", "LOGNAME", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")}
    kept.update({
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LC_ALL": "C.UTF-8",
        "TERRACE_BUILD": str(arguments.build_dir),
        "TERRACE_SOURCE": str(REPOSITORY),
        "CMAKE_GENERATOR": "Ninja",
    })
    if arguments.compiler:
        kept["CXX"] = arguments.compiler
    if arguments.sanitize:
        kept["CXXFLAGS"] = f"-fsanitize={arguments.sanitize}"
    return kept


def lacks(page, build_dir):
    """What this machine has not, and the page needs; empty: nothing."""
    for what, package in NEEDS[page]:
        if shutil.which(what) is None and not (build_dir / what).exists():
            return f"not on this machine: {what} (package {package})"
    if page in MIGRATES:
        seen = subprocess.run([build_dir / "cli/terrace", "--json", "doctor"], capture_output=True, text=True, check=False)
        if not any(check["name"] == "migration" and check["state"] == "ok" for check in json.loads(seen.stdout)["checks"]):
            return "memory does not migrate here; `terrace doctor` says why"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", choices=[*NEEDS, "none"], required=True, help="none: the runner's own tests")
    parser.add_argument("--build-dir", type=pathlib.Path,
                        default=os.environ.get("TERRACE_BUILD_DIR") or REPOSITORY / "build" / "dev")
    parser.add_argument("--compiler", default="")
    parser.add_argument("--sanitize", default="")
    parser.add_argument("--python-env", default="", help="variables with which a python3 can load this build's library")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    arguments.build_dir = pathlib.Path(arguments.build_dir).resolve()
    if arguments.page == "none":
        unittest.main(argv=[sys.argv[0]])
    if missing := lacks(arguments.page, arguments.build_dir):
        print(f"skipped: {missing}")
        sys.exit(SKIP_EXIT_CODE)
    with tempfile.TemporaryDirectory(prefix="tutorial-tools-") as tools:
        try:
            steps = tutorial.run_page(REPOSITORY / "docs" / "tutorials" / f"{arguments.page}.md",
                                      environment(arguments, pathlib.Path(tools)), arguments.verbose)
        except PageError as error:
            sys.exit(str(error))
    print(f"{steps} commands did what the page says")


if __name__ == "__main__":
    main()
