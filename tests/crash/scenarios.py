"""One crash at one failpoint: arm it, work until the process dies there, start again, check every promise."""

import contextlib
import json
import pathlib
import struct

from checks import Broken, check_all, extents_of
from journal import Granted, Journal
from terrace_harness import Harness, HarnessError, wait_until
from workload import Clients

DEVICES = {"a": "64M", "b": "64M"}


class Programs:
    """Where the programs of one build are."""

    def __init__(self, build_dir):
        self.build_dir = pathlib.Path(build_dir)
        self.lease_load = self.build_dir / "tests/crash/lease_load"
        self.stubborn_holder = self.build_dir / "tests/crash/stubborn_holder"
        for program in (self.lease_load, self.stubborn_holder):
            if not program.is_file():
                raise HarnessError(f"{program} was not built")


def service(programs, name):
    return Harness(devices=DEVICES, build_dir=programs.build_dir, name=f"crash-{name}")


def prepare(harness):
    """A pool and two leases that must outlive whatever comes; returns their Journal."""
    harness.start()
    harness.create_pool("p")
    journal = Journal()
    for arguments in (("--label", "kept", "--persistent"), ("--ttl", "600s")):
        lease = harness.grant("4M", "p", *arguments)
        journal.grant_asked()
        journal.grant_acknowledged(lease["id"], Granted(lease["epoch"], lease["bytes"], extents_of(lease)))
    return journal


def wait_for_crash(harness, point, timeout=60.0):
    """The daemon died, and at `point`."""
    code = harness.wait_dead(timeout)
    marks = [line for line in harness.log.read_text(errors="replace").splitlines() if "failpoint crash:" in line]
    if code != -9 or not marks or marks[-1].split("failpoint crash: ")[1].strip() != point:
        raise Broken(f"the daemon ended with {code}, last mark {marks[-1:]}, not at {point}\n{harness.log_tail()}")


def crash_under_load(programs, point, hit, seed):
    """Kills the daemon at the `hit`-th pass of `point` while clients work, who go on after the restart."""
    with service(programs, point) as harness:
        journal = prepare(harness)
        with contextlib.closing(Clients(harness, programs.lease_load, seed)) as clients:
            wait_until(lambda: clients.acknowledged() >= 3, 30, "the first acknowledged operations")
            harness.kill()
            harness.start(failpoints=f"{point}=crash@{hit}", wait=False)
            clients.start()
            wait_for_crash(harness, point)
            harness.start()
            clients.wait_going_on(3)
            journal.merge(clients.stop())
        check_all(harness, journal, programs.stubborn_holder)


def crash_in_recovery(programs, point, hit, seed):
    """Kills the daemon while it recovers, with an orphan object and interrupted leases to recover."""
    with service(programs, point) as harness:
        journal = prepare(harness)
        with contextlib.closing(Clients(harness, programs.lease_load, seed)) as clients:
            wait_until(lambda: clients.acknowledged() >= 3, 30, "the first acknowledged operations")
            harness.kill()
            harness.start(failpoints="carve_after_reserve=crash", wait=False)  # leaves a full orphan
            clients.start()
            wait_for_crash(harness, "carve_after_reserve")
            harness.start(failpoints=f"{point}=crash@{hit}", wait=False)
            wait_for_crash(harness, point)
            harness.start()
            journal.merge(clients.stop())
        check_all(harness, journal, programs.stubborn_holder)


# -- points in client programs

def write_model(path, tensors=3, floats=300_000):
    """A small safetensors file, with tensors of different sizes."""
    header, data = {}, bytearray()
    for number in range(tensors):
        values = struct.pack(f"<{floats}f", *[float((number * 31 + i) % 1009) for i in range(floats)])
        header[f"layer.{number}.weight"] = {"dtype": "F32", "shape": [floats // 100, 100],
                                            "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def crash_client(harness, point, hit, *arguments):
    """Runs the CLI until it kills itself at `point`."""
    result = harness.cli(*arguments, check=False, json=False, env={"TERRACE_FAILPOINTS": f"{point}=crash@{hit}"})
    if result.code != -9 or f"failpoint crash: {point}" not in result.err:
        raise Broken(f"`terrace` did not die at {point}: {result}")


def crash_import(programs, point, hit, _seed):
    """An import that dies leaves a catalog that is whole or that readers refuse; importing again works."""
    with service(programs, point) as harness:
        journal = prepare(harness)
        model = harness.directory / "model.safetensors"
        write_model(model)
        crash_client(harness, point, hit, "tensor", "import", model, "--pool", "p", "--label", "first")
        verify = harness.cli("tensor", "verify", "first", model, check=False)
        published = point == "import_after_publish"
        if (verify.code == 0) != published:
            raise Broken(f"after a crash at {point}, verifying the first import: {verify}")
        if not published and harness.cli("tensor", "list", "first", check=False).code == 0:
            raise Broken("a catalog that was never published can be listed")
        harness.restart(hard=True)
        harness.cli("tensor", "import", model, "--pool", "p", "--label", "second")
        harness.cli("tensor", "verify", "second", model)
        for lease in harness.leases().values():  # both imports; the first one's grant was acknowledged to a dead client
            if lease["label"] in ("first", "second"):
                harness.cli("lease", "release", lease["id"])
        check_all(harness, journal, programs.stubborn_holder)


def crash_export(programs, point, hit, _seed):
    """An export that dies leaves the older file or the complete new one under the final name, never a part."""
    with service(programs, point) as harness:
        journal = prepare(harness)
        model, out = harness.directory / "model.safetensors", harness.directory / "out.safetensors"
        write_model(model)
        harness.cli("tensor", "import", model, "--pool", "p", "--label", "m")
        older = b"the older file"
        out.write_bytes(older)
        crash_client(harness, point, hit, "tensor", "export", "m", out, "--force")
        if point == "export_before_rename":
            if out.read_bytes() != older:
                raise Broken("the older file is gone although the new one was not renamed over it")
        else:
            harness.cli("tensor", "verify", "m", out)
        harness.cli("tensor", "export", "m", out, "--force")
        harness.cli("tensor", "verify", "m", out)
        for lease in harness.leases().values():
            if lease["label"] == "m":
                harness.cli("lease", "release", lease["id"])
        check_all(harness, journal, programs.stubborn_holder)


def scenario_of(point, process):
    """Which of the above reaches `point`."""
    if process == "client":
        return crash_import if point.startswith("import_") else crash_export
    return crash_in_recovery if point.startswith("recover_") else crash_under_load
