# SPDX-License-Identifier: Apache-2.0
"""What the compiler is asked to do with each source, as another compiler can be asked: which files it reads, a key for
results that are kept, and the runs beside each other. For `scripts/dev static`."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess

from devlib.commands import ROOT, build_dir, job_count
from devlib.output import Failure, Heartbeat

PRESET = "dev"
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# Where a name between quotes is looked for: the tree, public headers as users write them, what the build makes.
_PLACES = ("", "libclient/include", "build/generated", f"build/{PRESET}")
# What says what a source means. g++'s warnings, optimisation and sanitizers are not clang's, and say nothing of that.
_MEANING = ("-D", "-U", "-I", "-m", "-std=", "-fno-exceptions", "-fno-rtti", "-fshort-")
_MEANING_PAIRS = ("-isystem", "-include", "-iquote", "-idirafter", "-I", "-D")


class Includes:
    """Which files of the tree, and of those that the build makes, a file reads."""

    def __init__(self, root: pathlib.Path):
        self._root = root
        self._direct, self._digests = {}, {}

    def direct(self, name: str) -> list:
        """What `name` itself includes, of the tree and of what the build makes."""
        if name not in self._direct:
            text = (self._root / name).read_text(encoding="utf-8", errors="replace")
            self._digests[name] = hashlib.sha256(text.encode()).hexdigest()
            found = (self._find(name, header) for header in _INCLUDE.findall(text))
            self._direct[name] = [header for header in found if header]
        return self._direct[name]

    def _find(self, name: str, header: str) -> str:
        for place in (*_PLACES, os.path.dirname(name)):
            path = os.path.normpath(os.path.join(place, header))
            if (self._root / path).is_file():
                return path
        return ""  # a library's

    def of(self, name: str) -> set:
        """`name` and all that it reads, relative to the root."""
        seen, ahead = {name}, [name]
        while ahead:
            for header in self.direct(ahead.pop()):
                if header not in seen:
                    seen.add(header)
                    ahead.append(header)
        return seen

    def digest(self, name: str) -> str:
        """Of the bytes of `name` and of all that it reads."""
        files = sorted(self.of(name))
        return hashlib.sha256("\n".join(f"{file} {self._digests[file]}" for file in files).encode()).hexdigest()


def meaning(command: str) -> list:
    """Of a compiler's command line, what another compiler needs to understand the source likewise."""
    kept, words = [], iter(shlex.split(command))
    for word in words:
        if word in _MEANING_PAIRS:
            kept += [word, next(words)]
        elif word.startswith(_MEANING):
            kept.append(word)
    return kept


def commands() -> dict:
    """Each compiled source, relative to the root, and how it is understood; of one that is compiled in several ways,
    the first."""
    path = build_dir(PRESET) / "compile_commands.json"
    if not path.is_file():
        raise Failure(f"{path.relative_to(ROOT)} is not there; run `scripts/dev build` first")
    found = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        file = pathlib.Path(entry["file"])
        if file.is_relative_to(ROOT) and file.is_file():
            found.setdefault(str(file.relative_to(ROOT)), meaning(entry["command"]))
    return found


class Kept:
    """Files that were found good, so that only what changed is looked at again. Below build/, and lost with it."""

    def __init__(self, name: str, *tool: str):
        self._folder = build_dir("") / "static" / name
        self._tool = "\0".join(tool)

    def _path(self, *key: str) -> pathlib.Path:
        return self._folder / hashlib.sha256("\0".join((self._tool, *key)).encode()).hexdigest()

    def has(self, *key: str) -> bool:
        return self._path(*key).is_file()

    def add(self, *key: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path(*key).touch()


def version_of(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout


def run_all(what: str, jobs: list):
    """Runs the commands of `jobs` ((name, command) each), as many at once as the machine has room for; yields
    (name, exit code, what it printed) in the order of `jobs`, so that one that is interrupted keeps what was done."""

    def one(job):
        name, command = job
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
        return name, done.returncode, done.stdout

    with Heartbeat(what), concurrent.futures.ThreadPoolExecutor(job_count()) as pool:
        yield from pool.map(one, jobs)
