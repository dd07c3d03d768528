# SPDX-License-Identifier: Apache-2.0
"""One process of llama-cpp-python with its prompt cache in a KV space: cache_process.py MODEL SPACE, its orders on standard
input as lines of JSON, one answer each. SPACE: a path, a lease's label, or "-" for none.

    {"do": "complete", "prompt": [..], "tokens": 16}   the tokens, and how many of the prompt llama.cpp evaluated
    {"do": "known", "prompt": [..]}                    whether a state is found
    {"do": "save"|"restore", "name": "..", "sequence": 0}
    {"do": "spoil", "prompt": [..]}                    stores a state that llama.cpp will refuse, of a prompt that was completed
    {"do": "die", "puts": 3, "when": "before"|"after"} ends by kill -9 at that call of put() from here on
    {"do": "counts"}
"""

import argparse
import json
import os
import signal
import sys
import time

import llama_cpp

import terrace
from terrace import kv
from terrace.engines.llama_cpp import TerraceCache


class Engine:
    def __init__(self, asked):
        self.llama = llama_cpp.Llama(model_path=asked.model, n_ctx=asked.context, n_batch=128, n_threads=1, n_threads_batch=1, seed=1,
                                     type_k=asked.type_k, logits_all=asked.logits_all, no_perf=False, verbose=False)
        self.cache = None
        if asked.space != "-":
            self.cache = TerraceCache(asked.space, self.llama, wait=5.0)
            self.llama.set_cache(self.cache)

    def complete(self, order: dict) -> dict:
        prompt = order["prompt"]
        llama_cpp.llama_perf_context_reset(self.llama._ctx.ctx)
        begin, self.first_token_s, pieces = time.monotonic(), None, []
        self.llama.sample = lambda **named: self.sampled(begin, type(self.llama).sample(self.llama, **named))
        more = {"logprobs": 3} if self.llama._logits_all else {}
        for piece in self.llama.create_completion(prompt, max_tokens=order.get("tokens", 16), temperature=0.0, repeat_penalty=1.0,
                                                  stream=True, **more):
            pieces.append(piece["choices"][0])
        perf = llama_cpp.llama_perf_context(self.llama._ctx.ctx)
        made = self.llama._input_ids.tolist()
        logprobs = [piece["logprobs"]["token_logprobs"] for piece in pieces if piece["logprobs"]]
        # llama.cpp counts tokens of a batch of one as generated ones.
        return {"tokens": made[len(prompt):], "prompt_kept": made[:len(prompt)] == prompt, "evaluated": perf.n_p_eval + perf.n_eval,
                "first_token_s": self.first_token_s, "logprobs": logprobs,
                "prompt_scores": self.llama._scores[:len(prompt) - 1].sum(axis=1).tolist() if more else []}

    def sampled(self, begin: float, token: int) -> int:
        """Notes when the first one came: a piece of text may need several."""
        self.first_token_s = self.first_token_s or time.monotonic() - begin
        return token

    def counts(self, _order: dict) -> dict:
        space = self.cache.space.counters()
        return {**self.cache.counts, "size": self.cache.cache_size, "largest_block": self.cache.space.stat().max_block_bytes,
                "evicted": space.evicted, "puts": space.puts}

    def known(self, order: dict) -> dict:
        return {"known": order["prompt"] in self.cache}

    def save(self, order: dict) -> dict:
        return {"saved": self.cache.save_slot(order["name"], self.llama, order.get("sequence", 0))}

    def restore(self, order: dict) -> dict:
        return {"tokens": self.cache.restore_slot(order["name"], self.llama, order.get("sequence", 0))}

    def spoil(self, order: dict) -> dict:
        state = self.llama.save_state()
        state.n_tokens = len(order["prompt"])  # so that it is not the state which was stored with the completion
        state.llama_state = state.llama_state[:len(state.llama_state) * 3 // 4]
        self.cache[order["prompt"]] = state
        return {}

    def die(self, order: dict) -> dict:
        """At the call of put() with this number, before or after it."""
        put, left = kv.KvSpace.put, [order["puts"]]

        def put_and_die(space, *words, **named):
            left[0] -= 1
            if left[0] == 0 and order["when"] == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = put(space, *words, **named)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        kv.KvSpace.put = put_and_die
        return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("space")
    parser.add_argument("--context", type=int, default=768)
    parser.add_argument("--type-k", type=int, default=None)
    parser.add_argument("--logits-all", action="store_true")
    engine = Engine(parser.parse_args())
    print("{}", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(engine, order["do"])(order)
        except (terrace.Error, RuntimeError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
