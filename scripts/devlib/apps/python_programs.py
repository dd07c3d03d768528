# SPDX-License-Identifier: Apache-2.0
"""Debian's python3: a program that forks, maps, threads and collects; and CPython's own tests, case by case."""

import contextlib
import subprocess
import sysconfig
import xml.etree.ElementTree

from devlib.apps.registry import App
from devlib.apps.side import PYTHON, AppFailure, Side

PROGRAM = """
import gc, hashlib, io, json, mmap, multiprocessing as mp, os, random, subprocess, sys, threading, zlib
SIZE = int(sys.argv[1])
chance = random.Random(3)

def told(name, *values):
    print(name, *values, flush=True)

rows = [{'k': chance.random(), 'v': list(range(chance.randrange(40)))} for _ in range(SIZE)]
rows.sort(key=lambda row: row['k'])
text = json.dumps(rows)
told('json', hashlib.sha256(text.encode()).hexdigest(), len(json.loads(text)))

class Node:
    def __init__(self, other): self.other, self.self, self.data = other, self, bytearray(chance.randrange(5000))
gc.collect(); gc.disable()
last = None
for at in range(SIZE // 4):
    last = Node(last if at % 100 else None)
last = None
told('garbage', gc.collect() >= SIZE // 4)
gc.enable()

data = [bytearray(chance.randbytes(1 << 18)) for _ in range(120)]
def work(number):
    data[number % 120][:] = bytes([number]) * (1 << 18)
    more = {at: str(at) * 5 for at in range(20000)}
    return hashlib.sha256(b''.join(data) + json.dumps(more).encode()).hexdigest()

with mp.get_context('fork').Pool(3, maxtasksperchild=1) as pool:
    told('forked pool', len(set(pool.map(work, range(24), chunksize=1))))
told('data after forks', hashlib.sha256(b''.join(data)).hexdigest())

sums = [None] * 6
def threaded(at):
    own = random.Random(at)
    kept = []
    for _ in range(SIZE // 10):
        kept.append(own.randbytes(own.randrange(1, 40000)))
        if len(kept) > 60: kept.pop(own.randrange(60))
    sums[at] = zlib.crc32(b''.join(kept))
threads = [threading.Thread(target=threaded, args=(at,)) for at in range(6)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
told('threads', *sums)

stream = io.BytesIO()
with io.BufferedWriter(io.FileIO('file', 'w'), 1 << 20) as file:
    for _ in range(200): file.write(chance.randbytes(100000))
with open('file', 'rb', 0) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
    whole = file.read()
    into = bytearray(len(whole))
    file.seek(0); told('readinto', file.readinto(into))
    told('files', len({hashlib.sha256(kind).hexdigest() for kind in (view, whole, into)}))
for at in range(8):
    out = subprocess.run(['/usr/bin/sha256sum'], input=whole[at:], capture_output=True, check=True).stdout
    assert out.split()[0].decode() == hashlib.sha256(whole[at:]).hexdigest()
pid = os.fork()
if not pid:
    os._exit(7 if zlib.crc32(whole) == zlib.crc32(into) else 8)
told('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
SUITES = ("test_fork1", "test_mmap", "test_threading", "test_multiprocessing_fork", "test_io", "test_gc")
# The longest ones, in a quick run, in part.
QUICK = {"test_multiprocessing_fork": ("WithProcessesTestPool*", "WithProcessesTestProcess*",
                                       "WithProcessesTestSharedMemory*"),
         "test_io": ("CBuffered*", "CTextIO*", "CIOTest*")}


def _program(side: Side) -> dict:
    script = side.script("program.py", PROGRAM)
    out = side.run(PYTHON, script, "20000" if side.quick else "120000").decode()
    return dict(line.split(" ", 1) for line in out.splitlines())


def _suite(name: str, side: Side) -> dict:
    """Outcome of each test case. A case that a plain run fails or skips must do so again."""
    results = side.folder / "results.xml"
    filters = [word for pattern in QUICK.get(name, ()) if side.quick for word in ("-m", pattern)]
    command = (PYTHON, "-m", "test", "--junit-xml", results, *filters, name)
    code = None
    # What hangs without Terrace is begun again: test_multiprocessing_fork does, once in some dozens of runs.
    for seconds in (900,) if side.tiered else (40, 40, 900) if side.quick else (300, 900):
        begin = side.start(*command, cwd=side.folder)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = begin.wait(seconds)
            break
        side.kill(begin)
        results.unlink(missing_ok=True)
    if code is None:
        raise AppFailure(f"still running after {seconds} s: {name}\n{side.log()[-3000:]}")
    if not results.exists():
        raise AppFailure(f"{name}: exit code {code} and no results\n{side.log()[-4000:]}")
    outcomes = {"exit code": str(code)}
    for case in xml.etree.ElementTree.parse(results).iter("testcase"):
        kinds = sorted({child.tag for child in case if child.tag in ("failure", "error", "skipped")})
        outcomes[case.get("name", "?")] = " ".join(kinds) or "passed"
    if code != 0:
        outcomes["log"] = side.log()[-1500:]
    return outcomes


_TESTS = f"{sysconfig.get_path('stdlib')}/test"
# Twenty-four forked workers of some 100 MB, three at a time: what ended ones held comes back a little later.
APPS = [App("python3", "json, gc, forked pools, threads, mmap, subprocesses", _program, files={PYTHON: "python3"},
            cxl="1900M")]
for _name in SUITES:
    APPS.append(App(_name, f"CPython's own {_name}, case by case", lambda side, name=_name: _suite(name, side),
                    files={f"{_TESTS}/{_name}.py": "libpython3.11-testsuite"}, ddr="4M"))
