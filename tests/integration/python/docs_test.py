# SPDX-License-Identifier: Apache-2.0
"""What the package says about itself: a docstring on every public member, stubs as the module is, the guide's first example."""

import importlib
import inspect
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import unittest

import python_base
from python_base import Harness, needs_torch, terrace

ROOT = pathlib.Path(__file__).resolve().parents[3]
# What Python or pybind11 adds by itself, and what says nothing that its name does not.
INHERITED = {"__init__", "__repr__", "__new__", "__setstate__", "__getstate__", "__reduce_ex__"}
OPERATORS = {"__enter__", "__exit__", "__len__", "__iter__", "__contains__", "__getitem__", "__setitem__", "__bool__", "__int__",
             "__float__", "__index__", "__dlpack__", "__dlpack_device__"}


def modules():
    """The package and all its modules, but plug-ins of engines that are not installed."""
    yield terrace
    for found in pkgutil.walk_packages(terrace.__path__, "terrace."):
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as missing:
            if not found.name.startswith("terrace.engines.") or str(missing.name).startswith("terrace"):
                raise
            continue
        yield module


def said(thing):
    """A docstring without the signature that pybind11 puts before it."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    if lines and re.match(r"\w+\(.*\) -> ", lines[0]):
        lines = lines[1:]
    return " ".join(lines).strip()


def members(kind):
    """Its own public members, and the operators that it defines."""
    for name, value in vars(kind).items():
        if (not name.startswith("_") or name in OPERATORS) and name not in INHERITED:
            yield name, value


class Docstrings(unittest.TestCase):
    def test_every_public_member_has_one(self):
        silent, count = [], 0
        for module in modules():
            if not said(module):
                silent.append(module.__name__)
            names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
            for name in names:
                thing = getattr(module, name)
                if not (inspect.isclass(thing) or inspect.isroutine(thing)) or not str(thing.__module__).startswith("terrace"):
                    continue
                count += 1
                if not said(thing):
                    silent.append(f"{module.__name__}.{name}")
                if not inspect.isclass(thing):
                    continue
                fields = set(getattr(thing, "_fields", ()))
                for member, value in members(thing):
                    if member in fields or not (callable(value) or isinstance(value, (property, staticmethod, classmethod))):
                        continue
                    count += 1
                    if not said(value if isinstance(value, property) else getattr(thing, member)):
                        silent.append(f"{module.__name__}.{name}.{member}")
        self.assertEqual(sorted(set(silent)), [])
        self.assertGreater(count, 300, "the walk found too little: does it still walk?")


class Stubs(unittest.TestCase):
    def test_they_are_as_the_module_is(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "bindings/python/make_stubs.py", "--check"], capture_output=True, text=True,
                              env=dict(os.environ, PYTHONPATH=str(pathlib.Path(terrace.__file__).parents[1])), timeout=120)
        self.assertEqual(done.returncode, 0, f"run bindings/python/make_stubs.py:\n{done.stdout}{done.stderr}")

    def test_the_package_says_that_it_has_types(self):
        folder = pathlib.Path(terrace.__file__).parent
        self.assertTrue((folder / "py.typed").is_file())
        text = (folder / "_terrace.pyi").read_text()
        for name in terrace.__all__:
            thing = getattr(terrace, name)
            if inspect.isclass(thing) and thing.__module__ == "terrace._terrace":
                self.assertIn(f"\nclass {name}:", text)


@needs_torch
class Guide(unittest.TestCase):
    def test_its_first_example_runs_twice_in_a_row(self):
        text = (ROOT / "docs/python.md").read_text()
        example = re.search(r"```python\n(.*?)```", text, re.S).group(1)
        t = Harness(devices={"a": "160M"}, name="guide")
        self.addCleanup(t.close)
        t.start()
        t.create_pool("p")
        environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(terrace.__file__).parents[1]), TERRACE_SOCKET=str(t.socket))
        twice_in_one = f"text = {example!r}\nfor _ in range(2):\n    exec(text, globals())\n"
        for program in (example, example, twice_in_one):
            done = subprocess.run([sys.executable, "-B", "-c", program], env=environment, capture_output=True, text=True, timeout=200)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("ddr_bytes=", done.stdout)
        t.wait_free()


if __name__ == "__main__":
    python_base.harness.main()
