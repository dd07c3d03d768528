# SPDX-License-Identifier: Apache-2.0
"""terrace.safetensors: files, shards and models in leases, opened and written as by the package safetensors."""

import gc
import importlib.util
import inspect
import os
import pathlib
import struct
import subprocess
import sys
import unittest

import models_base
import python_base
from models_base import SIZES, file_of, raw_file
from python_base import MIB, needs_numpy, needs_torch, numpy, terrace

from terrace.safetensors import SafetensorError, load_file, safe_open, save_file

UINT = {1: "uint8", 2: "uint16"}


class Reading(models_base.Served):
    def sources(self):
        label = "terrace:llama"
        os.environ["TERRACE_SOCKET"] = str(self.t.socket)
        self.addCleanup(os.environ.pop, "TERRACE_SOCKET", None)
        number = self.session.attach("llama", read_only=True).id
        return (self.path, pathlib.Path(self.path), label, f"terrace:{number}", terrace.Model(self.path),
                self.session.attach("llama", read_only=True))

    @needs_numpy
    def test_a_file_and_a_lease_read_alike(self):
        names = [one[0] for one in self.TENSORS]
        for source in self.sources():
            with self.subTest(source=source), safe_open(source, framework="np") as f:
                self.assertEqual((f.keys(), f.offset_keys()), (sorted(names), names))
                self.assertEqual(f.metadata(), {"format": "pt", "made by": "a test"})
                for name, dtype, shape, content in self.TENSORS:
                    array = f.get_tensor(name)
                    self.assertEqual((array.shape, array.tobytes()), (shape, content))
                part = f.get_slice("embed")
                self.assertEqual((part.get_shape(), part.get_dtype()), ([64, 32], "F32"))
                self.assertEqual(part[2:4, ::8].tobytes(), f.get_tensor("embed")[2:4, ::8].tobytes())
                self.assertEqual((part[3].shape, part[...].shape, part[-1, 1:].shape, part[:, 0].shape), ((32,), (64, 32), (31,), (64,)))
                self.assertEqual(sorted(f.get_tensors()), sorted(names))
                self.assertEqual(load_file(source)["bias"].tolist(), [1, -2, 3, -4])

    @needs_numpy
    def test_what_is_not_there_is_an_error_of_one_class(self):
        f = safe_open(self.path, "numpy")
        with self.assertRaisesRegex(SafetensorError, "'none'"):
            f.get_tensor("none")
        with self.assertRaises(SafetensorError):
            f.get_slice("none")
        part = f.get_slice("embed")
        for key in (64, (0, 0, 0), "x", [1, 2], 1.5):
            with self.assertRaisesRegex(SafetensorError, "slicing failed"):
                part[key]
        with f:
            pass
        for call in (f.keys, f.offset_keys, f.metadata, f.get_tensors, lambda: f.get_tensor("bias"), lambda: f.get_slice("bias")):
            with self.assertRaisesRegex(SafetensorError, "was closed"):
                call()
        for framework in ("jax", "tf", ""):
            with self.assertRaisesRegex(SafetensorError, "framework"):
                safe_open(self.path, framework)
        with self.assertRaisesRegex(SafetensorError, "'cpu' only"):
            safe_open(self.path, "np", "cuda:0")
        with self.assertRaisesRegex(SafetensorError, "backend"):
            safe_open(self.path, "np", backend="gds")
        with self.assertRaises(FileNotFoundError):
            safe_open(self.path + ".none", "np")
        with self.assertRaisesRegex(TypeError, "pickle terrace.Model"):
            __import__("pickle").dumps(safe_open(self.path, "np"))

    @needs_numpy
    def test_the_lease_is_not_copied(self):
        model = terrace.open_model("llama", session=self.session)
        with safe_open(model, "np") as f:
            first, second = f.get_tensor("embed"), f.get_tensor("embed")
        self.assertEqual(first.ctypes.data, second.ctypes.data)
        self.assertEqual(first.ctypes.data, model["embed"].numpy().ctypes.data)
        del model, f
        gc.collect()
        self.assertEqual(first.tobytes(), self.TENSORS[0][3])

    @needs_torch
    def test_torch_gets_tensors_over_the_lease(self):
        torch = python_base.torch
        import terrace.safetensors.torch as published
        for source in self.sources():
            tensors = published.load_file(source, device="cpu")
            self.assertEqual((tensors["half"].dtype, tensors["half"].tolist()), (torch.bfloat16, [1.0, 2.0, -3.0]))
            self.assertEqual((tensors["bias"].tolist(), tensors["scalar"].item()), ([1, -2, 3, -4], 2.5))
            self.assertEqual(tuple(tensors["empty"].shape), (0, 7))
            eight = getattr(torch, "float8_e4m3fn", torch.uint8)
            self.assertEqual((tensors["small"].dtype, tuple(tensors["small"].shape)), (eight, (2, 2)))
            with safe_open(source, "pt") as f:
                self.assertEqual(f.get_slice("embed")[1:3, 4].shape, (2,))
                with self.assertRaisesRegex(SafetensorError, "negative strides"):
                    f.get_slice("bias")[::-1]
        layer = torch.nn.Linear(32, 64, bias=False)
        layer.load_state_dict({"weight": published.load_file("terrace:llama")["embed"].nan_to_num()})
        self.assertEqual(layer.weight.shape, (64, 32))

    @needs_numpy
    def test_shards_are_one_file(self):
        self.write("a.safetensors", file_of(self.TENSORS[:3], {"format": "pt"}))
        self.write("b.safetensors", file_of(self.TENSORS[3:], {"format": "np"}))
        index = self.write("model.safetensors.index.json", ('{"metadata": {"total_size": 1}, "weight_map": {%s}}' % ", ".join(
            f'"{name}": "{"a" if at < 3 else "b"}.safetensors"' for at, (name, *_) in enumerate(self.TENSORS))).encode())
        self.t.cli("tensor", "import", index, "--label", "shards", "--verify")
        self.assertTrue(self.t.cli("tensor", "verify", "shards", str(self.folder)).json["equal"])
        for source in (index, self.folder, terrace.open_model("shards", session=self.session)):
            loaded = load_file(source)
            self.assertEqual({name: array.tobytes() for name, array in loaded.items()},
                             {name: content for name, *_, content in self.TENSORS})
            self.assertEqual(safe_open(source, "np").metadata(), {"format": "pt"})


class Types(models_base.Files):
    @needs_numpy
    def test_every_type_is_shown(self):
        """Types that numpy lacks: ml_dtypes' where installed, else unsigned integers of the same size."""
        ml_dtypes = importlib.util.find_spec("ml_dtypes") and importlib.import_module("ml_dtypes")
        tensors = [(dtype, dtype, (3,), bytes(range(1, 1 + 3 * size)) if dtype != "BOOL" else b"\1\0\1") for dtype, size in SIZES.items()]
        path = self.write("all.safetensors", file_of(tensors))
        names = {"BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
                 **{f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}}
        special = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
                   "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu"}
        for name, array in load_file(path).items():
            expected = names.get(name) or (special[name] if ml_dtypes else UINT[SIZES[name]])
            self.assertEqual((name, array.dtype.name, array.shape), (name, expected, (3,)))
        saved = self.folder / "again.safetensors"
        save_file(terrace.Model(path), saved)
        self.assertEqual({name: (one.dtype, bytes(memoryview(one))) for name, one in terrace.Model(saved).items()},
                         {name: (dtype, content) for name, dtype, _, content in tensors})

    @needs_numpy
    def test_types_of_less_than_a_byte(self):
        path = self.write("f4.safetensors", file_of([("four", "F4", (2, 6), b"abcdef"), ("six", "F6_E2M3", (4,), b"xyz")]))
        loaded = load_file(path)
        self.assertEqual((loaded["four"].shape, loaded["four"].tobytes()), ((2, 3), b"abcdef"))
        self.assertEqual((loaded["six"].shape, loaded["six"].tobytes()), ((3,), b"xyz"))
        with self.assertRaisesRegex(SafetensorError, "share bytes"):
            safe_open(path, "np").get_slice("four")[0]
        saved = self.folder / "again.safetensors"
        save_file(terrace.Model(path), saved)
        self.assertEqual(terrace.Model(saved)["four"].shape, (2, 6))

    @needs_torch
    def test_what_torch_lacks_says_so_or_is_bytes(self):
        torch = python_base.torch
        path = self.write("all.safetensors", file_of([(dtype, dtype, (2,), bytes(2 * size)) for dtype, size in SIZES.items()]))
        with safe_open(path, "pt") as f:
            for dtype, name in (("BF16", "bfloat16"), ("F8_E5M2", "float8_e5m2"), ("F8_E4M3FNUZ", "float8_e4m3fnuz"), ("C64", "complex64")):
                self.assertEqual(f.get_tensor(dtype).dtype, getattr(torch, name, torch.uint8))
            if hasattr(torch, "uint16"):
                self.assertEqual(f.get_tensor("U16").dtype, torch.uint16)
            else:
                with self.assertRaisesRegex(BufferError, "this torch has no U16"):
                    f.get_tensor("U16")


class BadFiles(models_base.Files):
    def test_each_is_refused_with_what_is_wrong(self):
        tensor = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
        cases = (
            (b"", "too few"), (b"1234567", "too few"),
            (struct.pack("<Q", 100) + b"{}", "longer than the file"), (struct.pack("<Q", 1 << 63) + b"{}", "announce a header of"),
            (struct.pack("<Q", 100_000_001) + b"{}", "announce a header of"),
            (raw_file(b""), "does not begin with"), (raw_file(b"[]"), "does not begin with"), (raw_file(b"{"), "not valid JSON"),
            (raw_file(b"{}x"), "not valid JSON"), (raw_file(b'{"\xff": 1}'), "not UTF-8"),
            (raw_file({"a": tensor}), "cut short"), (raw_file({"a": tensor}, b"12345"), "belong to none"),
            (raw_file({"a": tensor, "b": {**tensor, "data_offsets": [2, 6]}}, b"123456"), "overlap"),
            (raw_file({"a": tensor, "b": {**tensor, "data_offsets": [5, 9]}}, b"123456789"), "hole of 1"),
            (raw_file({"a": {**tensor, "data_offsets": [4, 0]}}, b"1234"), "end before they begin"),
            (raw_file({"a": {**tensor, "data_offsets": [0]}}, b"1234"), "two numbers"),
            (raw_file({"a": {**tensor, "data_offsets": [0, 4, 8]}}, b"1234"), "two numbers"),
            (raw_file({"a": {**tensor, "data_offsets": [-1, 4]}}, b"1234"), "negative"),
            (raw_file({"a": {**tensor, "shape": [5]}}, b"1234"), "needs 5"),
            (raw_file({"a": {**tensor, "shape": [1 << 63, 1 << 63]}}, b"1234"), "is wrong"),
            (raw_file({"a": {**tensor, "shape": [-4]}}, b"1234"), "negative number in its shape"),
            (raw_file({"a": {**tensor, "shape": "4"}}, b"1234"), "string as its shape"),
            (raw_file({"a": {**tensor, "shape": [1] * 9}}, b"1234"), "more than 8 dimensions"),
            (raw_file({"a": {**tensor, "dtype": "F31"}}, b"1234"), "unknown dtype 'F31'"),
            (raw_file({"a": {**tensor, "dtype": 7}}, b"1234"), "number as its dtype"),
            (raw_file({"a": {"dtype": "U8", "shape": [4]}}, b"1234"), "two numbers"),
            (raw_file({"a": {**tensor, "more": 1}}, b"1234"), "unknown field 'more'"),
            (raw_file({"a": 7}), "not by an object"), (raw_file({"": tensor}, b"1234"), "empty name"),
            (raw_file({"__metadata__": {"a": 1}}), "must be strings"), (raw_file({"__metadata__": []}), "not an object"),
            (raw_file(b'{"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, "a": {"dtype": "U8", "shape": [0], '
                      b'"data_offsets": [0, 0]}}'), "'a' comes twice"),
            (raw_file(b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'), "dtype twice"),
            (raw_file(b'{"__metadata__": {"a": "1", "a": "2"}}'), "'a' twice"),
        )
        for number, (content, says) in enumerate(cases):
            path = self.write(f"bad-{number}.safetensors", content)
            with self.subTest(says=says, content=content[:80]):
                with self.assertRaisesRegex(SafetensorError, says) as caught:
                    safe_open(path, "np")
                self.assertIn(path, str(caught.exception))

    def test_what_is_no_file(self):
        with self.assertRaises(FileNotFoundError):
            load_file(self.folder / "none")
        with self.assertRaises(SafetensorError):
            load_file(self.folder)  # a folder without a model
        os.mkfifo(self.folder / "pipe.safetensors")
        with self.assertRaisesRegex(SafetensorError, "not a regular file"):
            load_file(self.folder / "pipe.safetensors")


class Writing(models_base.Files):
    def setUp(self):
        super().setUp()
        self.path = str(self.folder / "out.safetensors")

    @needs_numpy
    def test_arrays_of_all_kinds(self):
        arrays = {"plain": numpy.arange(12, dtype="float32").reshape(3, 4), "scalar": numpy.float64(2.5), "empty": numpy.zeros((0, 3), "int8"),
                  "by columns": numpy.asfortranarray(numpy.arange(6, dtype="int16").reshape(2, 3)), "big": numpy.array([1, 2], ">i4"),
                  "flags": numpy.array([True, False]), "complex": numpy.array([1 + 2j], "complex64"), "every other": numpy.arange(8)[::2]}
        save_file(arrays, self.path, metadata={"b": "2", "a": "1"})
        loaded = load_file(self.path)
        self.assertEqual(safe_open(self.path, "np").metadata(), {"a": "1", "b": "2"})
        self.assertEqual(sorted(loaded), sorted(arrays))
        for name, array in arrays.items():
            self.assertTrue(numpy.array_equal(loaded[name], array), name)
            self.assertEqual(loaded[name].dtype, numpy.asarray(array).dtype.newbyteorder("="))
        first = pathlib.Path(self.path).read_bytes()
        save_file(dict(reversed(list(arrays.items()))), self.path, metadata={"a": "1", "b": "2"})
        self.assertEqual(pathlib.Path(self.path).read_bytes(), first, "the order of the arguments makes no difference")
        self.assertEqual(os.listdir(self.folder), ["out.safetensors"])

    @needs_torch
    def test_torch_tensors(self):
        torch = python_base.torch
        from terrace.safetensors.torch import load_file as load
        from terrace.safetensors.torch import save_file as save
        weight = torch.nn.Parameter(torch.randn(4, 6))
        tensors = {"weight": weight, "half": torch.randn(5).bfloat16(), "scalar": torch.tensor(3), "empty": torch.zeros(0, 2),
                   "complex": torch.randn(2, dtype=torch.complex64).conj()}
        save(tensors, self.path)
        for name, tensor in load(self.path).items():
            self.assertTrue(torch.equal(tensor, tensors[name].detach().resolve_conj()), name)
        with self.assertRaisesRegex(ValueError, "'t' does not lie in a row"):
            save({"t": weight.detach().t()}, self.path)
        with self.assertRaisesRegex(ValueError, "to_dense"):
            save({"s": torch.eye(3).to_sparse()}, self.path)
        with self.assertRaisesRegex(SafetensorError, "'complex128' is no element type"):
            save({"c": torch.zeros(2, dtype=torch.complex128)}, self.path)

    @needs_numpy
    def test_what_is_no_tensor_is_refused_and_the_older_file_stands(self):
        save_file({"a": numpy.arange(3)}, self.path)
        before = pathlib.Path(self.path).read_bytes()
        for tensors, error in (({"a": numpy.array(["x"])}, SafetensorError), ({"a": numpy.array([object()])}, SafetensorError),
                               ({"a": numpy.zeros(2, "complex128")}, SafetensorError), ({7: numpy.zeros(2)}, SafetensorError),
                               ({"": numpy.zeros(2)}, SafetensorError), ({"a\0": numpy.zeros(2)}, SafetensorError),
                               ({"a": numpy.zeros(2, "i4,f4")}, SafetensorError), ({"a": numpy.zeros((1,) * 9)}, SafetensorError)):
            with self.subTest(tensors=tensors), self.assertRaises(error):
                save_file(tensors, self.path)
        with self.assertRaises(SafetensorError):
            save_file({}, self.path, metadata={"a": 1})
        with self.assertRaises(SafetensorError):
            save_file({"a": numpy.zeros(2)}, self.folder / "none" / "out.safetensors")
        self.assertEqual(pathlib.Path(self.path).read_bytes(), before)
        self.assertEqual(os.listdir(self.folder), ["out.safetensors"])

    @needs_numpy
    def test_tensors_of_a_pool(self):
        pool = terrace.TensorPool(ddr_bytes=64 * MIB)
        tensor = pool.create((512, 1024), "bf16", name="w")
        tensor.numpy()[...] = numpy.arange(512, dtype="uint16")[:, None]
        save_file({"all": tensor, "part": tensor[::2, 3:5]}, self.path)
        loaded = terrace.Model(self.path)
        self.assertEqual((loaded["all"].dtype, loaded["part"].shape), ("BF16", (256, 2)))
        self.assertTrue(numpy.array_equal(loaded["all"].numpy(), tensor.numpy()))
        self.assertTrue(numpy.array_equal(loaded["part"].numpy(), tensor.numpy()[::2, 3:5]))


class Published(models_base.Files):
    """Against the package safetensors itself, where somebody installed it."""

    def setUp(self):
        super().setUp()
        if not importlib.util.find_spec("safetensors"):
            self.skipTest("the package safetensors is not installed")
        self.path = str(self.folder / "one.safetensors")

    def test_signatures(self):
        import safetensors.numpy
        pairs = [(safetensors.numpy, terrace.safetensors.numpy)]
        if importlib.util.find_spec("torch"):
            import safetensors.torch
            pairs.append((safetensors.torch, terrace.safetensors.torch))
        for theirs, ours in pairs:
            for name in ("load_file", "save_file"):
                parameters = [[(one.name, one.kind, one.default) for one in inspect.signature(getattr(module, name)).parameters.values()]
                              for module in (theirs, ours)]
                self.assertEqual(*parameters)
        public = {name for name in dir(safetensors.safe_open) if not name.startswith("_")}
        self.assertLessEqual(public, set(dir(safe_open)))

    @needs_numpy
    def test_each_reads_what_the_other_writes(self):
        import safetensors.numpy
        arrays = {"w": numpy.random.default_rng(1).standard_normal((17, 5)).astype("float32"), "s": numpy.array(3.0), "e": numpy.zeros((0, 2), "i4"),
                  "b": numpy.array([True, False, True])}
        for write, read in ((save_file, safetensors.numpy.load_file), (safetensors.numpy.save_file, load_file)):
            write(arrays, self.path, metadata={"k": "v"})
            with safe_open(self.path, "np") as ours, safetensors.safe_open(self.path, "np") as theirs:
                self.assertEqual((ours.keys(), ours.offset_keys(), ours.metadata()), (theirs.keys(), theirs.offset_keys(), theirs.metadata()))
                for key in ((slice(1, 3),), (3, slice(None, None, 2)), (Ellipsis,), (slice(None), 4), -1):
                    self.assertTrue(numpy.array_equal(ours.get_slice("w")[key], theirs.get_slice("w")[key]), key)
            loaded = read(self.path)
            self.assertTrue(all(numpy.array_equal(loaded[name], array) for name, array in arrays.items()))


if __name__ == "__main__":
    python_base.harness.main()
