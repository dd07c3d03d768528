# SPDX-License-Identifier: Apache-2.0
"""Mooncake's store, as PyPI has it, with a lease as a segment by its path."""

import shutil

from devlib.engines.engine import Engine

VERSION = "0.3.13.post1"


def _install(installer) -> None:
    installer.begin()
    # Its dependencies are for its services over HTTP, which no test starts.
    installer.pip("--no-deps", f"mooncake-transfer-engine-non-cuda=={VERSION}")


def _lacks() -> str:
    return ", ".join(name for name in ("unshare", "nsenter", "ip") if not shutil.which(name))


MOONCAKE = Engine(
    name="mooncake", about="Mooncake's store with a lease as a segment (mount_segment)",
    packages=(f"pip mooncake-transfer-engine-non-cuda=={VERSION}",),
    install=_install, lacks=_lacks, targets=("terrace", "terraced"), tests=("tests/engines/mooncake/mooncake_test.py",))
