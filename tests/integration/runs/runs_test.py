# SPDX-License-Identifier: Apache-2.0
"""What programs report of their memory to the manager, from where no file of theirs can be seen: a run in mount and
process namespaces of its own, as in a container.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/runs/runs_test.py [TestClass[.test]]
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, find_binary, wait_until  # noqa: E402

MIB = 1 << 20
PATIENCE = 120

# known LARGE REFUSED: so many blocks of 1 MiB, and so many requests for which there is no room, then it waits for its
# standard input's end.
KNOWN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int c, char** v) {
  (void)c;
  for (int i = 0; i < atoi(v[1]); ++i) memset(malloc(1 << 20), 1, 1 << 20);
  for (int i = 0; i < atoi(v[2]); ++i) if (malloc(500u << 20) != NULL) return 1;
  puts("ready");
  fflush(stdout);
  char byte;
  return read(0, &byte, 1) < 0;
}
"""
# Fills DDR with blocks that it never uses again, and uses others all the time, until its standard input ends.
MOVING = """
import select, sys
kept = [bytearray(2 << 20) for _ in range(40)]
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for one in kept[25:35]:
        for i in range(0, len(one), 4096): one[i] = 1
"""
# As a container has it: nothing of the machine's /run and /dev/shm, and other process numbers.
CONTAINER = ("unshare", "-m", "-p", "--fork", "--mount-proc", "sh", "-c",
             'mount -t tmpfs none /run && mount -t tmpfs none /dev/shm && exec "$@"', "sh")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def require_namespaces():
    probe = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise unittest.SkipTest("needs the right to mount, and namespaces: " + probe.stderr.strip())


class RunsTest(unittest.TestCase):
    def setUp(self):
        require_namespaces()
        self.t = Harness(devices={"a": "512M"}, name="runs",
                         env={"TERRACE_MALLOC_LIBRARY": find_binary("libterrace_heap.so")})
        self.addCleanup(self.t.close)
        self.t.env["XDG_RUNTIME_DIR"] = str(self.t.directory)
        self.t.start()
        self.t.create_pool("p")
        source = self.t.directory / "known.c"
        source.write_text(KNOWN)
        self.known = self.t.directory / "known"
        subprocess.run(["gcc", "-O1", "-fno-builtin", "-o", self.known, source], check=True)

    # -- programs

    def start(self, *command, contained=True, options=("--ddr", "32M", "--cxl", "128M", "--policy", "static")):
        """A run; answers the process that was started, and the supervisor's number as the machine has it."""
        inside = CONTAINER if contained else ()
        process = self.t.popen(*inside, self.t.terrace, "run", *options, "--", *command, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)

        def end():
            process.stdin.close()
            process.stdout.close()
            if process.poll() is None:
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(60)
        self.addCleanup(end)
        self.assertEqual(process.stdout.readline(), "ready\n")
        pid = process.pid
        if contained:
            pid = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return process, pid

    def finish(self, process):
        process.stdin.close()
        self.assertEqual(process.wait(PATIENCE), 0)

    # -- what the manager says

    def ask(self, path):
        connection = UnixConnection(self.t.runtime / "http.sock")
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        self.assertEqual(answer.status, 200, body)
        return body

    def metrics(self):
        samples = {}
        for line in self.ask("/metrics").splitlines():
            if line.startswith("terrace_run"):
                name, value = line.rsplit(" ", 1)
                samples[re.sub(r'tenant="[^"]*",?', "", name).replace("{}", "")] = float(value)
        return samples

    def until(self, check, what):
        """The metrics, once `check` of them holds."""
        last = {}

        def look():
            last.update(now=self.metrics())
            return check(last["now"])
        try:
            wait_until(look, PATIENCE, what, interval=0.3)
        except harness.HarnessError as error:
            raise AssertionError(f"{error}: {json.dumps(last, indent=1)}\n{self.t.log_tail()}") from None
        return last["now"]

    def runs(self):
        return json.loads(self.ask("/api/v1/runs"))["runs"]

    # -- tests

    def test_a_contained_run_counts_and_its_counters_stay_when_it_has_ended(self):
        self.assertEqual(self.metrics(), {"terrace_run_reports_refused_total": 0})
        process, pid = self.start(self.known, "60", "3")
        now = self.until(lambda m: m.get("terrace_run_refusals_total") == 3, "the run's refusals")
        self.assertEqual(now["terrace_runs"], 1)
        self.assertEqual(now["terrace_run_processes"], 1)
        self.assertGreaterEqual(now["terrace_run_live_bytes"], 60 * MIB)
        self.assertLess(now["terrace_run_live_bytes"], 70 * MIB)
        self.assertGreater(now['terrace_run_bytes{tier="ddr"}'], 20 * MIB)
        self.assertLessEqual(now['terrace_run_bytes{tier="ddr"}'], 32 * MIB)
        self.assertGreaterEqual(now['terrace_run_bytes{tier="cxl"}'], 28 * MIB)
        self.assertEqual(now["terrace_run_leased_bytes"], sum(lease["bytes"] for lease in self.t.leases().values()))
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=self.ask("/metrics"), capture_output=True, text=True,
                                  check=False)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        [run] = self.runs()
        self.assertEqual((run["pid"], run["uid"], run["agent"]), (pid, os.getuid(), None))
        self.assertEqual(run["figures"]["program"], "known")
        self.assertEqual(run["figures"]["counters"]["refused"], 3)
        self.assertEqual(run["figures"]["ddr_bytes_max"], 32 * MIB)
        self.finish(process)
        after = self.until(lambda m: m["terrace_runs"] == 0, "the run's end")
        self.assertEqual(after["terrace_run_refusals_total"], 3)
        self.assertEqual(after['terrace_run_bytes{tier="cxl"}'], 0)
        self.assertEqual(self.runs(), [])
        # The next one's are added.
        process, _ = self.start(self.known, "60", "2")
        self.until(lambda m: m["terrace_run_refusals_total"] == 5, "the sum of both runs")
        self.finish(process)

    def test_moves_stalls_and_hits_come_from_within_the_container(self):
        if [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]] < [6, 7]:
            self.skipTest("nothing moves before Linux 6.7")
        if not os.access("/dev/userfaultfd", os.R_OK | os.W_OK):
            self.skipTest("this kernel has no /dev/userfaultfd, or not for this user")
        process, _ = self.start("/usr/bin/python3", "-c", MOVING, options=("--ddr", "32M", "--cxl", "128M"))
        now = self.until(lambda m: m.get("terrace_run_promotions_total", 0) > 0 and 'terrace_run_hit_ratio{tier="ddr"}' in m,
                         "moves in the container")
        self.assertGreaterEqual(now["terrace_run_promoted_bytes_total"], 2 * MIB * now["terrace_run_promotions_total"])
        self.assertGreater(now["terrace_run_demotions_total"], 0)
        self.assertGreater(now["terrace_run_stalled_seconds_total"], 0)
        self.assertGreaterEqual(now["terrace_run_sampled_bytes"], 80 * MIB)
        self.assertAlmostEqual(now['terrace_run_hit_ratio{tier="ddr"}'] + now['terrace_run_hit_ratio{tier="cxl"}'], 1)
        # Where its accesses go, in at most 64 bands.
        heat = wait_until(lambda: (heat := self.runs()[0]["figures"]["heat"]) and any(heat["heat"]) and heat, PATIENCE, "bands that are used")
        self.assertLessEqual(len(heat["heat"]), 64)
        self.assertGreaterEqual(len(heat["heat"]) * heat["band_bytes"], 80 * MIB)
        self.assertEqual({len(heat[key]) for key in ("heat", "ddr_percent", "cxl_percent")}, {len(heat["heat"])})
        self.assertTrue(all(ddr + cxl <= 100 for ddr, cxl in zip(heat["ddr_percent"], heat["cxl_percent"])), heat)
        in_ddr = sum(heat["ddr_percent"]) * heat["band_bytes"] / 100
        self.assertLessEqual(in_ddr, 40 * MIB)  # of a budget of 32, as another moment had it
        self.assertGreater(sum(heat["cxl_percent"]) * heat["band_bytes"] / 100, 30 * MIB)
        self.finish(process)
        after = self.until(lambda m: m["terrace_runs"] == 0, "the run's end")
        for name in ("promotions", "demotions", "stalled_seconds"):
            self.assertGreaterEqual(after[f"terrace_run_{name}_total"], now[f"terrace_run_{name}_total"])
        self.assertNotIn('terrace_run_hit_ratio{tier="ddr"}', after)

    def test_top_and_tier_show_what_has_no_file_here(self):
        process, pid = self.start(self.known, "60", "3")
        local, local_pid = self.start(self.known, "40", "0", contained=False)
        self.until(lambda m: m.get("terrace_runs") == 2 and m["terrace_run_refusals_total"] == 3, "both runs")

        def look():
            document = self.t.cli("top", "--once").json
            pids = [run["run"]["pid"] for run in document["runs"]]  # of this machine: other tests have some, too
            self.assertNotIn(pid, pids)
            return document if local_pid in pids else None
        top = wait_until(look, PATIENCE, "the run of this machine in top")
        tier = self.t.cli("tier", "status").json
        for document in (top, tier):
            [run] = document["reported_runs"]
            self.assertEqual((run["pid"], run["figures"]["program"]), (pid, "known"))
            self.assertEqual(run["figures"]["counters"]["refused"], 3)
            self.assertGreaterEqual(run["figures"]["cxl_bytes"], 28 * MIB)
        table = self.t.cli("top", "--once", "--processes", json=False).out
        [line] = [line for line in table.splitlines() if re.match(rf" *{pid} ", line)]
        self.assertRegex(line, r"reported \S+ .*/32 MiB .* 3 +known \(\S+ on \S+\)")
        self.assertEqual(len([line for line in table.splitlines() if re.match(rf" *{local_pid} +runs ", line)]), 1, table)
        table = self.t.cli("tier", "status", json=False).out
        self.assertIn("Runs elsewhere", table)
        self.assertRegex(table, rf"{pid} +known ")
        self.assertNotRegex(table, rf"{local_pid} +known ")
        # Who is no operator gets what is here, and no line in the audit log.
        before = self.t.cli("audit").json["entries"]
        nobody = self.t.run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", self.t.terrace, "--json",
                            "top", "--once", want_json=True)
        self.assertEqual(nobody.json["reported_runs"], [])
        self.assertEqual(self.t.cli("audit").json["entries"], before)
        self.finish(process)
        wait_until(lambda: self.t.cli("top", "--once").json["reported_runs"] == [], PATIENCE, "the run's end in top")
        self.assertEqual(self.t.cli("tier", "status").json["reported_runs"], [])
        self.finish(local)
        # Without a manager there is no waiting and no error.
        self.t.stop()
        self.assertEqual(self.t.cli("top", "--once").json["reported_runs"], [])

    def test_what_happened_in_the_last_seconds_counts(self):
        process, _ = self.start("sh", "-c", f"{self.known} 60 0 && {self.known} 60 4 < /dev/null")
        self.until(lambda m: m.get("terrace_runs") == 1, "the run")
        process.stdin.close()
        process.stdout.read()
        self.assertEqual(process.wait(PATIENCE), 0)
        self.until(lambda m: m["terrace_runs"] == 0 and m["terrace_run_refusals_total"] == 4, "the second program's")

    def test_nothing_is_counted_twice_over_a_new_connection_or_a_new_manager(self):
        process, _ = self.start(self.known, "60", "3")
        self.until(lambda m: m.get("terrace_run_refusals_total") == 3, "the run's refusals")
        reports = self.metrics()["terrace_run_reports_total"]
        self.until(lambda m: m["terrace_run_reports_total"] > reports, "another report")
        self.t.restart()
        # It is there again, and what the manager before was told is not this one's.
        now = self.until(lambda m: m.get("terrace_runs") == 1, "the run at the new manager")
        self.assertEqual(now["terrace_run_refusals_total"], 0)
        self.assertEqual(self.runs()[0]["figures"]["counters"]["refused"], 3)
        self.finish(process)

    def test_a_stopped_run_is_still_listed_by_its_age(self):
        process, pid = self.start(self.known, "60", "0")
        self.until(lambda m: m.get("terrace_runs") == 1, "the run")
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: self.runs()[0]["age_ns"] > 10_000_000_000, PATIENCE, "ten seconds without a report")
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: self.runs()[0]["age_ns"] < 6_000_000_000, PATIENCE, "a fresh report")
        self.finish(process)


if __name__ == "__main__":
    harness.main()
