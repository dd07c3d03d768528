# SPDX-License-Identifier: Apache-2.0
"""NIXL's transfers through libplugin_TERRACE.so, and through the POSIX and UCX plug-ins of the same package, in one run by the same
Python interface: objects beside a file on tmpfs, memory of a lease in another process beside UCX's shared memory."""

import argparse
import json
import os
import pathlib
import statistics
import sys

import support
from support import KIB, MIB, Agent
from terrace_harness import Harness

BLOCKS = {"64KiB": 64 * KIB, "2MiB": 2 * MIB}
BATCH = 8 * MIB  # bytes of a transfer of many blocks: short enough to be done between two others on a busy machine
SECONDS = 0.3
SITE = support.ENGINE / "venv/lib"


def install_plugin() -> pathlib.Path:
    """Beside the package's own plug-ins, which find their libraries from there."""
    (folder,) = SITE.glob("python3*/site-packages/.nixl_cu12.mesonpy.libs/plugins")
    link = folder / "libplugin_TERRACE.so"
    link.unlink(missing_ok=True)
    link.symlink_to(support.PLUGINS / "libplugin_TERRACE.so")
    return folder


class Case:
    """One backend and one kind of memory. `pieces(block, count)`: descriptors, as Agent.prepare() takes them."""

    def __init__(self, name, agent, backend, kind, address, peer, pieces):
        self.name, self.agent, self.backend, self.kind, self.address, self.peer, self.pieces = name, agent, backend, kind, address, peer, pieces
        self.runs = {}

    def prepare(self):
        for label, block in BLOCKS.items():
            for operation in ("WRITE", "READ"):  # what is read was written before
                for count in (1, BATCH // block):
                    handle = f"{label} {operation} {count}"
                    self.agent.prepare(handle, operation, "memory", self.pieces(block, count), self.address, self.peer, kind=self.kind,
                                       backend=self.backend)
                    self.runs[handle] = []

    def measure(self):
        for handle, runs in self.runs.items():
            runs.append(statistics.median(self.agent.measure(handle, SECONDS)))

    def figures(self):
        result = {}
        for label, block in BLOCKS.items():
            for operation in ("WRITE", "READ"):
                one, many = (self.runs[f"{label} {operation} {count}"] for count in (1, BATCH // block))
                rates = [BATCH / run / (1 << 30) for run in many]
                result[f"{label} {operation.lower()}"] = {
                    "gib_per_s": {"median": statistics.median(rates), "lowest": min(rates), "highest": max(rates)},
                    "latency_us": {"median": statistics.median(one) * 1e6, "lowest": min(one) * 1e6, "highest": max(one) * 1e6}}
        return result


def in_a_row(device):
    """Block after block of one range, there as here."""
    return lambda block, count: [(number * block, number * block, block, device) for number in range(count)]


def objects(block, count):
    """An object each: the first ones of the larger size, then those of the smaller one."""
    first = 0 if block == BLOCKS["2MiB"] else BATCH // BLOCKS["2MiB"]
    return [(number * block, 0, block, first + number) for number in range(count)]


def cases(service, log) -> list:
    def agent(name):
        one = Agent(service, name, plugins="", program=support.AGENT.with_name("bench_agent.py"))
        log.append(one)
        return one

    one = agent("objects")
    one.create("TERRACE", space="cache")
    one.private("memory", BATCH)
    one.objects([f"block/{number}" for number in range(sum(BATCH // block for block in BLOCKS.values()))], 2 * MIB)
    found = [Case("terrace objects", one, "TERRACE", "OBJ", 0, "objects", objects)]

    one = agent("file")
    one.create("POSIX")
    one.private("memory", BATCH)
    path = pathlib.Path("/dev/shm") / f"{service.directory.name}-nixl"
    device = one.file(str(path), BATCH)
    path.unlink()
    found.append(Case("posix, a file on tmpfs", one, "POSIX", "FILE", 0, "file", in_a_row(device)))

    for backend, coherence, name in (("TERRACE", "coherent", "terrace memory"), ("TERRACE", "unknown", "terrace memory, lines written back"),
                                     ("UCX", "", "ucx")):
        initiator, target = agent(f"initiator {name}"), agent(f"target {name}")
        for each in (initiator, target):
            each.create(backend, **({"leases": coherence} if backend == "TERRACE" else {}))
        initiator.private("memory", BATCH)
        address = target.lease("memory", coherence, size=BATCH) if coherence else target.private("memory", BATCH)
        initiator.load(target.metadata())
        found.append(Case(name, initiator, backend, "DRAM", address, target.name, in_a_row(0)))
    return found


def ratios(ours, theirs) -> dict:
    return {label: ours[label]["gib_per_s"]["median"] / theirs[label]["gib_per_s"]["median"] for label in ours}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures NIXL's transfers over Terrace's memory.")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    install_plugin()
    agents = []
    with Harness(devices={"a": "512M", "b": "256M"}, mount=False, name="nixl-bench") as service:
        service.start()
        service.create_pool("p", ["a"])
        service.cli("pool", "set", "p", "--coherence", "coherent")
        service.create_pool("q", ["b"])
        for pool, label, size in (("p", "cache", "256M"), ("p", "coherent", "64M"), ("q", "unknown", "64M")):
            service.cli("lease", "grant", "--pool", pool, "--size", size, "--persistent", "--mode", "shared_coherent", "--label", label)
        service.cli("kv", "format", "cache", "--block", "64K", "--max-block", "4M")
        try:
            all_cases = cases(service, agents)
            for case in all_cases:
                case.prepare()
            for _ in range(asked.repeat):
                for case in all_cases:
                    case.measure()
        finally:
            for one in agents:
                one.close()
    figures = {case.name: case.figures() for case in all_cases}
    result = {"repeat": asked.repeat, "load_average": os.getloadavg()[1], "processors": os.cpu_count(), "batch_bytes": BATCH,
              "cases": figures,
              "nixl_terrace_over_posix": ratios(figures["terrace objects"], figures["posix, a file on tmpfs"]),
              "nixl_terrace_over_ucx": ratios(figures["terrace memory"], figures["ucx"])}
    print(f"{asked.repeat} runs of each, {BATCH >> 20} MiB a transfer, one block for latencies; load average {result['load_average']:.1f}")
    for name, rows in figures.items():
        for label, row in rows.items():
            rate, latency = row["gib_per_s"], row["latency_us"]
            print(f"{name:36} {label:12} {rate['median']:6.2f} GiB/s ({rate['lowest']:.2f} to {rate['highest']:.2f})   one block "
                  f"{latency['median']:8.1f} us ({latency['lowest']:.1f} to {latency['highest']:.1f})")
    for name in ("nixl_terrace_over_posix", "nixl_terrace_over_ucx"):
        print(f"{name}: " + ", ".join(f"{label} {ratio:.2f}" for label, ratio in result[name].items()))
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
