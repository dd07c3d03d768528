# SPDX-License-Identifier: Apache-2.0
"""Tensors in tier hbm from Python, on an emulated device: no GPU and no daemon is needed."""

import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import python_base
from python_base import MIB, needs_numpy, needs_torch, numpy, terrace, torch


def bytes_at(guard: "terrace.DeviceGuard", count: int = 4) -> bytes:
    """What a kernel of the emulated device would read."""
    return ctypes.string_at(guard.address, count)


class Case(unittest.TestCase):
    def setUp(self):
        self.device = terrace.Device.emulated(8 * MIB)
        self.pool = terrace.TensorPool(ddr_bytes=8 * MIB, device=self.device, hbm_bytes=2 * MIB)
        self.addCleanup(lambda: self.pool.close())

    def filled(self, name: str, value: int) -> "terrace.Tensor":
        tensor = self.pool.create((MIB,), "u8", name=name)
        guard = tensor.write()
        memoryview(guard)[:] = bytes([value]) * MIB
        guard.close()
        return tensor

    def figures(self) -> "terrace.HbmStatistics":
        return self.pool.statistics.hbm


class Devices(Case):
    def test_a_device_says_what_it_is(self):
        self.assertTrue(self.device.is_emulated)
        self.assertEqual(self.device.capacity_bytes, 8 * MIB)
        self.assertIn("emulated", self.device.description)
        self.assertIn("emulated", repr(self.device))
        with self.assertRaises(terrace.InvalidArgument):
            terrace.Device.emulated(0)

    def test_a_device_tells_its_info_and_its_use(self):
        self.assertEqual(
            self.device.info,
            terrace.DeviceInfo(kind="emulated", ordinal=0, name="emulated device", capacity_bytes=8 * MIB,
                               driver_version=0, description=self.device.description))
        self.assertEqual(self.device.use(), terrace.DeviceUse(8 * MIB, 8 * MIB, 0))
        with self.filled("a", 7).device_read():
            self.assertEqual(self.device.use(), terrace.DeviceUse(8 * MIB, 7 * MIB, MIB))

    def test_a_gpu_tells_its_number_its_name_and_its_driver(self):
        """The second GPU of the fake driver, under the driver's name in another process."""
        fake = python_base.harness.build_directory() / "tests/support/libterrace_fake_cuda.so"
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(fake, os.path.join(folder, "libcuda.so.1"))
            done = subprocess.run(
                [sys.executable, "-B", "-c", "import terrace; print(*terrace.Device.cuda(1).info, sep='\\n')"],
                env=dict(os.environ, LD_LIBRARY_PATH=folder), capture_output=True, text=True, check=True)
        kind, ordinal, name, capacity_bytes, driver_version, description = done.stdout.splitlines()
        self.assertEqual((kind, ordinal, name, driver_version), ("cuda", "1", "Fake GPU", "12040"))
        self.assertGreater(int(capacity_bytes), 0)
        self.assertIn("Fake GPU", description)

    def test_a_gpu_that_is_not_there_is_an_error(self):
        with self.assertRaises(terrace.Error):
            terrace.Device.cuda(9999)

    def test_the_pool_keeps_its_device(self):
        tensor = self.filled("a", 7)
        self.device = None
        gc.collect()
        with tensor.device_read() as guard:
            self.assertEqual(bytes_at(guard), b"\7\7\7\7")

    def test_a_pool_without_one_has_no_tier_hbm(self):
        with terrace.TensorPool(ddr_bytes=4 * MIB) as pool:
            tensor = pool.create((MIB,), "u8")
            with self.assertRaisesRegex(terrace.Unsupported, "no tier hbm"):
                tensor.device_read()
            with self.assertRaises(terrace.Unsupported):
                tensor.move_to("hbm")
            self.assertEqual(pool.statistics.hbm.capacity_bytes, 0)
            self.assertEqual(tensor.residency.hbm_bytes, 0)


class Moves(Case):
    def test_to_hbm_and_away(self):
        tensor = self.filled("a", 1)
        tensor.move_to("hbm").wait(60)
        self.assertEqual((tensor.residency.hbm_bytes, tensor.residency.hbm_dirty_bytes), (MIB, 0))
        self.assertEqual((self.figures().uploads, self.figures().used_bytes), (1, MIB))
        with tensor.device_read(timeout=60) as guard:
            self.assertEqual((guard.nbytes, bytes_at(guard)), (MIB, b"\1\1\1\1"))
        self.assertEqual(self.figures().uploads, 1)  # it was there
        self.assertEqual((tensor.statistics.device_reads, tensor.statistics.device_writes), (1, 0))
        tensor.move_to("ddr").wait(60)
        self.assertEqual((tensor.residency.hbm_bytes, self.figures().used_bytes), (0, 0))

    def test_prefetch_and_pin(self):
        a, b, c = (self.filled(name, 1) for name in "abc")
        a.prefetch("hbm").wait(60)
        a.pin("hbm").wait(60)
        b.pin("hbm").wait(60)
        self.assertEqual(self.figures().pinned_bytes, 2 * MIB)
        with self.assertRaisesRegex(terrace.CapacityExhausted, "1048576 bytes short"):
            c.device_read()
        with self.assertRaisesRegex(terrace.Busy, "pinned"):
            a.discard_hbm()
        a.unpin()
        c.device_read().close()  # a makes room
        self.assertEqual(a.residency.hbm_bytes, 0)
        self.assertEqual((self.figures().evictions, self.figures().refused), (1, 1))

    def test_tiers_are_named(self):
        with self.assertRaisesRegex(terrace.InvalidArgument, "'gpu' is no tier: ddr, cxl, hbm"):
            self.filled("a", 1).move_to("gpu")


class Guards(Case):
    def test_what_the_device_wrote_is_what_the_host_reads(self):
        tensor = self.filled("a", 1)
        with tensor.device_write(overwrite=True) as guard:
            ctypes.memset(guard.address, 9, MIB)
        self.assertEqual((self.figures().uploads, self.figures().dirty_bytes), (0, MIB))
        self.assertEqual(tensor.residency.hbm_dirty_bytes, MIB)
        guard = tensor.read()  # waits for the write-back
        self.assertEqual(bytes(memoryview(guard)[-4:]), b"\x09" * 4)
        guard.close()
        self.assertEqual((self.figures().write_backs, self.figures().dirty_bytes), (1, 0))

    def test_write_back_and_discard(self):
        tensor = self.filled("a", 1)
        with tensor.device_write() as guard:
            ctypes.memset(guard.address, 2, 4)
        tensor.write_back()
        self.assertEqual(bytes(memoryview(tensor)[:5]), b"\2\2\2\2\1")
        with tensor.device_write() as guard:
            ctypes.memset(guard.address, 3, 4)
        tensor.discard_hbm()
        guard = tensor.read()
        self.assertEqual(bytes(memoryview(guard)[:5]), b"\2\2\2\2\1")
        guard.close()

    def test_one_side_at_a_time(self):
        tensor = self.filled("a", 1)
        with tensor.device_read():
            tensor.read().close()
            with self.assertRaisesRegex(terrace.Busy, "'a'"):
                tensor.write()
            with self.assertRaises(terrace.Busy):
                tensor.discard_hbm()
        with tensor.device_write():
            with self.assertRaises(terrace.Busy):
                tensor.read()
        write = tensor.write()
        with self.assertRaises(terrace.Busy):
            tensor.device_read()
        write.close()
        tensor.device_read().close()

    def test_a_closed_one_has_nothing(self):
        tensor = self.filled("a", 1)
        guard = tensor.device_read()
        guard.close()
        guard.close()
        for use in (lambda: guard.address, lambda: guard.nbytes, guard.numpy, guard.torch, guard.__dlpack__):
            with self.assertRaisesRegex(Exception, "device guard"):
                use()
        tensor.write().close()

    def test_a_guard_that_was_forgotten_is_closed(self):
        tensor = self.filled("a", 1)
        guard = tensor.device_write()
        with self.assertRaises(terrace.Busy):
            tensor.write()
        del guard
        gc.collect()
        tensor.write().close()

    def test_a_guard_keeps_tensor_and_pool(self):
        guard = self.filled("a", 5).device_read()
        self.pool.close()
        gc.collect()
        self.assertEqual(bytes_at(guard), b"\5\5\5\5")
        guard.close()

    def test_threads_take_turns(self):
        tensors = [self.filled(f"t{i}", 0) for i in range(4)]  # twice the budget
        failed = []

        def work(tensor):
            try:
                for _ in range(50):
                    with tensor.device_write(timeout=60) as guard:
                        value = bytes_at(guard, 1)[0]
                        ctypes.memset(guard.address, value + 1, MIB)
            except Exception as error:  # told by the main thread
                failed.append(error)

        # Two guards of 1 MiB at a time fit the budget.
        for pair in (tensors[:2], tensors[2:]):
            workers = [threading.Thread(target=work, args=(tensor,)) for tensor in pair]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        self.assertEqual(failed, [])
        for tensor in tensors:
            tensor.write_back()
            self.assertEqual(bytes(memoryview(tensor)[:1]) + bytes(memoryview(tensor)[-1:]), bytes([50, 50]))


class Interchange(Case):
    @needs_numpy
    def test_an_emulated_device_has_arrays_which_keep_the_guard(self):
        tensor = self.pool.create((4, 8), "f32", name="a")
        with tensor.write() as array:
            array[...] = numpy.arange(32).reshape(4, 8)
        with tensor[1:3, ::2].device_read() as guard:
            seen = guard.numpy()
            self.assertEqual(seen.tolist(), [[8, 10, 12, 14], [16, 18, 20, 22]])
            with self.assertRaises(ValueError):
                seen[0, 0] = 1
        with self.assertRaises(terrace.Busy):
            tensor.write()  # the array is still there
        del seen
        gc.collect()
        with tensor.device_write() as guard:
            guard.numpy()[0] = 5
        gc.collect()
        with tensor.read() as array:
            self.assertEqual(array[:, 0].tolist(), [5, 8, 16, 24])

    @needs_numpy
    def test_an_array_outlives_pool_and_device(self):
        array = self.filled("a", 6).device_read().numpy()
        self.device = None
        self.pool.close()
        gc.collect()
        self.assertEqual(int(array.sum()), 6 * MIB)

    def test_dlpack_needs_a_gpu(self):
        with self.filled("a", 1).device_write() as guard:
            for use in (guard.torch, guard.__dlpack__, guard.__dlpack_device__):
                with self.assertRaisesRegex(BufferError, r"emulated.*terrace\.Device\.cuda\(\)"):
                    use()

    @needs_torch
    def test_torch_is_told_why(self):
        with self.filled("a", 1).device_read() as guard:
            with self.assertRaisesRegex(BufferError, "emulated"):
                torch.from_dlpack(guard)


class Cuda(unittest.TestCase):
    """With a GPU, and a torch that can use it."""

    @needs_torch
    def test_torch_computes_in_the_pools_hbm(self):
        try:
            device = terrace.Device.cuda()
        except terrace.Error as error:
            self.skipTest(str(error))
        if not torch.cuda.is_available():
            self.skipTest("torch has no CUDA")
        with terrace.TensorPool(ddr_bytes=8 * MIB, device=device, hbm_bytes=4 * MIB) as pool:
            tensor = pool.create((1024,), "f32")
            memoryview(tensor).cast("B")[:] = bytes(4096)
            with tensor.device_write() as guard:
                self.assertEqual(guard.__dlpack_device__(), (2, 0))
                seen = guard.torch()
                self.assertEqual(seen.data_ptr(), guard.address)
                seen.add_(2)
                torch.cuda.synchronize()
                del seen
            guard = tensor.device_read()
            with self.assertRaisesRegex(BufferError, "read-only"):
                guard.torch()
            with self.assertRaisesRegex(BufferError, "GPU"):
                guard.numpy()
            self.assertEqual(float(guard.torch(unmarked=True).sum()), 2048)
            guard.close()


if __name__ == "__main__":
    python_base.harness.main()
