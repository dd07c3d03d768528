# SPDX-License-Identifier: Apache-2.0
"""Tensors that several Python processes write and read at once, in a lease and in a file."""

import gc
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import python_base
from python_base import MIB, Harness, needs_numpy, needs_torch, numpy, terrace, torch, wait_until

CHILD = pathlib.Path(__file__).resolve().with_name("space_child.py")


class Child:
    """space_child.py; a line in, a line out."""

    def __init__(self, case, *arguments):
        self.process = subprocess.Popen([sys.executable, "-B", str(CHILD), *map(str, arguments)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        case.addCleanup(self.end)
        case.assertTrue(self.answer().startswith("part"))

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, *words) -> str:
        print(*words, file=self.process.stdin, flush=True)
        return self.answer()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@needs_numpy
class InAFile(unittest.TestCase):
    def setUp(self):
        file = tempfile.NamedTemporaryFile(prefix="terrace-space-", dir="/dev/shm")
        self.addCleanup(file.close)
        file.truncate(64 * MIB)
        self.path, self.fd = file.name, file.fileno()
        terrace.TensorSpace.format(self.memory(), parts=4, records_per_part=64)
        self.space = terrace.TensorSpace(self.memory(), fd=self.fd)
        self.addCleanup(gc.collect)

    def memory(self) -> mmap.mmap:
        return mmap.mmap(self.fd, 64 * MIB)

    def test_written_read_and_told(self):
        tensor = self.space.create("kv/17", (4, 8), "bf16", hint="kv_cache")
        self.assertEqual((tensor.name, tensor.dtype, tensor.shape, tensor.nbytes), ("kv/17", "BF16", (4, 8), 64))
        self.assertEqual((tensor.hint, tensor.part, tensor.double_buffered), ("kv_cache", 0, True))
        with self.assertRaisesRegex(terrace.Busy, "'kv/17'"):
            tensor.read()
        with tensor.write() as array:
            self.assertEqual((array.dtype, array.shape), (numpy.uint16, (4, 8)))
            array[...] = 7
        copy, version = self.space["kv/17"].read()
        self.assertEqual((copy.sum(), copy.flags.writeable), (7 * 32, True))
        self.assertTrue(tensor.is_current(version))
        self.assertEqual(tensor.version, version)
        self.assertEqual(tensor.read(known=version), (None, version))
        newer = tensor.publish(numpy.full((4, 8), 9, numpy.uint16))
        self.assertGreater(newer, version)
        self.assertFalse(tensor.is_current(version))
        out = numpy.zeros((4, 8), numpy.uint16)
        same, got = tensor.read(out)
        self.assertIs(same, out)
        self.assertEqual((out[3, 7], got), (9, newer))
        self.assertEqual([one.name for one in self.space.list()], ["kv/17"])
        self.assertIn("kv/17", self.space)
        self.assertNotIn("kv/18", self.space)
        tensor.remove()
        with self.assertRaisesRegex(terrace.NotFound, "'kv/17'"):
            self.space["kv/17"]
        with self.assertRaises(terrace.NotFound):
            tensor.read()

    def test_an_exception_gives_the_write_up(self):
        tensor = self.space.create("t", (8,), "i64")
        tensor.publish(numpy.arange(8))
        with self.assertRaisesRegex(RuntimeError, "on the way"):
            with tensor.write() as array:
                array[...] = -1
                raise RuntimeError("on the way")
        self.assertEqual(tensor.read()[0].tolist(), list(range(8)))
        with self.assertRaises(ValueError):  # what `with` gave is over
            array[0] = 1
        with tensor.write() as array:
            array[...] = 3
        self.assertEqual(tensor.read()[0].tolist(), [3] * 8)
        with self.assertRaises(ValueError):
            array[0] = 1

    def test_a_write_by_hand(self):
        tensor = self.space.create("t", (8,), "i64")
        write = tensor.write()
        arrays = [write.numpy(), write.numpy()]
        arrays[0][...] = 4
        with self.assertRaisesRegex(terrace.Busy, "'t'"):
            tensor.write()
        version = write.publish()
        self.assertEqual((write.version, tensor.version), (version, version))
        for array in arrays:
            with self.assertRaises(ValueError):
                array[0] = 1
            with self.assertRaises(ValueError):
                array.flags.writeable = True
        with self.assertRaisesRegex(terrace.InvalidArgument, "'t': this write is over"):
            write.publish()
        with self.assertRaisesRegex(terrace.InvalidArgument, "'t': this write is over"):
            write.numpy()
        del write
        write = tensor.write()
        array = write.numpy()
        array[...] = 5
        write.close()  # given up
        with self.assertRaises(ValueError):
            array[0] = 1
        write = tensor.write()
        array = write.numpy()
        array[...] = 5
        del write
        gc.collect()
        with self.assertRaisesRegex(terrace.Busy, "'t'"):
            tensor.write()  # the array keeps it
        del array
        gc.collect()  # given up as well
        tensor.write().close()
        self.assertEqual(tensor.read()[0].tolist(), [4] * 8)

    def test_a_pinned_version_stays_while_its_array_lives(self):
        tensor = self.space.create("t", (8,), "i64")
        first = tensor.publish(numpy.full(8, 1))
        with tensor.pin() as array:
            self.assertFalse(array.flags.writeable)
            with self.assertRaises(ValueError):
                array.flags.writeable = True
        part = array[2:4]
        del array
        tensor.publish(numpy.full(8, 2))  # the other slot
        with self.assertRaisesRegex(terrace.Busy, "'t'"):
            tensor.publish(numpy.full(8, 3))  # the pinned one
        self.assertEqual(part.tolist(), [1, 1])
        with self.assertRaises(terrace.Busy):
            tensor.remove()
        del part
        gc.collect()
        self.assertGreater(tensor.publish(numpy.full(8, 3)), first)
        pin = tensor.pin()
        view = memoryview(pin)
        self.assertTrue(view.readonly)
        pin.close()
        self.assertEqual(view[7], 3)  # a buffer holds it, too
        with self.assertRaises(terrace.Busy):
            tensor.remove()
        view.release()
        tensor.remove(wait=30)
        with self.assertRaisesRegex(terrace.InvalidArgument, "was closed"):
            pin.version

    @needs_torch
    def test_torch_gets_no_read_only_memory(self):
        tensor = self.space.create("t", (8,), "i64")
        tensor.publish(torch.full((8,), 6).numpy())
        pin = tensor.pin()
        for refused in (pin.torch, pin.__dlpack__):
            with self.assertRaisesRegex(BufferError, "read-only"):
                refused()
        self.assertIn("dltensor_versioned", repr(pin.__dlpack__(max_version=(1, 0))))

    def test_the_space_is_kept_by_what_was_taken_from_it(self):
        tensor = self.space.create("t", (8,), "i64")
        tensor.publish(numpy.full(8, 6))
        array = tensor.pin().numpy()
        del tensor
        self.space.close()
        gc.collect()
        self.assertEqual(array.sum(), 48)  # still mapped, still pinned
        other = terrace.TensorSpace(self.memory(), fd=self.fd, own=True)
        self.assertEqual(other.part, 1)  # the part is still owned
        del array
        gc.collect()
        third = terrace.TensorSpace(self.memory(), fd=self.fd, own=True)
        self.assertEqual(third.part, 0)

    def test_wrong_calls_are_said(self):
        tensor = self.space.create("t", (8,), "i64")
        tensor.publish(numpy.arange(8))
        with self.assertRaisesRegex(terrace.InvalidArgument, "'t'"):
            tensor.read(numpy.zeros(7, numpy.int64))
        frozen = numpy.zeros(8, numpy.int64)
        frozen.flags.writeable = False
        for out in (frozen, numpy.zeros((8, 2), numpy.int64)[:, 0], b"12345678" * 8):
            with self.assertRaises((BufferError, ValueError)):
                tensor.read(out)
        with self.assertRaisesRegex(terrace.AlreadyExists, "'t'"):
            self.space.create("t", 1)
        with self.assertRaisesRegex(terrace.CapacityExhausted, "'big' needs .* bytes"):
            self.space.create("big", 1 << 30, "u8")
        with self.assertRaisesRegex(terrace.InvalidArgument, "descriptor"):
            terrace.TensorSpace(self.memory())
        with self.assertRaisesRegex(terrace.InvalidArgument, "no coherence"):
            terrace.TensorSpace.format(bytearray(1 << 20), coherence="maybe")
        with self.assertRaises((BufferError, TypeError)):
            terrace.TensorSpace(bytes(64))
        reader = terrace.TensorSpace(self.memory(), own=False)
        self.assertIsNone(reader.part)
        self.assertEqual(reader["t"].read()[0].tolist(), list(range(8)))
        for refused in (reader["t"].write, reader["t"].pin):
            with self.assertRaisesRegex(terrace.PermissionDenied, "'t'"):
                refused()

    def test_waiting_lets_others_run(self):
        tensor = self.space.create("t", (8,), "i64")
        first = tensor.publish(numpy.arange(8))
        got = []
        waiter = threading.Thread(target=lambda: got.append(tensor.wait_for_version(first + 1, 60)))
        waiter.start()
        second = tensor.publish(numpy.arange(8))
        waiter.join()
        self.assertGreaterEqual(got[0], second)
        with self.assertRaises(terrace.Busy):
            tensor.wait_for_version(second + 100, 0.05)

    def test_ctrl_c_ends_a_wait(self):
        tensor = self.space.create("t", (8,), "i64")
        version = tensor.publish(numpy.arange(8))
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            timer.start()
            tensor.wait_for_version(version + 100, 600)
        self.assertLess(time.monotonic() - began, 300)
        timer.join()

    def test_calls_end_well_under_a_close(self):
        stop, failed = threading.Event(), []

        def work(space, number):
            count = 0
            try:
                while not stop.is_set():
                    count += 1
                    space.create(f"{number}/{count}", (8,), "u8").remove(wait=30)
                    for tensor in space.list():
                        tensor.name
            except terrace.InvalidArgument as error:
                if "was closed" not in str(error):
                    failed.append(error)
            except Exception as error:  # told by the main thread
                failed.append(error)

        for turn in range(30):
            space = terrace.TensorSpace(self.memory(), fd=self.fd)
            worker = threading.Thread(target=work, args=(space, turn))
            worker.start()
            wait_until(lambda: any(one.name.startswith(f"{turn}/") for one in self.space.list()) or failed, 60,
                       "the worker")
            space.close()
            worker.join(60)
            self.assertFalse(worker.is_alive())
            gc.collect()
        stop.set()
        self.assertEqual(failed, [])

    def test_a_peer_has_removed_what_its_owner_allows(self):
        mine = self.space.create("mine", (16,), "u8")
        theirs = self.space.create("theirs", (16,), "u8", peers_may_remove=True)
        for tensor in (mine, theirs):
            tensor.publish(numpy.zeros(16, numpy.uint8))
        peer = Child(self, self.path)
        self.assertEqual(peer.ask("remove", "mine", 0.1), "permission_denied")
        self.assertEqual(peer.ask("remove", "theirs", 0.1), "busy")  # nobody tends
        ended = threading.Event()

        def tend():
            while not ended.is_set():
                self.space.tend()

        thread = threading.Thread(target=tend)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(ended.set)
        self.assertEqual(peer.ask("remove", "theirs", 60), "removed")
        with self.assertRaises(terrace.NotFound):
            theirs.read()
        self.assertEqual(mine.read()[0].max(), 0)
        self.assertNotIn("theirs", self.space)
        ended.set()
        thread.join()

    def test_two_processes(self):
        child = Child(self, self.path)
        self.assertTrue(child.ask("publish", "theirs", 3).startswith("version"))
        theirs = self.space["theirs"]
        copy, version = theirs.read(wait=30)
        self.assertEqual((copy.min(), copy.max()), (3, 3))
        with self.assertRaisesRegex(terrace.PermissionDenied, "'theirs'"):
            theirs.write()
        mine = self.space.create("mine", (1024, 1024), "i32")
        mine.publish(numpy.full((1024, 1024), 2, numpy.int32))
        self.assertEqual(child.ask("sum", "mine", 0), f"sum {2 * MIB}")

        # Killed in the middle of a write: the last version stays, and is read at once.
        self.assertEqual(child.ask("begin", "theirs"), "begun")
        child.process.kill()
        child.process.wait()
        again, _ = theirs.read(wait=30)
        self.assertEqual((again.min(), again.max()), (3, 3))
        heir = Child(self, self.path)
        self.assertTrue(heir.ask("publish", "theirs", 8).startswith("version"))
        theirs.wait_for_version(version + 1, 60)
        wait_until(lambda: theirs.read(wait=30)[0].min() == 8, 60, "the heir's version")


@needs_numpy
class InALease(unittest.TestCase):
    def test_two_processes_share_a_lease(self):
        service = Harness(devices={"a": "128M"}, name="python-space")
        self.addCleanup(service.close)
        service.start()
        service.create_pool("p")
        session = terrace.Session(str(service.socket))
        lease = session.grant(64 * MIB, mode="shared_coherent", label="kv")
        terrace.TensorSpace.format(lease, parts=4, records_per_part=64)
        space = terrace.TensorSpace(lease)
        child = Child(self, service.socket, "kv")
        self.assertTrue(child.ask("publish", "t", 5).startswith("version"))
        with space["t"].pin(wait=30) as array:
            self.assertEqual((array.min(), array.max()), (5, 5))
        del array
        own = space.create("own", (1024, 1024), "i32")
        with own.write() as array:
            array[...] = 1
        self.assertEqual(child.ask("sum", "own", 0), f"sum {MIB}")
        child.end()
        del array, own, space, lease, session
        gc.collect()


if __name__ == "__main__":
    python_base.harness.main()
