# SPDX-License-Identifier: Apache-2.0
"""The checks of bench_kv: a run with workers killed finds nothing wrong; lost, torn and stale blocks that are planted
are found, each as what it is, and end the bench with 1; one that gets stuck or is interrupted leaves nothing behind."""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

KINDS = ("lost", "torn", "stale")


def replay(bench, folder, *options):
    """Runs the bench; returns its exit status, its figures and what it said on standard error."""
    out = folder / "figures.json"
    out.unlink(missing_ok=True)
    done = subprocess.run([bench, "--smoke", "--json", out, "--dir", folder, *options], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300, check=False)
    if not out.exists():
        sys.exit(f"{options}: no figures; it ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode, json.loads(out.read_text("utf-8")), done.stdout + done.stderr


def expect(condition, text, said):
    if not condition:
        sys.exit(f"{text}\n{said}")


def check_sound(bench, folder):
    for options in ([], ["--rewrite-every", "0", "--in-place-every", "1"], ["--no-prefetch", "--seed", "7"],
                    ["--block", "64K", "--cxl", "2M", "--ddr", "1M", "--in-place-every", "3"]):
        status, figures, said = replay(bench, folder, *options)
        expect(status == 0, f"{options}: ended with {status}", said)
        expect(all(figures[f"{kind}_blocks"] == 0 for kind in KINDS), f"{options}: a block was wrong", said)
        expect(figures["kills"] >= 3, f"{options}: {figures['kills']} kills", said)
        expect(figures["blocks_taken_over"] > 0, f"{options}: no block survived its worker", said)
        expect(figures["evictions_cxl"] > 0, f"{options}: the pool was never full", said)
        expect(figures["blocks_checked_at_end"] > 0, f"{options}: nothing was left", said)
        # A use that its worker's death cut short has no end, and each other one has one.
        expect(0 <= figures["uses_cut_short"] <= figures["kills"],
               f"{options}: {figures['uses_cut_short']} uses without an end, {figures['kills']} kills", said)
        rates = figures["hit_rate_ddr"] + figures["hit_rate_cxl"] + figures["miss_rate"]
        expect(abs(rates - 1) <= (figures["kills"] + 1e-6) / figures["block_uses"], f"{options}: rates: {rates}", said)
        expect(figures["hit_rate_ddr"] > 0 and figures["hit_rate_cxl"] > 0, f"{options}: no hits in a tier", said)


def check_planted(bench, folder):
    for kind in KINDS:
        status, figures, said = replay(bench, folder, "--plant", kind)
        expect(status == 1, f"planted {kind} blocks: ended with {status}", said)
        expect(figures[f"{kind}_blocks"] > 0, f"planted {kind} blocks were not found", said)
        expect(f"is {kind}" in said, f"planted {kind} blocks: not told of", said)
        others = [other for other in KINDS if other != kind and figures[f"{other}_blocks"] != 0]
        expect(not others, f"planted {kind} blocks: {others} were found, too", said)


def check_stuck(bench, folder):
    """Workers that stand still end the bench, which says so and leaves nothing behind."""
    folder = folder / "stuck"
    folder.mkdir()
    done = subprocess.run([bench, "--smoke", "--dir", folder, "--plant", "stuck", "--stuck-after", "3"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    expect(done.returncode == 1 and "stood still" in done.stderr, f"stuck: ended with {done.returncode}", done.stderr)
    expect_nothing_left(folder)


def check_interrupt(bench, folder):
    """So does one that is interrupted while its workers wait."""
    folder = folder / "interrupted"
    folder.mkdir()
    with subprocess.Popen([bench, "--smoke", "--dir", folder, "--plant", "stuck"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        while not list(folder.glob("*/run/terraced.sock")) and running.poll() is None:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=300)[1]
    expect(running.returncode == 1 and "interrupted" in said, f"interrupted: ended with {running.returncode}", said)
    expect_nothing_left(folder)


def expect_nothing_left(folder):
    expect(not list(folder.iterdir()), f"left in {folder}", "")
    mounts = pathlib.Path("/proc/self/mounts").read_text("utf-8")
    expect(str(folder) not in mounts, "a mount is left", mounts)


def check_trace(bench, folder):
    """Requests of a file, in order of their timestamps; a line that is none is named."""
    trace = folder / "trace.jsonl"
    lines = [{"timestamp": 10 - at, "input_length": 1, "hash_ids": [0, at, at + 1]} for at in range(10)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    status, figures, said = replay(bench, folder, "--trace", trace)
    expect(status == 0 and figures["requests"] == 10 and figures["distinct_blocks"] == 11, "a trace of a file", said)
    trace.write_text('{"timestamp": 1, "hash_ids": [1]}\n{"timestamp": 2}\n', "utf-8")
    done = subprocess.run([bench, "--trace", trace], capture_output=True, text=True, timeout=60, check=False)
    expect(done.returncode == 1 and "line 2" in done.stderr, "a trace with a wrong line", done.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", type=pathlib.Path, required=True)
    bench = parser.parse_args().bench
    with tempfile.TemporaryDirectory(prefix="terrace-kv-") as folder:
        check_sound(bench, pathlib.Path(folder))
        check_planted(bench, pathlib.Path(folder))
        check_trace(bench, pathlib.Path(folder))
        check_stuck(bench, pathlib.Path(folder))
        check_interrupt(bench, pathlib.Path(folder))
    print("kv replay: sound with workers killed; lost, torn and stale blocks are found")


if __name__ == "__main__":
    main()
