# SPDX-License-Identifier: Apache-2.0
"""A holder that ignores the notice loses its memory; nobody after it sees a byte of what it wrote."""

import queue
import subprocess
import threading
import time

from demo.report import Report, mib
from terrace_harness import HarnessError, wait_until

SIZE = "256M"
EXIT_SIGBUS = 42


def show_revocation(service, report: Report) -> None:
    report.part("e. revoking a lease whose holder ignores the notice")
    holder = service.build_dir / "tests/crash/stubborn_holder"
    process = service.popen(holder, "--pool", "main", "--size", SIZE, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        lines = _lines_of(process)
        holding = _next(lines, "holding").split()
        lease_id, size, extents = int(holding[1]), int(holding[3]), holding[4]
        report.note(f"lease {lease_id} of {mib(size)} is full of 0xa5 at {extents}")
        begin = time.monotonic()
        service.cli("lease", "revoke", lease_id, "--grace", "500ms", "--reason", "demo")
        notice = _next(lines, "notice revoking")
        report.check("revoke: the holder was told first, and ignored it", notice, True)
        sigbus = _next(lines, "SIGBUS")
        after = time.monotonic() - begin
        code = process.wait(30)
        report.check("revoke: the holder's next access", f"{sigbus}, {after * 1e3:.0f} ms after the revocation",
                     code == EXIT_SIGBUS)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    wait_until(lambda: lease_id not in service.leases(), 60, "the scrub of the revoked lease", interval=0.1)
    pool = service.cli("pool", "show", "main").json["pool"]
    report.check("revoke: scrubbed and free again", f"scrubbing {mib(pool['scrubbing_bytes'])}, quarantined "
                 f"{mib(pool['quarantined_bytes'])}", pool["scrubbing_bytes"] == 0 and pool["quarantined_bytes"] == 0)

    result = service.run(holder, "--pool", "main", "--size", SIZE, "--expect-zeros", check=False)
    words = result.out.split()
    same = len(words) > 4 and words[4] == extents
    report.check("revoke: the next lease gets the same extents", words[4] if len(words) > 4 else result.out, same)
    report.check("revoke: and reads as zeros", result.out.strip().splitlines()[-1] if result.out else result.err,
                 result.code == 0)


def _lines_of(process) -> queue.Queue:
    """The lines of a process as they come; None at their end."""
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line.strip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _next(lines: queue.Queue, start: str, timeout: float = 60.0) -> str:
    """The next line that begins with `start`."""
    deadline = time.monotonic() + timeout
    others = []
    while True:
        try:
            line = lines.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            raise HarnessError(f"the holder did not say '{start}' within {timeout:g} s") from None
        if line is None:
            raise HarnessError(f"the holder ended before it said '{start}'; it said {others}")
        if line.startswith(start):
            return line
        others.append(line)
