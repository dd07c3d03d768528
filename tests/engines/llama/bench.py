# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of llama.cpp with its weights in DDR, a quarter of them there, under `terrace run`, and mapped from a disk;
the time to the first token of a second process, and where a prompt is restored from a KV space. Runs of all cases in turn;
medians, with the lowest and highest."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import cache_bench
import support
from terrace_harness import Harness

QUARTER = "108M"
CASES = ("plain", "all in DDR", "a quarter in DDR", "a quarter, layers announced", "terrace run, a quarter in DDR",
         "mapped from a lease", "mapped from a disk, memory for a quarter")
QUARTER_BYTES = 108 << 20
OTHER_BYTES = 96 << 20  # what a run needs beside its weights


class Bounded:
    """A memory cgroup, of version 1 or 2; `path` is None where this process may make none."""

    def __init__(self, limit: int):
        self.path = None
        for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            path = pathlib.Path(root) / f"terrace-bench-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            try:
                (path / name).write_text(str(limit), encoding="ascii")
                self.path = path
                return
            except OSError:
                path.rmdir()

    def enter(self) -> None:
        """In the child, before its program."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def close(self) -> None:
        if self.path is not None:
            self.path.rmdir()


def forget(path: pathlib.Path) -> None:
    """The kernel keeps none of it: what it reads from now on counts for who reads it."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_disk(model: pathlib.Path, bounded: Bounded, options: list) -> dict:
    copy = model.with_name("bench-disk.gguf")
    if not copy.exists():
        shutil.copyfile(model, copy)
    forget(copy)
    done = subprocess.run(support.words(copy, *options), cwd=support.LIB, env=support.environment(None), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False, timeout=600, preexec_fn=bounded.enter)
    support.tokens(done)
    return json.loads(done.stdout)


def one(case: str, service: Harness, model: pathlib.Path, options: list) -> dict:
    more = {"TERRACE_GGML_REQUIRED": "1"}
    command, env = support.words(model, *options), support.environment(None)
    if case == "terrace run, a quarter in DDR":
        command = [service.terrace, "run", "--ddr", QUARTER, "--cxl", "1G", "--", *support.words(model, "--no-mmap", *options)]
        env = dict(env, TERRACE_SOCKET=str(service.socket))
    elif case == "mapped from a lease":
        command = [service.terrace, "lease", "exec", "model", "--ro", "--", *support.words("{path}", *options)]
        env = support.environment(service, **more, TERRACE_GGML_WEIGHTS="mapped", TERRACE_GGML_DDR="256M")
    elif case != "plain":
        ddr = "1G" if case == "all in DDR" else QUARTER
        steps = "follow" if "announced" in case else "off"
        env = support.environment(service, **more, TERRACE_GGML_DDR=ddr, TERRACE_GGML_STEPS=steps)
    done = subprocess.run(command, cwd=support.LIB, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          timeout=600)
    support.tokens(done)
    return json.loads(done.stdout)


def median(runs: list, name: str) -> dict:
    values = [run[name] for run in runs]
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures llama.cpp on Terrace's memory.")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    model = support.make_model("bench.gguf", "--width", "1024", "--layers", "16")
    options = ["--tokens", str(asked.tokens), "--prompt", "64"]
    bounded = Bounded(QUARTER_BYTES + OTHER_BYTES)
    cases = CASES if bounded.path else CASES[:-1]
    if bounded.path is None:
        print("no memory cgroup can be made here: nothing is mapped from a disk with less memory")
    runs = {case: [] for case in cases}
    with Harness(devices={"a": "3G"}, mount=False, name="llama-bench") as service:
        service.start()
        service.create_pool("p")
        size = os.path.getsize(model)
        service.cli("lease", "grant", "--pool", "p", "--size", str(size + (4 << 20)), "--persistent", "--label", "model", "--mode",
                    "shared_read_only")
        service.cli("lease", "exec", "model", "--", "dd", f"if={model}", "of={path}", "bs=1M", "conv=notrunc", "status=none",
                    json=False)
        for _ in range(asked.repeat):
            for case in cases:
                runs[case].append(from_disk(model, bounded, options) if case == CASES[-1] else one(case, service, model, options))
        restored = cache_bench.measure(service, model, asked.repeat)
    bounded.close()
    same = {tuple(run["tokens"]) for found in runs.values() for run in found}
    result = {"model_bytes": size, "repeat": asked.repeat, "load_average": os.getloadavg()[1], "same_tokens": len(same) == 1, **restored,
              "cases": {case: {name: median(found, name) for name in ("load_s", "first_token_s", "prompt_per_s", "tokens_per_s")}
                        for case, found in runs.items()}}
    print(f"model {size >> 20} MiB, {asked.repeat} runs of each, load average {result['load_average']:.1f}, tokens "
          f"{'all the same' if result['same_tokens'] else 'DIFFER'}")
    for case, figures in result["cases"].items():
        print(f"{case:41} " + "  ".join(f"{name} {one['median']:.2f} ({one['lowest']:.2f} to {one['highest']:.2f})"
                                       for name, one in figures.items()))
    for name, value in restored.items():
        print(f"{name:41} {value:.3f}")
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["same_tokens"] else 1


if __name__ == "__main__":
    sys.exit(main())
