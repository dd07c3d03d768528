# SPDX-License-Identifier: Apache-2.0
"""llama.cpp: its libraries as npm has them, and its Python interface over the same libraries."""

import pathlib
import re
import shutil
import subprocess

from devlib.commands import ROOT, need, run
from devlib.engines.engine import Engine

NODE = "3.22.1"  # of llama.cpp v0.5.0, ggml 0.25.1
PYTHON = "0.3.36"  # whose structs are those of this llama.cpp
RELEASE = "v0.5.0"


def _library(path: str):
    name = pathlib.PurePosixPath(path).name
    return f"lib/{name}" if name.startswith("lib") and ".so" in name else None


def _install(installer) -> None:
    installer.begin()
    installer.npm(f"@node-llama-cpp/linux-x64@{NODE}", _library)
    installer.npm(f"node-llama-cpp@{NODE}", lambda path: "llama.bundle" if path.endswith("/gitRelease.bundle") else None)
    installer.client(["git", "clone", "-q", "llama.bundle", "source"])
    # Without a llama.cpp of its own, which takes a quarter of an hour to compile.
    installer.pip(f"llama-cpp-python=={PYTHON}", "gguf==0.19.0", CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF")


def _python_library(folder: pathlib.Path) -> None:
    """libllama.so, by which the Python interface asks: npm's library, and what a newer llama.cpp has beside it and no
    test calls. The interface looks for every function when it is imported."""
    lib = folder / "lib"
    (interface,) = folder.glob("venv/lib/python3*/site-packages/llama_cpp/llama_cpp.py")
    asked = set(re.findall(r'ctypes_function\(\s*"(llama_\w+)"', interface.read_text(encoding="utf-8")))
    shown = subprocess.run([need("nm"), "-D", "--defined-only", lib / f"libllama.{RELEASE}.so"], capture_output=True, text=True,
                           check=True).stdout
    lacking = sorted(asked - {line.split()[-1] for line in shown.splitlines()})
    source = folder / "newer.c"
    source.write_text("void abort(void);\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in lacking), encoding="utf-8")
    run([need("gcc"), "-shared", "-fPIC", "-o", lib / "libllama.so", source, f"-L{lib}", "-Wl,--no-as-needed",
         f"-l:libllama.{RELEASE}.so", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"], what="linking libllama.so")


def _prepare(folder: pathlib.Path) -> None:
    """The program of the tests and benches, beside the libraries, where ggml looks for its backends."""
    lib, source = folder / "lib", folder / "source"
    run([need("gcc"), "-O2", "-Wall", "-Wextra", "-Werror", "-o", lib / "generate", ROOT / "tests/engines/llama/generate.c",
         f"-I{source}/include", f"-I{source}/ggml/include", f"-L{lib}", f"-l:libllama.{RELEASE}.so", f"-l:libggml.{RELEASE}.so",
         "-l:libggml-base.so", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"], what="compiling generate.c")
    _python_library(folder)


def _lacks() -> str:
    return ", ".join(name for name in ("npm", "git", "gcc", "nm") if not shutil.which(name))


LLAMA = Engine(
    name="llama", about="llama.cpp with libggml-terrace.so (bindings/ggml); its prompt cache in a KV space",
    packages=(f"npm node-llama-cpp@{NODE}", f"npm @node-llama-cpp/linux-x64@{NODE}", f"pip llama-cpp-python=={PYTHON}",
              "pip gguf==0.19.0"),
    install=_install, prepare=_prepare, lacks=_lacks,
    targets=("terrace", "terraced", "terrace_ggml", "terrace_malloc", "terrace_heap_preload", "terrace_python"),
    definitions=lambda folder: (f"-DTERRACE_GGML_SOURCE={folder / 'source'}",),
    tests=("tests/engines/llama/llama_test.py", "tests/engines/llama/cache_test.py"), bench="tests/engines/llama/bench.py")
