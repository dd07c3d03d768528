# SPDX-License-Identifier: Apache-2.0
"""What is known of an engine."""

import dataclasses
import pathlib
from typing import Callable


@dataclasses.dataclass(frozen=True)
class Engine:
    name: str
    about: str
    packages: tuple  # as people read them, with versions; others are installed when one of these changes
    install: Callable  # (Installer): begins with installer.begin()
    lacks: Callable[[], str]  # programs that this machine has not; empty: it has all
    targets: tuple  # of the release build
    tests: tuple  # Python files, from the root; run with TERRACE_ENGINE_DIR and TERRACE_BUILD_DIR
    bench: str = ""  # the same
    definitions: Callable[[pathlib.Path], tuple] = lambda folder: ()  # further words for CMake
    prepare: Callable[[pathlib.Path], None] = lambda folder: None  # each time, before tests
