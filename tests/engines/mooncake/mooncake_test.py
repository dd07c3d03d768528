# SPDX-License-Identifier: Apache-2.0
"""Values of a real Mooncake store in leased memory.

    TERRACE_ENGINE_DIR=build/engines/mooncake TERRACE_BUILD_DIR=build/release python3 tests/engines/mooncake/mooncake_test.py

Mooncake listens at an address of a network card: it runs in a network namespace with one of its own.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "support"), str(pathlib.Path(__file__).resolve().parent)]
import terrace_harness as harness  # noqa: E402
from ports import free_ports  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

MIB = 1 << 20
ENGINE = pathlib.Path(os.environ["TERRACE_ENGINE_DIR"])
PYTHON = ENGINE / "venv/bin/python"
CLIENT = pathlib.Path(__file__).with_name("client.py")
NETWORK = ("ip link set lo up && ip link add v0 type veth peer name v1 && ip addr add 192.0.2.1/24 dev v0 && "
           "ip link set v0 up && ip link set v1 up && echo up && exec sleep 3600")
PATIENCE_S = 120
# Of every size that is stored in another way, and so many that they lie all over the segment.
SIZES = {f"value{number}": size for number, size in enumerate([1, 100, 4096, 5000, 65536, 1 << 20, 3_000_001] + [200_000] * 20)}


def content(key, size):
    return random.Random(key).randbytes(size)


class Process:
    """client.py, which answers each line with one."""

    def __init__(self, test, command):
        self.process = test.t.popen(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        test.addCleanup(self.close)

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"ended with {self.process.wait()}: {self.process.stderr.read()[-3000:]}"
        return json.loads(line)

    def ask(self, *request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.answer()

    def close(self):
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        self.process.wait()


class Store(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="mooncake", devices={"a": "128M"})
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        network = self.t.popen("unshare", "-n", "sh", "-c", NETWORK, stdout=subprocess.PIPE, text=True)
        self.addCleanup(network.wait)
        self.addCleanup(network.stdout.close)
        self.addCleanup(network.kill)
        self.assertEqual(network.stdout.readline(), "up\n")
        self.inside = ("nsenter", "-t", network.pid, "-n")
        self.rpc, self.http, metrics = free_ports(3)
        with open(self.t.directory / "master.log", "wb") as log:
            master = self.t.popen(*self.inside, ENGINE / "venv/bin/mooncake_master", f"--rpc_port={self.rpc}", "--enable_http_metadata_server=true",
                                  "--http_metadata_server_host=127.0.0.1", f"--http_metadata_server_port={self.http}",
                                  f"--metrics_port={metrics}", "--metrics_host=127.0.0.1", stdout=log, stderr=log)
        self.addCleanup(master.wait)
        self.addCleanup(master.kill)

    def client(self, *words, before=()):
        """As soon as the master answers: until then a client gives up."""
        def ready():
            process = Process(self, (*before, *self.inside, PYTHON, "-B", CLIENT, self.http, self.rpc, *words))
            if process.answer()["ready"] == 0:
                return process
            process.close()
            return None
        return wait_until(ready, PATIENCE_S, "a client of the store", interval=0.5)

    def owner(self):
        """Brings a lease into the store."""
        return self.client("{path}", "{bytes}", before=(self.t.terrace, "lease", "exec", "segment", "--size", "64M", "--mode",
                                                        "shared_coherent", "--"))

    def memory(self):
        return pathlib.Path(self.t.cli("lease", "path", "segment", "--ro").json["path"]).read_bytes()

    def test_values_lie_in_the_lease(self):
        owner, writer = self.owner(), self.client()
        for key, size in SIZES.items():
            self.assertEqual(writer.ask("put", key, size), 0)
        writer.close()
        reader = self.client()
        memory = self.memory()
        for key, size in SIZES.items():
            self.assertTrue(reader.ask("get", key, size), key)
            self.assertIn(content(key, size), memory)
        owner.process.stdin.close()
        self.assertEqual(owner.process.wait(PATIENCE_S), 0)
        wait_until(lambda: not self.t.leases(), PATIENCE_S, "the lease goes with the process")

    def test_it_serves_on_while_the_manager_starts_anew(self):
        self.owner()
        client = self.client()
        self.assertEqual(client.ask("put", "before", MIB), 0)
        self.t.kill()
        self.assertTrue(client.ask("get", "before", MIB))
        self.assertEqual(client.ask("put", "without", MIB), 0)
        self.t.start()
        wait_until(lambda: any(one["holders"] for one in self.t.leases().values()), PATIENCE_S, "its session is back")
        self.assertTrue(client.ask("get", "without", MIB))

    def test_after_a_fence_nothing_is_read(self):
        owner, client = self.owner(), self.client()
        self.assertEqual(client.ask("put", "key", MIB), 0)
        self.t.cli("lease", "revoke", "segment", "--grace", "0s", "--reason", "drill")
        self.assertFalse(client.ask("get", "key", MIB))  # the owner's send fails (EFAULT)
        with self.assertRaisesRegex(AssertionError, "ended with"):
            owner.ask("get", "key", MIB)  # it reads itself
        self.assertEqual(owner.process.wait(PATIENCE_S), 128 + signal.SIGBUS)
        wait_until(lambda: not self.t.leases(), PATIENCE_S, "the lease ends")
        self.t.check_invariants()


if __name__ == "__main__":
    harness.main()
