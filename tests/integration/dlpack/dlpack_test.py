# SPDX-License-Identifier: Apache-2.0
"""Do torch and numpy take Terrace's tensors through DLPack without a copy, and let them go when they are done?

Skips (77) where python3-torch and python3-numpy are not installed.
"""

import argparse
import ctypes
import gc
import sys
import unittest

try:
    import numpy
    import torch
    from torch.utils import dlpack as torch_dlpack
except ImportError as missing:
    print(f"skipped: {missing}; python3-numpy and python3-torch are needed")
    sys.exit(77)

LIBRARY = None

ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
CAPSULE_NAME = ctypes.c_char_p(b"dltensor")


def load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.terrace_test_error.restype = ctypes.c_char_p
    library.terrace_test_device_bytes.restype = ctypes.c_uint64
    sizes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint32]
    library.terrace_test_host.restype = ctypes.c_void_p
    library.terrace_test_host.argtypes = sizes
    library.terrace_test_replica.restype = ctypes.c_void_p
    library.terrace_test_replica.argtypes = [ctypes.c_uint64, *sizes]
    library.terrace_test_open.argtypes = [ctypes.c_uint64]
    return library


def dimensions(shape) -> ctypes.Array:
    return (ctypes.c_uint64 * max(len(shape), 1))(*shape)


class Exported:
    """What numpy asks for: an object that gives a capsule of its memory."""

    def __init__(self, managed: int):
        self._managed = managed

    def __dlpack__(self, stream=None):
        return ctypes.pythonapi.PyCapsule_New(self._managed, CAPSULE_NAME, None)

    def __dlpack_device__(self):
        return (1, 0)


def host(array: numpy.ndarray, dtype: str, shape=None) -> Exported:
    data = array.tobytes()
    shape = array.shape if shape is None else shape
    managed = LIBRARY.terrace_test_host(data, len(data), dtype.encode(), dimensions(shape), len(shape))
    if not managed:
        raise RuntimeError(LIBRARY.terrace_test_error().decode())
    return Exported(managed)


class HostTensors(unittest.TestCase):
    def tearDown(self):
        gc.collect()
        self.assertEqual(LIBRARY.terrace_test_kept(), 0, "memory is kept although nobody has it any more")

    def test_torch_reads_each_type(self):
        for dtype, kind in (("F32", "float32"), ("F64", "float64"), ("F16", "float16"), ("I64", "int64"),
                            ("I32", "int32"), ("I16", "int16"), ("I8", "int8"), ("U8", "uint8"), ("C64", "complex64")):
            array = (numpy.arange(24) - 5).astype(kind).reshape(2, 3, 4)
            tensor = torch_dlpack.from_dlpack(host(array, dtype))
            self.assertEqual(str(tensor.dtype), f"torch.{kind}")
            self.assertEqual(tuple(tensor.shape), (2, 3, 4))
            self.assertTrue(numpy.array_equal(tensor.numpy(), array), dtype)

    def test_torch_reads_bfloat16(self):
        words = numpy.array([0x3F80, 0xC000, 0x4049], dtype=numpy.uint16)  # 1, -2, 3.140625
        tensor = torch_dlpack.from_dlpack(host(words, "BF16"))
        self.assertEqual(tensor.dtype, torch.bfloat16)
        self.assertEqual(tensor.float().tolist(), [1.0, -2.0, 3.140625])

    def test_a_view_keeps_the_memory(self):
        tensor = torch_dlpack.from_dlpack(host(numpy.arange(100, dtype=numpy.int32), "I32"))
        view = tensor[10:20]
        del tensor
        gc.collect()
        self.assertEqual(LIBRARY.terrace_test_kept(), 1)
        self.assertEqual(view.tolist(), list(range(10, 20)))

    def test_numpy_and_torch_see_one_memory(self):
        exported = host(numpy.zeros(16, dtype=numpy.float32), "F32")
        tensor = torch_dlpack.from_dlpack(exported)
        shared = tensor.numpy()
        tensor[3] = 7
        self.assertEqual(shared[3], 7)

    def test_numpy_takes_it(self):
        array = numpy.from_dlpack(host(numpy.arange(6, dtype=numpy.int64), "I64", (2, 3)))
        self.assertEqual(array.tolist(), [[0, 1, 2], [3, 4, 5]])

    def test_scalars_and_tensors_without_elements(self):
        self.assertEqual(torch_dlpack.from_dlpack(host(numpy.array([5], dtype=numpy.int32), "I32", ())).item(), 5)
        self.assertEqual(tuple(torch_dlpack.from_dlpack(host(numpy.zeros(0, dtype=numpy.int32), "I32", (3, 0))).shape),
                         (3, 0))

    def test_eight_bit_floats_are_refused_in_words(self):
        with self.assertRaisesRegex(RuntimeError, "DLPack before 1.1 has no name for F8_E4M3"):
            host(numpy.zeros(4, dtype=numpy.uint8), "F8_E4M3")


class Replicas(unittest.TestCase):
    def test_a_replica_stays_while_torch_has_it(self):
        self.assertEqual(LIBRARY.terrace_test_open(1 << 20), 0)
        array = numpy.arange(1 << 16, dtype=numpy.float32)
        data = array.tobytes()
        managed = LIBRARY.terrace_test_replica(1, data, len(data), b"F32", dimensions((256, 256)), 2)
        self.assertTrue(managed, LIBRARY.terrace_test_error())
        tensor = torch_dlpack.from_dlpack(Exported(managed))
        # It does not fit beside the one in use.
        other = numpy.ones(200_000, dtype=numpy.float32).tobytes()
        self.assertFalse(LIBRARY.terrace_test_replica(2, other, len(other), b"F32", dimensions((200_000,)), 1))
        self.assertIn(b"tier hbm", LIBRARY.terrace_test_error())
        self.assertIn(b"pinned 262144", LIBRARY.terrace_test_error())
        self.assertTrue(numpy.array_equal(tensor.numpy().ravel(), array))
        LIBRARY.terrace_test_close()  # the cache goes, what torch has stays
        self.assertEqual(tensor.sum().item(), array.astype(numpy.float64).sum())
        self.assertEqual(LIBRARY.terrace_test_device_bytes(), 1 << 18)
        del tensor
        gc.collect()
        self.assertEqual(LIBRARY.terrace_test_device_bytes(), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    arguments = parser.parse_args()
    LIBRARY = load(arguments.library)
    unittest.main(argv=[sys.argv[0]], verbosity=2)
