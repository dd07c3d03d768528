# SPDX-License-Identifier: Apache-2.0
"""GGUF files: imported into leases and opened in place; import_model() and its callbacks."""

import importlib.util
import struct
import unittest

import models_base
import python_base
from python_base import MIB, needs_numpy, numpy, terrace, wait_until

U32, STRING, ARRAY = 4, 8, 9


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def gguf(tensors, values=(), version=3, alignment=32, counts=None):
    """The file of (name, type number, shape as numpy's, bytes) and of (key, type, packed value)."""
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(values))))
    head += b"".join(text(key) + struct.pack("<I", kind) + packed for key, kind, packed in values)
    data = b""
    for name, number, shape, content in tensors:
        data += bytes(-len(data) % alignment)
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)) + struct.pack("<IQ", number, len(data))
        data += content
    return head + bytes(-len(head) % alignment) + data


VALUES = (("general.architecture", STRING, text("llama")), ("llama.block_count", U32, struct.pack("<I", 2)),
          ("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text(b"\xff")))
TENSORS = (("token_embd.weight", 0, (4, 3), struct.pack("<12f", *range(12))), ("odd", 24, (5,), bytes(range(5))),
           ("blk.0.q", 12, (2, 512), bytes(range(256)) * 2 + bytes(64)), ("half", 30, (2,), b"\x80\x3f\x00\x40"))


def check(test, model):
    test.assertEqual(sorted(model), sorted(name for name, *_ in TENSORS))
    for name, _, _, content in TENSORS:
        test.assertEqual(memoryview(model[name]).tobytes(), content)
    embed = model["token_embd.weight"]
    test.assertEqual((embed.dtype, embed.shape, memoryview(embed).tolist()[3]), ("F32", (4, 3), [9, 10, 11]))
    blocks = model["blk.0.q"]
    test.assertEqual((blocks.dtype, blocks.shape, blocks.block_type), ("U8", (2, 288), "Q4_K"))
    test.assertEqual((model["half"].dtype, model["half"].block_type), ("BF16", None))
    test.assertEqual(model.metadata["general.architecture"], "llama")
    test.assertEqual(model.metadata["llama.block_count"], "2")
    test.assertEqual(model.metadata["tokenizer.ggml.tokens"], '["a","\ufffd"]')


class Views(models_base.Files):
    def test_a_file_in_place(self):
        for version in (2, 3):
            check(self, terrace.Model(self.write("m.gguf", gguf(TENSORS, VALUES, version))))
        check(self, terrace.Model(self.folder))
        wide = (*VALUES, ("general.alignment", U32, struct.pack("<I", 64)))
        check(self, terrace.Model(self.write("wide.gguf", gguf(TENSORS, wide, alignment=64))))

    def test_parts_are_one_model(self):
        self.write("m-00002-of-00002.gguf", gguf(TENSORS[2:]))
        first = self.write("m-00001-of-00002.gguf", gguf(TENSORS[:2], VALUES))
        check(self, terrace.Model(first))
        check(self, terrace.Model(self.folder))
        with self.assertRaisesRegex(terrace.InvalidArgument, "name the first"):
            terrace.Model(self.folder / "m-00002-of-00002.gguf")
        (self.folder / "m-00002-of-00002.gguf").unlink()
        with self.assertRaisesRegex(terrace.NotFound, "m-00002-of-00002.gguf"):
            terrace.Model(first)

    def test_bad_files_are_refused_with_what_is_wrong(self):
        good = gguf(TENSORS, VALUES)
        one = ("t", 0, (4,), bytes(16))
        cases = (
            (b"GGUF", "cut short"), (good[:40], "cut short|more than the file"), (good[:-1], "lies outside the file"),
            (gguf(TENSORS, version=1), "version 1"), (gguf(TENSORS, version=0x3000000), "byte order"),
            (gguf([], counts=(1 << 40, 0)), "more than 1048576 tensors"), (gguf([], counts=(0, 1 << 40)), "more than 65536 values"),
            (gguf([one], counts=(2, 0)), "cut short|said to have|no name|dimensions"),
            (gguf([one, one]), "'t' comes twice"), (gguf([("t", 0, (4,) * 5, b"")]), "5 dimensions"),
            (gguf([("t", 4, (4,), bytes(16))]), "unknown type 4"), (gguf([("t", 12, (2, 100), bytes(16))]), "do not fill its blocks of 256"),
            (gguf([("t", 0, (1 << 40, 1 << 40), bytes(16))]), "'t' is wrong"), (gguf([("", 0, (4,), bytes(16))]), "no name"),
            (gguf([("t", 0, (1 << 32,), bytes(16))]), "lies outside the file"),
            (gguf([one], [("k", U32, bytes(4)), ("k", U32, bytes(4))]), "'k' comes twice"),
            (gguf([one], [("k", 13, bytes(4))]), "unknown type 13"),
            (gguf([one], [("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "unknown type 9"),
            (gguf([one], [("k", ARRAY, struct.pack("<IQ", U32, 1 << 60))]), "more than the file has bytes"),
            (gguf([one], [("k", STRING, struct.pack("<Q", 1 << 60))]), "more than the file"),
            (gguf([one], [("k", 7, b"\2")]), "neither true nor false"),
            (gguf([one], [("general.alignment", U32, struct.pack("<I", 48))]), "no power of two"),
        )
        for number, (content, says) in enumerate(cases):
            path = self.write(f"bad-{number}.gguf", content)
            with self.subTest(says=says), self.assertRaisesRegex(terrace.Error, says) as caught:
                terrace.Model(path)
            self.assertIn(path, str(caught.exception))
        for length in range(0, len(good), 7):
            with self.assertRaises(terrace.Error):
                terrace.Model(self.write("short.gguf", good[:length]))

    @needs_numpy
    @unittest.skipUnless(importlib.util.find_spec("gguf"), "the package gguf is not installed")
    def test_files_of_the_package_gguf(self):
        import gguf as published
        path = str(self.folder / "published.gguf")
        writer = published.GGUFWriter(path, "llama")
        writer.add_uint32("answer", 42)
        numbers = numpy.arange(64, dtype="float32").reshape(2, 32)
        writer.add_tensor("plain", numbers)
        blocks = published.quants.quantize(numbers, published.GGMLQuantizationType.Q8_0)
        writer.add_tensor("blocks", blocks, raw_dtype=published.GGMLQuantizationType.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        model = terrace.Model(path)
        self.assertTrue(numpy.array_equal(model["plain"].numpy(), numbers))
        self.assertEqual(model["blocks"].block_type, "Q8_0")
        self.assertTrue(numpy.array_equal(model["blocks"].numpy(), blocks))
        self.assertEqual(model.metadata["answer"], "42")
        for kind, (elements, size) in published.GGML_QUANT_SIZES.items():
            if kind.name == "Q8_1":  # of computations, never of files
                continue
            one = terrace.Model(self.write("type.gguf", gguf([("t", int(kind), (2, elements), bytes(2 * size))])))["t"]
            self.assertEqual((one.nbytes, one.block_type or kind.name), (2 * size, kind.name))


class Imports(models_base.Served):
    def test_the_command_line_imports_gguf(self):
        path = self.write("m.gguf", gguf(TENSORS, VALUES))
        self.t.cli("tensor", "import", path, "--label", "gguf", "--verify")
        self.assertTrue(self.t.cli("tensor", "verify", "gguf", path).json["equal"])
        check(self, terrace.open_model("gguf", session=self.session))

    def test_progress_is_told(self):
        big = self.write("big.safetensors", models_base.file_of([("w", "U8", (32 * MIB,), bytes(32 * MIB)), ("v", "U8", (3,), b"abc")]))
        told = []
        model = terrace.import_model(big, "big", session=self.session, verify=True, progress=lambda done, total: told.append((done, total)))
        self.assertEqual(told[-1], (32 * MIB + 3, 32 * MIB + 3))
        self.assertEqual(told, sorted(told))
        self.assertEqual(memoryview(model["v"]).tobytes(), b"abc")
        self.assertEqual(terrace.open_model("big", session=self.session)["w"].hint, "weights")
        with self.assertRaisesRegex(terrace.AlreadyExists, "'big'"):
            terrace.import_model(big, "big", session=self.session)

    def test_whoever_gives_up_leaves_nothing(self):
        big = self.write("big.safetensors", models_base.file_of([("w", "U8", (48 * MIB,), bytes(48 * MIB))]))
        before = len(self.session.leases())

        def fails(*_):
            raise KeyError("mine")

        for arguments, error in (({"cancelled": lambda: True}, terrace.Cancelled), ({"cancelled": fails}, KeyError), ({"progress": fails}, KeyError)):
            with self.assertRaises(error):
                terrace.import_model(big, "gone", session=self.session, **arguments)
            wait_until(lambda: len(self.session.leases()) == before, 60, "the lease to be given back")
        with self.assertRaises(terrace.Corrupt):
            terrace.import_model(self.write("bad.safetensors", b"12345678"), session=self.session)
        wait_until(lambda: len(self.session.leases()) == before, 60, "the lease to be given back")


if __name__ == "__main__":
    python_base.harness.main()
