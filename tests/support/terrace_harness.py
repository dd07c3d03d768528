# SPDX-License-Identifier: Apache-2.0
"""A private Terrace service for integration tests: one daemon in its own runtime directory, and the CLI.

    with Harness(devices={"a": "64M", "b": "64M"}) as t:
        t.start()
        t.create_pool("p")
        lease = t.cli("lease", "grant", "--pool", "p", "--size", "8M").json["lease"]
        t.kill()          # SIGKILL
        t.start()         # same runtime directory, same state file

Everything lies below one temporary directory; leaving the `with` block (or calling close()) ends what was
started here, by pid, unmounts what the daemon mounted there and removes its memory from /dev/shm. A daemon
started through start() also dies with the test process.

Binaries come from $TERRACE_BUILD_DIR (or build_dir=, or --build-dir when main() is used), or from the
PATH-like overrides $TERRACED and $TERRACE. Standard library only.
"""

import atexit
import ctypes
import json as json_module
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from ready_process import ReadyProcess  # noqa: E402

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SKIP_EXIT_CODE = 77

# Places of each binary below a build directory.
_PLACES = {
    "terraced": ("daemon/terraced", "daemon/main/terraced", "daemon/rpc/terraced", "bin/terraced"),
    "terrace": ("cli/terrace", "bin/terrace"),
    "libterrace_heap.so": ("allocator/libterrace_heap.so", "lib/libterrace_heap.so"),
    "libterrace_malloc.so": ("allocator/libterrace_malloc.so", "allocator/preload/libterrace_malloc.so",
                             "lib/libterrace_malloc.so"),
}
_OVERRIDES = {"terraced": "TERRACED", "terrace": "TERRACE", "libterrace_malloc.so": "TERRACE_MALLOC"}


class HarnessError(AssertionError):
    """The service did not do what the test needs it to do before the test proper."""


def build_directory(explicit=None):
    """The build directory: explicit, else $TERRACE_BUILD_DIR, else build/dev of the checkout."""
    return pathlib.Path(explicit or os.environ.get("TERRACE_BUILD_DIR") or REPOSITORY / "build" / "dev").resolve()


def find_binary(name, build_dir=None):
    """The absolute path of a built file ("terrace", "terraced", "libterrace_malloc.so", or a path below the build
    directory). Raises HarnessError when it was not built."""
    override = os.environ.get(_OVERRIDES.get(name, ""), "")
    if override:
        return os.path.abspath(override)
    root = build_directory(build_dir)
    for place in _PLACES.get(name, (name,)):
        if (root / place).is_file():
            return str(root / place)
    raise HarnessError(f"{name} is not in {root}; build it, or set TERRACE_BUILD_DIR")


# However little a test allows: a machine that has others to serve is no defect, and a test that passes does not get
# longer by it. Who promises a time measures it.
PATIENCE_S = 60.0


def wait_until(predicate, timeout=10.0, what="the condition", interval=None):
    """Calls `predicate` until it returns something true, and returns that. HarnessError after `timeout` seconds, and not
    before PATIENCE_S.
    The pause between calls is `interval`; without one it grows with the wait, from 20 ms to a quarter of a second: a
    predicate that starts a program must not take the processor from what it waits for."""
    begin = time.monotonic()
    timeout = max(timeout, PATIENCE_S)
    while True:
        value = predicate()
        if value:
            return value
        waited = time.monotonic() - begin
        if waited > timeout:
            raise HarnessError(f"{what} did not come true within {timeout} s")
        time.sleep(interval or max(0.02, min(waited / 8, 0.25)))


_leaks_looked_for = set()
_BEFORE_MAIN = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES")
_ready, _ready_lock = {}, threading.Lock()


def _starts_anew(arguments):
    """Whether `terrace ARGUMENTS` of a sanitized build is started for it, and searches for leaks at its end: the first run of
    each verb in a test program, and what starts other programs, which inherit the environment."""
    words = [str(word) for word in arguments]
    verb = tuple(word for word in words[:3] if not word.startswith("-"))[:2]
    if {"run", "daemon", "exec", "hold"} & set(words) or verb not in _leaks_looked_for:
        _leaks_looked_for.add(verb)
        return True
    return False


def _ready_terrace(terrace, library):
    """The one that forks for calls from where this thread is: user, name spaces, process."""
    key = (terrace, os.getpid(), os.getresuid(), *(os.readlink(f"/proc/thread-self/ns/{name}") for name in ("mnt", "net", "uts")))
    with _ready_lock:
        if key not in _ready:
            # Without the call chains of allocations, of which ASan keeps 30 by default: they cost as much as a short run.
            options = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "detect_leaks=0:malloc_context_size=1")))
            _ready[key] = ReadyProcess(terrace, library, {**os.environ, "ASAN_OPTIONS": options})
            atexit.register(_ready[key].close)
        return _ready[key]


def run_terrace(terrace, arguments, environment, timeout=120.0, stdin=None):
    """subprocess.run of `terrace ARGUMENTS`. Under ASan most of a short run is the start of the program: but for the runs of
    _starts_anew() it is a fork of one that has started already (ready_process.py), with all checks but that for leaks."""
    arguments = [str(argument) for argument in arguments]
    library = pathlib.Path(terrace).parents[1] / "tests/support/libterrace_ready_process.so"
    if (not _starts_anew(arguments) and library.is_file()
            and all(environment.get(name) == os.environ.get(name) for name in _BEFORE_MAIN)):
        try:
            code, out, err = _ready_terrace(terrace, library).run([terrace, *arguments], environment, timeout, stdin)
            return subprocess.CompletedProcess([terrace, *arguments], code, out, err)
        except ValueError:
            pass  # more arguments than a request holds
    return subprocess.run([terrace, *arguments], input=stdin, stdin=subprocess.DEVNULL if stdin is None else None,
                          capture_output=True, text=True, errors="replace", timeout=timeout, env=environment, check=False)


def process_alive(pid):
    """Whether `pid` runs (a zombie does not)."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def need_build_for_all():
    """Skips where users other than root cannot run what was built: a checkout below /root."""
    for folder in (build_directory().resolve() / "x").parents:
        if not folder.stat().st_mode & 0o001:
            raise unittest.SkipTest(f"other users cannot run the program where it was built: {folder} is closed to them")


def can_mount():
    """Whether this process may mount a tmpfs (in a throw-away mount namespace, so that nothing stays)."""
    if os.geteuid() != 0:
        return False
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return probe.returncode == 0


def _die_with_parent():
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class CliResult:
    """What one run of a program did: code, out, err, and `json` (its output parsed, where that was asked for)."""

    def __init__(self, arguments, code, out, err, want_json):
        self.arguments, self.code, self.out, self.err = arguments, code, out, err
        self.json = None
        if want_json and out.strip():
            try:
                self.json = json_module.loads(out)
            except ValueError as error:
                raise HarnessError(f"not JSON ({error}):\n{self}") from error

    def __str__(self):
        return f"$ {' '.join(map(str, self.arguments))}\nexit {self.code}\n{self.out}{self.err}"


class Harness:
    """One private service. Not thread-safe, except cli() and run(), which only start processes."""

    def __init__(self, devices=None, daemon_args=(), env=None, build_dir=None, name="test", mount=True, keep=None):
        """`devices`: emulated devices, name -> size text. `mount=False` passes --no-mount and an object directory
        of our own. `keep` (or $TERRACE_TEST_KEEP=1) leaves the directory in place for inspection."""
        self.build_dir = build_dir
        self.terraced = find_binary("terraced", build_dir)
        self.terrace = find_binary("terrace", build_dir)
        self.devices = dict(devices if devices is not None else {"a": "64M", "b": "64M"})
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"terrace-{name}-"))
        self.runtime = self.directory / "run"
        self.state = self.directory / "state.db"
        self.socket = self.runtime / "terraced.sock"
        self.log = self.directory / "terraced.log"
        self.daemon_args = [str(argument) for argument in daemon_args]
        if not mount:
            shm = pathlib.Path(tempfile.mkdtemp(prefix=f"terrace-{name}-", dir="/dev/shm"))
            self.daemon_args += ["--no-mount", "--object-dir", str(shm)]
            self._shm = {shm}
        else:
            self._shm = set()
        self.env = dict(env or {})
        self.process = None
        self._tracked = []  # pids of daemons that were not started by start()
        self._keep = bool(os.environ.get("TERRACE_TEST_KEEP")) if keep is None else keep

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- the daemon

    @property
    def pid(self):
        return self.process.pid if self.process and self.process.poll() is None else None

    def daemon_command(self):
        """The command line that start() uses."""
        command = [self.terraced, "--runtime-dir", str(self.runtime), "--state", str(self.state)]
        for name, size in self.devices.items():
            command += ["--emulate", f"{name}={size}"]
        return command + self.daemon_args

    def start(self, *extra_args, failpoints=None, wait=True, timeout=60.0):
        """Starts the daemon, and waits until its socket answers. `failpoints` arms TERRACE_FAILPOINTS for this run."""
        if self.pid:
            raise HarnessError("the daemon runs already")
        env = self.environment()
        env.pop("TERRACE_FAILPOINTS", None)
        if failpoints:
            env["TERRACE_FAILPOINTS"] = failpoints
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.daemon_command() + [str(argument) for argument in extra_args],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                            start_new_session=True, preexec_fn=_die_with_parent)
        if wait:
            self.wait_ready(timeout)
        return self.process

    def fails_to_start(self, timeout=60.0):
        """Starts a daemon that ends with an error; returns the end of its log. That its socket answers says nothing: what
        it fails at may come after that."""
        code = self.start(wait=False).wait(timeout)
        self.process = None
        if code == 0:
            raise HarnessError(f"terraced ended without an error:\n{self.log_tail()}")
        return self.log_tail()

    def wait_ready(self, timeout=60.0):
        """Until the socket accepts. HarnessError with the end of the log when the daemon died instead."""
        def ready():
            if self.process is not None and self.process.poll() is not None:
                raise HarnessError(f"terraced ended with {self.process.returncode}:\n{self.log_tail()}")
            return self.answers()
        try:
            wait_until(ready, timeout, "a connection to the daemon")
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self.log_tail()}") from None
        self._note_object_directory()

    def answers(self):
        """Whether somebody accepts connections on the socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            try:
                client.connect(str(self.socket))
                return True
            except OSError:
                return False

    def stop(self, timeout=60.0):
        """SIGTERM, and waits. Returns the exit status."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self, timeout=60.0):
        """SIGKILL, and waits. Returns the exit status (-9)."""
        return self._end(signal.SIGKILL, timeout)

    def restart(self, *extra_args, hard=False, **options):
        """stop() (or kill() when `hard`), then start()."""
        if self.process is not None:
            self.kill() if hard else self.stop()
        return self.start(*extra_args, **options)

    def wait_dead(self, timeout=60.0):
        """Waits for the daemon to end by itself (a failpoint, a signal). Returns its exit status."""
        process, self.process = self.process, None
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process = process
            raise HarnessError(f"the daemon still runs after {timeout} s\n{self.log_tail()}") from None

    def track(self, pid):
        """Ends `pid` in close(): for daemons started by the CLI."""
        self._tracked.append(pid)

    def log_tail(self, lines=30):
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def _end(self, number, timeout):
        if self.process is None:
            raise HarnessError("no daemon was started")
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait_dead(timeout)

    # -- programs

    def environment(self, **extra):
        """The environment for programs that use this service."""
        env = dict(os.environ, TERRACE_SOCKET=str(self.socket))
        env.update(self.env)
        env.update({key: str(value) for key, value in extra.items()})
        return env

    def cli(self, *arguments, check=True, json=True, timeout=120.0, env=None, stdin=None):
        """Runs `terrace`. With json=True --json is passed and `.json` holds the document. check=True raises
        HarnessError unless it exits 0; an integer expects that exit code."""
        arguments = (["--json"] if json else []) + [str(argument) for argument in arguments]
        return self._checked([self.terrace, *arguments], check, json, timeout,
                             lambda: run_terrace(self.terrace, arguments, self.environment(**(env or {})), timeout, stdin))

    def run(self, *command, check=True, want_json=False, timeout=120.0, env=None, stdin=None):
        """Runs any program with TERRACE_SOCKET set."""
        command = [str(part) for part in command]
        return self._checked(command, check, want_json, timeout, lambda: subprocess.run(
            command, input=stdin, stdin=subprocess.DEVNULL if stdin is None else None, capture_output=True, text=True,
            errors="replace", timeout=timeout, env=self.environment(**(env or {})), check=False))

    def _checked(self, command, check, want_json, timeout, run):
        """What `run` did, with the exit code that `check` expects."""
        try:
            done = run()
        except subprocess.TimeoutExpired as expired:
            raise HarnessError(f"still running after {timeout} s: {' '.join(command)}\n{expired.stdout}\n"
                               f"{expired.stderr}\ndaemon log:\n{self.log_tail()}") from None
        expected = 0 if check is True else check
        if check is not False and done.returncode != expected:
            raise HarnessError(f"expected exit {expected}: $ {' '.join(command)}\nexit {done.returncode}\n"
                               f"{done.stdout}{done.stderr}\ndaemon log:\n{self.log_tail()}")
        return CliResult(command, done.returncode, done.stdout, done.stderr, want_json)

    def popen(self, *command, env=None, **options):
        """Starts any program with TERRACE_SOCKET set; it dies with this process. The caller waits for it."""
        return subprocess.Popen([str(part) for part in command], env=self.environment(**(env or {})),
                                preexec_fn=_die_with_parent, **options)

    # -- short cuts

    def create_pool(self, name="p", devices=None):
        """One pool of all (or the named) emulated devices, adopted first."""
        serials = [f"emu:{device}" for device in (devices or self.devices)]
        arguments = [part for serial in serials for part in ("--device", serial)]
        return self.cli("pool", "create", name, "--adopt", *arguments).json["pool"]

    def grant(self, size, pool="p", *arguments, check=True):
        """A lease, as its JSON object."""
        result = self.cli("lease", "grant", "--pool", pool, "--size", size, *arguments, check=check)
        return result.json.get("lease", result.json)

    def leases(self):
        """Every lease there is, by id."""
        return {lease["id"]: lease for lease in self.cli("lease", "list").json["leases"]}

    def active_leases(self):
        """Those that somebody has: one that went back is shown until it is erased, which takes its time."""
        return {key: lease for key, lease in self.leases().items() if lease["phase"] in ("active", "revoking", "waiting")}

    def check_invariants(self):
        """`terrace check`: raises HarnessError when the daemon finds a broken invariant."""
        return self.cli("check")

    def wait_free(self, pool="p", timeout=30.0):
        """Until nothing in `pool` is leased or being scrubbed."""
        def idle():
            info = self.cli("pool", "show", pool).json["pool"]
            return info if info["free_bytes"] == info["capacity_bytes"] else None
        return wait_until(idle, timeout, f"pool {pool} being free again", interval=0.1)

    # -- the end

    def close(self):
        """Ends the daemon and removes everything. Safe to call twice."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        for pid in self._tracked:
            if process_alive(pid):
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: not process_alive(pid), 30, f"the end of process {pid}")
        self._tracked.clear()
        if self._keep:
            print(f"kept: {self.directory}", file=sys.stderr)
            return
        for mount in self._mounts():
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        for directory in self._shm:
            shutil.rmtree(directory, ignore_errors=True)
        self._shm.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _mounts(self):
        """Mount points below our directory, innermost first."""
        found = []
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
            point = line.split()[4].encode().decode("unicode_escape")
            if point.startswith(f"{self.directory}/"):
                found.append(point)
        return sorted(found, key=len, reverse=True)

    def _note_object_directory(self):
        """Remembers where the daemon keeps its memory, when that is in /dev/shm, for close()."""
        result = self.cli("status", check=False, timeout=60)
        server = (result.json or {}).get("server", {})
        directory = server.get("object_directory", "")
        if directory.startswith("/dev/shm/") and len(pathlib.Path(directory).parts) >= 4:
            self._shm.add(pathlib.Path(directory))


def main():
    """unittest.main() that takes --build-dir DIR first, and exits with 77 when every test was skipped."""
    if "--build-dir" in sys.argv:
        at = sys.argv.index("--build-dir")
        os.environ["TERRACE_BUILD_DIR"] = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    # Ignored by what a shell started in the background, and by its children: Ctrl-C would end nothing here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    program = unittest.main(module="__main__", exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIP_EXIT_CODE if result.testsRun and len(result.skipped) >= result.testsRun else 0)
