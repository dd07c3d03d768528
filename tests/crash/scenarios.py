# SPDX-License-Identifier: Apache-2.0
"""One crash at one failpoint: arm it, work until the process dies there, start again, check every promise."""

import contextlib
import json
import pathlib
import sqlite3
import struct
import time

from checks import Broken, check_all, extents_of
from journal import Granted, Journal, parse_extents
from terrace_harness import Harness, HarnessError, wait_until
from workload import WORKLOADS, Clients

DEVICES = {"a": "64M", "b": "64M", "c": "32M"}  # c is pool q, which loses it


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


def prepare(harness, programs):
    """Pool p and leases that must outlive whatever comes, one of them movable; returns their Journal."""
    harness.start()
    harness.create_pool("p", ["a", "b"])
    journal = Journal()
    for arguments in (("--label", "kept", "--persistent"), ("--ttl", "600s"), ("--persistent", "--movable")):
        leave(harness, programs, journal, *arguments)
    return journal


def leave(harness, programs, journal, *arguments, pool="p"):
    """A stamped lease that nobody holds. Its id."""
    journal.grant_asked()
    said = harness.run(programs.stubborn_holder, "--leave", "--pool", pool, "--size", "4M", *arguments).out.split()
    lease_id = int(said[1])
    journal.grant_acknowledged(lease_id, Granted(int(said[2]), int(said[3]), parse_extents(said[4]),
                                                 "--movable" in arguments))
    journal.add("stamped", lease_id)
    return lease_id


def wait_for_crash(harness, point, timeout=60.0):
    """The daemon died, and at `point`."""
    code = harness.wait_dead(timeout)
    marks = [line for line in harness.log.read_text(errors="replace").splitlines() if "failpoint crash:" in line]
    if code != -9 or not marks or marks[-1].split("failpoint crash: ")[1].strip() != point:
        raise Broken(f"the daemon ended with {code}, last mark {marks[-1:]}, not at {point}\n{harness.log_tail()}")


def crash_under_load(programs, point, hit, seed, workload):
    """Kills the daemon at the `hit`-th pass of `point` while clients work, who go on after the restart."""
    with service(programs, point) as harness:
        journal = prepare(harness, programs)
        with contextlib.closing(Clients(harness, programs.lease_load, seed, WORKLOADS[workload])) as clients:
            wait_until(lambda: clients.acknowledged() >= 3, 30, "the first acknowledged operations")
            harness.kill()
            harness.start(failpoints=f"{point}=crash@{hit}", wait=False)
            clients.start()
            wait_for_crash(harness, point, 300.0)
            harness.start()
            clients.wait_going_on(3)
            journal.merge(clients.stop())
        check_all(harness, journal, programs.stubborn_holder)


def crash_in_recovery(programs, point, hit, seed, _workload):
    """Kills the daemon while it recovers, with an orphan object and interrupted leases to recover."""
    with service(programs, point) as harness:
        journal = prepare(harness, programs)
        with contextlib.closing(Clients(harness, programs.lease_load, seed, WORKLOADS["churn"])) as clients:
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


def crash_at_unplug(programs, point, hit, _seed, _workload):
    """Kills the daemon while it takes the leases of a device that vanished, or while it erases them when the device
    is back. The other device's leases stay."""
    with service(programs, point) as harness:
        journal = prepare(harness, programs)
        harness.create_pool("q", ["c"])
        for more in ((), (), ("--on-fence-kill",)):
            journal.add("revoking", leave(harness, programs, journal, "--persistent", *more, pool="q"))
        mark = pathlib.Path(harness.cli("status").json["server"]["object_directory"], "c.unplugged")
        harness.kill()
        harness.start()  # folds what was before, so that the passes below are of the device's end
        harness.cli("status")
        harness.restart(failpoints=f"{point}=crash@{hit}")
        mark.touch()
        deadline = time.monotonic() + 5  # scrub points come only when the device is back
        while harness.pid is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        if harness.pid is None:
            wait_for_crash(harness, point)
            harness.start()
            wait_until(lambda: not any(lease["phase"] in ("active", "fencing") for lease in harness.leases().values()
                                       if lease["pool"] == "q"), 30, "the end of the leases of the lost device")
            mark.unlink()
        else:
            mark.unlink()
            wait_for_crash(harness, point)
            harness.start()
        harness.wait_free("q")
        check_all(harness, journal, programs.stubborn_holder)


def crash_in_backup(programs, point, hit, _seed, _workload):
    """Kills the daemon while it makes a backup of its store: nothing of that is left, and the next one is whole."""
    with service(programs, point) as harness:
        journal = prepare(harness, programs)
        harness.restart(failpoints=f"{point}=crash@{hit}")
        file = harness.directory / "backup.db"
        for _ in range(hit):
            harness.cli("state", "backup", "--force", file, check=False)
        wait_for_crash(harness, point)
        harness.start()
        left = sorted(path.name for path in harness.state.parent.glob(f"{harness.state.name}-backup*"))
        if left:
            raise Broken(f"a backup that was cut off left {left}")
        harness.cli("state", "backup", "--force", file)
        harness.cli("state", "verify", file)
        check_all(harness, journal, programs.stubborn_holder)


def crash_in_restore(programs, point, _hit, _seed, _workload):
    """Kills a restore: the next start has the old store or the restored one, and every lease of the backup."""
    with service(programs, point) as harness:
        journal = prepare(harness, programs)
        file = harness.directory / "backup.db"
        harness.cli("state", "backup", file)
        harness.kill()
        said = harness.cli("state", "restore", file, "--state", harness.state, check=False,
                           env={"TERRACE_FAILPOINTS": f"{point}=crash"})
        if said.code == 0 or point not in str(said):
            raise Broken(f"the restore did not die at {point}: {said}")
        harness.start()
        check_all(harness, journal, programs.stubborn_holder)


def crash_in_migration(programs, point, _hit, _seed, _workload):
    """Kills the start on a store of an older version while its files are copied: nothing was migrated. The next start keeps
    one whole copy, and every lease."""
    with service(programs, point) as harness:
        journal = prepare(harness, programs)
        harness.kill()
        with contextlib.closing(sqlite3.connect(harness.state)) as older:  # as tests/unit/store/migration_test.cc has it
            older.executescript("ALTER TABLE owner RENAME COLUMN who TO holder; DROP TABLE host_view;"
                                "ALTER TABLE lease RENAME COLUMN words TO movable;"
                                "ALTER TABLE pool RENAME COLUMN words TO coherence; PRAGMA user_version=6")
        harness.start(failpoints=f"{point}=crash", wait=False)
        wait_for_crash(harness, point)
        with contextlib.closing(sqlite3.connect(harness.state)) as older:
            if older.execute("PRAGMA user_version").fetchone() != (6,):
                raise Broken("the store was migrated before its copy was whole")
        harness.start()
        kept = sorted(harness.state.parent.glob(f"{harness.state.name}.version-*"))
        with contextlib.closing(sqlite3.connect(kept[0] / harness.state.name)) as copy:
            version = copy.execute("PRAGMA user_version").fetchone()
        if len(kept) != 1 or version != (6,):
            raise Broken(f"kept of the older store: {kept}, of version {version}")
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


def crash_import(programs, point, hit, _seed, _workload):
    """An import that dies leaves a catalog that is whole or that readers refuse; importing again works."""
    with service(programs, point) as harness:
        journal = prepare(harness, programs)
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


def crash_export(programs, point, hit, _seed, _workload):
    """An export that dies leaves the older file or the complete new one under the final name, never a part."""
    with service(programs, point) as harness:
        journal = prepare(harness, programs)
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


def crash_checkpoint(programs, point, hit, _seed, _workload):
    """A checkpoint whose writer or remover dies is whole, or is never offered; doing it again works."""
    with service(programs, point) as harness:
        model, directory = harness.directory / "model.safetensors", harness.directory / "checkpoints"
        write_model(model)
        harness.cli("checkpoint", "import", model, "older", "--dir", directory)
        if point == "checkpoint_after_unlist":
            crash_client(harness, point, hit, "checkpoint", "delete", "older", "--dir", directory)
            expected, left = [], 1
        else:
            crash_client(harness, point, hit, "checkpoint", "import", model, "new", "--dir", directory)
            renamed = point == "checkpoint_after_rename"
            expected, left = (["new", "older"], 0) if renamed else (["older"], 1)
        said = harness.cli("checkpoint", "list", "--dir", directory).json
        offered = [each["name"] for each in said["checkpoints"]]
        if offered != expected or said["damaged"] or said["half_written_removed"] != left:
            raise Broken(f"after a crash at {point} there are {said}, not {expected} and {left} half-written")
        for name in expected:
            harness.cli("checkpoint", "verify", name, "--dir", directory)
        if "new" not in expected:
            harness.cli("checkpoint", "import", model, "new", "--dir", directory)
        out = harness.directory / "out.safetensors"
        harness.cli("checkpoint", "export", "new", out, "--dir", directory)
        if out.read_bytes() != model.read_bytes():
            raise Broken("the checkpoint is not the file that was imported")


# Where each kind of point is reached: by workload, the one that leads there first. "unplug" is crash_at_unplug.
_BUSY = ("churn", "change", "drain", "full")
_REACHED = (
    ("carve_", _BUSY),
    ("reply_", (*_BUSY, "policy")),
    ("notify_", ("churn", "change")),
    ("fence_", ("churn", "change", "drain", "full", "unplug")),
    ("scrub_", ("churn", "change", "full", "unplug")),
    ("resize_", ("change",)),
    ("rebind_", ("change",)),
    ("move_", ("drain",)),
    ("journal_after_sync", (*_BUSY, "policy", "unplug")),
    ("journal_", (*_BUSY, "policy")),  # before that a crash forgets that the device went
    ("fold_", ("calm", "churn")),
    ("recover_", ("recovery",)),
    ("backup_", ("backup",)),
    ("restore_", ("restore",)),
    ("keep_older_", ("migration",)),
    ("import_", ("import",)),
    ("export_", ("export",)),
    ("checkpoint_", ("checkpoint",)),
)
_SCENARIOS = {"recovery": crash_in_recovery, "unplug": crash_at_unplug, "import": crash_import, "export": crash_export,
              "checkpoint": crash_checkpoint, "backup": crash_in_backup, "restore": crash_in_restore,
              "migration": crash_in_migration}
# These pass each point once, or a few times.
ONCE = ("recovery", "backup", "restore", "migration", "import", "export", "checkpoint", "unplug")


def workloads_of(point):
    """The names of the workloads that reach `point`; never empty for a declared one."""
    for beginning, names in _REACHED:
        if point.startswith(beginning):
            return names
    raise Broken(f"no workload is known to reach {point}: add it in tests/crash/scenarios.py")


def scenario_of(workload):
    """The function (programs, point, hit, seed, workload) that runs it."""
    return _SCENARIOS.get(workload, crash_under_load)
