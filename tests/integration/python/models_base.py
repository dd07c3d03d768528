# SPDX-License-Identifier: Apache-2.0
"""Files of tensors for the tests of models, byte by byte, and a service with a model in a lease."""

import json
import pathlib
import shutil
import struct
import tempfile
import unittest

from python_base import Harness, terrace

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8,
         "F64": 8, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1}


def raw_file(header, data=b""):
    """A file with this header, a dict or the bytes themselves."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def file_of(tensors, metadata=None):
    """The file of (name, dtype, shape, bytes), in this order."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return raw_file(header, data)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-models-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return str(path)


class Served(Files):
    """A daemon, and a model in a lease of the label "llama"."""

    TENSORS = [("embed", "F32", (64, 32), bytes(range(256)) * 32), ("bias", "I64", (4,), struct.pack("<4q", 1, -2, 3, -4)),
               ("half", "BF16", (3,), struct.pack("<3H", 0x3f80, 0x4000, 0xc040)), ("scalar", "F64", (), struct.pack("<d", 2.5)),
               ("empty", "F32", (0, 7), b""), ("small", "F8_E4M3", (2, 2), b"\x38\x40\xb8\xff")]

    def setUp(self):
        super().setUp()
        self.t = Harness(devices={"a": "128M"}, name="models")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.path = self.write("model.safetensors", file_of(self.TENSORS, {"format": "pt", "made by": "a test"}))
        self.t.cli("tensor", "import", self.path, "--label", "llama")
        self.session = terrace.Session(str(self.t.socket))
