"""terraced is killed while redis serves and leases are being granted, and started again."""

import contextlib
import signal
import subprocess
import time

from checks import Broken, check_acknowledged, check_disjoint, extents_of, stop_and_join
from demo.redis_part import LEASE_TTL_S, BackgroundReader, Redis
from demo.report import Report
from journal import Granted, read_load
from terrace_harness import HarnessError, wait_until

LEASES_BEFORE = 20


def show_crash(service, redis: Redis, report: Report, stack) -> None:
    report.part("d. SIGKILL of terraced while redis serves and a lease is being granted")
    output = service.directory / "lease_load.out"
    with open(output, "wb") as out, open(f"{output}.err", "wb") as errors:
        load = service.popen(service.build_dir / "tests/crash/lease_load", "--pool", "main", "--leases-max", 40,
                             "--size-max", "8M", "--ttl", "60s", "--release-at-end", stdin=subprocess.DEVNULL,
                             stdout=out, stderr=errors)
    stack.callback(lambda: load.poll() is None and (load.kill(), load.wait()))
    wait_until(lambda: len(read_load(output).granted) >= LEASES_BEFORE, 60, f"{LEASES_BEFORE} granted leases")
    others = [lease for lease in service.leases().values() if lease["label"] or lease["id"] == redis.lease()["id"]]

    with BackgroundReader(redis) as reader:
        time.sleep(0.5)
        # The loop asks for its next lease right after the last: wait for an open question, then kill.
        with contextlib.suppress(HarnessError):
            wait_until(lambda: output.read_bytes().endswith(b"granting\n"), 10, "a grant under way", interval=0)
        service.kill()
        load.send_signal(signal.SIGSTOP)  # a still picture: the loop goes on only after we compared
        told, down = read_load(output), time.monotonic()
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
    """redis' lease lives on: its expiry moves past what was left when terraced came back."""
    first, begin = redis.lease(), time.monotonic()

    def renewed():
        left = redis.lease()["expires_in_ns"] / 1e9
        expected = first["expires_in_ns"] / 1e9 - (time.monotonic() - begin)
        return left - expected if left > expected + 0.5 else None

    try:
        gained = wait_until(renewed, LEASE_TTL_S, "a renewal after the restart", interval=0.2)
        report.check("crash: redis' lease is renewed after the restart", f"expiry moved by {gained:.1f} s", True)
    except HarnessError as error:
        report.check("crash: redis' lease is renewed after the restart", error, False)


def _finish_load(report: Report, load, output, told) -> None:
    """The loop goes on with its open grant, and its memory is as it left it."""
    wait_until(lambda: read_load(output).acknowledged > told.acknowledged + 20, 60, "the loop going on")
    code = stop_and_join(load)
    journal = read_load(output)
    problem = "; ".join(journal.broken) or (f"{len(journal.lost)} leases lost" if journal.lost else "")
    report.check("crash: the granting loop goes on, its memory intact", problem or
                 f"{len(journal.granted)} leases in all, zeros when granted, stamps when released",
                 code == 0 and not problem)
