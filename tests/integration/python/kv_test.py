# SPDX-License-Identifier: Apache-2.0
"""KV spaces that several Python processes use at once, in a file and in a lease."""

import gc
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import python_base
from python_base import MIB, Harness, needs_numpy, numpy, terrace, wait_until

from terrace import kv

CHILD = pathlib.Path(__file__).resolve().with_name("kv_child.py")
KIB = 1 << 10


class Child:
    """kv_child.py; a line in, a line out."""

    def __init__(self, case, *arguments):
        self.process = subprocess.Popen([sys.executable, "-B", str(CHILD), *map(str, arguments)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        case.addCleanup(self.end)
        case.assertEqual(self.answer(), "attached")

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, *words) -> str:
        print(*words, file=self.process.stdin, flush=True)
        return self.answer()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class InAFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="terrace-kv-", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "space"
        kv.KvSpace.format(self.path, nbytes=32 * MIB, parts=4, checksums=True)
        self.space = kv.KvSpace.open(self.path, namespace="n")
        self.addCleanup(self.space.close)
        self.addCleanup(gc.collect)

    def test_one_of_a_batch_that_fails_says_so_in_its_place(self):
        space = self.space
        blocks = [("first", b"1"), ("large", bytes(8 * MIB)), ("last", b"3")]
        with self.assertRaises(terrace.LimitExceeded):
            space.put_many(blocks)
        self.assertEqual(space.exists(["first", "large", "last"]), [True, False, True])
        first, large, last = space.put_many(blocks, raises=False)
        self.assertEqual((first, type(large), last), (False, terrace.LimitExceeded, False))
        space.put("long", b"1234")
        rooms = [("first", bytearray(1)), ("long", bytearray(3)), ("gone", bytearray(1)), ("last", bytearray(1))]
        with self.assertRaisesRegex(terrace.InvalidArgument, "4 bytes"):
            space.get_many_into(rooms)
        one, long, gone, three = space.get_many_into(rooms, raises=False)
        self.assertEqual((one, type(long), gone, three), (1, terrace.InvalidArgument, None, 1))
        self.assertEqual((rooms[0][1], rooms[3][1]), (b"1", b"3"))
        with self.assertRaises(BufferError):
            space.get_many_into([("first", b"1")])  # read-only

    def test_put_and_got(self):
        space = self.space
        self.assertEqual((space.get("k"), space.namespace, space.part), (None, "n", None))
        self.assertIs(space.put("k", b"hello"), True)
        self.assertIs(space.put("k", b"other"), False)  # it was there
        self.assertIsInstance(space.part, int)
        self.assertEqual(space.get("k"), b"hello")
        self.assertEqual(space.get(b"k"), b"hello")  # a str is its UTF-8
        self.assertTrue(space.put("schlüssel", bytearray(b"x" * 100000)))
        self.assertTrue(space.get("schlüssel".encode()) == b"x" * 100000)
        self.assertEqual(space.get("k"), b"hello")  # whose length is not that of the block before
        self.assertTrue(space.put(b"\0\xff", memoryview(b"abcdef")[1:3]))
        self.assertEqual(space.get(b"\0\xff"), b"bc")
        self.assertIn("k", space)
        self.assertNotIn("l", space)
        room = bytearray(16)
        self.assertEqual(space.get_into("k", room), 5)
        self.assertEqual(room[:6], b"hello\0")
        self.assertIsNone(space.get_into("l", room))
        with self.assertRaisesRegex(terrace.InvalidArgument, "5"):
            space.get_into("k", bytearray(4))
        with self.assertRaises(BufferError):
            space.get_into("k", b"immutable")
        self.assertTrue(space.erase("k"))
        self.assertFalse(space.erase("k"))
        self.assertIsNone(space.get("k"))

    def test_several_at_once(self):
        space = self.space
        self.assertEqual(space.put_many({"a": b"1", "b": b"22"}), [True, True])
        self.assertEqual(space.put_many([("b", b"2"), ("d", b"4444")], parent="b", chain=True, ttl_s=3600), [False, True])
        self.assertEqual(space.exists(["a", "b", "c", "d"]), [True, True, False, True])
        self.assertEqual(space.exists([]), [])
        self.assertEqual(space.prefix(iter(["a", "b", "c", "d"])), 2)
        self.assertEqual(space.get_many(["d", "c", "a"]), [b"4444", None, b"1"])
        rooms = {key: bytearray(6) for key in "dca"}
        self.assertEqual(space.get_many_into(rooms), [4, None, 1])
        self.assertEqual(list(rooms.values()), [b"4444\0\0", bytes(6), b"1" + bytes(5)])
        rooms = [bytearray(6) for _ in range(3)]
        self.assertEqual(space.get_many_into(zip("dca", rooms)), [4, None, 1])
        self.assertEqual(rooms, [b"4444\0\0", bytes(6), b"1\0\0\0\0\0"])
        self.assertEqual(space.get_many_into({}), [])
        with self.assertRaisesRegex(terrace.InvalidArgument, "pairs"):
            space.get_many_into([("a", rooms[0], 2)])
        with self.assertRaisesRegex(terrace.InvalidArgument, "4"):  # and the others are there all the same
            space.get_many_into({"d": bytearray(1), "b": rooms[1]})
        self.assertEqual(rooms[1], b"22\0\0\0\0")
        with self.assertRaises(BufferError):
            space.get_many_into([("a", b"immutable")])
        told = {block.key: block for block in space.list()}
        self.assertEqual(sorted(told), [b"a", b"b", b"d"])
        self.assertEqual((told[b"d"].namespace, told[b"d"].nbytes, told[b"d"].has_parent), ("n", 4, True))
        self.assertGreater(told[b"d"].expires_unix_s, told[b"d"].used_unix_s)
        self.assertEqual((told[b"a"].expires_unix_s, told[b"a"].has_parent, told[b"a"].has_checksum), (0, False, True))
        for keys in ("abc", b"abc"):
            with self.assertRaisesRegex(TypeError, "several keys"):
                space.exists(keys)
        for key in (17, None, bytearray(b"a")):
            with self.assertRaisesRegex(TypeError, "a key is"):
                space.get(key)
        for call in (space.put_many, space.get_many_into):
            with self.assertRaisesRegex(terrace.InvalidArgument, "pairs"):
                call([("a", bytearray(1), 2)])
        for key in ("", b"k" * 513):
            with self.assertRaises(terrace.InvalidArgument):
                space.get(key)
            with self.assertRaises(terrace.InvalidArgument):
                space.put(key, b"x")

    def test_namespaces_do_not_meet(self):
        name = kv.namespace(tenant="t", model="m/7b", tokenizer="tok", layout="l", dtype="bf16")
        self.assertEqual(name, "t/m%2F7b/tok/l/bf16")
        self.space.put("k", b"n")
        self.space.put("k", b"other", namespace=name)
        self.space.put("k", b"none", namespace="")
        self.assertEqual([self.space.get("k", namespace=one) for one in (None, name, "", "x")], [b"n", b"other", b"none", None])
        self.assertEqual(self.space.flush(namespace=name), 1)
        self.assertEqual(self.space.exists(["k"], namespace=name), [False])
        self.assertEqual(self.space.flush(), 1)
        self.assertEqual([block.namespace for block in self.space.list()], [""])
        self.assertEqual(self.space.flush(everything=True), 1)
        with self.assertRaises(terrace.InvalidArgument):
            self.space.flush(everything=True, namespace="n")
        with self.assertRaises(terrace.InvalidArgument):
            kv.KvSpace.open(self.path, namespace="a\nb")

    def test_a_block_in_place(self):
        self.space.put("k", bytes(range(256)) * 256)
        view = self.space.view("k")
        self.assertEqual((len(view), view.nbytes), (65536, 65536))
        memory = memoryview(view)
        self.assertTrue(memory.readonly)
        self.assertEqual((memory[255], memory.nbytes), (255, 65536))
        with self.assertRaises(terrace.Busy):
            self.space.erase("k", wait=0.01)
        view.close()
        with self.assertRaises(ValueError):
            memoryview(view)
        with self.assertRaises(terrace.Busy):  # the buffer keeps it
            self.space.erase("k", wait=0.01)
        self.assertEqual(memory[1], 1)
        memory.release()
        self.assertTrue(self.space.erase("k"))
        with self.assertRaises(terrace.NotFound):
            self.space.view("k")

    @needs_numpy
    def test_an_array_over_a_block_is_no_copy(self):
        self.space.put("k", numpy.arange(1024, dtype=numpy.float32))
        with self.space.view("k") as view:
            array = view.numpy("float32", (32, 32))
            again = numpy.frombuffer(view, numpy.float32)
        self.assertEqual((array.dtype, array.shape, array[1, 0], again[33]), (numpy.float32, (32, 32), 32, 33))
        self.assertEqual(array.ctypes.data, again.ctypes.data)  # both are the block itself
        self.assertEqual(array.ctypes.data % 64, 0)
        self.assertFalse(array.flags.owndata or array.flags.writeable or again.flags.writeable)
        with self.assertRaises(ValueError):
            array.flags.writeable = True
        part = array[3:4]
        del array, again, view
        gc.collect()
        with self.assertRaises(terrace.Busy):
            self.space.erase("k", wait=0.01)
        self.assertEqual(part[0, 0], 96)
        del part
        gc.collect()
        self.assertTrue(self.space.erase("k"))
        self.space.put("odd", b"12345")
        with self.space.view("odd") as view:
            with self.assertRaisesRegex(terrace.InvalidArgument, "5 bytes"):
                view.numpy("float32")
            with self.assertRaisesRegex(terrace.InvalidArgument, "5 bytes"):
                view.numpy("uint8", (2, 2))

    def test_a_block_filled_in_place(self):
        with self.space.reserve("k", 70000) as write:
            self.assertEqual(len(write), 70000)
            self.assertIsNone(self.space.get("k"))
            memoryview(write)[:] = b"7" * 70000
        self.assertTrue(self.space.get("k") == b"7" * 70000)
        with self.assertRaises(terrace.AlreadyExists):
            self.space.reserve("k", 5)
        with self.assertRaisesRegex(RuntimeError, "on the way"):
            with self.space.reserve("l", 5) as write:
                raise RuntimeError("on the way")
        self.assertNotIn("l", self.space)
        with self.assertRaisesRegex(terrace.InvalidArgument, "closed"):
            write.publish()
        write = self.space.reserve("l", 5)
        write.fill(b"first")
        self.assertTrue(self.space.put("l", b"other"))  # by somebody who was faster
        self.assertFalse(write.publish())
        self.assertEqual(self.space.get("l"), b"other")
        write = self.space.reserve("m", 5)
        memory = memoryview(write)
        with self.assertRaisesRegex(BufferError, "a buffer over this write"):
            write.publish()
        memory[:] = b"fives"
        memory.release()
        self.assertTrue(write.publish())
        self.assertEqual(self.space.get("m"), b"fives")
        self.space.reserve("n", 5).cancel()
        self.space.reserve("o", 5)  # dropped
        self.assertEqual(self.space.exists(["n", "o"]), [False, False])

    @needs_numpy
    def test_an_array_that_filled_a_block_is_read_only_afterwards(self):
        with self.space.reserve("k", 4096) as write:
            array = write.numpy("float32")
            array[:] = 3
        self.assertEqual(numpy.frombuffer(self.space.get("k"), numpy.float32).sum(), 3 * 1024)
        with self.assertRaises(ValueError):
            array[0] = 1
        with self.assertRaises(ValueError):
            array.flags.writeable = True
        write = self.space.reserve("l", 4)
        array = write.numpy()
        write.cancel()
        with self.assertRaises(ValueError):
            array[0] = 1

    def test_hot_blocks_have_local_copies(self):
        with self.assertRaises(terrace.InvalidArgument):
            kv.KvSpace.open(self.path, local_bytes=1)
        self.space.put("hot", b"bytes" * 1000)
        with kv.KvSpace.open(self.path, namespace="n", puts=False, local_bytes=4 * MIB) as reader:
            for _ in range(4):
                self.assertEqual(reader.get("hot"), b"bytes" * 1000)
            counters, stat = reader.counters(), reader.stat()
            self.assertEqual((counters.local_hits, counters.local_hit_bytes, counters.local_copied), (2, 10_000, 1))
            self.assertEqual((counters.local_evicted, counters.local_stale), (0, 0))
            self.assertEqual((stat.local_blocks, stat.local_max_bytes), (1, 4 * MIB))
            self.assertGreaterEqual(stat.local_bytes, 5000)
            with reader.view("hot") as view:
                self.space.erase("hot")
                self.assertEqual(bytes(view), b"bytes" * 1000)
            self.assertIsNone(reader.get("hot"))
            self.space.put("hot", b"other")
            self.assertEqual(reader.get("hot"), b"other")
            self.assertEqual(reader.counters().local_stale, 1)
        self.assertEqual(self.space.stat().local_max_bytes, 0)

    def test_evicted_blocks_come_back_from_a_spill(self):
        folder = tempfile.TemporaryDirectory(prefix="terrace-spill-")
        self.addCleanup(folder.cleanup)
        with self.assertRaisesRegex(terrace.InvalidArgument, "how many bytes"):
            kv.KvSpace.open(self.path, namespace="n", spill=folder.name)
        with kv.KvSpace.open(self.path, namespace="n", spill=folder.name, spill_bytes=256 * MIB) as space:
            blocks = {f"k{index}": bytes([index]) * (MIB // 2 - index) for index in range(120)}
            for key, block in blocks.items():
                self.assertTrue(space.put(key, block))
            self.assertGreater(space.counters().spilled, 20)
            self.assertIn("k0", space)
            self.assertEqual(space.prefix(["k0", "k1", "never put"]), 2)
            found = space.get_many(list(blocks))
            self.assertGreaterEqual(sum(got is not None for got in found) + space.counters().spill_dropped, 120)
            self.assertEqual([block for block in found if block is not None],
                             [block for block, got in zip(blocks.values(), found) if got is not None])
            self.assertGreater(space.counters().spill_hits, 20)
        with kv.KvSpace.open(self.path, namespace="n", spill=pathlib.Path(folder.name)) as space:  # its budget is known
            self.assertIn(space.get("k0"), (blocks["k0"], None))

    def test_what_was_taken_from_a_space_keeps_it(self):
        self.space.put("k", b"here")
        space = kv.KvSpace.open(self.path, namespace="n")
        view, write = space.view("k"), space.reserve("l", 5)
        space.close()
        with self.assertRaisesRegex(terrace.InvalidArgument, "space was closed"):
            space.get("k")
        del space
        gc.collect()
        memory = memoryview(view)
        del view
        gc.collect()
        self.assertEqual(bytes(memory), b"here")
        write.fill(b"later")
        self.assertTrue(write.publish())
        del memory, write
        gc.collect()
        self.assertEqual(self.space.get("l"), b"later")

    def test_told_and_cared_for(self):
        space = self.space
        space.put_many((str(number), bytes([number]) * 64 * KIB) for number in range(20))
        space.get("1"), space.get("none")
        stat, counters = space.stat(), space.counters()
        self.assertIsInstance(stat, terrace.kv.KvStat)
        self.assertEqual((stat.blocks, stat.block_bytes, stat.checksums, stat.coherence), (20, 20 * 64 * KIB, True, "coherent"))
        self.assertEqual(len(stat.parts), 4)
        mine = stat.parts[space.part]
        self.assertEqual((mine.part, mine.state, mine.blocks), (space.part, "owned", 20))
        self.assertEqual((counters.hits, counters.misses, counters.hit_bytes, counters.puts), (1, 1, 64 * KIB, 20))
        verified = space.verify()
        self.assertEqual((verified.blocks, verified.nbytes, verified.wrong), (20, 20 * 64 * KIB, []))
        self.assertEqual(space.evict(128 * KIB), 2)
        self.assertEqual(space.stat().blocks, 18)
        space.tend()
        space.health()

    def test_a_policy_is_what_was_said(self):
        with kv.KvSpace.open(self.path, namespace="team/model") as space:
            self.assertEqual(space.policy(), kv.KvPolicy([], []))
            space.set_policy(budgets={"team": 64 << 10}, kept=["shared", ("team/model", b"k\0")])
            for number in range(100):
                space.put(f"k{number}", bytes(4000))
            self.assertEqual(space.policy(), kv.KvPolicy([kv.KvBudget("team", 64 << 10)], [kv.KvKept("shared"), kv.KvKept("team/model", b"k\0")]))
            ((budget, used),) = space.stat().budgets
            self.assertEqual(budget.nbytes, 64 << 10)
            self.assertTrue(50000 < used <= budget.nbytes, used)
            self.assertEqual(space.stat().kept_bytes, 0)
            space.put(b"k\0", bytes(100))
            self.assertGreater(space.stat().kept_bytes, 0)
            with self.assertRaisesRegex(terrace.InvalidArgument, "is 0"):
                space.set_policy(budgets={"a": 0})
            with self.assertRaises(TypeError):
                space.set_policy(budgets={"a": "much"})
        with kv.KvSpace.open(self.path) as again:
            self.assertEqual(len(again.policy().kept), 2)
            again.set_policy()
            self.assertEqual(again.policy(), kv.KvPolicy([], []))

    def test_members_come_and_go(self):
        space, second = self.space, self.path.with_name("second")
        second.write_bytes(bytes(32 * MIB))
        space.put("k", b"v")
        space.grow(str(second))
        with self.assertRaises(terrace.Unavailable):
            space.grow("a-lease")
        stat = space.stat()
        self.assertEqual([member.where for member in stat.members], [str(self.path), str(second)])
        self.assertEqual([member.state for member in stat.members], ["filling"] * 2)
        self.assertEqual((stat.members[0].blocks, stat.members[0].loss, stat.parts[4].member), (1, "", 1))
        self.assertEqual([member.older_policy for member in stat.members], [False, False])
        self.assertEqual(space.counters().members_joined, 1)
        for number in range(100):
            space.put(f"k{number}", f"v{number}".encode())
        self.assertEqual({block.member for block in space.list()}, {0, 1})
        with kv.KvSpace.open(second, namespace="n") as other:
            self.assertEqual(other.get("k"), b"v")
            self.assertEqual(other.prefix([f"k{number}" for number in range(101)]), 100)
        shrunk = space.shrink(str(self.path), wait=10.0)
        self.assertEqual((shrunk.left_behind, shrunk.holders), (0, 0))
        self.assertGreater(shrunk.moved, 10)
        self.assertEqual(space.get_many(["k", "k7"]), [b"v", b"v7"])
        with self.assertRaises(terrace.NotFound):
            space.shrink("/nowhere")

    def test_a_full_space_makes_room(self):
        block = os.urandom(256 * KIB)
        for number in range(200):  # 50 MiB into less than 32
            self.assertTrue(self.space.put(str(number), block))
        self.assertTrue(self.space.get("199") == block)
        self.assertNotIn("0", self.space)
        self.assertGreater(self.space.counters().evicted, 0)
        with self.assertRaises(terrace.LimitExceeded):
            self.space.put("huge", bytes(17 * MIB))

    def test_two_processes(self):
        other = Child(self, self.path)
        self.assertEqual(other.ask("put", "theirs", 7, 100000), "True")
        self.assertEqual(other.ask("put", "theirs", 8, 100000), "False")
        self.assertTrue(self.space.get("theirs") == bytes([7]) * 100000)
        self.space.put("mine", bytes([9]) * 5000)
        self.assertEqual(other.ask("get", "mine"), "9 5000 1")
        self.assertEqual(other.ask("get", "none"), "None")
        self.assertNotEqual(int(other.ask("part", "-")), self.space.part)
        self.assertEqual(other.ask("view", "mine"), "9")
        with self.assertRaises(terrace.Busy):
            self.space.erase("mine", wait=0.05)
        self.assertEqual(other.ask("drop", "-"), "dropped")
        self.assertTrue(self.space.erase("mine", wait=10))
        self.assertTrue(self.space.erase("theirs", wait=10))  # by its owner's thread
        self.assertEqual(other.ask("get", "theirs"), "None")

    def test_a_writer_that_is_killed_leaves_what_it_published(self):
        other = Child(self, self.path)
        for number in range(10):
            self.assertEqual(other.ask("put", f"k{number}", number, 50000), "True")
        self.assertEqual(other.ask("begin", "half", 50000), "begun")
        self.space.put("mine", b"x" * 100)
        self.assertEqual(other.ask("view", "mine"), str(ord("x")))
        other.kill()
        self.assertEqual(self.space.exists([f"k{number}" for number in range(10)] + ["half"]), [True] * 10 + [False])
        for number in range(10):
            self.assertTrue(self.space.get(f"k{number}") == bytes([number]) * 50000)
        wait_until(lambda: "dead" in [part.state for part in self.space.stat().parts], timeout=30)
        self.assertTrue(self.space.erase("mine", wait=30))  # its view ended with it
        self.assertTrue(self.space.put("half", b"whole"))
        verified = self.space.verify()
        self.assertEqual((verified.wrong, verified.blocks), ([], 11))
        for number in range(5, 105):  # more than there is room for: the dead one's blocks go, too
            self.assertTrue(self.space.put(f"new{number}", bytes([number]) * 400 * KIB))
        self.assertTrue(self.space.get("new104") == bytes([104]) * 400 * KIB)
        another = Child(self, self.path)  # as many as there are parts, again
        self.assertEqual(another.ask("put", "again", 1, 100), "True")
        self.assertEqual(self.space.get("again"), b"\1" * 100)

    def test_local_copies_outlive_the_kill_of_an_owner_and_end_with_the_block(self):
        other = Child(self, self.path)
        with kv.KvSpace.open(self.path, namespace="n", local_bytes=8 * MIB) as reader:
            for number in range(10):
                self.assertEqual(other.ask("put", f"k{number}", number, 50000), "True")
                for _ in range(3):
                    self.assertTrue(reader.get(f"k{number}") == bytes([number]) * 50000)
            self.assertEqual(reader.counters().local_hits, 10)
            other.kill()
            for number in range(10):
                self.assertTrue(reader.get(f"k{number}") == bytes([number]) * 50000)
            self.assertEqual(reader.counters().local_hits, 20)
            wait_until(lambda: "dead" in [part.state for part in self.space.stat().parts], timeout=30)
            heir = Child(self, self.path)  # takes the part over
            self.assertEqual(heir.ask("put", "new", 1, 100), "True")
            for number in range(10):
                self.assertTrue(self.space.erase(f"k{number}", wait=30))
                self.assertIsNone(reader.get(f"k{number}"))
                self.assertEqual(heir.ask("put", f"k{number}", 100 + number, 50000), "True")
                for _ in range(3):
                    self.assertTrue(reader.get(f"k{number}") == bytes([100 + number]) * 50000)
            self.assertEqual(reader.counters().local_stale, 10)
            self.assertEqual(reader.counters().local_hits, 30)

    def test_other_threads_run_while_blocks_are_copied(self):
        block = os.urandom(500 * KIB)
        self.space.put("big", block)
        failures = []

        def read():
            for _ in range(50):
                if self.space.get("big") != block:
                    failures.append("torn")

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(20):
            self.space.put(f"k{number}", block[:1000])
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_memory_of_the_programs_own(self):
        with open(self.path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
            with self.assertRaisesRegex(terrace.InvalidArgument, "fd="):
                kv.KvSpace.attach(memory)
            self.space.put("k", b"here")
            with kv.KvSpace.attach(memory, namespace="n", puts=False) as copies:
                self.assertEqual(copies.get("k"), b"here")
                with self.assertRaises(terrace.PermissionDenied):
                    copies.view("k")
                with self.assertRaises(terrace.PermissionDenied):
                    copies.put("l", b"x")
            with kv.KvSpace.attach(memory, fd=file.fileno(), namespace="n", tends_itself=False) as space:
                self.assertTrue(space.put("l", b"x"))
                self.assertEqual(self.space.get("l"), b"x")
            del copies, space
            gc.collect()
            memory.close()  # nobody has it exported

    def test_refused(self):
        with self.assertRaises(terrace.NotFound):
            kv.KvSpace.open(self.path.with_name("none"))
        with self.assertRaisesRegex(terrace.InvalidArgument, "no file with bytes"):
            kv.KvSpace.open("/dev/null")
        empty = self.path.with_name("empty")
        empty.touch()
        with self.assertRaisesRegex(terrace.InvalidArgument, "no file with bytes"):
            kv.KvSpace.format(empty)
        empty.write_bytes(bytes(MIB))
        with self.assertRaises(terrace.Error):
            kv.KvSpace.open(empty)  # no space in it
        with self.assertRaisesRegex(terrace.InvalidArgument, "nbytes"):
            kv.KvSpace.format(bytearray(MIB), nbytes=5)
        with self.assertRaisesRegex(terrace.InvalidArgument, "coherence"):
            kv.KvSpace.format(self.path, coherence="maybe")
        with self.assertRaises(terrace.CapacityExhausted):
            kv.KvSpace.format(empty, parts=64, block_bytes=4 * KIB)
        with self.assertRaises(TypeError):
            self.space.put("k", "text is no buffer")


class InALease(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "128M"}, name="py-kv")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.session = terrace.Session(str(self.t.socket))
        self.addCleanup(self.session.close)
        self.lease = self.session.grant(32 * MIB, mode="shared_coherent", label="kv")
        kv.KvSpace.format(self.lease, parts=4)
        self.space = kv.KvSpace.attach(self.lease, namespace="n")
        self.addCleanup(gc.collect)

    def test_two_processes(self):
        other = Child(self, self.t.socket, "kv")
        self.assertEqual(other.ask("put", "theirs", 7, 100000), "True")
        self.assertTrue(self.space.get("theirs") == bytes([7]) * 100000)
        other.kill()
        self.assertTrue(self.space.get("theirs") == bytes([7]) * 100000)
        self.space.close()

    def test_a_lost_lease_is_an_error_of_every_call(self):
        self.space.put("k", b"here")
        view = self.space.view("k")
        self.t.cli("lease", "revoke", self.lease.id, "--grace", "0s")
        wait_until(lambda: self.lost(lambda: self.space.health()), timeout=30)
        for call in (lambda: self.space.get("k"), lambda: self.space.exists(["k"]), lambda: self.space.put("l", b"x"),
                     lambda: self.space.list(), lambda: self.space.stat(), lambda: self.space.verify()):
            self.assertTrue(self.lost(call))
        view.close()
        self.space.close()

    @staticmethod
    def lost(call) -> bool:
        try:
            call()
        except terrace.LeaseLost:
            return True
        return False


if __name__ == "__main__":
    python_base.harness.main()
