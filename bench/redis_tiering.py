# SPDX-License-Identifier: Apache-2.0
"""redis under `terrace run`: what migration costs GETs while it works, and where the hot keys end up.

A data set of four times the DDR budget, values of 8 KB, loaded cold keys first, so that the keys that are asked for
most begin in CXL memory. Reads follow Zipf's law over the keys (exponent 0.99, the youngest are the hottest). Runs
with and without migration alternate. The figure is the median, over the seconds of all runs of a kind, of a second's
99th percentile, from the first second on, while memory moves: other work on the machine comes in bursts, which would
decide about whole runs.

    TERRACE_BUILD_DIR=build/release /usr/bin/python3 bench/redis_tiering.py [--json FILE] [--pairs N] [--seconds S]

Numbers: redis_get_p99_over_no_migration, redis_hot_keys_in_ddr_pct (of the hottest keys that fit half of DDR; where
each value lies is looked up in the process's memory and mappings at the end).
"""

import argparse
import bisect
import json
import pathlib
import random
import re
import shutil
import socket
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "support"))
from terrace_harness import Harness, find_binary, wait_until  # noqa: E402

VALUE_BYTES = 8000  # two pages of the heap
SLOT_BYTES = 8192
EXPONENT = 0.99


class Link:
    """One connection, one request at a time, answers read into one buffer: as little Python as there can be."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.buffer = bytearray(2 * VALUE_BYTES)
        self.view = memoryview(self.buffer)

    def put(self, pairs):
        data = b"".join(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)
                        for key, value in pairs)
        self.socket.sendall(data)
        wanted = 5 * len(pairs)
        while wanted > 0:
            got = self.socket.recv(wanted)
            if not got or b"-" in got:
                raise RuntimeError(f"redis: {bytes(got)!r}")
            wanted -= len(got)

    def get(self, request):
        """Nanoseconds from the request's first byte to the answer's last."""
        begin = time.perf_counter_ns()
        self.socket.sendall(request)
        have = 0
        while have < VALUE_BYTES + 9:  # $8000\r\n ... \r\n
            got = self.socket.recv_into(self.view[have:])
            if got == 0:
                raise RuntimeError("redis ended")
            have += got
        return time.perf_counter_ns() - begin


def value_of(key):
    return (b"value:%08d:" % key).ljust(VALUE_BYTES, b"%d" % (key % 10))


def window_mappings(pid):
    """(begin, end, tier) of the window. The engine maps everything a second time: the front's file as a whole, which
    tells the window's length, and leases, where slots keep what was promoted out of them."""
    shared = []
    with open(f"/proc/{pid}/maps", encoding="utf-8") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            name = fields[5].strip() if len(fields) > 5 else ""
            if "s" in fields[1]:
                shared.append((begin, end, int(fields[2], 16), "terrace-front" in name or name.startswith("/#")))
    front = [one for one in shared if one[3]]
    if not front:
        return []
    alias = max(front, key=lambda one: one[1] - one[0])
    base = next((one[0] - one[2] for one in front if one[0] - one[2] != alias[0]), None)
    if base is None:
        return []
    end = base + alias[1] - alias[0]
    return [(one[0], one[1], "ddr" if one[3] else "cxl") for one in shared if base <= one[0] < end]


def read_at(memory, at, size):
    for _ in range(1000):
        try:
            memory.seek(at)
            return memory.read(size)
        except OSError:  # moves at this moment
            time.sleep(0.001)
    return b""


def tiers_of(pid, wanted):
    """Where the values of `wanted` keys lie: key → "ddr" or "cxl"."""
    found = {}
    pattern = re.compile(rb"value:(\d{8}):")
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for begin, end, tier in window_mappings(pid):
            for at in range(begin, end, 1 << 22):
                for match in pattern.finditer(read_at(memory, at, min(1 << 22, end - at))):
                    if int(match[1]) in wanted:
                        found[int(match[1])] = tier
    return found


class Run:
    def __init__(self, harness, policy, arguments):
        self.harness, self.policy, self.arguments = harness, policy, arguments
        self.ddr = arguments.ddr_mib << 20
        self.keys = 4 * self.ddr // SLOT_BYTES

    def measure(self, seed):
        t = self.harness
        path = t.directory / "redis.sock"
        path.unlink(missing_ok=True)
        stats = t.directory / "run.json"
        # What the lists, the dictionary and redis itself take is below --min-size.
        process = t.popen(t.terrace, "run", "--ddr", f"{self.arguments.ddr_mib}M", "--cxl",
                          f"{4 * self.arguments.ddr_mib}M", "--min-size", "4096", "--policy", self.policy, "--stats", stats,
                          "--", "redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no",
                          "--dir", t.directory, stdout=open(t.directory / "redis.log", "ab"))
        try:
            wait_until(path.exists, 30, "redis")
            link = Link(path)
            for first in range(0, self.keys, 64):
                link.put([(b"k%08d" % key, value_of(key)) for key in range(first, min(first + 64, self.keys))])
            latencies, over_time = self.read(link, seed)
            pid = self.redis_pid(process.pid)
            hot = range(self.keys - self.ddr // SLOT_BYTES // 2, self.keys)
            where = tiers_of(pid, set(hot)) if self.policy != "static" else {}
            in_ddr = sum(1 for key in hot if where.get(key) == "ddr")
        finally:
            process.terminate()
            process.wait(60)
        latencies.sort()
        numbers = json.loads(stats.read_text())
        return {"p50_us": latencies[len(latencies) // 2] / 1000, "p99_us": latencies[len(latencies) * 99 // 100] / 1000,
                "reads": len(latencies), "hot_in_ddr_pct": 100 * in_ddr / len(hot), "p99_us_by_second": over_time,
                "migration": numbers["migration"]}

    def read(self, link, seed):
        """Reads until the time is over. All latencies, and the 99th percentile of each second."""
        total, weights = 0.0, []
        for rank in range(1, self.keys + 1):
            total += rank ** -EXPONENT
            weights.append(total)
        generator = random.Random(seed)
        requests = [b"*2\r\n$3\r\nGET\r\n$9\r\nk%08d\r\n" %
                    (self.keys - 1 - bisect.bisect_left(weights, generator.random() * total)) for _ in range(200_000)]
        latencies, over_time = [], []
        begin = time.monotonic()
        at = 0
        while time.monotonic() - begin < self.arguments.seconds:
            second, first = time.monotonic() + 1, len(latencies)
            while time.monotonic() < second:
                for _ in range(100):
                    latencies.append(link.get(requests[at % len(requests)]))
                    at += 1
            part = sorted(latencies[first:])
            over_time.append(round(part[len(part) * 99 // 100] / 1000, 1))
        return latencies, over_time

    @staticmethod
    def redis_pid(supervisor):
        for task in pathlib.Path(f"/proc/{supervisor}/task").iterdir():
            for child in (task / "children").read_text().split():
                return int(child)
        raise RuntimeError("no redis")


def main():
    parser = argparse.ArgumentParser(description="redis with and without migration")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--ddr-mib", type=int, default=64)
    arguments = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("no redis-server here", file=sys.stderr)
        sys.exit(77)
    results = {"static": [], "benefit-density": []}
    with Harness(devices={"a": f"{5 * arguments.ddr_mib}M"}, name="redis-tiering",
                 env={"TERRACE_MALLOC_LIBRARY": find_binary("libterrace_malloc.so")}) as harness:
        harness.start()
        harness.create_pool("p")
        for pair in range(arguments.pairs):
            for policy, list_ in results.items():
                list_.append(Run(harness, policy, arguments).measure(pair))
                print(policy, json.dumps(list_[-1]), file=sys.stderr)
                harness.wait_free()
    p99 = {policy: statistics.median(second for run in runs for second in run["p99_us_by_second"])
           for policy, runs in results.items()}
    document = {"redis_get_p99_over_no_migration": round(p99["benefit-density"] / p99["static"], 3),
                "redis_hot_keys_in_ddr_pct": round(statistics.median(
                    run["hot_in_ddr_pct"] for run in results["benefit-density"]), 1),
                "redis_get_p99_us": p99,
                "redis_get_p50_us": {policy: statistics.median(run["p50_us"] for run in runs)
                                     for policy, runs in results.items()},
                "redis_promotions": [run["migration"]["promotions"] for run in results["benefit-density"]]}
    print(json.dumps(document, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
