# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins of engines have in common, and LMCache's connector, which needs nothing of LMCache. Their tests with the engines:
tests/engines."""

import pathlib
import select
import tempfile
import threading
import unittest

import python_base
from python_base import MIB, terrace

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

    def test_what_is_wrong_with_a_configuration(self):
        for options, said in (({}, "either 'lease'"), ({"path": "a", "lease": "b"}, "either 'lease'"),
                              ({"path": "a", "paths": 1}, "unknown option paths"), ({"path": "a", "socket": "b"}, "'socket' goes with"),
                              ({"path": "a", "ttl_s": -1}, "'ttl_s' cannot be -1"), ({"path": "a", "ttl_s": True}, "'ttl_s' cannot"),
                              ({"path": "a", "readonly": "no"}, "'readonly' cannot be 'no'")):
            with self.assertRaisesRegex(ValueError, said):
                _space.open_space(options)
        with self.assertRaisesRegex(terrace.Error, "'terrace kv format /dev/shm/no/where'"):
            _space.open_space({"path": "/dev/shm/no/where"})


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
