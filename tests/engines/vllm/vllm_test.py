# SPDX-License-Identifier: Apache-2.0
"""vLLM's engines, as PyPI has them for the CPU, with blocks of their KV caches in a KV space.

    TERRACE_ENGINE_DIR=build/engines/vllm TERRACE_BUILD_DIR=build/release python3 tests/engines/vllm/vllm_test.py

Greedy tokens are compared with those of an engine that has no cache at all.
"""

import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
import support  # noqa: E402
from support import PATIENCE_S, EngineError, Engines, make_space, prompt, terrace_tier, tiers  # noqa: E402
from terrace_harness import main, process_alive, wait_until  # noqa: E402

PREFIX = 640  # tokens; a block has 32


def setUpModule():
    folder = tempfile.TemporaryDirectory(prefix="terrace-vllm-")
    unittest.addModuleCleanup(folder.cleanup)
    Base.folder = pathlib.Path(folder.name)
    Base.engines = Engines(Base.folder)
    unittest.addModuleCleanup(Base.engines.close)
    Base.model = Base.engines.make_model("model", seed=1)
    Base.plain = Base.engines.start(Base.model, enable_prefix_caching=False)


class Base(unittest.TestCase):
    def setUp(self):
        self.service = support.service()
        self.addCleanup(self.service.close)
        make_space(self.service)

    def start(self, wait=True, model=None, **options):
        tier = terrace_tier(self.service, **options.pop("tier", {}))
        return self.engines.start(model or self.model, tiers(tier, **options.pop("extra", {})), wait=wait, **options)

    def check(self, engine, prompts, told=None):
        """The engine's tokens are the right ones; how many of each prompt's were in a cache."""
        told = told or engine.generate(prompts)
        expected = self.plain.generate(prompts)
        self.assertEqual(told["tokens"], expected["tokens"])
        self.assertEqual(set(expected["cached"]), {0})
        return told["cached"]

    def blocks(self):
        return self.service.cli("kv", "stat", "cache").json["blocks"]

    def verify(self, where="cache"):
        self.service.cli("kv", "verify", where)
        self.service.check_invariants()


class Sharing(Base):
    def test_engines_share_stop_die_and_start_anew(self):
        """Two engines from their start at once to the end of one of them, and the one that replaces it."""
        first, second = (self.start(wait=False) for _ in range(2))
        first.ready()
        second.ready()
        shared = prompt("shared", PREFIX)
        self._found_by_the_other(first, second, shared)
        self._at_once(first, second)
        self._one_is_stopped(first, second, shared)
        self._blocks_that_cannot_be_copied(second)
        self._without_the_manager(first, second)
        stored = self._killed_while_it_stores(first)
        replaced = self.start()
        cached = self.check(replaced, [*stored, shared + prompt("again", 50)])
        self.assertGreaterEqual(min(cached), PREFIX)
        self.assertGreater(replaced.ask("counters")["hits"], 0)
        self.check(second, stored)
        for engine in (replaced, second):
            engine.end()
        self.verify()

    def _found_by_the_other(self, first, second, shared):
        prompts = [shared + prompt(number, 100) for number in range(3)]
        self.check(first, prompts)
        told = first.ask("counters")
        self.assertEqual(told["hits"], 0)
        self.assertEqual(told["puts"], PREFIX // 32 + 3 * 3)  # the prefix once, and whole blocks of what follows
        listed = self.service.cli("kv", "list", "cache", "--namespace", told["namespace"]).json["blocks"]
        self.assertEqual(len(listed), told["puts"])
        self.assertEqual(sum(not one["has_parent"] for one in listed), 1)  # the first one: what ends a prompt is evicted first
        cached = self.check(second, [shared + prompt("other", 100), prompts[1]])
        self.assertEqual(cached, [PREFIX, PREFIX + 96])
        told = second.ask("counters")
        self.assertEqual(told["hits"], PREFIX // 32 + 3)
        self.assertEqual(second.ask("metrics")["vllm:kv_offload_tiering_read_bytes"], told["hit_bytes"])
        self.assertEqual(second.ask("forget"), {"done": True})
        self.assertEqual(self.check(second, prompts), [PREFIX + 96] * 3)  # from the space alone
        self.assertEqual(second.ask("counters")["hits"], 2 * told["hits"] + 2 * 3)

    def _at_once(self, first, second):
        prompts = [prompt("both", PREFIX) + prompt(number, 64) for number in range(4)]
        for engine in (first, second):
            engine.begin("generate", prompts)
        told = [engine.answer() for engine in (first, second)]
        for engine, one in zip((first, second), told):
            engine.ask("settle")
            self.check(engine, prompts, one)

    def _one_is_stopped(self, first, second, shared):
        """The owner of blocks is stopped: others read them, and put more."""
        os.kill(first.pid, signal.SIGSTOP)
        try:
            second.ask("forget")
            cached = self.check(second, [shared + prompt("stopped", 100), prompt("new", PREFIX)])
            self.assertEqual(cached, [PREFIX, 0])
        finally:
            os.kill(first.pid, signal.SIGCONT)
        self.assertEqual(self.check(first, [prompt("new", PREFIX) + [7]]), [PREFIX])

    def _blocks_that_cannot_be_copied(self, engine):
        engine.ask("forget")
        engine.ask("fail_loads", True)
        self.check(engine, [prompt("new", PREFIX) + prompt("failed", number) for number in (40, 80)])
        engine.ask("fail_loads", False)
        self.assertGreater(engine.ask("metrics")["vllm:kv_offload_tiering_promotion_job_failures"], 0)

    def _without_the_manager(self, first, second):
        self.service.kill()
        self.check(first, [prompt("away", PREFIX)])
        self.assertEqual(self.check(second, [prompt("away", PREFIX) + [7]]), [PREFIX])
        self.service.start()

    def _killed_while_it_stores(self, engine):
        before = self.blocks()
        prompts = [prompt(f"killed{number}", 2048) for number in range(40)]
        engine.begin("generate", prompts, 1)
        wait_until(lambda: self.blocks() >= before + 3 * 2048 // 32, PATIENCE_S, "blocks are stored", interval=0.005)
        engine.kill()
        self.assertLess(self.blocks(), before + 40 * 2048 // 32, "it had stored everything: it was killed too late")
        self.verify()
        return prompts[:2]


class Apart(Base):
    def test_another_model_never_meets_the_blocks(self):
        prompts = [prompt("models", PREFIX)]
        engine = self.start()
        self.check(engine, prompts)
        name = engine.ask("counters")["namespace"]
        fields = [[None, "engine_id", "other"], ["model", "name", "/other/model"], ["model", "dtype", "bfloat16"],
                  ["cache", "tokens_per_hash", 64], ["cache", "blocks_per_chunk", 2], ["parallel", "tp_size", 2],
                  ["parallel", "pp_size", 2], ["parallel", "world_size", 4], ["parallel", "pcp_size", 2], ["parallel", "dcp_size", 2],
                  [None, "kv_cache_layout", "other"], [None, "worker_kv_bytes_per_block", 1], [None, "groups", []],
                  [None, "canonical_layout", True]]
        names = engine.ask("names", fields)["names"]
        self.assertEqual(len(set(names)), len(fields), names)
        engine.end()
        os.rename(self.model, self.folder / "kept")
        try:
            for seed, options, more in ((2, {}, {}), (1, {"rope_theta": 5000.0}, {}), (1, {}, {"block_size": 64}),
                                        (1, {}, {"env": {"PYTHONHASHSEED": "7"}}), (1, {}, {"prefix_caching_hash_algo": "sha256"})):
                self.engines.make_model("model", seed=seed, **options)  # of the same name
                other = self.start(**more)
                told = other.generate(prompts)
                self.assertEqual(told["cached"], [0], (seed, options, more))
                counters = other.ask("counters")
                self.assertNotEqual(counters["namespace"], name, (seed, options, more))
                self.assertEqual(counters["hits"], 0)
                self.assertGreater(counters["puts"], 0)
                other.kill()
        finally:
            for file in self.model.iterdir():
                file.unlink()
            self.model.rmdir()
            os.rename(self.folder / "kept", self.model)
        again = self.start()
        self.assertEqual(self.check(again, [[*prompts[0], 5]]), [PREFIX])  # the first one's blocks are there, and are met
        again.kill()


class Loss(Base):
    def test_the_lease_ends_under_an_engine(self):
        make_space(self.service, label="lost")
        engine = self.start(tier={"lease": "lost"})
        prompts = [prompt("lease", PREFIX) + prompt(number, 64) for number in range(8)]
        self.check(engine, prompts[:2])
        self.assertEqual(engine.ask("forget"), {"done": True})
        engine.begin("generate", prompts)  # of which it has some, and stores the others
        self.service.cli("lease", "revoke", "lost", "--grace", "0s", "--reason", "drill")
        told = engine.answer()
        engine.ask("settle")
        self.check(engine, prompts, told)
        wait_until(lambda: self._gone(engine), PATIENCE_S, "the tier sees that its lease ended")
        engine.ask("forget")
        self.assertEqual(self.check(engine, [prompt("after", PREFIX), prompts[0]]), [0, 0])
        self.assertEqual(engine.said().count("'lost' is gone"), 1)
        wait_until(lambda: engine.generate([prompt("up", 40)]) and engine.ask("metrics")["vllm:kv_offload_terrace_up"] == 0, PATIENCE_S,
                   "the metric says so")
        make_space(self.service, label="lost")  # another lease of that name
        wait_until(lambda: "there is a KV space of lease 'lost' again" in engine.said(), PATIENCE_S, "the tier attaches again")
        engine.ask("forget")  # what it computed meanwhile: it stores what it computes
        self.check(engine, prompts[:2])
        engine.ask("settle")
        engine.ask("forget")
        self.assertEqual(self.check(engine, [prompts[0], prompts[1]]), [PREFIX + 64] * 2)
        wait_until(lambda: engine.generate([prompt("up", 40)]) and engine.ask("metrics")["vllm:kv_offload_terrace_up"] == 1, PATIENCE_S,
                   "the metric says so, too")
        told = engine.ask("counters")
        self.assertEqual((told["lost"], told["attached_again"]), (1, 1))
        engine.end()
        self.service.check_invariants()

    def _gone(self, engine):
        engine.generate([prompt("gone", 100)])
        return "'lost' is gone" in engine.said()

    def test_a_full_space_evicts(self):
        path = self.folder / "small"
        self.service.cli("kv", "format", path, "--bytes", "8M", "--block", "96K", "--parts", "2", "--checksums")
        engine = self.start(tier={"lease": None, "path": str(path)}, extra={"blocks_per_chunk": 3})
        prompts = [prompt(f"full{number}", 1600) for number in range(10)]  # 16 chunks each, of 96 KiB
        for number in range(0, 10, 2):
            self.check(engine, prompts[number:number + 2])
        told = engine.ask("counters")
        self.assertGreater(told["evicted"], 0)
        self.assertEqual(told["puts_refused"], 0)
        engine.ask("forget")
        self.check(engine, [prompts[9][:4 * 32] + prompt("other", 40)])  # it has the first block of the second chunk itself
        cached = self.check(engine, prompts[8:])
        self.assertGreater(max(cached), 4 * 32)
        self.assertEqual(engine.ask("counters")["misses"], told["misses"])
        engine.kill()
        self.verify(path)


class Configuration(Base):
    def test_garbage_is_refused_with_words(self):
        engine = self.start()
        self.service.cli("lease", "grant", "--pool", "p", "--size", "8M", "--persistent", "--mode", "shared_coherent", "--label", "raw")
        self.service.cli("lease", "grant", "--pool", "p", "--size", "8M", "--persistent", "--label", "alone")
        make_space(self.service, size="4M", block="4K", label="narrow", parts=2, more=("--max-block", "4K"))
        good = {key: value for key, value in terrace_tier(self.service).items() if key not in ("type", "module_path")} | {"variant": "v"}
        self.assertEqual(engine.ask("refused", good)["said"], "")
        for changed, words in (
                ({"lease": None}, "one of lease"), ({"path": "/dev/shm/x"}, "one of lease"), ({"leese": "cache"}, "no option leese"),
                ({"lease": "nobody"}, "no KV space.*'nobody'.*terrace kv format"), ({"lease": 4711}, "no KV space.*4711"),
                ({"lease": ["cache"]}, r"lease=\['cache'\]"),
                ({"tenant": 3}, "tenant=3"), ({"tenant": "t" * 300}, "tttt|namespace"),
                ({"lease": "raw"}, "no KV space.*--block 32768"), ({"lease": "alone"}, "no KV space"),
                ({"lease": "narrow"}, "32768 bytes.*--max-block 32768"),
                ({"lease": None, "path": str(self.folder / "none")}, "no KV space.*none"),
                ({"socket": "/nowhere/terraced.sock"}, "no KV space.*nowhere"), ({"variant": None}, "TerraceConnector"),
                ({"ttl_s": "long"}, "ttl_s='long'"), ({"read_threads": 0}, "read_threads=0.*from 1"), ({"wait_s": -1}, "wait_s=-1"),
                ({"write_threads": 1.5}, "write_threads"), ({"locality": "MOON"}, "MOON")):
            with self.subTest(changed):
                self.assertRegex(engine.ask("refused", good | changed)["said"], words)
        self.assertEqual(engine.ask("refused", good)["said"], "")
        self.check(engine, [prompt("after", 100)])
        engine.end()

    def test_engines_that_do_not_start(self):
        self._ends(r"no KV space.*'nobody'", self.start(wait=False, tier={"lease": "nobody"}))
        self._ends("prefix_caching_hash_algo xxhash.*PYTHONHASHSEED", self.start(wait=False, prefix_caching_hash_algo="xxhash"))
        self._ends("has no tier", self.engines.start(self.model, tiers(), wait=False))
        self._ends("TerraceConnector", self.engines.start(self.model, tiers(terrace_tier(self.service)), "OffloadingConnector", wait=False))

    def _ends(self, words, engine):
        with self.assertRaises(EngineError) as caught:
            engine.ready()
        self.assertRegex(str(caught.exception).splitlines()[0], words)  # the log after it has words of vLLM itself
        wait_until(lambda: not process_alive(engine.pid), PATIENCE_S, "the end of the engine")
        engine.kill()  # and its file


if __name__ == "__main__":
    main()
