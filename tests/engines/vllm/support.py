# SPDX-License-Identifier: Apache-2.0
"""What the tests and the bench of vLLM have in common: engines in processes of their own, and a KV space for them."""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "support")]
from terrace_harness import Harness, process_alive, wait_until  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
PYTHON = pathlib.Path(os.environ["TERRACE_ENGINE_DIR"]) / "venv/bin/python"
BUILD = pathlib.Path(os.environ["TERRACE_BUILD_DIR"])
PATIENCE_S = 180
CPU_TIER_BYTES = 64 << 20
ENVIRONMENT = {
    "PYTHONPATH": str(BUILD / "bindings/python"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class EngineError(AssertionError):
    """An engine ended, or said that something failed."""


class Engine:
    """A process of vLLM; a line in, a line out."""

    def __init__(self, engines, log, **first):
        self.log, self._engines = log, engines
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(PATIENCE_S)
        self._connection.connect(str(engines.socket))
        self._lines = self._connection.makefile("rw", encoding="utf-8")
        self._tell({"log": str(log), **first})
        self.pid = self._answer()["pid"]

    def _tell(self, line):
        print(json.dumps(line), file=self._lines, flush=True)

    def _answer(self):
        try:
            line = self._lines.readline()
        except ConnectionError:
            line = ""
        if not line:
            raise EngineError(f"the engine ended\n{self.said()[-3000:]}")
        told = json.loads(line)
        if "error" in told:
            raise EngineError(f"{told['error']}\n{self.said()[-6000:]}")
        return told

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ready(self):
        self._answer()
        return self

    def begin(self, *words):
        self._tell(words)

    answer = _answer

    def ask(self, *words):
        self._tell(words)
        return self._answer()

    def generate(self, prompts, tokens=8):
        """And until all of it is stored."""
        told = self.ask("generate", prompts, tokens)
        self.ask("settle")
        return told

    def kill(self):
        if process_alive(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not process_alive(self.pid), PATIENCE_S, "the end of an engine")
        self._engines.sweep(self.pid)

    def end(self):
        self.ask("end")
        self._lines.close()
        self._connection.close()
        wait_until(lambda: not process_alive(self.pid), PATIENCE_S, "the end of an engine")


class Engines:
    """Starts them, and ends those that are left."""

    def __init__(self, directory):
        self.directory, self.socket = directory, directory / "engines.sock"
        self.all, self._number = [], 0
        with open(directory / "engines.log", "wb") as log:
            self.process = subprocess.Popen([str(PYTHON), "-B", str(FOLDER / "engine.py"), str(self.socket)], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env={**os.environ, **ENVIRONMENT})
        wait_until(self._listens, PATIENCE_S, "vLLM is imported")

    def _listens(self):
        if self.process.poll() is not None:
            raise EngineError((self.directory / "engines.log").read_text(errors="replace")[-3000:])
        return self.socket.exists()

    def make_model(self, name, **options):
        folder = self.directory / name
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            lines = connection.makefile("rw", encoding="utf-8")
            print(json.dumps({"make": str(folder), **options}), file=lines, flush=True)
            assert lines.readline() == "{}\n", "no model was made"
        return folder

    def start(self, model, extra=None, connector="TerraceConnector", wait=True, env=None, **options):
        """`extra`: of the connector; None: no connector."""
        self._number += 1
        kv = None
        if extra is not None:
            kv = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra,
                  "engine_id": f"terrace-{self.process.pid}-{self._number}"}
            if connector == "TerraceConnector":
                kv["kv_connector_module_path"] = "terrace.engines.vllm"
        engine = Engine(self, self.directory / f"engine{self._number}.log", model=str(model), kv=kv, env=env or {}, engine=options)
        self.all.append((engine, kv))
        return engine.ready() if wait else engine

    def sweep(self, pid):
        """The file of a killed engine's CPU tier, which vLLM leaves."""
        for engine, kv in self.all:
            if engine.pid == pid and kv is not None:
                pathlib.Path(f"/dev/shm/vllm_offload_{kv['engine_id']}.mmap").unlink(missing_ok=True)

    def close(self):
        for engine, _ in self.all:
            engine.kill()
        self.process.kill()
        self.process.wait()


def tiers(*secondary, cpu_bytes=CPU_TIER_BYTES, **more):
    """kv_connector_extra_config."""
    return {"spec_name": "HostTieringSpec", "spec_module_path": "terrace.engines.vllm_cpu", "cpu_bytes_to_use": cpu_bytes,
            "secondary_tiers": list(secondary), **more}


def terrace_tier(service, lease="cache", **more):
    return {"type": "TerraceTier", "module_path": "terrace.engines.vllm", "lease": lease, "socket": str(service.socket), **more}


def make_space(service, size="64M", block="64K", label="cache", parts=8, more=()):
    service.cli("lease", "grant", "--pool", "p", "--size", size, "--persistent", "--mode", "shared_coherent", "--label", label)
    service.cli("kv", "format", label, "--block", block, "--parts", parts, *more)


def prompt(seed, length):
    return random.Random(seed).choices(range(3, 500), k=length)


def service(name="vllm", size="256M"):
    """A daemon with a pool."""
    made = Harness(name=name, devices={"a": size})
    made.start()
    made.create_pool("p")
    return made
