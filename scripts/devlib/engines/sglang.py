# SPDX-License-Identifier: Apache-2.0
"""SGLang as PyPI has it, without what it computes with: its pools in host memory, and its storage backends."""

from devlib.engines.engine import Engine

VERSION, TORCH = "0.5.23", "2.13.0"
# What importing these parts needs, of the hundreds that SGLang asks for.
_NEEDS = ("aiohttp", "apache-tvm-ffi==0.1.11", "compressed-tensors==0.18.0", "dill", "gguf", "IPython", "msgspec", "numpy", "orjson",
          "packaging", "pillow", "psutil", "pybase64", "pydantic", "pyzmq", "requests", "sentencepiece==0.2.1", "starlette", "torchvision",
          "tqdm", "transformers==5.19.0")


def _install(installer) -> None:
    installer.begin()
    installer.uv(f"torch=={TORCH}", *_NEEDS, instead=(f"torch=={TORCH}",))
    installer.uv("--no-deps", f"sglang=={VERSION}")


SGLANG = Engine(
    name="sglang", about="SGLang's hierarchical cache with a KV space as its storage backend",
    packages=(f"pip sglang=={VERSION}", f"pip torch=={TORCH}"),
    install=_install, lacks=lambda: "", targets=("terrace", "terraced", "terrace_python"), tests=("tests/engines/sglang/sglang_test.py",))
