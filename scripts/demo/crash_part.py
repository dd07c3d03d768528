# SPDX-License-Identifier: Apache-2.0
"""terraced is killed while redis serves and leases are being granted, and started again."""

import contextlib
import signal
import subprocess
import time

from checks import Broken, check_acknowledged, check_disjoint, extents_of, stop_and_join
from demo.redis_part import LEASE_TTL_S, BackgroundReader, Redis
from demo.report import Report
from demo.tensor_part import LABEL as TENSOR_LABEL
from journal import Granted, read_load
from terrace_harness import HarnessError, wait_until

LEASES_BEFORE = 20


def show_crash(service, redis: Redis, report: Report, stack) -> None:
    report.part("d. SIGKILL of terraced while redis serves and a lease is being granted")
    output = service.directory / "lease_load.out"
    with open(output, "wb") as out, open(f"{output}.err", "wb") as errors:
        load = service.popen(service.build_dir / "tests/crash/lease_load", "--pool", "main", "--leases-max", 16,
                             "--size-max", "64M", "--ttl", "60s", "--release-at-end", stdin=subprocess.DEVNULL,
                             stdout=out, stderr=errors)
    stack.callback(lambda: load.poll() is None and (load.kill(), load.wait()))
    wait_until(lambda: len(read_load(output).granted) >= LEASES_BEFORE, 60, f"{LEASES_BEFORE} granted leases")
    others = redis.leases() + [lease for lease in service.leases().values() if lease["label"] == TENSOR_LABEL]

    with BackgroundReader(redis) as reader:
        time.sleep(0.5)
        told = _kill_within_a_grant(service, load, output)
        down = time.monotonic()
        report.note(f"killed: {len(told.live())} leases acknowledged and held, {told.open_grants} grant open")
        time.sleep(1.0)  # long enough that a dependence of redis on the daemon would show
        service.start()
        report.note(f"terraced is back after {time.monotonic() - down:.1f} s")
        try:
            _compare(service, report, told, others)
        finally:
            load.send_signal(signal.SIGCONT)
        _check_renewal(redis, report)
        _finish_load(report, load, output, told)
    report.check("crash: redis meanwhile", f"{reader.reads} values read, {len(reader.errors)} errors, longest gap "
                 f"{reader.longest_gap_s * 1e3:.0f} ms", reader.reads > 100 and not reader.errors)
    wrong = redis.wrong_values()
    report.check("crash: redis' values afterwards", f"{len(redis.values)} compared, {wrong} wrong", wrong == 0)


def _kill_within_a_grant(service, load, output):
    """Kills terraced while the loop waits for a lease, and stops the loop as it is: it goes on only after we
    compared. Returns what the loop was told until then."""
    for tries_left in reversed(range(20)):  # a reply can go out between our look and the kill
        with contextlib.suppress(HarnessError):
            wait_until(lambda: output.read_bytes().endswith(b"granting\n"), 10, "a grant under way", interval=0)
        service.kill()
        load.send_signal(signal.SIGSTOP)
        told = read_load(output)
        if told.open_grants == 1 or tries_left == 0:
            return told
        service.start()  # the reply had just gone out: again
        load.send_signal(signal.SIGCONT)
    raise AssertionError("unreachable")


def _compare(service, report: Report, told, others: list) -> None:
    """Every lease that anybody was told of, as it was told, and none of them overlapping."""
    report.check("crash: a grant was open when terraced died", told.open_grants, told.open_grants == 1)
    for lease in others:
        told.grant_asked()
        told.grant_acknowledged(lease["id"], Granted(lease["epoch"], lease["bytes"], extents_of(lease)))
    leases = service.leases()
    try:
        check_disjoint(leases)
        check_acknowledged(told, leases)
        there = sum(1 for lease_id in told.live() if leases[lease_id]["phase"] == "active")
        report.check("crash: every acknowledged lease is there",
                     f"{there} of {len(told.live())}: same id, LeaseEpoch and extents; none overlaps",
                     there == len(told.live()))
    except Broken as error:
        report.check("crash: every acknowledged lease is there", error, False)
    result = service.cli("check", check=False)
    report.check("crash: `terrace check` after recovery", f"exit code {result.code}", result.code == 0)


def _check_renewal(redis: Redis, report: Report) -> None:
    """redis' leases live on: each one's expiry moves past what was left when terraced came back."""
    first, begin = {lease["id"]: lease["expires_in_ns"] / 1e9 for lease in redis.leases()}, time.monotonic()

    def renewed():
        passed = time.monotonic() - begin
        gained = [lease["expires_in_ns"] / 1e9 - (first[lease["id"]] - passed) for lease in redis.leases()]
        return min(gained) if min(gained) > 0.5 else None

    what = f"crash: redis' {len(first)} leases are renewed after the restart"
    try:
        gained = wait_until(renewed, LEASE_TTL_S, "a renewal after the restart", interval=0.2)
        report.check(what, f"expiry moved by {gained:.1f} s or more", True)
    except HarnessError as error:
        report.check(what, error, False)


def _finish_load(report: Report, load, output, told) -> None:
    """The loop goes on with its open grant, and its memory is as it left it."""
    wait_until(lambda: read_load(output).acknowledged > told.acknowledged + 20, 60, "the loop going on")
    code = stop_and_join(load)
    journal = read_load(output)
    problem = "; ".join(journal.broken) or (f"{len(journal.lost)} leases lost" if journal.lost else "")
    report.check("crash: the granting loop goes on, its memory intact", problem or
                 f"{len(journal.granted)} leases in all, zeros when granted, stamps when released",
                 code == 0 and not problem)
