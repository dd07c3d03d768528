# SPDX-License-Identifier: Apache-2.0
"""shared_space_host (tests/support/shared_space): how it is started, and what its closing line must say. For two hosts
that one machine plays, and for two guests."""

import json
import subprocess

from terrace_harness import find_binary

PROGRAM = "tests/support/shared_space/shared_space_host"


def start(file, host, **options):
    """One host's group of processes. Options are the program's, "limit_s=30" for --limit-s 30."""
    words = [find_binary(PROGRAM), file, "--host", host]
    for name, value in options.items():
        words += ["--" + name.replace("_", "-"), value]
    return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)


def finish(process):
    """(exit code, its closing line as a dict), when it ends by itself: it has a limit of its own."""
    out = process.communicate()[0]
    print(out, end="", flush=True)
    return process.returncode, json.loads(out.splitlines()[-1]) if out else {}


def check(test, told, memory, kills, reads, news):
    """The space was of that memory; at least so many processes were killed, reads done and versions of the other host
    seen; nothing was wrong. Each of the other host's tensors was read, by copy and in place, also the one with one slot."""
    test.assertEqual((told["wrong"], told["why"]), (0, ""))
    test.assertEqual(told["memory"], memory)
    test.assertGreaterEqual(told["kills"], kills)
    test.assertGreaterEqual(sum(map(sum, told["reads"] + told["pins"])), reads)
    test.assertGreaterEqual(told["news"], news)
    for counted in ("checks", "publications"):
        test.assertGreater(told[counted], 0, counted)
    for counted in ("reads", "pins"):
        others = told[counted][1 - told["host"]]
        test.assertGreater(min(others), 0, f"{counted} of the other host's tensors: {others}")
