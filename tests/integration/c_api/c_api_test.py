# SPDX-License-Identifier: Apache-2.0
"""Programs in C on libterrace.so against a real daemon: leases, a pool of tensors, checkpoints, two processes over one space."""

import json
import os
import pathlib
import re
import struct
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
        self.assertRegex(lines[0], r"^lease 1 1 1 \S+$")  # with the session's tenant
        self.assertEqual(lines[1:3], ["refused capacity_exhausted 1", "refused invalid_argument"])
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

    def test_a_model_in_a_lease_and_in_files(self):
        header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
                             "b": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]}}).encode()
        with tempfile.TemporaryDirectory(prefix="terrace-c-") as folder:
            path = pathlib.Path(folder) / "m.safetensors"
            path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(1, 12)))
            self.t.cli("tensor", "import", path, "--label", "model")
            for where, verified in (("model", "ok"), (path, "unsupported"), (folder, "unsupported")):
                self.assertEqual(self.t.run(self.client, self.t.socket, "model", where).out.splitlines(), [
                    "a 16 2 2 8 36", "b 5 1 3 3 30", "format=pt", "refused invalid_argument not_found invalid_argument invalid_argument",
                    f"takes stores 1 verify {verified} []", "null 0 invalid_argument 0"])
        refused = self.t.run(self.client, self.t.socket, "model", "none", check=1)
        self.assertIn("not_found", refused.err)

    def shared(self, **options):
        """A writer that published, and now waits."""
        writer = self.t.popen(self.client, self.t.socket, "share", "kv", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, **options)

        def end():
            writer.kill()
            writer.communicate()

        self.addCleanup(end)
        self.assertEqual(writer.stdout.readline(), "published\n")
        return writer

    def test_notices_by_descriptor_and_by_handler(self):
        client = self.t.popen(self.client, self.t.socket, "notices", stdout=subprocess.PIPE, text=True)
        try:
            self.assertEqual(client.stdout.readline(), "none not_found invalid_argument\n")
            lease = next(iter(self.t.leases()))
            revoke = self.t.popen(self.t.terrace, "lease", "revoke", str(lease), "--grace", "1h", "--reason", "first",
                                  stdout=subprocess.DEVNULL)
            self.assertEqual(client.stdout.readline(), "next 1 1 first 1\n")
            self.t.cli("lease", "revoke", lease, "--grace", "0s", "--reason", "now")
            revoke.wait(60)
            self.assertEqual(client.stdout.readline(), "told 2 now 42\n")
            self.assertEqual(client.wait(60), 5)
        finally:
            client.kill()
            client.wait()
            client.stdout.close()

    def test_two_programs_share_a_tensor(self):
        writer = self.shared()
        self.assertEqual(self.t.run(self.client, self.t.socket, "own", "kv").out, "part 1 seat -1\nread 1\n")
        self.assertEqual(self.t.run(self.client, self.t.socket, "read", "kv").out, "part -1 seat 0\nread 1\n")
        self.assertEqual(self.t.run(self.client, self.t.socket, "watch", "kv").out, "part -1 seat 0\nread 1\n")
        writer.communicate("end\n", timeout=60)
        self.assertEqual(writer.returncode, 0)

    @unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
    def test_two_programs_of_a_plain_user_share_a_tensor(self):
        self.t.stop()
        self.t.start("--allow-unmapped-uids")
        self.t.directory.chmod(0o755)
        user = {"user": 65534, "group": 65534, "extra_groups": []}
        if subprocess.run(["test", "-x", self.client], check=False, **user).returncode:
            self.skipTest("this user cannot run the program where it was built")
        self.shared(**user)
        for verb, said in (("own", "part 1 seat -1\nread 1\n"), ("watch", "part -1 seat 0\nread 1\n")):
            reader = self.t.popen(self.client, self.t.socket, verb, "kv", stdout=subprocess.PIPE, text=True, **user)
            self.assertEqual(reader.communicate(timeout=60)[0], said)
            self.assertEqual(reader.returncode, 0)

    def test_a_spaces_coherence_follows_the_pool(self):
        for said, modes in ((None, "2 2 2 1"), ("coherent", "1 1 2 1"), ("noncoherent", "2 2 2 invalid_argument")):
            if said:
                self.t.cli("pool", "set", "p", "--coherence", said)
            self.assertEqual(self.t.run(self.client, self.t.socket, "format").out, modes + "\n", said)

    def test_leases_and_pools_are_told(self):
        self.t.cli("pool", "set", "p", "--coherence", "coherent")
        writer = self.shared()
        shown = self.t.cli("lease", "show", "kv").json["leases"][0]
        lines = self.t.run(self.client, self.t.socket, "infos", "kv").out.splitlines()
        isolation = lines[0].split()[-1]
        self.assertIn(isolation, ("file", "node"))
        self.assertEqual(lines, [
            f"1 1 {shown['id']} p kv {shown['object']} active {16 << 20} 1 {isolation}",
            f"extent emu:a {16 << 20}",
            f"owner 0 1 1 c_client[{writer.pid}]",
            f"pool p emu:a {128 << 20} {16 << 20} 1 1",
            "free 1 older 1 beyond invalid_argument",
        ])


class Header(unittest.TestCase):
    """Whatever C++ tells has a name in the C header, too. What only C++ has (docs/c_api.md) is not looked for."""

    HEADERS = pathlib.Path(__file__).resolve().parents[3] / "libclient/include/terrace"

    @staticmethod
    def names(text):
        """Of the members of a struct, in either language."""
        text = re.sub(r"  struct \w+ \{.*?\n  \};|//[^\n]*|/\*.*?\*/|bool operator[^;]*", "", text, flags=re.S)
        text = re.sub(r"= *[^,;]*|\[\d+\]", "", text)
        return {re.split(r"[\s*]+", name.strip())[-1]
                for line in text.split(";") if line.strip() for name in line.split(",")}

    def struct(self, name, header):
        text = re.search(rf"^struct {name} {{\n(.*?)\n}};", (self.HEADERS / header).read_text(), re.S | re.M)
        return self.names(text.group(1))

    def test_every_field_that_cpp_has_is_there(self):
        renamed = {"LeaseNotice": {}, "TensorStatistics": {}, "TensorIdentity": {}, "HbmStatistics": {},
                   "TensorPoolStatistics": {"hbm"}, "CheckpointInfo": {}, "CheckpointProgress": {},
                   "CheckpointVerification": {}, "TierFigures": {}, "ExtentInfo": {}, "PartOwner": {}, "FreeRuns": {},
                   "LeaseInfo": {"usage"}, "PoolInfo": {}}  # what is told by a call or by members of its own
        c = {"LeaseNotice": "notice", "TensorStatistics": "tensor_statistics", "TensorIdentity": "tensor_identity",
             "HbmStatistics": "hbm_statistics", "TensorPoolStatistics": "pool_statistics",
             "CheckpointInfo": "checkpoint_info", "CheckpointProgress": "checkpoint_progress",
             "CheckpointVerification": "checkpoint_verification", "TierFigures": "tier_figures",
             "ExtentInfo": "extent_info", "PartOwner": "part_owner", "FreeRuns": "free_runs",
             "LeaseInfo": "lease_info", "PoolInfo": "pool_info"}
        for header in ("session.h", "tensor_pool.h", "tensor_device.h", "tensor_space.h", "checkpoint.h"):
            for name in re.findall(r"^struct (\w+) {", (self.HEADERS / header).read_text(), re.M):
                if name not in c:
                    continue
                with self.subTest(name):
                    there = self.struct("terrace_" + c.pop(name), "terrace_c.h")
                    self.assertLessEqual(self.struct(name, header) - set(renamed[name]), there)
        self.assertEqual(c, {})

    def test_every_question_that_cpp_answers_is_there(self):
        header = (self.HEADERS / "terrace_c.h").read_text()
        for kind, file, prefix in (("Session", "session.h", "session"), ("Lease", "session.h", "lease"),
                                   ("SharedTensor", "tensor_space.h", "shared"),
                                   ("TensorSpace", "tensor_space.h", "space"), ("Tensor", "tensor_pool.h", "tensor")):
            text = re.search(rf"^class {kind}(?: final)? {{\n(.*?)\n}};", (self.HEADERS / file).read_text(), re.S | re.M)
            questions = re.findall(r"(\w+)\(\) const\b", re.sub(r"//[^\n]*", "", text.group(1)).split("private:")[0])
            self.assertGreater(len(questions), 2)
            for question in questions:
                with self.subTest(kind=kind, question=question):
                    self.assertTrue(re.search(rf"\bterrace_{prefix}_(get_)?{question}\(", header))


if __name__ == "__main__":
    harness.main()
