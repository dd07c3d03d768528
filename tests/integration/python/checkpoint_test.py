# SPDX-License-Identifier: Apache-2.0
"""Checkpoints from Python: of a training that goes on meanwhile, in whole and in part, interrupted, damaged."""

import gc
import os
import pathlib
import signal
import tempfile
import threading
import time
import unittest

import python_base
from python_base import MIB, Harness, found, mib_in_use, needs_numpy, needs_torch, terrace, torch


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "512M"}, name="python-checkpoint")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.session = terrace.Session(str(self.t.socket))
        self.pool = terrace.TensorPool(self.session, [self.session.grant(256 * MIB)], ddr_bytes=16 * MIB)
        disk = tempfile.TemporaryDirectory(prefix="terrace-python-", dir="/var/tmp")
        self.addCleanup(disk.cleanup)
        self.path = pathlib.Path(disk.name)
        self.directory = terrace.CheckpointDirectory(self.path / "checkpoints")
        self.addCleanup(gc.collect)

    def layers(self, count, mib):
        tensors = [self.pool.create((mib * MIB,), "u8", name=f"layer.{i}") for i in range(count)]
        for number, tensor in enumerate(tensors):
            memoryview(tensor)[:] = bytes([number + 1]) * tensor.nbytes
        return tensors

    def other_pool(self, mib=128):
        return terrace.TensorPool(self.session, [self.session.grant(mib * MIB)])

    def hidden(self):
        return sorted(path.name for path in (self.path / "checkpoints").iterdir() if path.name.startswith("."))

    @needs_numpy
    def test_a_training_that_stores_while_its_checkpoint_is_written(self):
        weights = [self.pool.create((3, MIB), "f32", name=f"w{i}", hint="weights") for i in range(8)]
        arrays = [weight.numpy() for weight in weights]

        def store(step):
            for number, array in enumerate(arrays):
                array[...] = step * 100 + number

        other = self.other_pool()
        for step in range(1, 4):
            store(step)
            expected = [array.tobytes() for array in arrays]
            written = self.directory.checkpoint(f"step-{step}", weights, metadata={"step": str(step)})
            later = step + 1000
            while not written.done:
                store(later)
                later += 1
            written.wait(0)
            store(999)
            progress = written.progress
            self.assertEqual(progress.written_bytes, progress.file_bytes)
            self.assertGreater(progress.pause_ns, 0)
            self.assertGreaterEqual(progress.snapshot_bytes, 8 * 12 * MIB)
            back = self.directory.restore(f"step-{step}", other)
            self.assertEqual(back.metadata, {"step": str(step)})
            for number, bytes_then in enumerate(expected):
                self.assertEqual(back.tensors[f"w{number}"].numpy().tobytes(), bytes_then)
            del back
        self.assertEqual([info.name for info in self.directory.list().checkpoints], ["step-1", "step-2", "step-3"])
        self.directory.restore("step-2", self.pool, into_existing=True)
        self.assertEqual(arrays[5].flat[0], 205)
        self.assertEqual(self.directory.restore("step-1", self.pool, ["w3"], into_existing=True).tensors.keys(), {"w3"})
        self.assertEqual((arrays[3].flat[0], arrays[4].flat[0]), (103, 204))

    @needs_torch
    def test_torch_parameters(self):
        weight = self.pool.create((512, 1024), "bf16", name="w")
        bias = self.pool.create((1024,), "f32", name="b")
        weight.torch().normal_()
        bias.torch().fill_(2)
        then = weight.torch().clone()
        with self.directory.checkpoint("torch", [weight, bias]) as written:
            weight.torch().add_(1)
        self.assertTrue(written.done)
        self.assertFalse(torch.equal(weight.torch(), then))
        back = self.directory.restore("torch", self.other_pool(32)).tensors
        self.assertTrue(torch.equal(back["w"].torch(), then))
        self.assertEqual(back["b"].torch().sum().item(), 2048)

    def test_what_was_restored_lives_as_long_as_somebody_has_it(self):
        self.directory.checkpoint("one", self.layers(3, 4)).wait(60)
        pool = self.other_pool(64)
        back = self.directory.restore("one", pool, ("layer.2", "layer.0"), hint="kv_cache", read_mostly=False)
        self.assertEqual(list(back.tensors), ["layer.0", "layer.2"])
        kept = back.tensors["layer.2"]
        self.assertEqual((kept.hint, kept.read_mostly), ("kv_cache", False))
        del back
        self.assertFalse(found(pool, "layer.0"))
        pool.close()
        del pool
        gc.collect()
        self.assertEqual(bytes(memoryview(kept)[:2]), b"\3\3")

    def test_a_checkpoint_keeps_its_tensors_and_their_pool(self):
        pool = self.other_pool(64)
        tensors = [pool.create((8 * MIB,), "u8", name=f"t{i}") for i in range(3)]
        written = self.directory.checkpoint("kept", tensors)
        pool.close()
        del tensors, pool
        gc.collect()
        written.wait(60)
        self.assertEqual(self.directory.verify("kept"), [])

    def test_dropped_cancelled_and_left_by_an_exception_nothing_is_left(self):
        tensors = self.layers(4, 24)
        for ending in ("drop", "cancel", "raise"):
            try:
                with_it = self.directory.checkpoint(ending, tensors)
                if ending == "drop":
                    del with_it
                    gc.collect()
                elif ending == "cancel":
                    with_it.cancel()
                    with_it.wait(60)
                else:
                    with with_it:
                        raise KeyError("in the block")
            except terrace.Cancelled:
                self.assertEqual(ending, "cancel")
            except KeyError:
                self.assertEqual(ending, "raise")
            for info in self.directory.list().checkpoints:  # it was complete before: all of it is there
                self.assertEqual(self.directory.verify(info.name), [])
            self.assertEqual(self.hidden(), [".lock"])
        self.assertEqual(mib_in_use(self.pool), 96)

    def test_ctrl_c_ends_a_restore(self):
        self.directory.checkpoint("one", self.layers(8, 24)).wait(120)
        pool = self.other_pool(208)
        unfinished = []

        def interrupted(*_):  # in the middle of the call as long as the last tensor is not filled
            try:
                unfinished.append(memoryview(pool["layer.7"])[-1] != 8)
            except terrace.NotFound:
                pass
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupted)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        for _ in range(20):  # the signal may come before the call, or behind it
            begun = threading.Event()

            def interrupts(begun=begun):
                begun.wait()
                time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGINT)

            helper = threading.Thread(target=interrupts)
            helper.start()
            with self.assertRaises(KeyboardInterrupt):
                begun.set()
                self.directory.restore("one", pool)
                helper.join()
            helper.join()
            self.assertEqual(mib_in_use(pool), 0)
            if True in unfinished:
                return
        self.fail(f"no signal was heard in the middle of a restore: {unfinished}")

    def test_ctrl_c_ends_a_wait_and_not_the_checkpoint(self):
        written = self.directory.checkpoint("two", self.layers(8, 24))
        timer = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            timer.start()
            written.wait()
            timer.join()
        timer.join()
        written.wait(120)
        self.assertEqual(self.directory.verify("two"), [])

    def test_others_run_while_one_waits(self):
        tensors = self.layers(6, 24)
        written = self.directory.checkpoint("one", tensors)
        waiter = threading.Thread(target=written.wait)
        waiter.start()
        turns = 0
        while not written.done:
            turns += 1
        waiter.join()
        self.assertGreater(turns, 100)

    def test_errors(self):
        tensors = self.layers(2, 2)
        self.directory.checkpoint("one", tensors).wait(60)
        pool = self.other_pool(32)
        with self.assertRaisesRegex(terrace.NotFound, "has no tensor 'x', 'y'"):
            self.directory.restore("one", pool, ["x", "layer.0", "y"])
        with self.assertRaisesRegex(terrace.InvalidArgument, "not one string"):
            self.directory.restore("one", pool, "layer.0")
        with self.assertRaisesRegex(terrace.InvalidArgument, "no names"):
            self.directory.restore("one", pool, [])
        with self.assertRaisesRegex(terrace.InvalidArgument, "3 is no name"):
            self.directory.restore("one", pool, [3])
        with self.assertRaisesRegex(terrace.AlreadyExists, "'one'"):
            self.directory.checkpoint("one", tensors)
        with self.assertRaisesRegex(terrace.NotFound, "'two'"):
            self.directory.find("two")
        with self.assertRaisesRegex(terrace.InvalidArgument, "no tensors"):
            self.directory.checkpoint("two", [])
        with self.assertRaisesRegex(terrace.InvalidArgument, "'layer.0' is no terrace.Tensor"):
            self.directory.checkpoint("two", ["layer.0"])
        with self.assertRaisesRegex(terrace.InvalidArgument, "another pool"):
            self.directory.checkpoint("two", [tensors[0], pool.create((4,), name="other")])
        with self.assertRaisesRegex(terrace.InvalidArgument, "metadata: 'a'"):
            self.directory.checkpoint("two", tensors, metadata={"a": 1})
        with self.assertRaisesRegex(terrace.InvalidArgument, "'no/name'"):
            self.directory.checkpoint("no/name", tensors)
        with self.assertRaises(terrace.NotFound):
            terrace.CheckpointDirectory(self.path / "none", make=False)
        data = pathlib.Path(self.directory.find("one").file)
        data.write_bytes(data.read_bytes()[:-1] + b"!")
        self.assertEqual(self.directory.verify("one"), [(0, data.stat().st_size)])
        with self.assertRaisesRegex(terrace.Corrupt, "checksum"):
            self.directory.restore("one", pool)
        self.assertFalse(found(pool, "layer.0"))
        data.write_bytes(b"short")
        said = self.directory.list()
        self.assertEqual((said.checkpoints, list(said.damaged)), ([], ["one"]))
        self.directory.delete("one")
        self.assertEqual(self.directory.list(), terrace.CheckpointList([], {}, 0, 0))

    def test_files_in_and_out(self):
        self.directory.checkpoint("one", self.layers(3, 2)).wait(60)
        whole, some = self.path / "whole.safetensors", self.path / "some.safetensors"
        self.assertEqual(self.directory.export_file("one", whole).tensors, 3)
        self.assertEqual(self.directory.export_file("one", some, ["layer.1"]).tensor_bytes, 2 * MIB)
        self.assertEqual(some.read_bytes()[-1], 2)
        with self.assertRaises(terrace.AlreadyExists):
            self.directory.export_file("one", some)
        self.directory.export_file("one", some, ["layer.2"], replace=True)
        self.assertEqual(some.read_bytes()[-1], 3)
        self.assertEqual(self.directory.import_file(str(whole), "two").tensors, 3)
        self.assertEqual(pathlib.Path(self.directory.find("two").file).read_bytes(), whole.read_bytes())


if __name__ == "__main__":
    python_base.harness.main()
