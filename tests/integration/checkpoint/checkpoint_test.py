# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as real processes make them: killed in the middle of a drain they leave nothing that is offered, and what
is offered is of one step. The command line's verbs on the same directory.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/checkpoint/checkpoint_test.py [TestClass[.test]]
"""

import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness  # noqa: E402

SEED = 20261122


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "1G"}, name="checkpoint")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        disk = tempfile.TemporaryDirectory(prefix="terrace-checkpoint-", dir="/var/tmp")
        self.addCleanup(disk.cleanup)
        self.disk = pathlib.Path(disk.name)
        self.directory = self.disk / "checkpoints"
        self.program = harness.find_binary("tests/integration/checkpoint/checkpoint_trainer", self.t.build_dir)
        self.socket = self.t.socket

    def checkpoint(self, *arguments, check=True, json=True):
        return self.t.cli("checkpoint", *arguments, "--dir", self.directory, check=check, json=json)

    def train(self, first):
        return self.start("train", str(first))

    def start(self, verb, what):
        """The program, whose lines say how far it is; it waits for lines where it says "middle"."""
        trainer = self.t.popen(self.program, verb, self.socket, self.directory, what, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
        self.addCleanup(trainer.stdout.close)
        self.addCleanup(trainer.stdin.close)
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        return trainer

    def look(self, name):
        return self.t.run(self.program, "look", self.socket, self.directory, name).out.strip()

    def release_all(self):
        for lease in self.t.leases().values():  # of a trainer that was killed
            self.t.cli("lease", "release", lease["id"], check=False)
        self.t.wait_free("p")

    def test_a_writer_that_is_killed_leaves_nothing_that_is_offered(self):
        chance = random.Random(SEED)
        done, first = set(), 1
        for _ in range(6):
            trainer = self.train(first)
            begun = trainer.stdout.readline().split()
            self.assertEqual(begun[0], "begun", begun)
            killed_during = begun[1]
            for _ in range(chance.randrange(3)):  # a few that are complete before
                words = trainer.stdout.readline().split()
                if words[0] == "done":
                    done.add(words[1])
                else:
                    killed_during = words[1]
            time.sleep(chance.random() * 0.08)
            trainer.kill()
            for line in trainer.stdout.read().splitlines():
                words = line.split()
                if words[0] == "done":
                    done.add(words[1])
                else:
                    killed_during = words[1]
            trainer.wait()
            said = self.checkpoint("list").json
            names = {each["name"] for each in said["checkpoints"]}
            self.assertEqual(said["damaged"], [])
            # The one that was at work may be complete although it did not come to say so.
            self.assertLessEqual(done, names)
            self.assertLessEqual(names, done | {killed_during})
            self.assertEqual([path.name for path in self.directory.iterdir() if path.name.startswith(".")], [".lock"])
            done = names
            first = int(killed_during.split("-")[1]) + 1
            self.release_all()
        for name in done:
            self.assertTrue(self.checkpoint("verify", name).json["equal"])
            self.assertEqual(self.look(name), "step " + name.split("-")[1])
            self.release_all()

    def test_one_name_by_two_processes_at_once(self):
        writer = self.start("hold", "1")
        self.assertEqual([writer.stdout.readline() for _ in range(2)], ["begun step-1\n", "middle step-1\n"])
        refused = self.t.run(self.program, "train", self.socket, self.directory, "1", check=1)
        self.assertRegex(refused.out, "^error checkpoint 'step-1' is being written in .*checkpoints .busy")
        said = self.checkpoint("list").json
        self.assertEqual((said["checkpoints"], said["being_written"], said["half_written_removed"]), ([], 1, 0))
        self.checkpoint("verify", "step-1", check=3)
        self.checkpoint("delete", "step-1", check=3)
        writer.stdin.write("\n")
        writer.stdin.flush()
        self.assertEqual(writer.stdout.readline(), "done step-1\n")
        refused = self.t.run(self.program, "train", self.socket, self.directory, "1", check=1)
        self.assertIn("already_exists", refused.out)
        writer.kill()
        writer.wait()
        self.release_all()
        self.assertEqual(self.look("step-1"), "step 1")

    def test_a_killed_writers_name_is_free_at_once(self):
        writer = self.start("hold", "1")
        self.assertEqual([writer.stdout.readline() for _ in range(2)], ["begun step-1\n", "middle step-1\n"])
        writer.kill()
        writer.wait()
        self.release_all()
        heir = self.train(1)
        self.assertEqual([heir.stdout.readline() for _ in range(2)], ["begun step-1\n", "done step-1\n"])

    def test_a_reader_that_is_killed_in_the_middle_leaves_the_checkpoint_as_it_was(self):
        writer = self.train(1)
        self.assertEqual([writer.stdout.readline() for _ in range(2)], ["begun step-1\n", "done step-1\n"])
        writer.kill()
        writer.wait()
        self.release_all()
        data = self.directory / "step-1" / "tensors.safetensors"
        before = (data.stat().st_mtime_ns, data.stat().st_size)
        reader = self.start("peer", "step-1")
        self.assertEqual(reader.stdout.readline(), "middle step-1\n")
        reader.kill()
        reader.wait()
        self.release_all()
        self.assertEqual((data.stat().st_mtime_ns, data.stat().st_size), before)
        self.assertTrue(self.checkpoint("verify", "step-1").json["equal"])
        self.assertEqual(self.look("step-1"), "step 1")
        # One that is deleted under a reader stays whole for it.
        self.release_all()
        reader = self.start("peer", "step-1")
        self.assertEqual(reader.stdout.readline(), "middle step-1\n")
        self.checkpoint("delete", "step-1")
        reader.stdin.write("\n")
        reader.stdin.flush()
        self.assertEqual(reader.stdout.readline(), "step 1\n")

    def test_verbs(self):
        model = self.disk / "model.safetensors"
        header = json.dumps({"__metadata__": {"format": "pt"},
                             "w": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]}}).encode()
        header += b" " * (-len(header) % 8)
        model.write_bytes(struct.pack("<Q", len(header)) + header + b"hello")
        self.assertEqual(self.checkpoint("list", check=3).json["error"]["code"], "not_found")
        self.assertEqual(self.checkpoint("import", model, "one").json["tensors"], 1)
        self.assertEqual(self.checkpoint("import", model, "one", check=7).json["error"]["code"], "already_exists")
        self.assertEqual(self.checkpoint("import", model, "no/name", check=2).json["error"]["code"], "invalid_argument")
        shown = self.checkpoint("show", "one").json
        self.assertEqual(shown["metadata"], {"format": "pt"})
        self.assertEqual(shown["contents"][0]["name"], "w")
        self.assertIn("one", self.checkpoint("list", json=False).out)
        self.assertIn("U8", self.checkpoint("show", "one", json=False).out)
        out = self.disk / "out.safetensors"
        self.checkpoint("export", "one", out)
        self.assertEqual(out.read_bytes(), model.read_bytes())
        self.checkpoint("export", "one", out, check=7)
        self.checkpoint("export", "one", out, "--force")
        some = self.disk / "some.safetensors"
        said = self.checkpoint("export", "one", "--tensor", "w", some).json
        self.assertEqual((said["tensors"], said["tensor_bytes"], some.read_bytes()[-5:]), (1, 5, b"hello"))
        self.assertEqual(said["file_bytes"], some.stat().st_size)
        missing = self.checkpoint("export", "one", self.disk / "none", "--tensor", "v", "--tensor", "u", check=3).json
        self.assertEqual(missing["error"]["code"], "not_found")
        self.assertIn("'v', 'u'", missing["error"]["message"])
        self.assertFalse((self.disk / "none").exists())
        data = self.directory / "one" / "tensors.safetensors"
        data.write_bytes(data.read_bytes()[:-1] + b"!")
        self.assertFalse(self.checkpoint("verify", "one", check=8).json["equal"])
        self.checkpoint("export", "one", out, "--force", check=8)
        self.assertEqual(out.read_bytes(), model.read_bytes())
        data.write_bytes(b"short")
        said = self.checkpoint("list", check=8).json
        self.assertEqual((said["checkpoints"], [each["name"] for each in said["damaged"]]), ([], ["one"]))
        self.checkpoint("delete", "one")
        self.checkpoint("delete", "one", check=3)
        self.assertEqual(self.checkpoint("list").json["checkpoints"], [])


if __name__ == "__main__":
    harness.main()
