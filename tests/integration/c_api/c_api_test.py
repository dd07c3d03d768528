"""Programs in C on libterrace.so against a real daemon: leases, a pool of tensors, checkpoints, two processes over one space."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness  # noqa: E402


class CApiTest(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "128M"}, name="c-api")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.client = harness.find_binary("tests/integration/c_api/c_client")

    def test_a_lease_and_a_pool_freed_in_the_wrong_order(self):
        lines = self.t.run(self.client, self.t.socket, "pool").out.splitlines()
        self.assertEqual(lines[:3], ["lease 1 1", "refused capacity_exhausted 1", "refused invalid_argument"])
        self.assertIn(lines[3], ("moved 1", "stays unsupported"))
        self.assertEqual(lines[4:], ["released 1"])
        self.t.wait_free()
        self.t.check_invariants()

    def test_a_checkpoint_of_a_leases_memory(self):
        with tempfile.TemporaryDirectory(prefix="terrace-c-", dir="/var/tmp") as folder:
            directory = pathlib.Path(folder) / "checkpoints"
            self.assertEqual(self.t.run(self.client, self.t.socket, "checkpoint", directory).out, "restored 1\n")
            said = self.t.cli("checkpoint", "verify", "one", "--dir", directory).json
            self.assertTrue(said["equal"])
            missing = str(pathlib.Path(folder) / "no" / "parent")
            refused = self.t.run(self.client, self.t.socket, "checkpoint", missing, check=1)
            self.assertIn(missing, refused.err)
            self.assertIn("not_found", refused.err)

    def test_two_programs_share_a_tensor(self):
        if os.geteuid() != 0:
            self.skipTest("only root may open the file behind a lease's descriptor again, which locks need")
        writer = self.t.popen(self.client, self.t.socket, "share", "kv", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True)
        try:
            self.assertEqual(writer.stdout.readline(), "published\n")
            self.assertEqual(self.t.run(self.client, self.t.socket, "read", "kv").out, "read 1\n")
            writer.communicate("end\n", timeout=60)
            self.assertEqual(writer.returncode, 0)
        finally:
            writer.kill()
            writer.wait()


if __name__ == "__main__":
    harness.main()
