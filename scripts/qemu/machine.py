# SPDX-License-Identifier: Apache-2.0
"""One run of guests: a folder of their files, QEMU processes that end with it, and what the guests report."""

import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from devlib.commands import ROOT
from qemu import guest
from qemu.kernel import Kernel
from qemu.skip import need_emulator

ROOM_IN_SHM = 4 << 30


class RunFolder:
    """Below one temporary folder: media/ and exchange/ (shared by the hosts), host<N>/{share,labels,serial.log}. In /dev/shm where
    there is room (or in $TERRACE_QEMU_FOLDER), so that what guests write to their memory reaches no disk. `keep` leaves it behind."""

    def __init__(self, topology: guest.Topology, keep: bool = False):
        shm = pathlib.Path(os.environ.get("TERRACE_QEMU_FOLDER") or "/dev/shm")
        with contextlib.suppress(OSError):
            room = os.statvfs(shm)
            if room.f_bavail * room.f_frsize < ROOM_IN_SHM or not os.access(shm, os.W_OK):
                shm = None
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="terrace-qemu-", dir=shm))
        self.keep = keep
        self.topology = topology
        self.reset()

    def reset(self) -> None:
        """New, empty media and label areas, and nothing shared: as before the first boot."""
        for entry in self.path.iterdir():
            shutil.rmtree(entry)
        _sparse(self.media, guest.media_files(self.topology))
        self.exchange.mkdir()
        for host in range(self.topology.hosts):
            _sparse(self.labels(host), guest.label_files(self.topology))
            (self.share(host) / "out").mkdir(parents=True)

    def fresh_share(self, host: int) -> None:
        """For a further boot over the same media and labels: the shared folder is emptied, outputs are kept."""
        for name in ("job.json", "events.jsonl"):
            (self.share(host) / name).unlink(missing_ok=True)

    @property
    def media(self) -> pathlib.Path:
        return self.path / "media"

    @property
    def exchange(self) -> pathlib.Path:
        return self.path / "exchange"

    def host(self, host: int) -> pathlib.Path:
        return self.path / f"host{host}"

    def labels(self, host: int) -> pathlib.Path:
        return self.host(host) / "labels"

    def share(self, host: int) -> pathlib.Path:
        return self.host(host) / "share"

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_exception) -> None:
        if self.keep:
            print(f"   kept: {self.path}", flush=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)


def _sparse(folder: pathlib.Path, files: dict) -> None:
    folder.mkdir(parents=True)
    for name, size in files.items():
        with open(folder / name, "wb") as file:
            file.truncate(size)


@dataclasses.dataclass(frozen=True)
class Job:
    """What a guest does once it is up: commands one after the other, or one program on its console."""

    commands: tuple = ()
    shell: tuple = ()
    environment: tuple = ()  # (name, value)

    def document(self, topology: guest.Topology, host: int) -> dict:
        name = next(key for key, value in guest.TOPOLOGIES.items() if value is topology)
        document = {"host": host, "topology": name, "modules": list(topology.modules), "memdevs": len(topology.memdevs()),
                    "soft_reserved": bool(topology.soft_reserved_bytes), "environment": dict(self.environment),
                    "commands": list(self.commands), "exchange": topology.hosts > 1}
        return {**document, "shell": list(self.shell)} if self.shell else document


class Machine:
    """A running guest. It dies with the thread that made it, and with close()."""

    def __init__(self, folder: RunFolder, host: int, kernel: Kernel, initramfs: pathlib.Path, job: Job,
                 forwards: tuple = (), console: bool = False):
        self.host = host
        share = folder.share(host)
        folder.fresh_share(host)
        (share / "tree").write_text(f"{ROOT}\n", "utf-8")
        (share / "modules").write_text(f"{kernel.modules.parent}\n", "utf-8")
        (share / "job.json").write_text(json.dumps(job.document(folder.topology, host)), "utf-8")
        self.log = folder.host(host) / "serial.log"
        self._events = share / "events.jsonl"
        self._read = 0
        files = guest.Files(str(kernel.boots), str(initramfs), str(share), str(folder.media), str(folder.labels(host)),
                            str(folder.exchange))
        self.command = guest.command_line(need_emulator(), folder.topology, files, forwards,
                                          "mon:stdio" if console else "stdio")
        self.processor_s = 0.0  # of QEMU, known once this is closed
        self.began = time.monotonic()
        if console:
            self._process = subprocess.Popen(self.command, preexec_fn=_die_with_parent)
        else:
            with open(self.log, "ab") as log:
                self._process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                 start_new_session=True, preexec_fn=_die_with_parent)

    def events(self) -> list:
        """What the guest reported since the last call."""
        try:
            with open(self._events, "rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[:text.rfind(b"\n") + 1]  # a line that is being written waits for the next call
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def alive(self) -> bool:
        # It stays until close(), which asks what it took.
        return self._process.returncode is None and os.waitid(
            os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self, limit_s=None) -> int:
        return self._process.wait(limit_s)

    def log_tail(self, lines: int = 25) -> str:
        try:
            text = self.log.read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join(line.rstrip() for line in text.splitlines()[-lines:])

    def close(self) -> None:
        if self._process.returncode is not None:
            return
        os.kill(self._process.pid, signal.SIGKILL)  # Popen.kill() would collect one that has ended already
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self.processor_s = _processor_s(self._process.pid)
        self._process.wait()


def _processor_s(pid: int) -> float:
    """What a process that has ended took, and was not asked for yet: guests run side by side, and this is of one."""
    words = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here: beside threads a child must not wait for the loader's lock


def _die_with_parent() -> None:
    PR_SET_PDEATHSIG = 1
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
