# SPDX-License-Identifier: Apache-2.0
"""The list of apps: what each needs, and what runs it."""

import dataclasses
import os
import shutil
import subprocess
from typing import Callable

from devlib.apps.side import PYTHON


@dataclasses.dataclass(frozen=True)
class App:
    """`action`: Side -> {name: text}, equal on both sides. `programs`: program -> Debian package; `modules`: module of
    Debian's python3 -> package; `files`: path -> package; `built`: path of a program that is no package -> its name.
    `ddr`: the budget of a run, below what the program needs."""

    name: str
    about: str
    action: Callable
    programs: dict = dataclasses.field(default_factory=dict)
    modules: dict = dataclasses.field(default_factory=dict)
    files: dict = dataclasses.field(default_factory=dict)
    built: dict = dataclasses.field(default_factory=dict)
    ddr: str = "16M"
    cxl: str = "1G"

    def missing(self) -> str:
        """What to do before the app can run, empty when it can."""
        for path, name in self.built.items():
            if not os.path.exists(path):
                return f"no {name}: docs/operations/apps.md tells how to build it"
        packages = {package for program, package in self.programs.items() if not shutil.which(program)}
        packages |= {package for path, package in self.files.items() if not os.path.exists(path)}
        if self.modules:
            packages |= _missing_modules(self.modules)
        return f"apt-get install {' '.join(sorted(packages))}" if packages else ""


def _missing_modules(modules: dict) -> set:
    code = "import importlib.util,sys;print(*[m for m in sys.argv[1:] if importlib.util.find_spec(m) is None])"
    if not os.path.exists(PYTHON):
        return {"python3"}
    told = subprocess.run([PYTHON, "-c", code, *modules], capture_output=True, text=True, check=True, cwd="/").stdout
    return {modules[name] for name in told.split()}


def all_apps() -> dict:
    """Every app by name, in the order of the table."""
    from devlib.apps import (browser, databases, emulator, media, memcached, nginx, numeric, python_programs, redis,
                             runtimes, scripting, toolchains, tools)
    found = {}
    for module in (redis, memcached, databases, nginx, python_programs, tools, runtimes, numeric, scripting, media,
                   browser, toolchains, emulator):
        for app in module.APPS:
            found[app.name] = app
    return found
