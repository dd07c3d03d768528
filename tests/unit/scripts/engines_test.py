# SPDX-License-Identifier: Apache-2.0
"""scripts/devlib/engines: what is a skip and what a failure, and when packages are installed again."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))
from devlib.engines import packages  # noqa: E402
from devlib.engines.registry import ENGINES  # noqa: E402
from devlib.output import Failure, Skipped  # noqa: E402


class Engines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "one"

    def test_a_client_without_its_index_is_a_skip_and_any_other_failure_is_none(self):
        installer = packages.Installer(self.folder, ("pip a==1",))
        installer.begin()
        self.assertEqual(installer.client(["sh", "-c", "echo said"]), "said\n")
        for said in ("npm error code ENOTFOUND", "NewConnectionError(...): Failed to establish a new connection",
                     "Temporary failure in name resolution"):
            with self.assertRaises(Skipped) as skip:
                installer.client(["sh", "-c", f"echo '{said}'; exit 1"])
            self.assertIn("index cannot be reached", skip.exception.reason)
        with self.assertRaises(Failure) as failure:
            installer.client(["sh", "-c", "echo 'No matching distribution found for a==1'; exit 1"])
        self.assertNotIsInstance(failure.exception, Skipped)
        self.assertIn("No matching distribution", str(failure.exception))

    def test_slow_installing_is_a_skip(self):
        installer = packages.Installer(self.folder, ("pip a==1",))
        installer.begin()
        installer._end = 0
        with self.assertRaises(Skipped) as skip:
            installer.client(["sleep", "30"])
        self.assertIn("longer than", skip.exception.reason)

    def test_packages_of_another_version_are_installed_again(self):
        old = packages.Installer(self.folder, ("pip a==1",))
        self.assertFalse(old.done())
        old.begin()
        self.assertFalse(old.done())
        old.finish()
        self.assertTrue(old.done())
        new = packages.Installer(self.folder, ("pip a==2",))
        self.assertFalse(new.done())
        (self.folder / "left").write_text("x")
        new.begin()
        self.assertFalse((self.folder / "left").exists())

    def test_each_engine_has_what_it_names(self):
        root = pathlib.Path(__file__).resolve().parents[3]
        for name, engine in ENGINES.items():
            self.assertEqual(name, engine.name)
            for file in (*engine.tests, *filter(None, [engine.bench])):
                self.assertTrue((root / file).is_file(), file)
            for package in engine.packages:
                self.assertRegex(package, r"^(pip \S+==|npm \S+@)\d[\w.]*$")


if __name__ == "__main__":
    unittest.main()
