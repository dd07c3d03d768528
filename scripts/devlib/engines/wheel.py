# SPDX-License-Identifier: Apache-2.0
"""The wheel of the Python package (pyproject.toml), in an environment with the newest numpy and safetensors that were tried."""

import pathlib
import shutil
import subprocess

from devlib.commands import ROOT, build_environment, run
from devlib.engines.engine import Engine
from devlib.engines.packages import index_is_away
from devlib.output import Failure, Heartbeat, Skipped

NUMPY, SAFETENSORS = "2.4.6", "0.8.0"


def _install(installer) -> None:
    installer.begin()
    installer.pip(f"numpy=={NUMPY}", f"safetensors=={SAFETENSORS}")


def _prepare(folder: pathlib.Path) -> None:
    """Builds the wheel of this tree as `pip install .` does, and installs it."""
    python = folder / "venv/bin/python"
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    with Heartbeat("pip wheel"):
        built = subprocess.run([python, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--wheel-dir", wheels, ROOT],
                               env=build_environment(), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if built.returncode != 0:
        if index_is_away(built.stdout):
            raise Skipped("the package index cannot be reached (pip)")
        raise Failure(f"pip wheel failed:\n{built.stdout[-4000:]}")
    (wheel,) = wheels.glob("terrace-*.whl")
    run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--force-reinstall", wheel],
        what="installing the wheel")


def _lacks() -> str:
    return ", ".join(name for name in ("cmake", "ninja", "g++") if not shutil.which(name))


WHEEL = Engine(
    name="wheel", about="the wheel of the Python package, with numpy and safetensors of PyPI",
    packages=(f"pip numpy=={NUMPY}", f"pip safetensors=={SAFETENSORS}"),
    install=_install, prepare=_prepare, lacks=_lacks, targets=("terrace", "terraced"), tests=("tests/engines/wheel/wheel_test.py",))
