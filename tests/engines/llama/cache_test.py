# SPDX-License-Identifier: Apache-2.0
"""llama-cpp-python's prompt cache and slots in a KV space (terrace.engines.llama_cpp): what one process computed, others
restore; what is killed, evicted, changed or refused is a miss, never another answer."""

import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import support
from terrace_harness import Harness

sys.path.insert(0, str(support.PACKAGE))
from terrace import kv  # noqa: E402

MIB = 1 << 20


def prompt_of(number: int, length: int, shared=()) -> list:
    """Each number has other tokens behind those that are shared."""
    return [*shared, *(3 + (number * 577 + i * (31 + 2 * number)) % 1021 for i in range(len(shared), length))]


class CacheTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = support.make_model("tiny.gguf", "--width", "512", "--layers", "8")
        cls.reference = support.CacheProcess(cls.model, "-")
        cls.addClassCleanup(cls.reference.close)
        cls.answers = {}

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-llama-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def space(self, nbytes=128 * MIB, **options) -> str:
        path = str(self.folder / f"space-{len(list(self.folder.iterdir()))}")
        kv.KvSpace.format(path, nbytes=nbytes, **options)
        return path

    def process(self, space, model=None, **options):
        process = support.CacheProcess(model or self.model, space, **options)
        self.addCleanup(process.close)
        return process

    def plain(self, *prompts) -> list:
        """The tokens behind the last prompt, by a process without a cache whose context begins empty. It completes the others
        before that, so that the same tokens are computed in the same batches as where a state of them is restored."""
        key = json.dumps(prompts)
        if key not in self.answers:
            self.reference.ask("complete", prompt=[1000], tokens=1)
            self.answers[key] = [self.reference.ask("complete", prompt=prompt) for prompt in prompts][-1]["tokens"]
        return self.answers[key]

    def test_a_second_process_restores_what_the_first_computed(self):
        space = self.space(max_block_bytes=MIB)
        first_prompt = prompt_of(1, 300)
        first = self.process(space)
        done = first.ask("complete", prompt=first_prompt)
        self.assertEqual(done["tokens"], self.plain(first_prompt))
        self.assertGreaterEqual(done["evaluated"], 300)
        counts = first.ask("counts")
        self.assertEqual((counts["miss"], counts["stored"]), (1, 1))
        self.assertGreater(counts["size"], 4 * counts["largest_block"], "its state is to have several blocks")
        first.kill()
        second = self.process(space)
        second_prompt = [*first_prompt, *done["tokens"], *prompt_of(2, 40)]
        answer = second.ask("complete", prompt=second_prompt)
        self.assertEqual(answer["tokens"], self.plain(first_prompt, second_prompt))
        self.assertLess(answer["evaluated"], 40 + 2 + len(answer["tokens"]))
        counts = second.ask("counts")
        self.assertEqual((counts["hit"], counts["tokens"]), (1, 300 + len(done["tokens"])))

    def test_a_prompt_that_shares_its_beginning_is_computed_from_there(self):
        space = self.space()
        self.process(space).ask("complete", prompt=prompt_of(1, 300))
        other = self.process(space)
        prompt = prompt_of(3, 320, shared=prompt_of(1, 300)[:170])
        answer = other.ask("complete", prompt=prompt)
        self.assertEqual(answer["tokens"], self.plain(prompt_of(1, 300), prompt))
        self.assertEqual(other.ask("counts")["tokens"], 170)
        self.assertLess(answer["evaluated"], 150 + 2 + len(answer["tokens"]))

    def test_what_the_context_has_itself_is_not_read(self):
        one = self.process(self.space())
        for _ in range(2):
            self.assertEqual(one.ask("complete", prompt=prompt_of(1, 200))["tokens"], self.plain(prompt_of(1, 200)))
        counts = one.ask("counts")
        self.assertEqual((counts["live"], counts.get("hit", 0), counts["stored"]), (1, 0, 1))

    def test_tokens_probabilities_are_restored(self):
        space = self.space()
        prompt = prompt_of(4, 150)
        first = self.process(space, logits_all=True).ask("complete", prompt=prompt)
        other = self.process(space, logits_all=True)
        answer = other.ask("complete", prompt=prompt)
        self.assertEqual(other.ask("counts")["hit"], 1)
        self.assertEqual(len(answer["logprobs"]), len(first["logprobs"]))
        self.assertGreater(len(answer["logprobs"]), 0)
        self.assertEqual((answer["tokens"], answer["prompt_scores"]), (first["tokens"], first["prompt_scores"]))
        # A namespace of its own: states without probabilities are not found.
        self.assertFalse(self.process(space).ask("known", prompt=prompt)["known"])

    def test_killed_at_each_put_of_a_save(self):
        space = self.space(max_block_bytes=MIB)
        counting = self.process(space)
        counting.ask("complete", prompt=prompt_of(10, 100), tokens=1)
        puts = counting.ask("counts")["puts"]
        self.assertGreaterEqual(puts, 2 + 1 + 4, "parts, a head, prefixes")
        reader = self.process(space)
        known = []
        for number in range(1, puts + 1):
            for when in ("before", "after"):
                prompt = prompt_of(10 + len(known) + 1, 100)
                dying = self.process(space)
                dying.ask("die", puts=number, when=when)
                self.assertIsNone(dying.ask("complete", prompt=prompt, tokens=1), "it was to be killed")
                known.append(reader.ask("known", prompt=prompt)["known"])
                self.assertEqual(reader.ask("complete", prompt=prompt)["tokens"], self.plain(prompt))
        self.assertEqual(known, sorted(known), "a set that was found before its last part")
        self.assertTrue(known[-1])
        self.assertFalse(any(known[:4]))

    def test_killed_at_random_while_others_read(self):
        space = self.space(48 * MIB, max_block_bytes=MIB)
        chance, reader, restored = random.Random(5), self.process(space), 0
        for number in range(5):
            prompts = [prompt_of(60 + 5 * number + one, 90) for one in range(4)]
            writer = self.process(space)
            answered = chance.randrange(1, 4)
            for prompt in prompts[:answered]:
                self.assertIsNotNone(writer.ask("complete", prompt=prompt))
            for prompt in prompts[answered:]:
                writer.tell("complete", prompt=prompt)
            time.sleep(chance.uniform(0, 0.3))  # a moment to be killed at, whatever it does then
            writer.kill()
            for at, prompt in enumerate(prompts):
                known = reader.ask("known", prompt=prompt)["known"]
                self.assertTrue(known or at >= answered, "what was stored is gone with who stored it")
                restored += known
                self.assertEqual(reader.ask("complete", prompt=prompt)["tokens"], self.plain(prompt))
        self.assertEqual(reader.ask("counts")["hit"], restored)
        self.assertEqual(kv.KvSpace.open(space, puts=False).verify().wrong, [])

    def test_another_model_finds_nothing(self):
        space = self.space()
        prompt = prompt_of(1, 120)
        self.process(space).ask("complete", prompt=prompt)
        others = {"weights": {"model": support.make_model("tiny-other.gguf", "--width", "512", "--layers", "8", "--seed", "8")},
                  "type of keys": {"type_k": 8}}
        for name, options in others.items():
            with self.subTest(name):
                other = self.process(space, **options)
                self.assertFalse(other.ask("known", prompt=prompt)["known"])
                self.assertGreaterEqual(other.ask("complete", prompt=prompt)["evaluated"], 120)
                self.assertTrue(other.ask("known", prompt=prompt)["known"])
        self.assertTrue(self.process(space).ask("known", prompt=prompt)["known"])

    def test_a_space_that_is_too_small_for_all(self):
        space = self.space(20 * MIB, max_block_bytes=MIB)
        one, prompts = self.process(space), [prompt_of(number, 150) for number in range(20, 32)]
        for _ in range(2):
            for prompt in prompts:
                self.assertEqual(one.ask("complete", prompt=prompt)["tokens"], self.plain(prompt))
        counts = one.ask("counts")
        self.assertGreater(counts["evicted"], 0)
        self.assertGreater(counts["stored"], len(prompts), "evicted ones are stored again")
        other = self.process(space)
        for prompt in prompts:
            self.assertEqual(other.ask("complete", prompt=prompt)["tokens"], self.plain(prompt))
        self.assertGreater(other.ask("counts")["hit"], 0)

    def test_a_state_that_fits_nowhere_is_not_stored(self):
        one = self.process(self.space(6 * MIB, max_block_bytes=64 << 10))
        self.assertEqual(one.ask("complete", prompt=prompt_of(1, 600))["tokens"], self.plain(prompt_of(1, 600)))
        counts = one.ask("counts")
        self.assertEqual((counts.get("stored", 0), counts["not_stored"]), (0, 1))
        self.assertLess(counts["size"], MIB, "its parts are left")

    def test_a_state_that_llama_cpp_refuses_is_a_miss_and_is_erased(self):
        space = self.space()
        prompt = prompt_of(5, 130)
        spoiler = self.process(space)
        spoiler.ask("complete", prompt=[*prompt, 7], tokens=1)
        spoiler.ask("spoil", prompt=prompt)
        one = self.process(space)
        one.ask("complete", prompt=prompt_of(6, 50))  # it loses what it has, and says so to nobody
        answer = one.ask("complete", prompt=prompt)
        self.assertEqual(answer["tokens"], self.plain(prompt))
        counts = one.ask("counts")
        self.assertEqual(counts["erased"], 1)
        self.assertEqual(self.process(space).ask("complete", prompt=prompt)["tokens"], self.plain(prompt))

    def test_a_context_that_is_too_small_leaves_the_state_to_others(self):
        space = self.space()
        self.process(space).ask("complete", prompt=prompt_of(1, 300))
        small = self.process(space, context=256)
        self.assertFalse(small.ask("known", prompt=prompt_of(1, 200))["known"])
        self.assertTrue(self.process(space, context=512).ask("known", prompt=prompt_of(1, 200))["known"])

    def test_slots(self):
        space = self.space(max_block_bytes=MIB)
        first = self.process(space)
        made = first.ask("complete", prompt=prompt_of(7, 200))["tokens"]
        self.assertTrue(first.ask("save", name="chat/1")["saved"])
        second = self.process(space)
        self.assertIsNone(second.ask("restore", name="chat/2")["tokens"])
        tokens = second.ask("restore", name="chat/1")["tokens"]
        self.assertEqual(tokens, [*prompt_of(7, 200), *made][:len(tokens)])
        self.assertGreaterEqual(len(tokens), 200)
        longer = [*tokens, *prompt_of(8, 30)]
        answer = second.ask("complete", prompt=longer)
        self.assertEqual(answer["tokens"], self.plain(prompt_of(7, 200), longer))
        self.assertLess(answer["evaluated"], 30 + 3 + len(answer["tokens"]))
        self.assertTrue(second.ask("save", name="chat/1")["saved"])  # in the place of the first
        self.assertEqual(first.ask("restore", name="chat/1")["tokens"][:len(longer)], longer)
        refused = first.ask("save", name="chat/1", sequence=3)["error"]
        self.assertIn("seq_id=3: this context has the sequences 0 to 0", refused)
        self.assertIsNone(self.process(space, type_k=8).ask("restore", name="chat/1")["tokens"])

    def test_a_slot_is_the_old_or_the_new_one_when_its_save_is_killed(self):
        space = self.space(max_block_bytes=MIB)
        found = set()
        for number in range(1, 5):  # two parts, and the head as the third
            writer = self.process(space)
            old = writer.ask("complete", prompt=prompt_of(40, 100), tokens=1)
            self.assertTrue(writer.ask("save", name="s")["saved"])
            writer.ask("complete", prompt=prompt_of(40 + number, 100), tokens=1)
            writer.ask("die", puts=number, when="before")
            survived = writer.ask("save", name="s")
            got = self.process(space).ask("restore", name="s")["tokens"]
            name = {tuple(prompt_of(40, 100)): "old", tuple(prompt_of(40 + number, 100)): "new"}
            found.add((survived is not None, name[tuple(got[:100])] if got else "none"))
            self.assertIsNotNone(old)
        self.assertLessEqual(found, {(False, "old"), (False, "none"), (True, "new")})
        self.assertLessEqual({(False, "old"), (True, "new")}, found)

    def test_a_lease_and_its_end(self):
        with Harness(devices={"a": "96M"}, mount=False, name="llama-cache") as service:
            service.start()
            service.create_pool("p")
            service.cli("lease", "grant", "--pool", "p", "--size", "64M", "--persistent", "--mode", "shared_coherent", "--label", "cache")
            service.cli("kv", "format", "cache", "--block", "1M", json=False)
            first = self.process("cache", TERRACE_SOCKET=service.socket)
            prompt = prompt_of(9, 160)
            first.ask("complete", prompt=prompt)
            first.kill()
            second = self.process("cache", TERRACE_SOCKET=service.socket)
            self.assertEqual(second.ask("complete", prompt=prompt)["tokens"], self.plain(prompt))
            self.assertEqual(second.ask("counts")["hit"], 1)
            lease = next(one for one in service.leases().values() if one["label"] == "cache")
            service.cli("lease", "revoke", lease["id"], "--grace", "0s")
            service.wait_free()
            for number in (10, 11):
                self.assertEqual(second.ask("complete", prompt=prompt_of(number, 60))["tokens"], self.plain(prompt_of(number, 60)))
            missing = self.process("nobody", TERRACE_SOCKET=service.socket, stderr=subprocess.PIPE)
            self.assertIn("nobody", missing.told())


if __name__ == "__main__":
    unittest.main(verbosity=2)
