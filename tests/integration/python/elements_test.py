# SPDX-License-Identifier: Apache-2.0
"""What users of numpy and torch expect of terrace.Tensor: numbers, stores, iteration, reshape, arrays, workers."""

import importlib.util
import math
import mmap
import multiprocessing
import pickle
import unittest

import models_base
import python_base
from python_base import MIB, needs_torch, numpy, terrace

from terrace._elements import numbers


class Tensors(unittest.TestCase):
    def setUp(self):
        self.pool = terrace.TensorPool(ddr_bytes=64 * MIB)

    def tensor(self, values, dtype="int32"):
        made = self.pool.create(numpy.shape(values), dtype)
        made[...] = values
        return made


@unittest.skipUnless(numpy, "python3-numpy is not installed")
class Numbers(Tensors):
    def test_stores_as_numpy_s(self):
        tensor = self.tensor(numpy.arange(12).reshape(3, 4))
        model = numpy.arange(12).reshape(3, 4)
        for key, value in (((0,), 7), ((1, 2), -1), ((slice(None), 0), [5, 6, 7]), ((Ellipsis, slice(1, 3)), numpy.ones((3, 2))),
                           ((-1,), range(4)), ((slice(None, None, -1),), 3 * numpy.arange(12).reshape(3, 4))):
            key = key[0] if len(key) == 1 else key
            tensor[key], model[key] = value, value
            self.assertEqual(tensor.tolist(), model.tolist())
        tensor[0] = tensor[1]
        self.assertEqual(tensor[0].tolist(), tensor[1].tolist())
        with self.assertRaises(ValueError):
            tensor[0] = [1, 2, 3]
        for key in (3, "a", (0, 0, 0)):
            with self.assertRaises((IndexError, TypeError)):
                tensor[key] = 1

    def test_a_tensor_of_one_element_is_a_number(self):
        tensor = self.tensor([[3]])
        self.assertEqual((int(tensor), float(tensor), bool(tensor), tensor.item(), [10, 20, 30, 40][tensor[0, 0]]), (3, 3.0, True, 3, 40))
        self.assertFalse(self.tensor(0.0, "f64"))
        self.assertTrue(self.tensor(True, "bool").item() is True)
        many = self.tensor([1, 2])
        for convert in (bool, int, float, lambda t: t.item()):
            with self.assertRaisesRegex(ValueError, "2 elements"):
                convert(many)
        with self.assertRaises(ValueError):
            bool(self.pool.create((0, 3)))
        for wrong in (self.tensor(1.0, "f32"), tensor):
            with self.assertRaisesRegex(TypeError, "only integer scalars"):
                range(wrong)

    def test_in_len_and_iteration(self):
        tensor = self.tensor([[1, 2], [3, 4], [5, 6]])
        self.assertEqual((len(tensor), tensor.size, tensor.ndim, 4 in tensor, 7 in tensor, 4.0 in tensor), (3, 6, 2, True, False, True))
        self.assertEqual([row.tolist() for row in tensor], [[1, 2], [3, 4], [5, 6]])
        first, *_ = tensor
        first[0] = 9
        self.assertEqual(tensor[0, 0].item(), 9)
        scalar = self.tensor(5)
        with self.assertRaises(TypeError):
            iter(scalar)
        with self.assertRaises(TypeError):
            len(scalar)
        self.assertEqual(list(self.pool.create((0, 2))), [])

    def test_reshape_is_a_view_or_an_error(self):
        tensor, model = self.tensor(numpy.arange(24).reshape(2, 3, 4)), numpy.arange(24).reshape(2, 3, 4)
        for shape in ((24,), (6, 4), (-1, 2), (2, 1, 3, 1, 4), (1, 24), (4, -1, 2)):
            self.assertEqual(tensor.reshape(shape).tolist(), model.reshape(shape).tolist())
            self.assertEqual(tensor.reshape(*shape).address, tensor.address)
        for key in ((slice(None), slice(None), slice(None, None, 2)), (1,), (slice(None), 1), (slice(None, None, -1),), (Ellipsis, 0)):
            part, same = tensor[key], model[key]
            for shape in ((-1,), (2, -1), (1, *same.shape), same.shape[::-1]):
                view = same.view()
                try:
                    view.shape = tuple(same.size // 2 if one == -1 and shape != (-1,) else same.size if one == -1 else one for one in shape)
                except (AttributeError, ValueError):
                    with self.assertRaises(terrace.InvalidArgument):
                        part.reshape(shape)
                else:
                    self.assertEqual(part.reshape(shape).tolist(), view.tolist())
        for shape in ((5, 5), (-1, -1), (-1, 7), (0, -1), "ab", (1 << 40, 1 << 40)):
            with self.assertRaises((terrace.InvalidArgument, TypeError)):
                tensor.reshape(shape)
        self.assertEqual(self.tensor([[7]]).reshape(()).item(), 7)
        self.assertEqual(self.pool.create((0, 3)).reshape(3, 0, 5).shape, (3, 0, 5))

    def test_arrays(self):
        tensor = self.tensor([[1, 2], [3, 4]])
        self.assertTrue(numpy.shares_memory(numpy.asarray(tensor), tensor.numpy()))
        self.assertEqual(numpy.asarray(tensor, dtype="float64").dtype, numpy.float64)
        self.assertFalse(numpy.shares_memory(numpy.array(tensor), tensor.numpy()))
        self.assertEqual((numpy.sum(tensor), numpy.stack([tensor, tensor]).shape), (10, (2, 2, 2)))

    def test_made_from_arrays(self):
        for values in ([[1, 2], [3, 4]], numpy.arange(6, dtype="int16").reshape(2, 3), 2.5, numpy.zeros((0, 2), "int8"),
                       numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)), self.tensor([1, 2, 3])):
            made = self.pool.create_from(values, hint="weights")
            array = numpy.asarray(values)
            self.assertEqual((made.tolist(), made.shape, made.hint), (array.tolist(), array.shape, "weights"))
            self.assertEqual(numpy.asarray(made).dtype, array.dtype)
        made = self.pool.create_from([1.5, 2.5], "bf16", name="half")
        self.assertEqual((made.dtype, made.tolist(), self.pool["half"].address), ("BF16", [1.5, 2.5], made.address))
        same = self.pool.create_from(made)
        self.assertEqual((same.dtype, same.tolist(), same.address == made.address), ("BF16", [1.5, 2.5], False))
        for values in (["a"], [object()], [1 + 2j]):
            with self.assertRaises(terrace.InvalidArgument):
                self.pool.create_from(values)
        with self.assertRaises(terrace.CapacityExhausted):
            self.pool.create_from(numpy.broadcast_to(numpy.int8(1), (1 << 40,)))

    def test_a_pool_s_tensor_is_not_pickled(self):
        with self.assertRaisesRegex(TypeError, "open_model"):
            pickle.dumps(self.tensor([1]))


@unittest.skipUnless(numpy, "python3-numpy is not installed")
class SmallFloats(Tensors):
    """BF16 and floats of eight bits as numbers, though numpy lacks them."""

    def test_stored_and_read_as_numbers(self):
        for dtype, value in (("bf16", -2.5), ("f8_e4m3", 0.625), ("f8_e5m2", -1.5), ("f8_e4m3fnuz", 1.75), ("f8_e5m2fnuz", 3), ("f8_e8m0", 0.25)):
            tensor = self.pool.create((2, 2), dtype)
            tensor[0] = value
            self.assertEqual((tensor[0].tolist(), tensor[0, 1].item(), value in tensor, bool(tensor[0, 0])), ([value] * 2, value, True, True))
            tensor[1] = tensor[0]
            self.assertEqual(tensor[1].numpy().tolist(), tensor[0].numpy().tolist())
            tensor[0] = math.nan
            self.assertTrue(math.isnan(tensor[0, 0].item()))

    def test_bits_are_not_taken_for_numbers(self):
        tensor = self.pool.create(3, "bf16")
        with self.assertRaisesRegex(terrace.InvalidArgument, "numbers or the bits"):
            tensor[...] = tensor.numpy()
        packed = self.pool.create(4, "f4")
        for call in (lambda: packed.tolist(), lambda: 1 in packed):
            with self.assertRaises(terrace.Unsupported):
                call()

    def test_rounding(self):
        tensor = self.pool.create(4, "bf16")
        tensor[...] = [1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -math.inf]
        self.assertEqual(tensor.numpy().tolist(), [0x3f80, 0x3f82, 0x7f80, 0xff80])  # ties to even

    @unittest.skipUnless(importlib.util.find_spec("ml_dtypes"), "the package ml_dtypes is not installed")
    def test_as_ml_dtypes_rounds(self):
        import ml_dtypes
        values = numpy.random.default_rng(7).standard_normal(4000).astype("float32") * numpy.exp2(numpy.arange(4000) % 40 - 25).astype("float32")
        values = numpy.concatenate([values, [0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 464, 465, 240, 248, 57344, 61440, 65536, -1e9]]).astype("float32")
        for dtype, name in (("bf16", "bfloat16"), ("f8_e4m3", "float8_e4m3fn"), ("f8_e5m2", "float8_e5m2"), ("f8_e4m3fnuz", "float8_e4m3fnuz"),
                            ("f8_e5m2fnuz", "float8_e5m2fnuz")):
            kind = getattr(ml_dtypes, name)
            table = numpy.arange(256, dtype="uint8").view(kind) if dtype != "bf16" else numpy.arange(0, 65536, 17, dtype="uint16").view(kind)
            tensor = self.pool.create(table.shape, dtype)
            tensor.numpy()[...] = table.view(tensor.numpy().dtype)
            self.assertTrue(numpy.array_equal(numbers(tensor), table.astype("float32"), equal_nan=True), dtype)
            tensor = self.pool.create(values.shape, dtype)
            tensor[...] = values
            self.assertTrue(numpy.array_equal(numbers(tensor), values.astype(kind).astype("float32"), equal_nan=True), dtype)


@needs_torch
class Torch(Tensors):
    def test_as_tensor_and_stores(self):
        torch = python_base.torch
        tensor = self.tensor([[1, 2], [3, 4]], "f32")
        self.assertEqual(torch.asarray(tensor).data_ptr(), tensor.address)
        if int(torch.__version__.partition(".")[0]) >= 2:  # older ones ask numpy's arrays only
            self.assertEqual(torch.as_tensor(tensor).data_ptr(), tensor.address)
        half = self.pool.create((2, 2), "bf16")
        half[...] = torch.tensor([[1.5, 2], [3, 4]])
        half[1] = torch.tensor([7.0, 8.0], dtype=torch.bfloat16)
        self.assertEqual(half.tolist(), [[1.5, 2], [7, 8]])
        made = self.pool.create_from(torch.tensor([1.5, -1], dtype=torch.bfloat16))
        self.assertEqual((made.dtype, made.tolist()), ("BF16", [1.5, -1]))
        self.assertTrue(torch.equal(made.torch(), torch.tensor([1.5, -1], dtype=torch.bfloat16)))


class Rows:
    """A data set over a tensor of a model; workers get it by reference."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return len(self.tensor)

    def __getitem__(self, index):
        return self.tensor[index].torch().nan_to_num()




@unittest.skipUnless(numpy, "python3-numpy is not installed")
class Processes(models_base.Served):
    def test_shared_tensors_by_reference(self):
        lease = self.session.grant(16 * MIB, mode="shared_coherent", label="kv")
        terrace.TensorSpace.format(lease)
        space = terrace.TensorSpace(lease)
        tensor = space.create("block", (4,), "float32", peers_may_remove=True)
        tensor.publish(numpy.arange(4, dtype="float32"))
        again = pickle.loads(pickle.dumps(tensor))
        self.assertEqual(again.read()[0].tolist(), [0, 1, 2, 3])
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.apply_async(read, (tensor,)).get(120), [0, 1, 2, 3])
            self.assertEqual(pool.apply_async(names, (space,)).get(120), ["block"])
        text = pickle.dumps(tensor)
        tensor.remove(wait=10)
        with self.assertRaises(terrace.NotFound):
            pickle.loads(text)
        space.create("block", (4,), "float32")
        with self.assertRaisesRegex(terrace.NotFound, "another one of its name"):
            pickle.loads(text)
        plain = mmap.mmap(-1, 16 * MIB)  # a bytearray may begin anywhere
        terrace.TensorSpace.format(plain)
        with self.assertRaisesRegex(TypeError, "no lease's"):
            pickle.dumps(terrace.TensorSpace(plain, own=False))

    @needs_torch
    def test_workers_of_a_data_loader(self):
        torch = python_base.torch
        tensor = terrace.open_model("llama", session=self.session)["embed"]
        expected = torch.stack([Rows(tensor)[index] for index in range(64)])
        for context in ("spawn", "fork"):
            loader = torch.utils.data.DataLoader(Rows(tensor), batch_size=16, num_workers=2, multiprocessing_context=context)
            self.assertTrue(torch.equal(torch.cat(list(loader)), expected), context)


def read(tensor):
    return tensor.read()[0].tolist()


def names(space):
    return [one.name for one in space.list()]


if __name__ == "__main__":
    python_base.harness.main()
