# SPDX-License-Identifier: Apache-2.0
"""What every suite of this folder stands on: a program under a preload library, run by shim_fake_run (the supervisor over a
pool that lives in this process) with a DDR budget so small that leased memory is really used; the numbers of each run are
checked for that. By hand:
    TERRACE_BUILD_DIR=build/dev tests/integration/shim/shim_fork_test.py [Class[.test]]
A program that this machine lacks is reported as a skip.
"""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(os.environ.get("TERRACE_BUILD_DIR") or pathlib.Path(__file__).resolve().parents[3] / "build/dev")
HERE = BUILD / "tests/integration/shim"
LIBRARY = pathlib.Path(os.environ.get("TERRACE_MALLOC") or BUILD / "allocator/libterrace_malloc.so")
WHOLE_HEAP = LIBRARY.name == "libterrace_heap.so"  # small requests too: there is no --min-size
# The whole suite runs twice: memory stays where it is first put, and memory that the engine moves as fast as it can.
MIGRATES = os.environ.get("TERRACE_TEST_POLICY", "static") != "static"


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def needs(*programs):
    missing = [program for program in programs if shutil.which(program) is None]
    return unittest.skipIf(missing, f"not on this machine: {', '.join(missing)}")


def tree_of(pid):
    """The process and all below it that still are its descendants."""
    pids = [pid]
    for children in pathlib.Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            pids += [below for child in children.read_text().split() for below in tree_of(int(child))]
        except OSError:
            pass  # gone meanwhile
    return pids


def where_they_wait(pids):
    """What each thread does, for a run that does not end: state, system call and kernel stack."""
    lines = []
    for pid in pids:
        for task in sorted(pathlib.Path("/proc").glob(f"{pid}/task/*")):
            lines.append(f"--- process {pid}, thread {task.name}")
            for name in ("comm", "wchan", "syscall", "stack"):
                try:
                    lines.append(f"{name}: {(task / name).read_text().strip()}")
                except OSError as error:
                    lines.append(f"{name}: {error}")
    return "\n".join(lines)


def run_to_its_end(command, timeout, input=None, **options):
    """subprocess.run, but a run that does not end fails with what it waits for, and leaves nothing behind: the
    program would otherwise hold the pipes of a supervisor that was killed."""
    options.setdefault("stdin", subprocess.PIPE if input is not None else None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                          **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            pids = tree_of(process.pid)
            report = where_they_wait(pids)
            for pid in reversed(pids):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                out, err = process.communicate(timeout=10)
            except subprocess.TimeoutExpired as still:  # a process that left the tree has the pipes
                out, err = (str(part or "") for part in (still.stdout, still.stderr))
            raise AssertionError(f"{command} was not done after {timeout} s\n{report}\n{out[-2000:]}\n{err[-4000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Run:
    """One supervised run: code, out, err, and its numbers by name."""

    def __init__(self, code, out, err, stats):
        self.code, self.out, self.err, self.stats = code, out, err, stats


class ShimTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-shim-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = dict(os.environ, TERRACE_MALLOC_LIBRARY=str(LIBRARY), LC_ALL="C", HOME=str(self.folder),
                                PYTHONHASHSEED="1", PYTHONDONTWRITEBYTECODE="1", XDG_RUNTIME_DIR=str(self.folder),
                                TERRACE_TEST_FOLD_SOON="1")
        for name in ("LD_PRELOAD", "TERRACE_SUPPLY", "TERRACE_MIN_SIZE", "ASAN_OPTIONS"):
            self.environment.pop(name, None)

    def shim_command(self, command, *options):
        program = shutil.which(str(command[0]))
        return [str(HERE / "shim_fake_run"), "--stats", str(self.folder / "stats.json"), *map(str, options), "--",
                program, *map(str, command[1:])]

    def shim(self, command, *options, code=0, timeout=90, **popen):
        """Runs `command` under the shim, expecting `code`."""
        popen.setdefault("cwd", self.folder)
        popen.setdefault("preexec_fn", die_with_parent)
        done = run_to_its_end(self.shim_command(command, *options), timeout, env=self.environment, **popen)
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        stats = json.loads((self.folder / "stats.json").read_text())
        return Run(done.returncode, done.stdout, done.stderr, stats)

    def plain(self, command, **popen):
        popen.setdefault("cwd", self.folder)
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace",
                              timeout=90, env=self.environment, check=True, **popen)
        return done

    def assert_used_cxl(self, run, least=1):
        self.assertGreaterEqual(run.stats["allocations_cxl"], least, run.stats)
        self.assertGreaterEqual(run.stats["leases_granted"], 1, run.stats)
        self.assertEqual(run.stats["leases_granted"], run.stats["leases_released"], run.stats)
        self.assertEqual(run.stats["refused"], 0, run.stats)
        self.assertEqual(run.stats["forks_failed"], 0, run.stats)


def run_suite(*programs):
    """Runs the calling file's tests; the case programs that it needs must have been built. 77 when all were skipped."""
    for name in ("shim_fake_run", *programs):
        if not (HERE / name).is_file():
            sys.exit(f"{HERE / name} was not built")
    result = unittest.main(exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    if len(result.skipped) == result.testsRun:
        sys.exit(77)
