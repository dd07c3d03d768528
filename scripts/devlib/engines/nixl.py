# SPDX-License-Identifier: Apache-2.0
"""NIXL as PyPI has it, with the backend of bindings/nixl. Its headers are in no package: TERRACE_NIXL_SOURCE names a checkout."""

import os
import pathlib

from devlib.engines.engine import Engine

VERSION = "1.5.1"
NUMPY = "2.4.6"
VARIABLE = "TERRACE_NIXL_SOURCE"
HEADER = "src/api/cpp/backend/backend_plugin.h"


def _install(installer) -> None:
    installer.begin()
    # Without torch, which its Python package uses only where the program has imported it.
    installer.pip("--no-deps", f"nixl-cu12=={VERSION}", f"numpy=={NUMPY}")


def _source() -> str:
    return os.environ.get(VARIABLE, "")


def _lacks() -> str:
    if not _source():
        return f"NIXL's headers, which are in no package: give a checkout by {VARIABLE}"
    if not (pathlib.Path(_source()) / HEADER).is_file():
        return f"{VARIABLE}={_source()} has no {HEADER}"
    return ""


NIXL = Engine(
    name="nixl", about="NIXL with libplugin_TERRACE.so (bindings/nixl)",
    packages=(f"pip nixl-cu12=={VERSION}", f"pip numpy=={NUMPY}"),
    install=_install, lacks=_lacks, targets=("terrace", "terraced", "terrace_python", "terrace_nixl"),
    definitions=lambda folder: (f"-DTERRACE_NIXL_SOURCE={pathlib.Path(_source()).resolve()}",),
    tests=("tests/engines/nixl/objects_test.py", "tests/engines/nixl/memory_test.py"), bench="tests/engines/nixl/bench.py")
