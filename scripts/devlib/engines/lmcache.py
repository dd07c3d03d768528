# SPDX-License-Identifier: Apache-2.0
"""LMCache as PyPI has it, on the CPU, with a KV space as its L2 and a lease as its L1."""

from devlib.engines.engine import Engine

VERSION, TORCH = "0.5.6", "2.13.0"
# What the parts under test import without: libraries of CUDA, and clients of services that no test starts.
_LEFT_OUT = ("awscrt", "cuda-python", "cufile-python", "cupy-cuda13x", "google-api-core", "google-cloud-bigtable", "grpcio",
             "grpcio-observability", "nvtx", "opentelemetry-exporter-otlp", "pytest", "redis")


def _install(installer) -> None:
    installer.begin()
    # requests: it imports that without asking for it.
    installer.uv(f"lmcache=={VERSION}", "requests", instead=(f"torch=={TORCH}", *(f'{name} ; python_version < "3"' for name in _LEFT_OUT)))


LMCACHE = Engine(
    name="lmcache", about="LMCache with a KV space as its L2 (native_plugin), and a lease as its Device-DAX L1",
    packages=(f"pip lmcache=={VERSION}", f"pip torch=={TORCH}"),
    install=_install, lacks=lambda: "", targets=("terrace", "terraced", "terrace_python"), tests=("tests/engines/lmcache/lmcache_test.py",))
