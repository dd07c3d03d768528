# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: a program as it is, or the same program under `terrace run`.

An app (a function of one Side) starts its programs through it and returns what must be the same on both sides: name
-> text. Both sides work in the same folder, one after the other, so that paths cannot make a difference. Threads:
the one that runs the app; the sampler of memory has its own.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

from devlib.apps.memory import MemorySampler, children_of
from devlib.output import Failure
from terrace_harness import process_alive, wait_until

PYTHON = "/usr/bin/python3"
# Programs see nothing of these of ours: a locale, a preload or an option would be a difference of its own.
_UNSET = ("LD_PRELOAD", "TERRACE_SUPPLY", "TERRACE_MIN_SIZE", "TERRACE_SOCKET", "TERRACE_MALLOC_LIBRARY",
          "ASAN_OPTIONS", "MALLOC_CONF", "PYTHONPATH", "PYTHONSTARTUP",
          "VIRTUAL_ENV", "JAVA_TOOL_OPTIONS", "NODE_OPTIONS", "MAKEFLAGS", "CI")
# Of all runs of a side: sums, but of peaks the largest.
_COUNTED = ("runs", "unsupervised", "no_stats", "processes", "leased_bytes_peak", "live_bytes_peak", "allocations_ddr",
            "allocations_cxl", "promotions", "demotions", "stalled_us", "forks_switched", "forks_refused", "fallbacks",
            "refused")


class AppFailure(Failure):
    """A program did what no plain run of it does: a wrong exit code, a hang, an answer that cannot be."""


class AppSkipped(Exception):
    """This machine lacks what the app needs; the text says what to install."""


def digest(data) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:32]


def file_digest(path) -> str:
    return digest(pathlib.Path(path).read_bytes())


def own_user() -> None:
    """Before exec: the group and user nobody, whatever this process is."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


class Side:
    def __init__(self, folder: pathlib.Path, service=None, run_options: list = (), quick: bool = False):
        """`service`: the Harness whose pool `terrace run` leases from; None is the plain side."""
        self.folder, self.quick = folder, quick
        self.name = "terrace" if service else "plain"
        self._service, self._options = service, list(run_options)
        self._stats_files, self._commands, self._running = [], [], []
        self._sampler = MemorySampler()
        self._seconds = None
        self.rates, self.said = {}, []

    # -- what apps use

    @property
    def tiered(self) -> bool:
        return self._service is not None

    def run(self, *command, code: int = 0, stdin: bytes = b"", timeout: float = 600, cwd=None, as_user: bool = False,
            env=None) -> bytes:
        """Runs a program to its end and returns its output; AppFailure unless it exits with `code`."""
        process = self.start(*command, cwd=cwd, as_user=as_user, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill(process)
            raise AppFailure(f"still running after {timeout:g} s: {self.shell(command)}") from None
        finally:
            self._ended(process)
        text = self._hear(err)
        if process.returncode != code:
            raise AppFailure(f"exit code {process.returncode} instead of {code}: {self.shell(command)}\n"
                             f"{out.decode(errors='replace')[-1500:]}{text[-3000:]}")
        return out

    def start(self, *command, cwd=None, as_user: bool = False, env=None, **options):
        """Starts a program; the app ends it with stop(). Its output goes to log() unless said otherwise."""
        words = self._words([str(word) for word in command])
        self._commands.append(words)
        log = None
        if "stdout" not in options:
            log = open(self.folder / "log", "ab")  # noqa: SIM115, closed below
            options.update(stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if as_user and os.geteuid() == 0:
            options["preexec_fn"] = own_user
        try:
            process = subprocess.Popen(words, cwd=cwd or self.folder, env=self.environment(env), start_new_session=True,
                                       **options)
        except PermissionError as refused:
            raise AppSkipped(f"the user nobody cannot run {words[0]}: {refused.strerror}") from None
        finally:
            if log:
                log.close()
        self._running.append(process)
        self._sampler.watch(process.pid, self.tiered)
        return process

    def stop(self, process, number: int = signal.SIGTERM, code=0, timeout: float = 120) -> None:
        """Ends a started program by a signal, which `terrace run` passes on; AppFailure unless it exits with `code`."""
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill(process)
            raise AppFailure(f"does not end by {signal.Signals(number).name}: {shlex.join(process.args)}\n"
                             f"{self.log()[-3000:]}") from None
        finally:
            self._ended(process)
        if code is not None and process.returncode != code:
            raise AppFailure(f"exit code {process.returncode} instead of {code}: {shlex.join(process.args)}\n"
                             f"{self.log()[-3000:]}")

    def wait_for(self, ready, process, what: str, timeout: float = 60):
        """Polls `ready` (OSError is "not yet") while `process` lives."""
        def look():
            if process.poll() is not None:
                raise AppFailure(f"ended with {process.returncode} before {what}: {shlex.join(process.args)}\n"
                                 f"{self.log()[-3000:]}")
            try:
                return ready()
            except OSError:
                return None
        return wait_until(look, timeout, what)

    @contextlib.contextmanager
    def clock(self):
        """What is timed; without it, all that the app does."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds = (self._seconds or 0) + time.monotonic() - begin

    def rate(self, name: str, value: float) -> None:
        """A number of the program's own (operations a second), reported and not compared."""
        self.rates[name] = value

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def script(self, name: str, text: str) -> pathlib.Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def open_to_all(self) -> pathlib.Path:
        """A folder that a program without privileges may write, below `folder`."""
        path = self.folder / "open"
        path.mkdir()
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        return path

    # -- what the runner uses

    def measured(self, action) -> dict:
        """Runs the app: what it returned, and seconds, peak memory, what `terrace run` counted."""
        begin = time.monotonic()
        try:
            with self._sampler:
                results = action(self)
        finally:
            wall = time.monotonic() - begin
            self.end()
        self._hear(self.log().encode())
        return {"results": results, "seconds": self._seconds if self._seconds is not None else wall,
                "rss_bytes_peak": self._sampler.peak_bytes, "rates": self.rates, "terrace": self._counted(),
                "said": sorted(set(self.said))}

    def end(self) -> None:
        """Ends whatever an app that failed left running."""
        for process in list(self._running):
            self.kill(process)

    def kill(self, process) -> None:
        """By pid, the supervisor last: it would outlive its program otherwise."""
        tree = [*reversed(children_of(process.pid)), process.pid]
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)
        wait_until(lambda: not any(process_alive(pid) for pid in tree), 30, "the end of killed processes")
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
        self._ended(process)

    def commands(self) -> list:
        """What was started, as lines for a shell."""
        return [shlex.join(words) for words in self._commands]

    def shell(self, command) -> str:
        return shlex.join(self._commands[-1] if self._commands else [str(word) for word in command])

    def environment(self, more=None) -> dict:
        environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
        environment.update(LC_ALL="C.UTF-8", TZ="UTC", HOME=str(self.folder), TMPDIR=str(self.folder),
                           PYTHONHASHSEED="1", PYTHONDONTWRITEBYTECODE="1", XDG_RUNTIME_DIR=str(self.folder))
        if self.tiered:
            environment.update(self._service.env, TERRACE_SOCKET=str(self._service.socket))
        environment.update(more or {})
        return environment

    def _words(self, command: list) -> list:
        program = command[0] if "/" in command[0] else shutil.which(command[0])
        if program is None:
            raise AppSkipped(f"no {command[0]}")
        words = [program, *command[1:]]
        if not self.tiered:
            return words
        # Beside the work folder: a program may be checked for leaving nothing in its own.
        stats = self._service.directory / "stats" / f"{len(self._stats_files)}.json"
        self._stats_files.append(stats)
        return [self._service.terrace, "run", *self._options, "--stats", str(stats), "--", *words]

    def _ended(self, process) -> None:
        self._sampler.forget(process.pid)
        if process in self._running:
            self._running.remove(process)

    def _hear(self, err: bytes) -> str:
        text = err.decode(errors="replace")
        self.said += [line for line in text.splitlines() if line.startswith("terrace: ")]
        return text

    def _counted(self) -> dict:
        total = dict.fromkeys(_COUNTED, 0)
        for path in self._stats_files:
            if not path.exists():
                total["no_stats"] += 1
                continue
            one = json.loads(path.read_text())
            total["runs"] += 1
            if not one.get("supervised"):
                total["unsupervised"] += 1
                continue
            total["leased_bytes_peak"] = max(total["leased_bytes_peak"], one["cxl"]["leased_bytes_peak"])
            total["live_bytes_peak"] = max(total["live_bytes_peak"], one["peak_live_bytes"])
            total["forks_switched"] += one["forks"]["switched_private"]
            total["forks_refused"] += one["forks"]["refused"]
            for tier in ("ddr", "cxl"):
                total[f"allocations_{tier}"] += one[tier]["allocations"]
            for name in ("promotions", "demotions", "stalled_us"):
                total[name] += one["migration"][name]
            for name in ("processes", "fallbacks", "refused"):
                total[name] += one[name]
        return total if self.tiered else {}
