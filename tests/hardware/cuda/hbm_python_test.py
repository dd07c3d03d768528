# SPDX-License-Identifier: Apache-2.0
"""Tier hbm of tensor pools with a real GPU and the frameworks of this machine: what they make of DLPack's capsules,
and that kernels' work comes back. Over a lease of a real daemon. Each framework that is missing is skipped."""

import gc
import os
import pathlib
import random
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integration/python"))
from python_base import MIB, Harness, harness, numpy, terrace, torch  # noqa: E402


def imported(name: str):
    try:
        return __import__(name)
    except ImportError:
        return None


os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or jax takes most of the device
cupy, jax = imported("cupy"), imported("jax")

DTYPES = ("u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64", "bool", "u16", "u32", "u64", "f8_e4m3",
          "f8_e5m2")


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            cls.device = terrace.Device.cuda()
        except terrace.Error as error:
            raise unittest.SkipTest(str(error))
        cls.t = Harness(devices={"a": "2G"}, name="gpu")
        cls.addClassCleanup(cls.t.close)
        cls.t.start()
        cls.t.create_pool("p")

    def setUp(self):
        self.session = terrace.Session(str(self.t.socket))
        self.lease = self.session.grant(512 * MIB)
        self.pool = terrace.TensorPool(self.session, [self.lease], ddr_bytes=256 * MIB, device=self.device,
                                       hbm_bytes=128 * MIB)

    def tearDown(self):
        self.pool.close()
        if self.lease.state != "lost":
            self.lease.release()
        self.pool = self.lease = None
        gc.collect()

    def filled(self, name: str, shape, dtype: str, data: bytes) -> "terrace.Tensor":
        tensor = self.pool.create(shape, dtype, name=name)
        guard = tensor.write()
        memoryview(guard).cast("B")[:] = data
        guard.close()
        return tensor


@unittest.skipUnless(torch and torch.cuda.is_available(), "torch has no CUDA")
class Torch(Case):
    def test_every_dtype_both_ways(self):
        """torch.from_dlpack asks for a versioned capsule, guard.torch() hands an old one over."""
        for dtype in DTYPES:
            with self.subTest(dtype=dtype):
                data = bytes(random.Random(dtype).randrange(0, 2 if dtype == "bool" else 256) for _ in range(4096))
                size = len(data) // self.pool.create((1,), dtype).nbytes
                tensor = self.filled("a", (size,), dtype, data)
                with tensor.device_write() as guard:
                    seen = torch.from_dlpack(guard)
                    self.assertEqual((seen.device.type, seen.data_ptr()), ("cuda", guard.address))
                    self.assertEqual(bytes(seen.view(torch.uint8).cpu().numpy()), data)
                    seen.view(torch.uint8)[: 8] = 1
                    torch.cuda.synchronize()
                    del seen
                guard = tensor.read()
                self.assertEqual(bytes(memoryview(guard).cast("B")), b"\1" * 8 + data[8:])
                guard.close()
                del guard, tensor
                gc.collect()

    def test_read_only_memory_says_so(self):
        tensor = self.filled("a", (1024,), "f32", bytes(4096))
        with tensor.device_read() as guard:
            try:
                seen = torch.from_dlpack(guard)
                print("torch takes a read-only capsule", seen.sum().item(), file=sys.stderr)
                del seen
            except (BufferError, RuntimeError) as error:
                print(f"torch refuses a read-only capsule: {error}", file=sys.stderr)
            self.assertEqual(guard.torch(unmarked=True).sum().item(), 0)

    def test_a_tensor_keeps_its_guard_until_it_is_dropped(self):
        tensor = self.filled("a", (1024,), "f32", bytes(4096))
        guard = tensor.device_write()
        seen = torch.from_dlpack(guard)
        view = seen[10:20]
        guard.close()
        del seen
        with self.assertRaises(terrace.Busy):
            tensor.read()
        view.fill_(1)
        torch.cuda.synchronize()
        del view
        gc.collect()
        with tensor.read() as array:
            self.assertEqual(float(array.sum()), 10)

    def test_kernels_work_comes_back_under_pressure(self):
        """32 tensors of 16 MiB, of which hbm has room for eight and DDR for sixteen: their order is drawn."""
        count, size, draw = 32, 4 * MIB, random.Random(1)
        tensors = [self.pool.create((size,), "f32", name=f"t{i}") for i in range(count)]
        sums = [0.0] * count
        for tensor in tensors:
            guard = tensor.write()
            memoryview(guard).cast("B")[:] = bytes(4 * size)
            guard.close()
        for step in range(300):
            i = draw.randrange(count)
            kind = draw.randrange(4)
            if kind == 0:
                with tensors[i].read() as array:
                    self.assertEqual((float(array[0]), float(array[-1])), (sums[i], sums[i]), step)
                del array
            elif kind == 1:
                with tensors[i].device_read() as guard:
                    seen = guard.torch(unmarked=True)
                    self.assertEqual((seen.min().item(), seen.max().item()), (sums[i], sums[i]), step)
                    del seen
            else:
                with tensors[i].device_write(overwrite=kind == 2) as guard:
                    seen = torch.from_dlpack(guard)
                    seen.fill_(step) if kind == 2 else seen.add_(1)
                    torch.cuda.synchronize()
                    del seen
                sums[i] = float(step) if kind == 2 else sums[i] + 1
            if step % 7 == 0:
                tensors[draw.randrange(count)].prefetch("hbm")
        for i, tensor in enumerate(tensors):
            with tensor.read() as array:
                self.assertEqual((float(array.min()), float(array.max())), (sums[i], sums[i]))
            del array
        print(self.pool.statistics.hbm, file=sys.stderr)
        self.assertEqual(self.pool.statistics.hbm.refused, 0)

    def test_a_host_tensor_of_a_lease(self):
        data = bytes(range(256)) * 16
        tensor = self.filled("a", (1024,), "f32", data)
        seen = torch.from_dlpack(tensor)
        self.assertEqual(bytes(seen.view(torch.uint8).numpy()), data)


class Fence(Case):
    def test_a_lease_that_is_revoked_while_its_tensors_are_copied(self):
        """Copies fail or are done; process and device go on."""
        tensors = []
        for i in range(8):
            tensors.append(self.filled(f"t{i}", (32 * MIB,), "u8", bytes([i]) * (32 * MIB)))
            tensors[-1].move_to("cxl").wait(timeout=60)
        errors = []

        def copy_on():
            for turn in range(100_000):
                try:
                    tensors[turn % 8].device_read(timeout=60).close()
                except terrace.Error as error:
                    errors.append(error)
                    return

        threads = [threading.Thread(target=copy_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        self.t.cli("lease", "revoke", self.lease.id, "--grace", "0s", "--reason", "maintenance")
        for thread in threads:
            thread.join(60)
            self.assertFalse(thread.is_alive())
        self.assertEqual(len(errors), 2)
        print(*(f"{type(error).__name__}: {error}" for error in errors), sep="\n", file=sys.stderr)
        with terrace.TensorPool(ddr_bytes=64 * MIB, device=self.device, hbm_bytes=32 * MIB) as pool:
            tensor = pool.create((MIB,), "u8", name="elsewhere")
            with tensor.device_write(overwrite=True):
                pass
            tensor.write_back()
        del tensors


@unittest.skipUnless(cupy, "no cupy")
class Cupy(Case):
    def test_both_ways(self):
        tensor = self.filled("a", (1024,), "f32", bytes(4096))
        with tensor.device_write() as guard:
            seen = cupy.from_dlpack(guard)
            self.assertEqual(seen.data.ptr, guard.address)
            seen += 3
            cupy.cuda.runtime.deviceSynchronize()
            del seen
            gc.collect()
        with tensor.read() as array:
            self.assertEqual(float(array.sum()), 3 * 1024)

    def test_read_only_memory_says_so(self):
        tensor = self.filled("a", (1024,), "f32", bytes(4096))
        with tensor.device_read() as guard:
            try:
                print("cupy takes a read-only capsule", float(cupy.from_dlpack(guard).sum()), file=sys.stderr)
            except (BufferError, ValueError, RuntimeError) as error:
                print(f"cupy refuses a read-only capsule: {error}", file=sys.stderr)


@unittest.skipUnless(jax, "no jax")
class Jax(Case):
    def test_it_reads(self):
        data = numpy.arange(1024, dtype="f4").tobytes()
        tensor = self.filled("a", (1024,), "f32", data)
        with tensor.device_write() as guard:
            seen = jax.dlpack.from_dlpack(guard)
            self.assertEqual(float(seen.sum()), 1023 * 512)
            self.assertEqual(numpy.asarray(seen).tobytes(), data)
            del seen
            gc.collect()
        with tensor.read() as array:  # nobody is left who has it
            self.assertEqual(array.tobytes(), data)

    def test_read_only_memory_is_refused_where_it_asks_for_an_old_capsule(self):
        tensor = self.filled("a", (1024,), "f32", bytes(4096))
        with tensor.device_read() as guard:
            try:
                print("jax takes a read-only capsule", float(jax.dlpack.from_dlpack(guard).sum()), file=sys.stderr)
            except BufferError as error:
                self.assertIn("read-only", str(error))


@unittest.skipUnless(numpy and numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0", "no numpy-2")
class Numpy(Case):
    def test_a_host_tensor_by_a_versioned_capsule(self):
        data = numpy.arange(1024, dtype="f4").tobytes()
        tensor = self.filled("a", (1024,), "f32", data)
        seen = numpy.from_dlpack(tensor)
        self.assertEqual(seen.tobytes(), data)
        with tensor.read() as array:
            self.assertFalse(array.flags.writeable)

    def test_device_memory_is_refused(self):
        tensor = self.filled("a", (1024,), "f32", bytes(4096))
        with tensor.device_read() as guard:
            with self.assertRaises((BufferError, RuntimeError)):
                numpy.from_dlpack(guard)


if __name__ == "__main__":
    sys.exit(harness.main()) if hasattr(harness, "main") else unittest.main()
