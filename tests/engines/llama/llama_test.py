# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as it is released, with libggml-terrace.so and a private terraced: tokens, places, and what goes wrong."""

import json
import os
import pathlib
import re
import subprocess
import unittest

import support
from terrace_harness import Harness, wait_until

WEIGHTS_BYTES = 53 << 20  # of the model, without the table of embeddings
QUARTER = "14M"

PYTHON_RUN = """
import json, llama_cpp
model = llama_cpp.Llama(model_path={model!r}, n_gpu_layers=-1, n_ctx=256, n_threads=1, n_threads_batch=1, seed=1, verbose=False)
prompt = [3 + i * 31 % 1021 for i in range(16)]
made = []
for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
    made.append(token)
    if len(made) == 24:
        break
print(json.dumps(made))
"""


def pss(pid: int, name: str) -> int:
    """This process's share, in bytes, of mappings whose file has `name` in it."""
    total, counts = 0, False
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as lines:
        for line in lines:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                counts = name in line
            elif counts and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


class LlamaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = support.make_model("tiny.gguf", "--width", "512", "--layers", "8")
        cls.plain = support.tokens(support.generate(cls.model))

    def setUp(self):
        self.service = Harness(devices={"a": "512M"}, mount=False, name="llama")
        self.addCleanup(self.service.close)
        self.service.start()
        self.service.create_pool("p")

    def held(self, *options, **more):
        """A run that keeps its memory until its input is closed, and its line of results."""
        process = subprocess.Popen(support.words(self.model, "--hold", *options), cwd=support.LIB, text=True,
                                   env=support.environment(self.service, **more), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self.end, process)
        line = process.stdout.readline()
        self.assertTrue(line, "it ended without a result")
        return process, json.loads(line)

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def range_of(self, pid):
        """As its page says, which it writes once a second: with all bytes in it."""
        def told():
            found = self.service.cli("tier", "status", pid).json["processes"]
            one = found[0]["ranges"][0] if found and found[0]["ranges"] else None
            return one if one and one["ddr_bytes"] + one["cxl_bytes"] >= WEIGHTS_BYTES else None
        return wait_until(told, 60, "the figures of the pool")

    def test_a_quarter_in_ddr_gives_the_same_tokens(self):
        process, result = self.held(TERRACE_GGML_DDR=QUARTER)
        self.assertEqual(result["tokens"], self.plain)
        where = self.range_of(process.pid)
        self.assertEqual(where["name"], "ggml")
        self.assertLessEqual(where["ddr_bytes"], 14 << 20)
        self.assertGreaterEqual(where["cxl_bytes"], WEIGHTS_BYTES * 3 // 4)
        leases = self.service.leases()
        self.assertGreater(sum(lease["bytes"] for lease in leases.values()), WEIGHTS_BYTES * 3 // 4)
        objects = pathlib.Path(self.service.cli("status").json["server"]["object_directory"])
        used = sum(path.stat().st_blocks * 512 for path in objects.glob("lease-*"))
        self.assertGreater(used, WEIGHTS_BYTES * 3 // 4, "the lease's memory is not in use")
        process.stdin.close()
        self.assertEqual(process.wait(60), 0)
        self.service.wait_free()

    def test_announced_layers_give_the_same_tokens(self):
        process, result = self.held("--tokens", "24", TERRACE_GGML_DDR="32M", TERRACE_GGML_STEPS="follow")
        self.assertEqual(result["tokens"], self.plain)
        # While an order is followed the range's own policy is paused, and the pool copies.
        def following():
            where = self.range_of(process.pid)
            return where["state"] == "paused" and where["promoted_bytes"] > 0
        wait_until(following, 60, "the pool following the order of the layers")

    def test_all_in_ddr(self):
        self.assertEqual(support.tokens(support.generate(self.model, service=self.service, TERRACE_GGML_DDR="256M")), self.plain)

    def test_the_python_interface(self):
        script = PYTHON_RUN.format(model=str(self.model))
        sides = []
        for service, more in ((None, {}), (self.service, {"TERRACE_GGML_DDR": QUARTER, "TERRACE_GGML_REQUIRED": "1",
                                                          "TERRACE_GGML_VERBOSE": "1"})):
            done = subprocess.run([support.PYTHON, "-c", script], cwd=support.LIB, capture_output=True, text=True, timeout=300,
                                  env=support.environment(service, LLAMA_CPP_LIB_PATH=support.LIB, **more), check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            sides.append(json.loads(done.stdout.splitlines()[-1]))
        self.assertEqual(sides[0], sides[1])
        self.assertEqual(len(sides[0]), 24)

    def test_a_killed_process_leaves_no_lease(self):
        process, _ = self.held(TERRACE_GGML_DDR=QUARTER)
        self.assertTrue(self.service.leases())
        process.kill()
        process.wait()
        wait_until(lambda: not self.service.leases(), 60, "no lease being left")
        self.service.wait_free()

    def test_no_manager(self):
        away = {"TERRACE_SOCKET": str(self.service.directory / "nobody.sock")}
        done = support.generate(self.model, service=self.service, **away)
        self.assertEqual(support.tokens(done), self.plain)
        self.assertIn("no manager listens at", done.stderr)
        self.assertIn("goes on without Terrace", done.stderr)
        done = support.generate(self.model, service=self.service, TERRACE_GGML_REQUIRED="1", **away)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no model is loaded without it", done.stderr)

    def test_a_full_pool(self):
        self.service.grant("480M")
        done = support.generate(self.model, service=self.service, TERRACE_GGML_DDR=QUARTER)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("for weights: no lease for it", done.stderr)
        self.assertIn("capacity_exhausted", done.stderr)

    def test_a_lease_that_is_too_small(self):
        done = support.generate(self.model, service=self.service, TERRACE_GGML_DDR=QUARTER, TERRACE_GGML_CXL="16M")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("TERRACE_GGML_CXL=16.00 MiB is all it may lease", done.stderr)
        self.service.wait_free()

    def test_a_wrong_variable(self):
        for name, value in (("TERRACE_GGML_DDR", "much"), ("TERRACE_GGML_STEPS", "yes")):
            done = support.generate(self.model, service=self.service, TERRACE_GGML_REQUIRED="1", **{name: value})
            self.assertIn(f"{name}='{value}'", done.stderr)

    def test_two_processes_map_one_copy(self):
        self.service.cli("lease", "grant", "--pool", "p", "--size", "64M", "--persistent", "--label", "model", "--mode",
                         "shared_read_only")
        self.service.cli("lease", "exec", "model", "--", "dd", f"if={self.model}", "of={path}", "bs=1M", "conv=notrunc", "status=none",
                         json=False)
        processes = []
        for _ in range(2):
            command = [self.service.terrace, "lease", "exec", "model", "--ro", "--", *support.words("{path}", "--hold")]
            env = support.environment(self.service, TERRACE_GGML_DDR="64M", TERRACE_GGML_WEIGHTS="mapped",
                                      TERRACE_GGML_REQUIRED="1")
            process = subprocess.Popen(command, cwd=support.LIB, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.addCleanup(self.end, process)
            processes.append(process)
        for process in processes:
            self.assertEqual(json.loads(process.stdout.readline())["tokens"], self.plain)
        lease = next(one for one in self.service.leases().values() if one["label"] == "model")
        shares = []
        for process in processes:
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
            shares.append(pss(int(children[0]), f"lease-{lease['id']}.obj"))
        size = os.path.getsize(self.model)
        self.assertLess(sum(shares), size * 5 // 4, "each has a copy of its own")
        for share in shares:
            self.assertGreater(share, size // 4)
        for process in processes:
            process.stdin.close()
            self.assertEqual(process.wait(60), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
