# SPDX-License-Identifier: Apache-2.0
"""What the tests and the bench of llama.cpp share: where the engine lies, its program, a model."""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))

HERE = pathlib.Path(__file__).resolve().parent
ENGINE = pathlib.Path(os.environ.get("TERRACE_ENGINE_DIR", "build/engines/llama")).resolve()
LIB, PYTHON = ENGINE / "lib", ENGINE / "venv/bin/python"
BUILD = pathlib.Path(os.environ.get("TERRACE_BUILD_DIR", "build/release")).resolve()
PACKAGE = BUILD / "bindings/python"
BACKEND = BUILD / "bindings/ggml/libggml-terrace.so"


def make_model(name: str, *options: str) -> pathlib.Path:
    """A model of random weights, made once a kind."""
    path = ENGINE / name
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        subprocess.run([PYTHON, HERE / "model.py", part, *options], check=True, stdin=subprocess.DEVNULL)
        part.replace(path)
    return path


def words(model, *options: str) -> list:
    """One thread: two that wait for each other by spinning take minutes on a busy machine."""
    return [str(word) for word in (LIB / "generate", model, "--threads", "1", *options)]


def environment(service=None, **more) -> dict:
    """Of a run with the backend, or of a plain one without a service."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(("GGML_", "TERRACE_GGML_"))}
    if service is not None:
        found.update(service.environment(), GGML_BACKEND_PATH=str(BACKEND))
    found.update({key: str(value) for key, value in more.items()})
    return found


def generate(model, *options: str, service=None, timeout=300, **more) -> subprocess.CompletedProcess:
    return subprocess.run(words(model, *options), cwd=LIB, env=environment(service, **more), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=timeout, check=False)


def tokens(done: subprocess.CompletedProcess) -> list:
    if done.returncode != 0:
        raise AssertionError(f"generate: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)["tokens"]


class CacheProcess:
    """A process of llama-cpp-python whose prompt cache is a KV space (cache_process.py)."""

    def __init__(self, model, space: str, stderr=None, **options):
        flags = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is True]
        for name, value in options.items():
            if name.islower() and value is not True:
                flags += [f"--{name.replace('_', '-')}", str(value)]
        more = {name: value for name, value in options.items() if not name.islower()}
        self.process = subprocess.Popen([PYTHON, "-B", HERE / "cache_process.py", model, space, *flags], cwd=LIB, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                                        env=environment(None, PYTHONPATH=PACKAGE, LLAMA_CPP_LIB_PATH=LIB, **more))
        self._ready = False

    def tell(self, order: str, **more) -> None:
        self.process.stdin.write(json.dumps({"do": order, **more}) + "\n")
        self.process.stdin.flush()

    def ask(self, order: str, **more):
        """Its answer; None: it ended before that."""
        if not self._ready and not self.process.stdout.readline():
            raise AssertionError(f"it did not begin; exit {self.process.wait()}")
        self._ready = True
        self.tell(order, **more)
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def told(self) -> str:
        """What it says on standard error, when it ends by itself."""
        return self.process.communicate()[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
