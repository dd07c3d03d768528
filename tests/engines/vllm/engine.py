# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM for tests: each is a process, forked from one that has imported vLLM, as importing takes longer than all else.

    engine.py SOCKET

A connection is an engine. Its first line is {"model": FOLDER, "log": FILE, "kv": the KV transfer configuration or nothing,
"engine": options of vllm.LLM, "env": environment}; each line from then on a request, answered by a line. Or it is
{"make": FOLDER, "seed": ...}: a model of random weights, and the connection ends.
"""

import ctypes
import dataclasses
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
import types

import torch
import vllm
from safetensors.torch import save_file
from terrace.engines import vllm as vllm_tier
from terrace.engines import vllm_names

VOCABULARY = 512


def make_model(folder, seed, layers=2, width=128, heads=4, kv_heads=2, positions=8192, rope_theta=10000.0):
    """A Llama of random weights, large enough for each token to depend on all before it."""
    generator = torch.Generator().manual_seed(seed)
    head, hidden = width // heads, width * 2
    shapes = {"model.embed_tokens": (VOCABULARY, width), "lm_head": (VOCABULARY, width)}
    ones = ["model.norm"]
    for layer in (f"model.layers.{number}" for number in range(layers)):
        shapes |= {f"{layer}.self_attn.q_proj": (heads * head, width), f"{layer}.self_attn.k_proj": (kv_heads * head, width),
                   f"{layer}.self_attn.v_proj": (kv_heads * head, width), f"{layer}.self_attn.o_proj": (width, heads * head),
                   f"{layer}.mlp.gate_proj": (hidden, width), f"{layer}.mlp.up_proj": (hidden, width),
                   f"{layer}.mlp.down_proj": (width, hidden)}
        ones += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    tensors = {f"{name}.weight": torch.randn(shape, generator=generator) * 3 / width ** 0.5 for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": torch.ones(width) for name in ones}
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": width,
              "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "head_dim": head, "max_position_embeddings": positions, "rope_theta": rope_theta, "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "torch_dtype": "float32"}
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)


class Engine:
    def __init__(self, model, kv, options):
        self.begin = time.monotonic()
        self.llm = vllm.LLM(model, kv_transfer_config=kv, **{
            "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32", "max_model_len": 4096, "block_size": 32,
            "max_num_seqs": 8, "prefix_caching_hash_algo": "sha256_cbor", "disable_log_stats": False, **options})
        gc.collect()

    def tier(self):
        core = self.llm.llm_engine.engine_core.engine_core
        return core.scheduler.connector.connector_scheduler.manager.secondary_tiers[0]

    def generate(self, prompts, tokens=8):
        wanted = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.monotonic()
        done = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], wanted, use_tqdm=False)
        return {"seconds": time.monotonic() - begin, "tokens": [list(one.outputs[0].token_ids) for one in done],
                "cached": [one.num_cached_tokens for one in done]}

    def settle(self):
        """Until the tiers have nothing under way: what is stored goes on in the engine's next steps."""
        core = self.llm.llm_engine.engine_core.engine_core
        connector = core.scheduler.connector
        while connector is not None and connector.has_pending_push_work():
            self.llm.llm_engine.step()
            time.sleep(0.001)
        return {}

    def forget(self, cpu_tier=True):
        """The engine's own blocks, and those of its CPU tier."""
        self.settle()
        return {"done": self.llm.reset_prefix_cache(reset_connector=cpu_tier)}

    def counters(self):
        return {**self.tier()._space.counters(), "namespace": self.tier()._name_space}

    def refused(self, options):
        """What a tier of other options says about them."""
        tier = self.tier()
        try:
            vllm_tier.TerraceTier(tier._offloading_spec, tier._primary_kv_view, "TerraceTier", **options).shutdown()
        except (RuntimeError, ValueError) as error:
            return {"said": str(error)}
        return {"said": ""}

    def names(self, changes):
        """The namespaces of engines that differ in one thing each: [part of the configuration, field, value]."""
        tier = self.tier()
        config, found = tier._offloading_spec.config, []
        for part, field, value in changes:
            changed = (dataclasses.replace(config, **{field: value}) if part is None else
                       dataclasses.replace(config, **{part: dataclasses.replace(getattr(config, part), **{field: value})}))
            spec = types.SimpleNamespace(config=changed, blocks_per_chunk=changed.cache.blocks_per_chunk, replicated_layout=False)
            found.append(vllm_names.name_space(spec, tenant="t", variant="v", layout_version="", row_bytes=4096, keys="k"))
        return {"names": found}

    def fail_loads(self, fails):
        """Blocks that are found, but can never be copied: about half of all."""
        tier = self.tier()
        if fails:
            tier._load = lambda blocks: [key for key in type(tier)._load(tier, blocks) if key[0] % 2 == 0]
        else:
            del tier._load
        return {}

    def metrics(self):
        return {metric.name: metric.value for metric in self.llm.get_metrics() if hasattr(metric, "value")}

    def end(self):
        self.llm.llm_engine.engine_core.shutdown()
        return {}


def serve(connection):
    lines = connection.makefile("rw", encoding="utf-8")

    def answer(told):
        print(json.dumps(told), file=lines, flush=True)

    first = json.loads(lines.readline())
    if "make" in first:
        make_model(first.pop("make"), **first)
        return answer({})
    os.environ.update(first.get("env", {}))
    log = os.open(first["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    answer({"pid": os.getpid()})
    try:
        engine = Engine(first["model"], first.get("kv"), first.get("engine", {}))
        answer({"ready": time.monotonic() - engine.begin})
        for line in lines:
            name, *words = json.loads(line)
            answer(getattr(engine, name)(*words))
    except BaseException as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"})


def dies_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main():
    dies_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen()
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                dies_with_parent()
                serve(connection)
                os._exit(0)
            connection.close()


if __name__ == "__main__":
    main()
