# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: where it is, the packages that may be missing, waiting."""

import gc
import importlib.util
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402,F401

if "--build-dir" in sys.argv:
    os.environ["TERRACE_BUILD_DIR"] = sys.argv[sys.argv.index("--build-dir") + 1]
if not os.environ.get("TERRACE_PYTHON_INSTALLED"):  # else: the package that this Python has
    sys.path.insert(0, str(harness.build_directory() / "bindings/python"))
import terrace  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None

MIB = 1 << 20
needs_numpy = unittest.skipUnless(numpy, "python3-numpy is not installed")
needs_torch = unittest.skipUnless(importlib.util.find_spec("torch"), "python3-torch is not installed")


def __getattr__(name: str):
    """`torch` for who asks for it: importing it takes seconds in a sanitized process."""
    if name != "torch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def found(pool: "terrace.TensorPool", name: str) -> bool:
    """Whether somebody still has the tensor of that name."""
    gc.collect()
    try:
        pool.find(name)
    except terrace.NotFound:
        return False
    return True


def mib_in_use(pool: "terrace.TensorPool") -> float:
    gc.collect()
    return pool.statistics.tensor_bytes / MIB
