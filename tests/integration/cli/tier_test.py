# SPDX-License-Identifier: Apache-2.0
"""terrace tier: what it shows of processes that migrate, and what it asks of them. No daemon.

Everything runs as a user of its own: --all of root would reach every process of the machine.
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from cli_base import DENIED, NOT_FOUND, UNAVAILABLE, USAGE  # noqa: E402

GIB = 1 << 30
UID = 61_234 if os.geteuid() == 0 else os.geteuid()
BECOME = {"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}


class Writer:
    """tests/support/tier_writer as a process."""

    def __init__(self, *words):
        program = harness.find_binary("tests/support/tier_writer")
        self.process = subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        **BECOME)
        self.pid = self.process.pid
        self.expect("ready")

    def expect(self, word):
        line = self.process.stdout.readline().strip()
        if line != word:
            raise harness.HarnessError(f"tier_writer said {line!r}")

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self.expect("ok")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def end(self):
        """Ends it, and removes what a killed process leaves behind."""
        self.close()
        pathlib.Path(f"/dev/shm/terrace-tier-{UID}/{self.pid}").unlink(missing_ok=True)


class TierTest(unittest.TestCase):
    def setUp(self):
        self.terrace = harness.find_binary("terrace")

    @classmethod
    def setUpClass(cls):
        if BECOME:
            harness.need_build_for_all()

    @classmethod
    def tearDownClass(cls):
        if BECOME:
            os.rmdir(f"/dev/shm/terrace-tier-{UID}")  # empty: every test swept behind itself

    def writer(self, *words):
        writer = Writer(*words)
        self.addCleanup(writer.end)
        return writer

    def run_tier(self, *words, code=0, **options):
        done = subprocess.run([self.terrace, "tier", *map(str, words)], capture_output=True, text=True, timeout=60,
                              check=False, **BECOME, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def json(self, *words, code=0):
        return json.loads(self.run_tier(*words, "--json", code=code).stdout)

    def refused(self, *words, code, contains):
        done = self.run_tier(*words, code=code)
        self.assertEqual(done.stdout, "")
        self.assertIn(contains, done.stderr)
        self.assertIn(contains, self.json(*words, code=code)["error"]["message"])

    def ranges(self, writer):
        (process,) = self.json("status", writer.pid)["processes"]
        return {one["name"]: one for one in process["ranges"]}

    # -- status

    def test_nobody_migrates(self):
        self.assertEqual(self.json("status"), {"processes": [], "reported_runs": [], "problems": [], "swept": 0})
        self.assertIn("no process", self.run_tier("status").stdout)
        self.assertIn("nothing to do", self.run_tier("pause", "--all").stdout)
        self.refused("status", "4000000", code=NOT_FOUND, contains="process 4000000 migrates no memory")

    def test_status_shows_each_range_and_says_what_is_wrong(self):
        writer = self.writer("heap=1024", "kv=16:no_uffd")
        writer.tell("move 12")
        table = self.run_tier("status").stdout
        self.assertRegex(table, r"tier_writer +heap +running +benefit-density +2 GiB +512 MiB")
        self.assertRegex(table, r"tier_writer +kv +no_uffd")
        self.assertIn("fix: start the program while a terraced", table)
        for line in table.splitlines():
            self.assertEqual(line, line.rstrip())
        block = self.run_tier("status", "tier_writer").stdout
        self.assertIn("12 promotions (24 MiB), 0 demotions (0 B); 0 undone", block)
        self.assertIn("2.04 ms in all, 170 us a granule moved, of which 150 us copying", block)
        self.assertIn("about 97.3% of accesses are served by DDR", block)
        heap = self.ranges(writer)["heap"]
        self.assertEqual((heap["promotions"], heap["stalled_ns_mean"], heap["ddr_hit_share"]), (12, 170_000, 0.973))
        kv = self.ranges(writer)["kv"]
        self.assertEqual((kv["state"], kv["reason"]), ("no_uffd", "Operation not permitted"))
        self.assertIsNone(kv["ddr_hit_share"])
        self.assertIsNone(kv["stalled_ns_mean"])

    def test_another_user_sees_nothing(self):
        writer = self.writer("heap=16")
        if not BECOME:
            self.skipTest("only root can become another user")
        done = subprocess.run([self.terrace, "tier", "status", "--json"], capture_output=True, text=True, timeout=60,
                              check=True, user=UID + 1, group=UID + 1, extra_groups=[])
        self.assertEqual(json.loads(done.stdout)["processes"], [])
        done = subprocess.run([self.terrace, "tier", "status", "--json", str(writer.pid)], capture_output=True,
                              text=True, timeout=60, check=True)
        self.assertEqual(json.loads(done.stdout)["processes"][0]["uid"], UID)  # root sees all

    def test_a_killed_process_is_swept(self):
        swept = 0
        while swept == 0:  # `terrace tier` of another test may come first
            writer = self.writer("heap=16")
            page = pathlib.Path(f"/dev/shm/terrace-tier-{UID}/{writer.pid}")
            self.assertTrue(page.exists())
            writer.close()
            swept = self.json("status")["swept"]  # it was killed: nobody removed it
            self.assertFalse(page.exists())

    def test_watch_goes_on_until_the_process_ends(self):
        writer = self.writer("heap=16")
        watch = subprocess.Popen([self.terrace, "--json", "tier", "status", str(writer.pid), "--watch=0.1"],
                                 stdout=subprocess.PIPE, text=True, **BECOME)
        self.addCleanup(watch.stdout.close)
        self.addCleanup(watch.kill)
        for _ in range(3):
            self.assertEqual(json.loads(watch.stdout.readline())["processes"][0]["pid"], writer.pid)
        writer.close()
        self.assertEqual(watch.wait(30), 0)

    def test_watch_shows_rates(self):
        writer = self.writer("heap=16")
        watch = subprocess.Popen([self.terrace, "tier", "status", "--watch=1", "tier_writer"], stdout=subprocess.PIPE,
                                 text=True, **BECOME)
        self.addCleanup(watch.wait)
        self.addCleanup(watch.kill)
        first = watch.stdout.readline(), watch.stdout.readline()
        self.assertIn("UP/S", first[0])
        writer.tell("move 40")
        rates = []
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not any(rate > 5 for rate in rates):
            if select.select([watch.stdout], [], [], 5)[0]:
                line = watch.stdout.readline()
                found = re.search(r"tier_writer.* 97\.3% +(\d+\.\d) ", line)
                rates += [float(found.group(1))] if found else []
        self.assertTrue(any(5 < rate < 41 for rate in rates), rates)
        watch.stdout.close()
        self.refused("status", "--watch=0", code=USAGE, contains="from 0.1 seconds")
        self.refused("status", "--watch=soon", code=USAGE, contains="soon")

    # -- set, pause, resume

    def test_set_changes_what_is_named_and_shows_the_outcome(self):
        writer = self.writer("heap=1024", "kv=1024")
        out = self.run_tier("set", writer.pid, "--range", "heap", "--policy", "static", "--ddr", "1G",
                            "--copy-budget", "512M/s").stdout
        self.assertEqual(out, f"tier_writer[{writer.pid}] heap: running, policy static, 1 GiB of DDR, "
                              "copies: at most 512 MiB/s\n")
        ranges = self.ranges(writer)
        self.assertEqual((ranges["heap"]["policy"], ranges["heap"]["ddr_bytes_max"]), ("static", GIB))
        self.assertEqual(ranges["kv"]["policy"], "benefit-density")
        changed = self.json("set", "kv", "--copy-budget", "none")["changed"]
        self.assertEqual([(one["pid"], one["range"]["name"], one["range"]["copy_bytes_per_s_max"]) for one in changed],
                         [(writer.pid, "kv", None)])

    def test_what_cannot_be_set_is_refused_before_anybody_is_asked(self):
        writer = self.writer("heap=16", "kv=16")
        self.refused("set", writer.pid, code=USAGE, contains="--policy, --ddr, --copy-budget")
        self.refused("set", writer.pid, "--policy", "statik", code=USAGE, contains="did you mean 'static'?")
        self.refused("set", writer.pid, "--ddr", "lots", code=USAGE, contains="lots")
        self.refused("set", writer.pid, "--copy-budget", "0", code=USAGE, contains="none")
        self.refused("set", writer.pid, "--range", "haep", "--ddr", "1G", code=NOT_FOUND,
                     contains="did you mean 'heap'?")
        self.refused("set", "tier_wirter", "--ddr", "1G", code=NOT_FOUND, contains="did you mean 'tier_writer'?")
        self.refused("pause", code=USAGE, contains="--all")
        self.refused("pause", writer.pid, "--all", code=USAGE, contains="either")
        self.assertEqual(self.ranges(writer)["heap"]["ddr_bytes_max"], 8 << 20)

    def test_a_name_that_several_processes_have_is_not_enough(self):
        first, second = self.writer("heap=16"), self.writer("heap=16")
        self.refused("pause", "tier_writer", code=USAGE, contains=f"tier_writer[{first.pid}]")
        self.assertEqual(len(self.json("status", "heap")["processes"]), 2)
        self.run_tier("pause", second.pid)
        self.assertEqual(self.ranges(first)["heap"]["state"], "running")
        self.assertEqual(self.ranges(second)["heap"]["state"], "paused")

    def test_pause_and_resume_of_all_leave_out_what_does_not_migrate(self):
        first, second = self.writer("heap=16", "kv=16:no_uffd"), self.writer("heap=16")
        out = self.run_tier("pause", "--all").stdout
        self.assertEqual(len(out.splitlines()), 2)
        for writer in (first, second):
            self.assertEqual(self.ranges(writer)["heap"]["state"], "paused")
        self.assertEqual(self.ranges(first)["kv"]["state"], "no_uffd")
        self.assertEqual([one["range"]["state"] for one in self.json("resume", "--all")["changed"]], ["running"] * 2)

    def test_a_process_that_refuses_or_does_not_answer(self):
        writer = self.writer("heap=16:no_uffd")
        writer.tell("refuse")
        self.refused("pause", writer.pid, code=1, contains="userfaultfd")
        deaf = self.writer("heap=16", "--deaf")
        self.refused("pause", deaf.pid, "--wait", "200ms", code=UNAVAILABLE, contains="did not answer within 200 ms")
        os.kill(deaf.pid, signal.SIGSTOP)
        self.refused("pause", deaf.pid, "--wait", "200ms", code=UNAVAILABLE, contains=f"kill -CONT {deaf.pid}")
        os.kill(deaf.pid, signal.SIGCONT)

    # -- map

    def test_a_map_as_text_is_plain_in_a_pipe(self):
        writer = self.writer("heap=1024")
        text = self.run_tier("map", writer.pid).stdout
        self.assertNotIn("\x1b", text)
        self.assertIn("2 GiB, one character is 2 MiB", text)
        rows = [line for line in text.splitlines() if line.endswith("|")]
        self.assertEqual(len(rows), 16)
        self.assertTrue(rows[0].startswith("     0 B |XXXX"), rows[0])
        narrow = self.run_tier("map", writer.pid, "--width", "16").stdout
        self.assertIn("one character is 4 MiB", narrow)
        maps = self.json("map", "heap")["maps"]
        self.assertEqual(sum(block["bytes"] for block in maps[0]["blocks"]), 2 * GIB)
        self.assertEqual(sum(block["ddr_bytes"] for block in maps[0]["blocks"]), GIB // 2)

    def on_a_terminal(self, *words, **environment):
        """What it writes to a terminal of 100 columns."""
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        process = subprocess.Popen([self.terrace, "tier", *map(str, words)], stdout=its, stdin=its,
                                   env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **environment}, **BECOME)
        os.close(its)
        text = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # nobody has the other end any more
                break
            text += part
        os.close(ours)
        self.assertEqual(process.wait(30), 0)
        return text.decode().replace("\r\n", "\n")

    def test_a_map_on_a_terminal_is_as_wide_as_it_and_in_colour(self):
        writer = self.writer("heap=1024")
        text = self.on_a_terminal("map", writer.pid)
        self.assertIn("\x1b[48;5;214;38;5;16mXXX", text)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        rows = [line for line in plain.splitlines() if line.endswith("|")]
        self.assertTrue(all(len(row) <= 100 for row in rows), rows)
        self.assertGreater(len(rows[0]), 90)
        self.assertEqual(self.on_a_terminal("map", writer.pid, NO_COLOR="1"), plain)
        self.assertEqual(self.on_a_terminal("map", writer.pid, TERM="dumb"), plain)

    def test_a_map_as_svg(self):
        writer = self.writer("heap=300", "kv=16")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="t-map-"))
        self.addCleanup(folder.rmdir)
        folder.chmod(0o777)
        file = folder / "map.svg"
        self.addCleanup(lambda: file.unlink(missing_ok=True))
        self.refused("map", writer.pid, "--svg", file, code=USAGE, contains="--range: heap, kv")
        self.assertFalse(file.exists())
        self.run_tier("map", writer.pid, "--range", "heap", "--svg", file)
        root = xml.etree.ElementTree.parse(file).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertEqual(root.get("role"), "img")
        self.assertIn("600 MiB", root.find("{http://www.w3.org/2000/svg}desc").text)
        if BECOME:
            folder.chmod(0o755)
            self.refused("map", writer.pid, "--range", "kv", "--svg", folder / "other.svg", code=DENIED,
                         contains="other.svg")

    def test_without_a_page_there_is_nothing_to_draw(self):
        self.refused("map", "nothing", code=NOT_FOUND, contains="nothing")


if __name__ == "__main__":
    harness.main()
