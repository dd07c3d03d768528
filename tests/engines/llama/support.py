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
