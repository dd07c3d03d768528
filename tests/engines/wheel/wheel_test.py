# SPDX-License-Identifier: Apache-2.0
"""The installed wheel, with packages of PyPI: what it holds, and the package's own tests against it.

    TERRACE_ENGINE_DIR=build/engines/wheel TERRACE_BUILD_DIR=build/release python3 tests/engines/wheel/wheel_test.py
"""

import os
import pathlib
import re
import subprocess
import unittest

ENGINE = pathlib.Path(os.environ["TERRACE_ENGINE_DIR"])
PYTHON = ENGINE / "venv/bin/python"
ROOT = pathlib.Path(__file__).resolve().parents[3]
# With numpy; what needs torch is skipped: PyPI's has gigabytes of libraries for GPUs beside it.
TESTS = ("pool", "elements", "models", "safetensors", "gguf", "checkpoint", "space", "interchange")


class Wheel(unittest.TestCase):
    def run_python(self, *words):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([PYTHON, "-B", *words], env={**environment, "TERRACE_PYTHON_INSTALLED": "1"}, cwd=ENGINE,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False, timeout=600)

    def test_it_is_whole(self):
        shown = self.run_python("-c", "import importlib.metadata, pathlib, terrace\n"
                                      "print(pathlib.Path(terrace.__file__).parent, importlib.metadata.version('terrace'))\n"
                                      "print(*sorted(str(one) for one in importlib.metadata.files('terrace')))")
        self.assertEqual(shown.returncode, 0, shown.stdout)
        folder, version, *files = shown.stdout.split()
        self.assertTrue(folder.startswith(str(PYTHON.parents[1])), folder)
        wanted = re.search(r"project\(terrace VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text("utf-8")).group(1)
        self.assertEqual(version, wanted)
        names = {pathlib.PurePath(name).name for name in files}
        for name in ("py.typed", "_terrace.pyi", "LICENSE", "NOTICE", "libterrace.so.0"):
            self.assertIn(name, names)

    def test_the_packages_own_tests(self):
        for name in TESTS:
            with self.subTest(test=name):
                done = self.run_python(ROOT / f"tests/integration/python/{name}_test.py")
                self.assertIn(done.returncode, (0,), done.stdout[-6000:])
                ran = int(re.search(r"^Ran (\d+) test", done.stdout, re.M).group(1))
                skipped = re.search(r"skipped=(\d+)", done.stdout)
                self.assertGreater(ran - int(skipped.group(1) if skipped else 0), 0, done.stdout[-3000:])


if __name__ == "__main__":
    unittest.main(verbosity=2)
