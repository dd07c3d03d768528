# SPDX-License-Identifier: Apache-2.0
"""What the tests of the backend for NIXL share: a service, and agents in processes of their own."""

import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "support"), str(pathlib.Path(__file__).resolve().parent)]
from terrace_harness import Harness  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
ENGINE = pathlib.Path(os.environ.get("TERRACE_ENGINE_DIR", "build/engines/nixl")).resolve()
BUILD = pathlib.Path(os.environ.get("TERRACE_BUILD_DIR", "build/release")).resolve()
PYTHON = ENGINE / "venv/bin/python"
PLUGINS = BUILD / "bindings/nixl"
AGENT = pathlib.Path(__file__).with_name("agent.py")
PATIENCE_S = 120
# Below, at and above what is copied at once, and with odd lengths.
SIZES = (1, 63, 64, 65, 4095, 4096, 65_537, 262_144, 1 * MIB + 3, 3_000_001, 16 * MIB)


def content(seed, size):
    return random.Random(seed).randbytes(size)


class Failed(Exception):
    """What a call in the agent raised: its type, and what the backend wrote to stderr since the last answer."""


class Agent:
    def __init__(self, service, name, plugins=PLUGINS, program=AGENT, **environment):
        self.name = name
        self.log = service.directory / f"agent-{os.urandom(4).hex()}.log"
        with open(self.log, "wb") as log:
            self.process = service.popen(PYTHON, "-B", program, name, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                         env={**({"NIXL_PLUGIN_DIR": plugins} if plugins else {}), "PYTHONPATH": BUILD / "bindings/python", "NIXL_LOG_LEVEL": "ERROR",
                                              **environment})
        self._read = 0
        self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        assert line, f"agent {self.name} ended with {self.process.wait()}: {self.log.read_text(errors='replace')[-3000:]}"
        return json.loads(line)

    def begin(self, method, *arguments, **named):
        print(json.dumps([method, arguments, named]), file=self.process.stdin, flush=True)

    def end(self):
        answer = self._answer()
        said = self.log.read_text(errors="replace")[self._read:]
        self._read += len(said)
        if "error" in answer:
            raise Failed(f"{answer['error']}: {answer['text']}\n{said}")
        return answer["value"]

    def __getattr__(self, method):
        def call(*arguments, **named):
            self.begin(method, *arguments, **named)
            return self.end()
        return call

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()
        self.process.wait()


class TestCase(unittest.TestCase):
    DEVICE = "256M"

    def setUp(self):
        self.t = self.service("nixl")

    def service(self, name):
        service = Harness(name=name, devices={"a": self.DEVICE})
        self.addCleanup(service.close)
        service.start()
        service.create_pool("p")
        return service

    def shared_lease(self, label, size="64M", service=None):
        return (service or self.t).cli("lease", "grant", "--pool", "p", "--size", size, "--persistent", "--mode", "shared_coherent",
                                       "--label", label).json["lease"]

    def agent(self, name, service=None, plugins=PLUGINS, environment=None, **parameters):
        agent = Agent(service or self.t, name, plugins, **(environment or {}))
        self.addCleanup(agent.close)
        agent.create(**parameters)
        return agent
