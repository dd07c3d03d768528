# SPDX-License-Identifier: Apache-2.0
"""Do numpy and torch see a tensor's own memory, is it kept as long as they have it, and is it let go afterwards?

A pool of DDR alone: no daemon is needed.
"""

import gc
import subprocess
import sys
import unittest
import weakref

import python_base
from python_base import MIB, found, needs_numpy, needs_torch, numpy, terrace, torch


def run_program(program: str) -> subprocess.CompletedProcess:
    """A Python program with the package at hand; it has imported nothing yet."""
    begin = f"import sys; sys.path[:0] = {sys.path!r}\n"
    return subprocess.run([sys.executable, "-B", "-c", begin + program], capture_output=True, text=True, timeout=240)


class Case(unittest.TestCase):
    def setUp(self):
        self.pool = terrace.TensorPool(ddr_bytes=8 * MIB)
        self.addCleanup(lambda: self.pool.close())


@needs_numpy
class Numpy(Case):
    def test_every_dtype_has_its_numpy_type_or_unsigned_integers_of_its_size(self):
        for dtype, kind in (("BOOL", "bool"), ("U8", "uint8"), ("I8", "int8"), ("U16", "uint16"), ("I16", "int16"),
                            ("F16", "float16"), ("BF16", "uint16"), ("U32", "uint32"), ("I32", "int32"),
                            ("F32", "float32"), ("C64", "complex64"), ("F64", "float64"), ("I64", "int64"),
                            ("U64", "uint64"), ("F8_E4M3", "uint8"), ("F8_E5M2", "uint8"), ("F8_E8M0", "uint8"),
                            ("F8_E4M3FNUZ", "uint8"), ("F8_E5M2FNUZ", "uint8")):
            with self.subTest(dtype=dtype):
                tensor = self.pool.create((3, 4), dtype)
                for array in (tensor.numpy(), numpy.asarray(tensor)):
                    self.assertEqual((array.dtype, array.shape), (numpy.dtype(kind), (3, 4)))
                    self.assertEqual(array.ctypes.data, tensor.address)
                    self.assertTrue(array.flags.writeable)
                self.assertEqual(tensor.dtype, dtype)

    def test_elements_that_share_bytes_are_a_row_of_bytes(self):
        for dtype in ("F4", "F6_E2M3", "F6_E3M2"):
            tensor = self.pool.create((3, 8), dtype)
            self.assertEqual((tensor.numpy().dtype, tensor.numpy().shape), (numpy.uint8, (tensor.nbytes,)))
            with self.assertRaisesRegex(terrace.InvalidArgument, "share bytes"):
                tensor[0]

    def test_names_of_numpy_and_torch_are_understood(self):
        for given, dtype in ((numpy.float32, "F32"), (numpy.dtype("i2"), "I16"), ("bfloat16", "BF16"), (float, "F64"),
                             (bool, "BOOL"), ("f8_e4m3", "F8_E4M3"), ("float8_e5m2", "F8_E5M2")):
            self.assertEqual(self.pool.create(2, given).dtype, dtype)
        if torch:
            self.assertEqual(self.pool.create(2, torch.bfloat16).dtype, "BF16")
        with self.assertRaisesRegex(terrace.InvalidArgument, "'float128' is no element type: .*BF16"):
            self.pool.create(2, "float128")

    def test_stores_are_seen_by_all(self):
        tensor = self.pool.create((4, 4), "int32")
        tensor.numpy()[...] = numpy.arange(16).reshape(4, 4)
        self.assertEqual(numpy.asarray(tensor)[3, 3], 15)
        self.assertEqual(memoryview(tensor)[2, 1], 9)

    def test_an_array_keeps_the_memory_and_lets_it_go(self):
        tensor = self.pool.create((1024, 1024), "uint8", name="kept")
        for take in (lambda t: t.numpy(), numpy.asarray, lambda t: t[100:200].numpy(), memoryview,
                     lambda t: t.read().numpy()):
            tensor = self.pool.create((1024, 1024), "uint8", name="other")
            tensor.numpy()[...] = 7
            array = take(tensor)
            del tensor
            self.assertTrue(found(self.pool, "other"), "it must be kept")
            self.assertEqual(array[50, 1000], 7)
            del array
            self.assertFalse(found(self.pool, "other"), "nobody has it any more")

    def test_an_array_outlives_pool_and_tensor(self):
        tensor = self.pool.create((MIB,), "uint8")
        array = tensor[5:].numpy()
        array[...] = 3
        self.pool.close()
        del tensor
        gc.collect()
        self.assertEqual(int(array.sum()), 3 * (MIB - 5))
        with self.assertRaisesRegex(terrace.InvalidArgument, "was closed"):
            self.pool.create(1)

    def test_views_are_numpy_views(self):
        tensor = self.pool.create((4, 6, 8), "int64", name="v")
        array = tensor.numpy()
        array[...] = numpy.arange(array.size).reshape(array.shape)
        keys = [0, -1, slice(None), slice(1, 3), (slice(None), 2), (1, 2, 3), (slice(3, 0, -2), slice(None, None, 5)), ...,
                (..., 1), (0, ..., slice(2, 4)), (None, 1, None), (slice(2, 2), slice(None)),
                (slice(None, None, -1), slice(None, None, -1), slice(None, None, -1)), numpy.int64(2)]
        for key in keys:
            with self.subTest(key=key):
                view = tensor[key]
                self.assertTrue(view.is_view)
                self.assertTrue(numpy.array_equal(view.numpy(), array[key]), f"{view!r}")
                self.assertEqual(view.shape, array[key].shape)
                if view.nbytes and view.ndim:  # numpy copies single elements
                    self.assertEqual(view.address, array[key].__array_interface__["data"][0])
        twice = tensor[1:4][::-1][1, 2:][..., ::3]
        self.assertTrue(numpy.array_equal(twice.numpy(), array[1:4][::-1][1, 2:][..., ::3]))
        self.assertEqual([row.shape for row in tensor], [(6, 8)] * 4)
        self.assertEqual(tensor.as_strided((2, 2), (3, 1), 5).numpy().tolist(), [[5, 6], [8, 9]])

    def test_what_cannot_be_indexed_is_said(self):
        tensor = self.pool.create((4, 6), name="v")
        for key, text in ((4, "outside dimension 0"), ((0, -7), "outside dimension 1"), ((0, 0, 0), "3 indices"),
                          ((..., ...), r"more than one \.\.\.")):
            with self.assertRaisesRegex(IndexError, f"'v'.*{text}"):
                tensor[key]
        for key in ("a", 1.5, [0, 1]):
            with self.assertRaises(TypeError):
                tensor[key]
        with self.assertRaisesRegex(terrace.InvalidArgument, "'v'.*outside its base"):
            tensor.as_strided((5, 6), (6, 1))

    def test_the_buffer_protocol_says_no_where_bytes_do_not_lie_in_a_row(self):
        tensor = self.pool.create((4, 6), "uint8")
        tensor.numpy()[...] = numpy.arange(24).reshape(4, 6)
        self.assertEqual(bytes(tensor[1]), bytes(range(6, 12)))
        self.assertEqual(bytes(tensor[:, 1]), bytes((1, 7, 13, 19)))  # asks with strides
        with self.assertRaises(BufferError):
            hash_of(tensor[:, 1])
        self.assertEqual(hash_of(tensor[1]), hash_of(bytes(range(6, 12))))

    def test_scalars_and_tensors_without_elements(self):
        scalar = self.pool.create((), "float64")
        scalar.numpy()[...] = 2.5
        self.assertEqual((scalar.numpy().item(), scalar.shape, scalar.ndim), (2.5, (), 0))
        with self.assertRaises(TypeError):
            len(scalar)
        empty = self.pool.create((3, 0, 2))
        self.assertEqual(empty.numpy().shape, (3, 0, 2))
        self.assertEqual(numpy.asarray(empty[:, 0:0]).shape, (3, 0, 2))
        self.assertEqual(bytes(empty), b"")

    def test_a_read_guard_gives_nothing_to_write_to(self):
        tensor = self.pool.create((4,), "int32", name="g")
        with tensor.write() as array:
            array[...] = 5
        with tensor.read() as array:
            self.assertEqual(array.tolist(), [5] * 4)
            with self.assertRaises(ValueError):
                array[0] = 1
            with self.assertRaises(ValueError):
                array.flags.writeable = True
        guard = tensor.read()
        self.assertTrue(memoryview(guard).readonly)
        self.assertEqual(numpy.frombuffer(guard, numpy.int32).flags.writeable, False)
        with self.assertRaisesRegex(BufferError, "read-only"):
            guard.__dlpack__()
        if torch:
            with self.assertRaisesRegex(BufferError, "no read-only tensors"):
                guard.torch()
            self.assertEqual(tensor.write().torch().tolist(), [5] * 4)
        statistics = tensor.statistics
        self.assertGreaterEqual(statistics.reads, 2)
        self.assertGreaterEqual(statistics.writes, 1)

    def test_a_tensor_in_a_cycle_is_let_go(self):
        class Holder:
            pass

        holder = Holder()
        holder.me, holder.array = holder, self.pool.create((8,), name="cycle").numpy()
        gone = weakref.ref(holder)
        del holder
        self.assertFalse(found(self.pool, "cycle"))
        self.assertIsNone(gone())


def hash_of(buffer) -> str:
    import hashlib
    return hashlib.sha256(buffer).hexdigest()


@needs_torch
class Torch(Case):
    def test_every_dtype_that_torch_has(self):
        for dtype, kind in (("F32", torch.float32), ("F64", torch.float64), ("F16", torch.float16),
                            ("BF16", torch.bfloat16), ("I64", torch.int64), ("I32", torch.int32), ("I16", torch.int16),
                            ("I8", torch.int8), ("U8", torch.uint8), ("C64", torch.complex64)):
            tensor = self.pool.create((2, 3), dtype)
            for taken in (tensor.torch(), torch.from_dlpack(tensor)):
                self.assertEqual((taken.dtype, tuple(taken.shape)), (kind, (2, 3)), dtype)
                self.assertEqual(taken.data_ptr(), tensor.address)

    def test_eight_bit_floats_are_torchs_where_it_has_them(self):
        for dtype, name in (("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")):
            self.assertEqual(self.pool.create(4, dtype).torch().dtype, getattr(torch, name, torch.uint8))
        with self.assertRaisesRegex(BufferError, "F8_E4M3"):
            self.pool.create(4, "F8_E4M3").__dlpack__()

    def test_bfloat16_has_the_same_bytes_for_both(self):
        tensor = self.pool.create((3,), "bfloat16")
        tensor.torch()[...] = torch.tensor([1, -2, 3.140625])
        if numpy:
            self.assertEqual(tensor.numpy().tolist(), [0x3F80, 0xC000, 0x4049])

    def test_a_torch_tensor_keeps_the_memory_and_lets_it_go(self):
        tensor = self.pool.create((1024, 1024), "float32", name="t")
        view = tensor[10:20].torch()[3:5]
        tensor.torch()[...] = 4
        del tensor
        self.assertTrue(found(self.pool, "t"))
        self.assertEqual(view.sum().item(), 4 * 2 * 1024)
        self.pool, pool = terrace.TensorPool(ddr_bytes=4 * MIB), self.pool
        del view
        self.assertFalse(found(pool, "t"))

    def test_it_outlives_the_pool(self):
        taken = self.pool.create((MIB,), "uint8").torch()
        self.pool.close()
        gc.collect()
        taken.fill_(9)
        self.assertEqual(taken.long().sum().item(), 9 * MIB)

    def test_autograd_works_on_it(self):
        weight = self.pool.create((4, 4), hint="weights").torch()
        torch.nn.init.ones_(weight)
        weight.requires_grad_(True)
        (weight * 3).sum().backward()
        self.assertEqual(weight.grad.tolist(), [[3.0] * 4] * 4)

    def test_what_torch_cannot_have_is_refused(self):
        tensor = self.pool.create((4,), "int32")
        with self.assertRaisesRegex(BufferError, "negative strides"):
            tensor[::-1].torch()
        for wrong in ({"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}):
            with self.assertRaises(BufferError):
                tensor.__dlpack__(**wrong)
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))

    def test_strided_scalar_and_empty(self):
        tensor = self.pool.create((4, 6), "int64")
        tensor.torch()[...] = torch.arange(24).reshape(4, 6)
        self.assertEqual(tensor[1:, ::2].torch().tolist(), [[6, 8, 10], [12, 14, 16], [18, 20, 22]])
        self.assertEqual(tensor[2, 3].torch().item(), 15)
        self.assertEqual(tuple(self.pool.create((3, 0)).torch().shape), (3, 0))


class Programs(unittest.TestCase):
    @needs_numpy
    def test_threads_may_be_the_first_to_need_numpy_together(self):
        ended = run_program("""
import threading, terrace
assert "numpy" not in sys.modules
sys.setswitchinterval(1e-5)
pool = terrace.TensorPool(ddr_bytes=8 << 20)
tensor = pool.create((4,))
begin = threading.Barrier(4)
def use():
    begin.wait()
    tensor.numpy()[...] = 1
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(float(tensor.numpy().sum()))
""")
        self.assertEqual((ended.returncode, ended.stdout), (0, "4.0\n"), ended.stderr)

    def test_a_daemon_thread_that_waits_does_not_hinder_the_end(self):
        ended = run_program("""
import mmap, os, threading, time, terrace
descriptor = os.memfd_create("space")
os.ftruncate(descriptor, 16 << 20)
memory = mmap.mmap(descriptor, 0)
terrace.TensorSpace.format(memory, parts=2, records_per_part=16)
space = terrace.TensorSpace(memory, fd=descriptor)
tensor = space.create("t", (8,), "u8")
version = tensor.publish(bytes(8))
waiting = threading.Event()
def wait():
    waiting.set()
    tensor.wait_for_version(version + 100)
threading.Thread(target=wait, daemon=True).start()
waiting.wait()
class Late:  # goes when the interpreter ends: the thread asks for the GIL meanwhile
    def __del__(self, sleep=time.sleep): sleep(1)
sys.late = Late()
print("end")
""")
        self.assertEqual((ended.returncode, ended.stdout), (0, "end\n"), ended.stderr)


class Capsules(Case):
    def test_a_capsule_that_nobody_takes_lets_go(self):
        for version in (None, (1, 0)):
            capsule = self.pool.create(4, name="c").__dlpack__(max_version=version)
            name = "dltensor_versioned" if version else "dltensor"
            self.assertIn(f'"{name}"', repr(capsule))
            self.assertTrue(found(self.pool, "c"))
            del capsule
            self.assertFalse(found(self.pool, "c"))


if __name__ == "__main__":
    python_base.harness.main()
