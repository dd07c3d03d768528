# SPDX-License-Identifier: Apache-2.0
"""Lists: the rows that are asked for, in the order and form that is asked for, and again.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/cli/list_test.py [TestClass[.test]]
"""

import json
import os
import pty
import re
import signal
import subprocess

from cli_base import MIB, USAGE, WithDaemon
import terrace_harness as harness
from terrace_harness import find_binary, wait_until


class Lists(WithDaemon):
    def setUp(self):
        self.t.create_pool("p", ["a"])
        self.t.create_pool("q", ["b"])
        for label, size, pool in (("small", "2M", "p"), ("large", "16M", "p"), ("other", "4M", "q")):
            self.t.grant(size, pool, "--persistent", "--label", label)

    def rows(self, *options):
        return [lease["label"] for lease in self.t.cli("lease", "list", *options).json["leases"]]

    def test_rows_are_chosen_and_sorted(self):
        self.assertEqual(self.rows("--sort", "-bytes"), ["large", "other", "small"])
        self.assertEqual(self.rows("--sort", "label", "--limit", "2"), ["large", "other"])
        self.assertEqual(self.rows("--where", "pool=p", "--sort", "bytes"), ["small", "large"])
        self.assertEqual(self.rows("--where", "bytes>=4M", "--where", "pool!=p"), ["other"])
        self.assertEqual(self.rows("--where", "label~xyz"), [])
        text = self.text("lease", "list", "--sort", "-bytes")
        self.assertLess(text.index("large"), text.index("small"), "the table is in the same order")
        self.assertIn("none of them is asked for", self.text("lease", "list", "--where", "label=xyz"))

    def test_every_list_takes_them(self):
        for words, key in (("pool list", "pools"), ("device list", "devices"), ("region list", "regions"),
                           ("quota list", "quotas"), ("reserve list", "reservations"), ("queue list", "waiting"),
                           ("host list", "hosts"), ("lease list", "leases")):
            with self.subTest(words):
                document = self.t.cli(*words.split(), "--limit", "1").json
                self.assertLessEqual(len(document[key]), 1)
                self.t.cli(*words.split(), "-o", "name", json=False)
                self.t.cli(*words.split(), "-o", "wide", json=False)
        self.assertEqual(self.text("pool", "list", "-o", "name", "--sort", "-name"), "q\np\n")
        self.assertEqual(self.text("device", "list", "-o", "name"), "emu:a\nemu:b\n")
        self.assertEqual(self.text("lease", "list", "-o", "name", "--columns", "label,bytes", "--sort", "bytes"),
                         f"small\t{2 * MIB}\nother\t{4 * MIB}\nlarge\t{16 * MIB}\n")
        self.assertEqual(self.text("pool", "list", "--columns", "name,leases").split(),
                         ["NAME", "LEASES", "p", "2", "q", "1"])

    def test_wrong_ones_are_told(self):
        self.error("lease", "list", "--where", "labl=x", code=USAGE, contains="did you mean 'label'?")
        self.error("lease", "list", "--sort", "sise", code=USAGE, contains="no key 'sise'")
        self.error("lease", "list", "--where", "label", code=USAGE, contains="is no comparison")
        self.error("lease", "list", "--watch=0", code=USAGE, contains="from 0.1")
        self.error("status", "-o", "name", code=USAGE, contains="for lists")

    def test_yaml_is_the_same_document(self):
        text = self.text("pool", "list", "-o", "yaml", "--where", "name=q")
        self.assertTrue(text.startswith("---\npools:\n- "), text)
        self.assertIn('  name: "q"\n', text)
        self.assertIn(f"  granule_bytes: {self.t.cli('pool', 'show', 'q').json['pool']['granule_bytes']}\n", text)
        wrong = self.t.cli("pool", "show", "none", "-o", "yaml", json=False, check=3)
        self.assertIn('  code: "not_found"\n', wrong.out)
        self.assertEqual(wrong.err, "")

    def test_a_watch_shows_what_changes_and_outlives_the_manager(self):
        watch = self.t.popen(find_binary("cli/terrace"), "--socket", self.t.socket, "lease", "list", "--watch=0.2", "--json",
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(watch.stderr.close)
        self.addCleanup(watch.stdout.close)
        labels = lambda: sorted(lease["label"] for lease in json.loads(watch.stdout.readline()).get("leases", []))
        self.assertEqual(labels(), ["large", "other", "small"])
        self.t.grant("2M", "q", "--persistent", "--label", "late")
        wait_until(lambda: labels() == ["large", "late", "other", "small"], what="the new lease in the watch")
        self.t.kill()
        self.t.start()
        wait_until(lambda: labels() == ["large", "late", "other", "small"], what="the leases after the restart")
        watch.send_signal(signal.SIGTERM)
        watch.wait(timeout=30)

    def test_a_terminal_has_colours_and_a_width_a_pipe_neither(self):
        command = [str(find_binary("cli/terrace")), "--socket", str(self.t.socket), "lease", "list"]
        def on_terminal(columns, **environment):
            ours, theirs = pty.openpty()
            subprocess.run(["stty", "cols", str(columns)], stdin=theirs, check=True)
            subprocess.run(command, stdin=theirs, stdout=theirs, check=True,
                           env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment})
            os.close(theirs)
            text = b""
            try:
                while part := os.read(ours, 65536):
                    text += part
            except OSError:  # the other end is closed and all is read
                pass
            os.close(ours)
            return text.decode()
        wide = on_terminal(200)
        self.assertIn("\x1b[32mactive\x1b[0m", wide)
        self.assertNotIn("\x1b", on_terminal(200, NO_COLOR="1"))
        self.assertNotIn("\x1b", on_terminal(200, TERM="dumb"))
        narrow = re.sub(r"\x1b\[\d+m", "", on_terminal(70))
        self.assertLess(max(map(len, narrow.splitlines())), max(map(len, re.sub(r"\x1b\[\d+m", "", wide).splitlines())))
        self.assertIn("\u2026", narrow)
        self.assertNotIn("\x1b", self.text("lease", "list"))


if __name__ == "__main__":
    harness.main()
