# SPDX-License-Identifier: Apache-2.0
"""Released packages, from PyPI and npm by their own clients, into one folder. An index that cannot be reached is a skip."""

import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import time

from devlib.output import Failure, Heartbeat, Skipped

# What pip and npm say when there is no network or no index, and nothing is wrong with what was asked for.
_AWAY = re.compile(r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|network timeout|NewConnectionError|"
                   r"Max retries exceeded|Temporary failure in name resolution|ConnectTimeoutError|ReadTimeoutError|"
                   r"ProxyError|Connection refused|E50\d\b", re.I)
# An installation that is slower ends: CI has other stages.
SECONDS_MAX = 300
UV = "0.13.9"


def index_is_away(said: str) -> bool:
    return _AWAY.search(said) is not None


class Installer:
    """One engine's folder. Its stamp names the packages that lie there."""

    def __init__(self, folder: pathlib.Path, packages: tuple):
        self.folder, self._packages = folder, packages
        self._stamp = folder / "installed"
        self._end = time.monotonic() + SECONDS_MAX

    def done(self) -> bool:
        return self._stamp.is_file() and self._stamp.read_text(encoding="utf-8") == self._text()

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def finish(self) -> None:
        self._stamp.write_text(self._text(), encoding="utf-8")

    def _text(self) -> str:
        return "\n".join(self._packages) + "\n"

    def client(self, command: list, **environment: str) -> str:
        """Runs a package client in the folder, and returns what it said."""
        words = [str(word) for word in command]
        try:
            with Heartbeat(" ".join([pathlib.Path(words[0]).name, *words[1:3]])):
                done = subprocess.run(words, cwd=self.folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                                      timeout=max(1.0, self._end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Skipped(f"installing took longer than {SECONDS_MAX} s: {' '.join(words[:4])}") from None
        if done.returncode == 0:
            return done.stdout
        if index_is_away(done.stdout):
            raise Skipped(f"the package index cannot be reached ({pathlib.Path(words[0]).name})")
        raise Failure(f"{' '.join(words)} failed:\n{done.stdout[-4000:]}")

    def npm(self, package: str, wanted) -> None:
        """Unpacks the files of a package of npm for which `wanted(path)` says where they go, or nothing."""
        name = self.client(["npm", "pack", package, "--silent"]).split()[-1]
        with tarfile.open(self.folder / name) as archive:
            for member in archive:
                place = wanted(member.name) if member.isfile() else None
                if place:
                    target = self.folder / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.extractfile(member) as source, target.open("wb") as out:
                        shutil.copyfileobj(source, out)
        (self.folder / name).unlink()

    def pip(self, *packages: str, **environment: str) -> None:
        """Into the folder's virtual environment, which is made with the first."""
        self.client([self._python(), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], **environment)

    def uv(self, *packages: str, instead: tuple = ()) -> None:
        """The same by uv, for engines of hundreds of packages: it shares files between environments, and knows overrides.
        `instead` has the versions to take whatever a package asks for, as builds of torch that PyPI does not have."""
        self.pip(f"uv=={UV}")
        overrides = self.folder / "overrides.txt"
        overrides.write_text("".join(f"{line}\n" for line in instead), encoding="utf-8")
        self.client([self.folder / "venv/bin/uv", "pip", "install", "-q", "--python", self._python(), "--override", overrides, *packages])

    def _python(self) -> pathlib.Path:
        python = self.folder / "venv/bin/python"
        if not python.exists():
            self.client(["/usr/bin/python3", "-m", "venv", self.folder / "venv"])
        return python
