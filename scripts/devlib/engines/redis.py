# SPDX-License-Identifier: Apache-2.0
"""Clients of redis as PyPI and npm have them, with `terrace kv serve` as their server."""

import pathlib
import shutil

from devlib.engines.engine import Engine

PYTHON = "8.1.0"
NODE = "6.3.1"


def _into_modules(path: str):
    """Where node finds it: npm's archives begin with "package/"."""
    return str(pathlib.PurePosixPath("node_modules/@redis/client") / pathlib.PurePosixPath(path).relative_to("package"))


def _install(installer) -> None:
    installer.begin()
    installer.pip(f"redis=={PYTHON}")
    installer.npm(f"@redis/client@{NODE}", _into_modules)


def _lacks() -> str:
    return ", ".join(name for name in ("npm", "node") if not shutil.which(name))


REDIS = Engine(
    name="redis", about="redis-py and node-redis as clients of terrace kv serve, in both versions of the protocol",
    packages=(f"pip redis=={PYTHON}", f"npm @redis/client@{NODE}"),
    install=_install, lacks=_lacks, targets=("terrace", "terraced"), tests=("tests/engines/redis/redis_test.py",))
