# SPDX-License-Identifier: Apache-2.0
"""Time to the first token and hit rate of vLLM with a KV space behind its CPU tier, beside its CPU tier alone, its file tier on a
disk and on tmpfs, and no tier. Every prompt goes to all engines in turn; ratios are of medians over prompts.

Prompts share a long beginning. Before each one an engine forgets its own blocks, and those of its CPU tier if there is a tier behind
it, so that blocks come from the tier in question. Then the engines are killed, and new ones get the same prompts.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile

import support
from support import Engines, make_space, prompt, terrace_tier, tiers

CASES = ("none", "cpu", "fs", "fs_tmpfs", "terrace")
MODEL = {"seed": 1, "layers": 8, "width": 512, "heads": 8, "kv_heads": 4}
CPU_TIER = 256 << 20
OPTIONS = {"max_num_seqs": 2}


def extra_of(case, service, folders):
    if case == "none":
        return None
    secondary = []
    if case == "terrace":
        secondary = [terrace_tier(service, variant="bench")]
    elif case != "cpu":
        secondary = [{"type": "fs", "root_dir": folders[case]}]
    return tiers(*secondary, cpu_bytes=CPU_TIER)


def start_all(engines, model, service, folders):
    started = {}
    for case in CASES:
        connector = "TerraceConnector" if case == "terrace" else "OffloadingConnector"
        started[case] = engines.start(model, extra_of(case, service, folders), connector, **OPTIONS)
    return started


def one(case, engine, ids):
    """Seconds to the first token, and tokens found in a cache."""
    if case in ("none", "cpu"):
        engine.ask("forget", False)
    else:
        engine.ask("forget")
    told = engine.ask("generate", [ids], 1)
    engine.ask("settle")
    return {"seconds": told["seconds"], "cached": told["cached"][0], "tokens": len(ids), "answer": told["tokens"]}


def runs_of(started, prompts):
    found = {case: [] for case in started}
    for ids in prompts:
        for case, engine in started.items():
            found[case].append(one(case, engine, ids))
    answers = [[run["answer"] for run in runs] for runs in found.values()]
    assert all(one == answers[0] for one in answers), "not all engines gave the same tokens"
    return found


def summary(runs):
    seconds = [run["seconds"] for run in runs]
    return {"ttft_ms_median": 1e3 * statistics.median(seconds),
            "ttft_ms_p90": 1e3 * sorted(seconds)[round(0.9 * (len(seconds) - 1))],
            "hit_rate": sum(run["cached"] for run in runs) / sum(run["tokens"] for run in runs)}


def measure(asked):
    shared = prompt("shared", asked.prefix)
    prompts = [shared + prompt(number, 64) for number in range(4 * asked.repeat)]
    with (tempfile.TemporaryDirectory(prefix="terrace-vllm-") as disk,
          tempfile.TemporaryDirectory(prefix="terrace-vllm-", dir="/dev/shm") as memory, support.service("vllm-bench", "1G") as service):
        service.cli("pool", "set", "p", "--coherence", "coherent")  # memory of this machine
        make_space(service, "512M", "512K")
        engines = Engines(pathlib.Path(disk))
        try:
            model = engines.make_model("model", **MODEL)
            folders = {"fs": f"{disk}/fs", "fs_tmpfs": f"{memory}/fs"}
            started = start_all(engines, model, service, folders)
            runs_of(started, [shared + prompt("first", 64)])  # all have the beginning now
            warm = runs_of(started, prompts)
            for engine in started.values():
                engine.kill()
            started = start_all(engines, model, service, folders)
            runs_of(started, [prompt("other", 256)])  # what an engine does once
            again = runs_of(started, prompts[:2 * asked.repeat])
        finally:
            engines.close()
    return {case: summary(runs) for case, runs in warm.items()}, {case: summary(runs) for case, runs in again.items()}


def main():
    parser = argparse.ArgumentParser(description="Measures vLLM with its KV cache in a KV space.")
    parser.add_argument("--repeat", type=int, default=5, help="a quarter of the prompts (default 5)")
    parser.add_argument("--prefix", type=int, default=2048, help="tokens that all prompts share (default 2048)")
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    warm, again = measure(asked)
    result = {"prefix_tokens": asked.prefix, "prompts": 4 * asked.repeat, "load_average": os.getloadavg()[1], "cases": warm,
              "after_restart": again, "vllm_hit_rate": warm["terrace"]["hit_rate"],
              "vllm_hit_rate_after_restart": again["terrace"]["hit_rate"]}
    for case in CASES[:-1]:
        for name, key in (("", "ttft_ms_median"), ("_p90", "ttft_ms_p90")):
            result[f"vllm_ttft{name}_terrace_over_{case}"] = warm["terrace"][key] / warm[case][key]
    result["vllm_ttft_after_restart_terrace_over_none"] = again["terrace"]["ttft_ms_median"] / warm["none"]["ttft_ms_median"]
    result["vllm_ttft_after_restart_terrace_over_fs"] = again["terrace"]["ttft_ms_median"] / again["fs"]["ttft_ms_median"]
    for what, cases in (("while all run", warm), ("after kill -9 and a new start", again)):
        print(f"{what}:")
        for case, told in cases.items():
            print(f"  {case:10} first token {told['ttft_ms_median']:8.1f} ms (p90 {told['ttft_ms_p90']:8.1f}), "
                  f"hit rate {told['hit_rate']:.3f}")
    for key, value in result.items():
        if key.startswith("vllm_"):
            print(f"{key} {value:.3f}")
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
