# SPDX-License-Identifier: Apache-2.0
"""Starts a private service of the release build, runs the parts of the main job, and prints what was shown."""

import contextlib
import signal
import subprocess
import sys

from devlib.commands import ROOT, build_dir
from devlib.output import Failure

sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/crash")]

from demo.crash_part import show_crash  # noqa: E402
from demo.redis_part import show_redis  # noqa: E402
from demo.report import Report, mib  # noqa: E402
from demo.revoke_part import show_revocation  # noqa: E402
from demo.tensor_part import show_tensors  # noqa: E402
from terrace_harness import Harness, HarnessError  # noqa: E402

# What the parts start, besides redis-server: all that has to be built for the demo.
# The first five are what `cmake --install` lays down.
TARGETS = ("terraced", "terrace", "terrace_malloc", "terrace_heap_preload", "terrace_client",
           "lease_load", "stubborn_holder", "make_safetensors", "map_tensors")
TIME_LIMIT_S = 300  # a part that hangs in spite of its own limits must not hang CI
DEVICES = {"cxl0": "2G", "cxl1": "2G"}


def demo(keep: bool = False) -> None:
    report = Report()

    def too_long(*_):
        raise HarnessError(f"the demo took longer than {TIME_LIMIT_S} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(TIME_LIMIT_S)
    service = None
    try:
        with contextlib.ExitStack() as stack:
            service = Harness(devices=DEVICES, build_dir=build_dir("release"), name="demo", keep=keep)
            stack.callback(service.close)
            try:
                _show(service, report, stack)
            except (HarnessError, OSError, subprocess.SubprocessError, KeyError) as error:
                report.check("the demo ran to its end", f"{type(error).__name__}: {error}", False)
                print(f"terraced's log ends with:\n{service.log_tail()}", flush=True)
    finally:
        signal.alarm(0)
    report.conclude()
    if report.failures:
        raise Failure(f"demo: {report.failures} checks failed")


def _show(service: Harness, report: Report, stack) -> None:
    report.part("a. terraced in a private runtime directory, two emulated CXL devices, one pool")
    service.start()
    report.note(f"terraced (process {service.pid}) in {service.directory}")
    serials = [f"emu:{name}" for name in DEVICES]
    seen = {device["serial"]: device for device in service.cli("device", "list").json["devices"]}
    for serial in serials:
        report.note(f"device {serial}: {seen[serial]['backend']}, {mib(seen[serial]['capacity_bytes'])}")
    service.cli("device", "adopt", *serials)
    service.cli("pool", "create", "main", *[word for serial in serials for word in ("--device", serial)])
    pool = service.cli("pool", "show", "main").json["pool"]
    report.check("pool: composed of two emulated devices", f"{', '.join(pool['devices'])}: "
                 f"{mib(pool['capacity_bytes'])}, {mib(pool['free_bytes'])} free",
                 len(pool["devices"]) == 2 and pool["free_bytes"] == pool["capacity_bytes"] == 4 << 30)
    redis = show_redis(service, report, stack)
    show_tensors(service, report)
    show_crash(service, redis, report, stack)
    show_revocation(service, report)

    report.part("the end: everything is given back")
    code = redis.stop()
    report.check("redis: ended by its own SHUTDOWN", f"exit code {code}", code == 0)
    for lease in service.leases().values():
        if lease["phase"] == "active":
            service.cli("lease", "release", lease["id"])
    pool = service.wait_free("main")
    report.check("pool: all of it free again", mib(pool["free_bytes"]), pool["free_bytes"] == pool["capacity_bytes"])
    code = service.stop()
    report.check("terraced: ends on SIGTERM", f"exit code {code}", code == 0)
