# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins of engines have in common, and LMCache's connector, which needs nothing of LMCache. Their tests with the engines:
tests/engines."""

import pathlib
import select
import tempfile
import threading
import types
import unittest

import fake_vllm
import python_base
from python_base import MIB, terrace
from terrace_harness import wait_until

from terrace import kv
from terrace.engines import _space, lmcache


class Over(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="terrace-engines-", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name) / "space")
        kv.KvSpace.format(self.path, nbytes=32 * MIB, parts=4)


class Soft(Over):
    def space(self, **options):
        space = _space.open_space({"path": self.path, **options}, namespace="n", who="test")
        self.addCleanup(space.close)
        return space

    def test_each_of_a_batch_has_its_own_answer(self):
        space = self.space()
        with self.assertLogs("terrace.engines", "WARNING") as told:
            for _ in range(3):
                self.assertEqual(space.put([("a", b"1"), ("large", bytes(8 * MIB)), ("b", b"22")]), [True, False, True])
        self.assertEqual(len(told.output), 1, told.output)
        rooms = {"a": bytearray(1), "gone": bytearray(1), "b": bytearray(3)}
        self.assertEqual(space.get_into(list(rooms.items())), [True, False, False])  # b is shorter
        self.assertEqual((space.exists(["a", "gone", "b"]), space.prefix(["a", "b", "gone"])), ([True, False, True], 2))
        self.assertEqual(space.erase(["a", "gone"]), [True, True])
        self.assertEqual(space.exists(["a", "b"]), [False, True])

    def test_keys_and_names_of_any_length(self):
        space = self.space()
        keys = ["k" * 512, "k" * 513, "k" * 5000]
        self.assertEqual(space.put([(key, key[-3:].encode() + bytes([index])) for index, key in enumerate(keys)]), [True] * 3)
        rooms = [(key, bytearray(4)) for key in keys]
        self.assertEqual(space.get_into(rooms), [True] * 3)
        self.assertEqual([room[3] for _, room in rooms], [0, 1, 2])
        long = [_space.names({"tenant": "t", "model": "m" * size}, layout="l") for size in (100, 3000, 3001)]
        self.assertEqual(long[0], kv.namespace(tenant="t", model="m" * 100, layout="l"))
        self.assertEqual(len(set(long)), 3)
        self.assertNotEqual(_space.names({"tenant": "a", "model": "m" * 3000}, layout="l"),
                            _space.names({"tenant": "b", "model": "m" * 3000}, layout="l"))
        self.assertEqual(_space.names({"model": "mine"}, model="known", layout="l"), kv.namespace(model="mine", layout="l"))

    def test_closed_it_has_nothing_and_says_nothing(self):
        space = self.space()
        space.put([("a", b"1")])
        space.close()
        with self.assertNoLogs("terrace.engines"):
            self.assertEqual((space.exists(["a"]), space.get_into([("a", bytearray(1))]), space.put([("b", b"1")])), ([False],) * 3)
            self.assertEqual((space.prefix(["a"]), space.erase(["a"]), space.flush()), (0, [False], 0))

    def test_memory_that_is_cut_off_is_lost_softly(self):
        space = self.space()
        space.put([("a", bytes(100_000))])
        with self.assertLogs("terrace.engines", "WARNING") as told:
            with open(self.path, "r+b") as file:
                file.truncate(0)
            for _ in range(3):
                self.assertEqual(space.get_into([("a", bytearray(100_000))]), [False])
                self.assertEqual((space.put([("b", b"1")]), space.exists(["a"])), ([False], [False]))
            self.assertEqual(space.erase(["a"]), [True])
        self.assertEqual(len(told.output), 1, told.output)
        self.assertIsInstance(space.lost, terrace.LeaseLost)

    def test_memory_that_is_there_again_is_used_again(self):
        space = self.space()
        space._pause_s = 0.01
        space.put([("a", bytes(1000))])
        with self.assertLogs("terrace.engines", "WARNING") as told:
            for round_ in range(1, 3):
                with open(self.path, "r+b") as file:
                    file.truncate(0)
                self.assertEqual(space.exists(["a"]), [False])
                self.assertEqual((space.counters()["lost"], space.stat()), (round_, None))
                pathlib.Path(self.path).unlink()
                kv.KvSpace.format(self.path, nbytes=32 * MIB, parts=4)
                wait_until(lambda: not space.lost, 60, "the space is attached again")
                self.assertEqual(space.exists(["a"]), [False])
                self.assertEqual(space.put([("a", bytes(1000))]), [True])
                room = bytearray(b"x" * 1000)
                self.assertEqual((space.get_into([("a", room)]), bytes(room)), ([True], bytes(1000)))
        self.assertEqual([line.count("Nothing is found") for line in told.output], [1, 0, 1, 0])
        counted = space.counters()
        self.assertEqual((counted["lost"], counted["attached_again"], counted["puts"], counted["hits"]), (2, 2, 3, 2))
        self.assertEqual(space.stat().blocks, 1)

    def test_it_is_looked_for_ever_more_rarely(self):
        class Gone:
            def exists(self, keys):
                raise terrace.LeaseLost("gone")

            def counters(self):
                return kv.KvCounters(*range(len(kv.KvCounters._fields)))

            def close(self):
                pass

        class Pauses:
            def __init__(self):
                self.taken, self.ended = [], False

            def wait(self, seconds):
                self.taken.append(seconds)
                return self.ended

            is_set = set = lambda self: self.ended

        pauses, tries = Pauses(), []

        def attach():
            tries.append(1)
            if len(tries) == 9:
                return Gone()
            raise RuntimeError("not yet")

        space = _space.SoftSpace(Gone(), "nowhere", attach)
        space._ended = pauses
        with self.assertLogs("terrace.engines", "WARNING"):
            self.assertEqual(space.exists(["k"]), [False])
            wait_until(lambda: not space.lost, 60, "the ninth try")
        self.assertEqual(pauses.taken, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0])
        space._lose(terrace.LeaseLost("late"), Gone())  # what a thread hears of the former one
        self.assertIsNone(space.lost)
        self.assertEqual(space.counters()["hits"], 0)
        self.assertEqual(space.counters()["misses"], 2)

    def test_what_is_wrong_with_a_configuration(self):
        for options, said in (({}, "either 'lease'"), ({"path": "a", "lease": "b"}, "either 'lease'"),
                              ({"path": "a", "paths": 1}, "unknown option paths"), ({"path": "a", "socket": "b"}, "'socket' goes with"),
                              ({"path": "a", "ttl_s": -1}, "'ttl_s' cannot be -1"), ({"path": "a", "ttl_s": True}, "'ttl_s' cannot"),
                              ({"path": "a", "readonly": "no"}, "'readonly' cannot be 'no'")):
            with self.assertRaisesRegex(ValueError, said):
                _space.open_space(options)
        with self.assertRaisesRegex(terrace.Error, "'terrace kv format /dev/shm/no/where'"):
            _space.open_space({"path": "/dev/shm/no/where"})


class VllmTier(Over):
    """vLLM's tier by itself. With vLLM: tests/engines/vllm."""

    BLOCK = 4096

    def setUp(self):
        super().setUp()
        module = fake_vllm.imported()
        self.module = module.__enter__()
        self.addCleanup(module.__exit__, None, None, None)
        self.memory = bytearray(8 * self.BLOCK)
        self.tier = self.module.TerraceTier(types.SimpleNamespace(block_bytes=self.BLOCK), memoryview(self.memory), "TerraceTier", path=self.path,
                                            variant="v")
        self.tier._space._pause_s = 0.01
        self.addCleanup(self.tier.shutdown)
        self.request = types.SimpleNamespace(req_id="r", get_offload_key_position=lambda key: key[0])
        self.tier.on_new_request(self.request)
        self.numbers = iter(range(1000))

    def job(self, submit, chunks, promotion=False):
        submit(types.SimpleNamespace(job_id=next(self.numbers), keys=[bytes([chunk]) * 8 for chunk in chunks], chunk_ids=list(chunks),
                                     req_context=self.request, is_promotion=promotion))
        self.tier.drain_jobs()
        (result,) = self.tier.get_finished_jobs()
        return result

    def there(self, chunks):
        return [self.tier.lookup(bytes([chunk]) * 8, self.request) is fake_vllm.LookupResult.HIT for chunk in chunks]

    def stats(self):
        self.tier._stats_at = 0.0
        told = self.tier.get_stats()
        return {name.removeprefix("vllm:kv_offload_terrace_"): value for name, value in {**told.counters, **told.gauges}.items()}

    def fill(self):
        for chunk in range(8):
            self.memory[chunk * self.BLOCK:(chunk + 1) * self.BLOCK] = bytes([chunk + 1]) * self.BLOCK

    def test_it_goes_on_without_its_lease_and_with_the_next_one(self):
        self.fill()
        self.assertTrue(self.job(self.tier.submit_store, range(4)).success)
        self.memory[:] = bytes(len(self.memory))
        self.assertEqual(self.there(range(5)), [True] * 4 + [False])
        loaded = self.job(self.tier.submit_load, range(5), promotion=True)
        self.assertEqual((loaded.success, len(loaded.successful_keys)), (False, 4))
        self.assertEqual([self.memory[chunk * self.BLOCK] for chunk in range(5)], [1, 2, 3, 4, 0])
        self.assertEqual(self.there([4]), [False])
        told = self.stats()
        self.assertEqual((told["up"], told["puts"], told["blocks"]), (1, 4, 4))
        with self.assertLogs("vllm.terrace", "WARNING") as said:
            with open(self.path, "r+b") as file:
                file.truncate(0)
            self.assertEqual(self.there(range(4)), [False] * 4)
            self.assertFalse(self.job(self.tier.submit_store, range(4)).success)
            self.assertEqual(self.job(self.tier.submit_load, range(4)).success, False)
            told = self.stats()
            self.assertEqual((told["up"], told["lost"], "blocks" in told), (0, 1, False))
            pathlib.Path(self.path).unlink()
            kv.KvSpace.format(self.path, nbytes=32 * MIB, parts=4)
            wait_until(lambda: self.stats()["up"] == 1, 60, "the tier is attached again")
        self.assertEqual([line.count("Nothing is found") for line in said.output], [1, 0], said.output)
        self.fill()
        self.assertEqual(self.there(range(4)), [False] * 4)
        self.assertTrue(self.job(self.tier.submit_store, range(4)).success)
        self.assertEqual(self.there(range(4)), [True] * 4)
        self.assertEqual(self.stats()["blocks"], 4)
        counted = self.tier._space.counters()
        self.assertEqual((counted["lost"], counted["attached_again"], counted["puts"]), (1, 1, 8))

    def test_a_space_without_room_for_its_blocks_is_passed_over(self):
        with open(self.path, "r+b") as file:
            file.truncate(0)
        with self.assertLogs("vllm.terrace", "WARNING"):
            self.assertEqual(self.there([0]), [False])
            pathlib.Path(self.path).unlink()
            tries = []
            attach = self.tier._space._attach_anew
            self.tier._space._attach_anew = lambda: (tries.append(1), attach())[1]
            self.tier._block_size_bytes = 64 * MIB
            kv.KvSpace.format(self.path, nbytes=32 * MIB, parts=4)
            wait_until(lambda: len(tries) > 2, 60, "it is looked at")
            self.assertEqual(self.stats()["up"], 0)
            self.tier._block_size_bytes = self.BLOCK
            wait_until(lambda: self.stats()["up"] == 1, 60, "its blocks have room")


class Connector(Over):
    def setUp(self):
        super().setUp()
        self.connector = lmcache.Connector(path=self.path, workers=3)
        self.addCleanup(self.connector.close)

    def over(self, *numbers):
        """What is told of these, in their order."""
        told = {}
        while not set(numbers) <= set(told):
            self.assertTrue(select.select([self.connector.event_fd()], [], [], 60)[0], f"nothing came; there is {told}")
            told.update({number: answer for number, *answer in self.connector.drain_completions()})
        return [told[number] for number in numbers]

    def test_batches_of_any_length_are_told_once_each(self):
        c = self.connector
        keys = [f"k{number}" for number in range(100)]
        blocks = [bytes([number]) * 1000 for number in range(100)]
        for count in (0, 1, 7, 8, 9, 25, 100):
            self.assertEqual(self.over(c.submit_batch_set(keys[:count], blocks[:count])), [[True, "", [True] * count]])
            rooms = [bytearray(1000) for _ in range(count)]
            got, there = self.over(c.submit_batch_get(keys[:count], rooms), c.submit_batch_exists(keys[:count]))
            self.assertEqual((got, there), ([True, "", [True] * count],) * 2)
            self.assertEqual(rooms, blocks[:count])
        self.assertEqual(c.drain_completions(), [])
        self.assertFalse(select.select([c.event_fd()], [], [], 0)[0])

    def test_what_is_not_there(self):
        c = self.connector
        self.over(c.submit_batch_set(["a", "b"], [b"1", b"2"]))
        got, there, erased = self.over(c.submit_batch_get(["a", "x", "b"], [bytearray(1) for _ in range(3)]),
                                       c.submit_batch_exists(["x", "a"]), c.submit_batch_delete(["x", "y"]))
        self.assertEqual(got, [False, "1 of 3 blocks were not found", [True, False, True]])
        self.assertEqual(there, [True, "", [False, True]])
        self.assertEqual(erased, [True, "", [True, True]])

    def test_wrong_arguments_fail_their_batch_alone(self):
        c = self.connector
        with self.assertRaisesRegex(ValueError, "2 keys and 1 buffers"):
            c.submit_batch_get(["a", "b"], [bytearray(1)])
        wrong, right = self.over(c.submit_batch_set(["a"], [17]), c.submit_batch_set(["b"], [b"1"]))
        self.assertEqual((wrong[0], right), (False, [True, "", [True]]))
        self.assertIn("TypeError", wrong[1])

    def test_from_several_threads(self):
        c, numbers = self.connector, []

        def submit(name):
            numbers.extend(c.submit_batch_set([f"{name}{index}" for index in range(20)], [name.encode()] * 20) for _ in range(20))

        threads = [threading.Thread(target=submit, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.over(*numbers), [[True, "", [True] * 20]] * 80)
        self.assertEqual(len(set(numbers)), 80)

    def test_closed_with_batches_under_way(self):
        for _ in range(50):
            self.connector.submit_batch_set([f"k{number}" for number in range(50)], [bytes(10_000)] * 50)
        self.connector.close()
        self.assertEqual(self.connector.drain_completions(), [])
        with self.assertRaisesRegex(RuntimeError, "closed"):
            self.connector.submit_batch_exists(["a"])
        self.connector.close()


if __name__ == "__main__":
    python_base.harness.main()
