# SPDX-License-Identifier: Apache-2.0
"""Machines with leased memory as a node of its own: `terrace vm`, with a real QEMU and a guest's kernel.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/machines/vm_test.py [TestClass[.test]]
"""

import hashlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from guest import PATIENCE_S, QEMU, Image, Shell, numbers, why_not  # noqa: E402
from terrace_harness import Harness, HarnessError, wait_until  # noqa: E402

MIB = 1 << 20
PAGE = 4096
FIRST, LAST = 10_000_000, 12_000_000  # 18 MB of numbers


# Stands for libvirt's virsh: a daemon of libvirt's needs users and folders that a test has not. What is said to a real
# one was tried by hand (docs/operations/machines.md).
VIRSH = """#!/usr/bin/python3 -S
import json, os, socket, sys
folder = os.path.dirname(sys.argv[0])
words = sys.argv[1:]
assert words[:3] == ["--connect", "test:///here", "--quiet"], words
if os.path.exists(folder + "/away"):
    sys.exit("error: failed to connect to the hypervisor")
if words[3] == "domuuid" and words[4] != "guest":
    sys.exit("error: failed to get domain '%s'" % words[4])
stream = socket.socket(socket.AF_UNIX)
try:
    stream.connect(folder + "/monitor")
except OSError:
    sys.exit(0 if words[3] == "list" else "error: Requested operation is not valid: domain is not running")
if words[3] in ("domuuid", "list"):
    print("c7a5fdbd-cdaf-9455-926a-d65c16db1809")
    sys.exit(0)
assert words[3:6] == ["qemu-monitor-command", "--domain", "c7a5fdbd-cdaf-9455-926a-d65c16db1809"], words
lines = stream.makefile("rw")
lines.readline()
for command in ('{"execute": "qmp_capabilities"}', words[6]):
    print(command, file=lines, flush=True)
    answer = {"event"}
    while "event" in answer:
        answer = json.loads(lines.readline())
print(json.dumps(answer))
"""


class WithGuest(unittest.TestCase):
    DEVICES = {"a": "512M", "b": "512M"}

    def setUp(self):
        self.t = Harness(name="vm", devices=self.DEVICES)
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.folder = self.t.directory / "vm"
        self.folder.mkdir(mode=0o700)
        self.environment = {"TERRACE_VM_DIR": str(self.folder)}
        self.image = Image(self.t.directory)

    def vm(self, *arguments, **options):
        if arguments[0] in ("resize", "move", "detach") and "--timeout" not in arguments:
            arguments += ("--timeout", f"{PATIENCE_S}s")
        return self.t.cli("vm", *arguments, env=self.environment, timeout=2 * PATIENCE_S, **options)

    def popen(self, *command):
        process = self.t.popen(*command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: [one.close() for one in (process.stdout, process.stderr)])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def shell(self, process, number=0):
        def alive():
            if process.poll() is not None:
                raise HarnessError(f"ended with {process.returncode}: {process.stderr.read()}")
        shell = Shell(self.folder / f"shell{number}", alive)
        self.addCleanup(shell.close)
        return shell

    def words(self, number=0):
        return self.image.words(self.folder / f"shell{number}", self.folder / f"log{number}")

    def run_vm(self, *options, size="128M"):
        """The process, and the guest's shell."""
        process = self.popen(self.t.terrace, "vm", "run", "guest", "--ddr", "256M", "--size", size, "--mode", "shared_coherent",
                             *options, "--", *self.words())
        return process, self.shell(process)

    def part(self, label="guest"):
        return next(part for part in self.vm("show", "guest").json["machine"]["parts"] if part["label"] == label)

    def wait_settled(self, mib, shell):
        def settled():
            machine = self.vm("show", "guest").json["machine"]
            return machine["settled"] and machine["plugged_bytes"] == mib * MIB
        wait_until(settled, PATIENCE_S, f"the guest has {mib} MiB")
        wait_until(lambda: shell.far_bytes() == mib * MIB, PATIENCE_S, "the guest's kernel counts the same")

    def pages(self, label="guest"):
        with open(self.t.cli("lease", "path", label, "--ro").json["path"], "rb") as file:
            memory = file.read()
        return {memory[at:at + PAGE] for at in range(0, len(memory), PAGE)}

    def check_bytes(self, shell, *labels):
        """What the guest wrote reads as it was written, and lies in the leases byte by byte."""
        written = numbers(FIRST, LAST)
        self.assertEqual(shell.sum(), hashlib.sha256(written).hexdigest())
        if not labels:
            return
        pages = set().union(*(self.pages(label) for label in labels))
        missing = sum(written[at:at + PAGE] not in pages for at in range(0, len(written) - PAGE + 1, PAGE))
        self.assertEqual(missing, 0)

    def devices_of(self, label):
        return {extent["device"] for extent in self.t.cli("lease", "show", label).json["leases"][0]["extents"]}

    def labels(self):
        return sorted(lease["label"] for lease in self.t.leases().values())


class Runs(WithGuest):
    def test_it_grows_and_shrinks_with_its_leases(self):
        process, shell = self.run_vm("--max", "256M")
        self.wait_settled(128, shell)
        self.assertEqual(self.part()["bytes"], 128 * MIB, "only what the guest has is leased")
        shell.fill(FIRST, LAST)
        self.check_bytes(shell, "guest")
        self.vm("resize", "guest", "256M")
        self.wait_settled(256, shell)
        self.assertEqual([lease["bytes"] for lease in self.t.leases().values()], [256 * MIB])
        self.vm("resize", "guest", "384M")  # beyond --max: a second lease
        self.wait_settled(384, shell)
        self.assertEqual(self.labels(), ["guest", "guest#2"])
        self.check_bytes(shell, "guest", "guest#2")
        self.vm("resize", "guest", "128M")
        self.wait_settled(128, shell)
        wait_until(lambda: self.labels() == ["guest"], PATIENCE_S, "the second lease goes back")
        self.check_bytes(shell, "guest")
        refused = self.vm("resize", "guest", "4G", check=False)
        self.assertEqual(refused.json["error"]["code"], "capacity_exhausted", refused)
        self.wait_settled(128, shell)
        self.assertEqual(self.vm("list").json["machines"][0]["wanted_bytes"], 128 * MIB)
        self.check_bytes(shell, "guest")
        for garbage in (b"\n", b"[]\n", b'{"act": 7}\n', b'{"act": "resize", "bytes": "x"}\n', b"x" * 9000):
            with socket.socket(socket.AF_UNIX) as stream:
                stream.connect(str(self.folder / "guest.sock"))
                stream.sendall(garbage)
        self.wait_settled(128, shell)
        shell.run("umount /far")
        self.vm("detach", "guest")
        self.assertEqual(self.t.active_leases(), {})
        self.vm("resize", "guest", "128M")  # it can have some again
        self.wait_settled(128, shell)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), 0)
        wait_until(lambda: not self.t.leases(), PATIENCE_S, "the leases go with the machine")
        self.t.check_invariants()
        self.assertEqual([path.name for path in self.folder.glob("guest*")], ["guest.lock"])

    def test_it_runs_on_over_a_drain_a_restart_and_a_revoke(self):
        process, shell = self.run_vm(size="256M")
        self.wait_settled(256, shell)
        shell.fill(FIRST, LAST)
        old = self.devices_of("guest")
        self.t.cli("device", "drain", *old)
        self.vm("move", "guest")
        self.wait_settled(256, shell)
        wait_until(lambda: self.labels() == ["guest#2"], PATIENCE_S, "the old lease goes back")
        self.assertFalse(old & self.devices_of("guest#2"))
        self.check_bytes(shell, "guest#2")
        self.t.cli("device", "drain", *old, "--wait", "--timeout", "1m")
        self.t.cli("device", "undrain", *old)

        self.t.restart(hard=True)
        self.check_bytes(shell, "guest#2")
        self.t.cli("lease", "revoke", "guest#2", "--grace", "10m", "--reason", "drill")
        wait_until(lambda: self.labels() == ["guest"], PATIENCE_S, "another lease in its place")
        self.wait_settled(256, shell)
        self.check_bytes(shell, "guest")
        self.assertIsNone(process.poll())

        # No room for another: the guest gives up what it can, and runs on without.
        self.t.cli("lease", "grant", "--pool", "p", "--size", "700M", "--label", "full")
        shell.run("umount /far")
        self.t.cli("lease", "revoke", "guest", "--grace", "10m")
        wait_until(lambda: self.labels() == ["full"], PATIENCE_S, "it is given up")
        self.assertEqual(shell.far_bytes(), 0)
        machine = self.vm("show", "guest").json["machine"]
        self.assertEqual(machine["parts"], [])
        self.assertIn("capacity", machine["refused"])
        self.t.cli("lease", "release", "full")
        self.vm("resize", "guest", "128M")
        self.wait_settled(128, shell)
        shell.fill(FIRST, LAST)
        self.check_bytes(shell, "guest")

    def test_a_guest_that_does_not_give_way_ends_with_its_lease(self):
        process, shell = self.run_vm(size="512M")
        self.wait_settled(512, shell)
        shell.fill(FIRST, LAST)
        shell.run("cd /sys/bus/virtio/drivers/virtio_mem; for one in virtio*; do echo $one >unbind; done; cd /")
        refused = self.vm("resize", "guest", "128M", "--timeout", "3s", check=False)
        self.assertEqual(refused.json["error"]["code"], "busy", refused)
        self.vm("resize", "guest", "512M")
        refused = self.vm("move", "guest", "--timeout", "3s", check=False)  # it takes no other memory, either
        self.assertIn("did not follow in time", refused.json["error"]["message"])
        refused = self.vm("move", "guest", "--timeout", "3s", check=False)
        self.assertIn("has not given up yet", refused.json["error"]["message"])
        self.assertEqual(self.labels(), ["guest", "guest#2"])
        refused = self.vm("detach", "guest", "--timeout", "3s", check=False)
        self.assertEqual(refused.json["error"]["code"], "busy", refused)
        self.check_bytes(shell, "guest")
        self.t.cli("lease", "revoke", "guest", "--grace", "5s", "--reason", "drill")
        wait_until(lambda: "guest" not in self.labels(), PATIENCE_S, "the lease ends")
        with self.assertRaises((AssertionError, OSError)):
            shell.sum()  # it reads what it has no more
        self.assertEqual(process.wait(PATIENCE_S), 128 + signal.SIGBUS)
        said = process.stderr.read()
        self.assertIn("is being taken back", said)
        self.t.check_invariants()


    def test_force_takes_what_a_guest_keeps(self):
        process, shell = self.run_vm(size="512M")
        self.wait_settled(512, shell)
        shell.fill(FIRST, LAST)
        shell.run("cd /sys/bus/virtio/drivers/virtio_mem; for one in virtio*; do echo $one >unbind; done; cd /")
        refused = self.vm("resize", "guest", "128M", "--timeout", "1s", check=False).json["error"]
        self.assertEqual(refused["code"], "busy", refused)
        for text in ("the guest has 512 MiB of the 128 MiB that it should", "its driver (virtio_mem) does not run", "--force"):
            self.assertIn(text, refused["message"])
        self.assertEqual(self.part()["bytes"], 512 * MIB, "a refused request takes nothing")
        self.vm("resize", "guest", "128M", "--timeout", "1s", "--force")
        self.assertEqual(self.part()["bytes"], 128 * MIB)
        # What was cut off may have had the guest's bytes: it is never put back empty.
        self.vm("resize", "guest", "256M", "--timeout", "1s", check=False)
        self.assertEqual((self.part()["bytes"], self.part("guest#2")["bytes"]), (128 * MIB, 128 * MIB))
        self.vm("detach", "guest", "--timeout", "1s", "--force")
        self.assertEqual(self.t.active_leases(), {})
        with self.assertRaises((AssertionError, OSError)):
            shell.sum()
        self.assertEqual(process.wait(PATIENCE_S), 128 + signal.SIGBUS)
        self.t.check_invariants()


class Attached(WithGuest):
    def machine(self):
        """A QEMU of somebody's own, with room for memory that comes."""
        process = self.popen(*self.words(), "-m", "size=256M,slots=8,maxmem=4G", "-object", "memory-backend-ram,id=own,size=256M",
                             "-numa", "node,nodeid=0,memdev=own", "-numa", "node,nodeid=1",
                             *(word for port in range(4) for word in ("-device", f"pcie-root-port,id=port{port},chassis={port + 1},slot={port + 1}")),
                             "-qmp", f"unix:{self.folder}/monitor,server=on,wait=off")
        return process, self.shell(process)

    def attach(self, *options, to=None, mode="shared_coherent"):
        process = self.popen(self.t.terrace, "vm", "attach", "guest", *(to or ("--qmp", str(self.folder / "monitor"))), "--mode",
                             mode, *options)

        def there():
            if process.poll() is not None:
                raise HarnessError(f"ended with {process.returncode}: {process.stderr.read()}")
            return self.vm("show", "guest", check=False).code == 0
        wait_until(there, PATIENCE_S, "the keeper answers")
        return process

    def test_another_takes_over_from_a_keeper_that_was_killed(self):
        machine, shell = self.machine()
        keeper = self.attach("--size", "256M", mode="exclusive")
        self.wait_settled(256, shell)
        shell.fill(FIRST, LAST)
        keeper.kill()
        keeper.wait()
        keeper = self.attach(mode="exclusive")
        self.wait_settled(256, shell)
        self.check_bytes(shell)
        second = self.t.run(self.t.terrace, "vm", "attach", "guest", "--qmp", str(self.folder / "monitor"), "--size", "128M",
                            env=self.environment, check=False, timeout=PATIENCE_S)
        self.assertEqual(second.code, 7, second)
        self.assertIn("another command keeps a machine's memory under the label 'guest'", second.err)
        self.vm("resize", "guest", "128M")
        self.wait_settled(128, shell)
        shell.run("umount /far")
        self.vm("detach", "guest")
        self.assertEqual(keeper.wait(PATIENCE_S), 0)
        self.assertEqual(self.t.active_leases(), {})
        self.assertEqual(shell.far_bytes(), 0)
        self.assertIsNone(machine.poll())

    def test_a_domain_of_libvirt(self):
        virsh = self.folder / "virsh"
        virsh.write_text(VIRSH)
        virsh.chmod(0o755)
        self.environment["PATH"] = f"{self.folder}:{os.environ['PATH']}"
        machine, shell = self.machine()
        where = ("--libvirt-uri", "test:///here", "--libvirt")
        refused = self.vm("attach", "guest", "--size", "128M", *where, "other", check=False)
        self.assertEqual(refused.json["error"]["code"], "unavailable", refused)
        self.assertIn("failed to get domain 'other'", refused.json["error"]["message"])
        keeper = self.attach("--size", "128M", to=(*where, "guest"))
        self.wait_settled(128, shell)
        (self.folder / "away").touch()  # libvirt is being upgraded
        time.sleep(3)
        self.assertIsNone(keeper.poll())
        (self.folder / "away").unlink()
        self.vm("resize", "guest", "256M")
        self.wait_settled(256, shell)
        machine.kill()
        self.assertEqual(keeper.wait(PATIENCE_S), 0)
        wait_until(lambda: not self.t.leases(), PATIENCE_S, "the leases go with the machine")

    def test_a_dimm_comes_and_goes_whole(self):
        machine, shell = self.machine()
        keeper = self.attach("--size", "128M", "--model", "dimm")
        self.wait_settled(128, shell)
        self.vm("resize", "guest", "384M")
        self.wait_settled(384, shell)
        self.assertEqual([part["plugged_bytes"] // MIB for part in self.vm("show", "guest").json["machine"]["parts"]], [128, 256])
        shell.fill(FIRST, LAST)
        self.check_bytes(shell, "guest", "guest#2")
        self.vm("move", "guest")
        self.wait_settled(384, shell)
        self.check_bytes(shell)  # the guest's kernel moves them to its other node
        shell.run("umount /far")
        keeper.send_signal(signal.SIGTERM)
        self.assertEqual(keeper.wait(PATIENCE_S), 0)
        self.assertEqual(self.t.active_leases(), {})
        self.assertEqual(shell.run("echo alive").strip(), "alive")
        self.assertIsNone(machine.poll())


    def test_a_machine_that_never_answers(self):
        machine = self.popen(QEMU, "-accel", "tcg", "-machine", "q35", "-nodefaults", "-display", "none", "-S",
                             "-m", "size=256M,slots=8,maxmem=4G", "-object", "memory-backend-ram,id=own,size=256M",
                             "-numa", "node,nodeid=0,memdev=own", "-numa", "node,nodeid=1",
                             "-qmp", f"unix:{self.folder}/monitor,server=on,wait=off")
        keeper = self.attach("--size", "256M", "--model", "dimm")
        wait_until(lambda: self.part()["plugged_bytes"] == 256 * MIB, PATIENCE_S, "it is plugged in")
        refused = self.vm("detach", "guest", "--timeout", "1s", check=False).json["error"]
        self.assertEqual(refused["code"], "busy", refused)
        for text in ("its kernel has not answered; it keeps that", "--force"):
            self.assertIn(text, refused["message"])
        self.assertEqual(self.part()["bytes"], 256 * MIB)
        keeper.send_signal(signal.SIGSTOP)
        refused = self.vm("detach", "guest", "--timeout", "1s", check=False).json["error"]
        keeper.send_signal(signal.SIGCONT)
        self.assertEqual(refused["code"], "unavailable", refused)
        self.assertIn("does not answer: it is stopped", refused["message"])
        def detached():
            done = self.vm("detach", "guest", "--timeout", "1s", "--force", check=False)
            return done.code == 0 or self.assertIn("another change", done.json["error"]["message"])  # the one from before
        wait_until(detached, PATIENCE_S, "the memory is taken")
        self.assertEqual(keeper.wait(PATIENCE_S), 0)
        self.assertIn("was taken that the guest had not given up", keeper.stderr.read())
        self.assertEqual(self.t.active_leases(), {})
        self.assertIsNone(machine.poll(), "it has not touched it")


class Refused(unittest.TestCase):
    def test_what_cannot_be(self):
        with Harness(name="vm", devices={"a": "256M"}) as t:
            t.start()
            t.create_pool("p")
            folder = t.directory / "vm"
            environment = {"TERRACE_VM_DIR": str(folder)}

            def refused(text, code, *arguments, folder_mode=0o700):
                folder.mkdir(exist_ok=True)
                folder.chmod(folder_mode)
                result = t.run(t.terrace, "vm", *arguments, env=environment, check=False)
                self.assertEqual(result.code, code, result)
                self.assertIn(text, result.err)
                self.assertEqual(t.active_leases(), {})
            qemu = ("--", "qemu-system-x86_64", "-display", "none")
            refused("in blocks of 128 MiB", 2, "run", "g", "--ddr", "64M", "--size", "100M", *qemu)
            refused("--max is less than --size", 2, "run", "g", "--ddr", "64M", "--size", "256M", "--max", "128M", *qemu)
            refused("-m: this command says it itself", 2, "run", "g", "--ddr", "64M", "--size", "128M", *qemu, "-m", "1G")
            refused("--size is missing", 2, "run", "g", "--ddr", "64M", *qemu)
            refused("taken for a lease's id", 2, "run", "17", "--ddr", "64M", "--size", "128M", *qemu)
            refused("no-such-qemu", 127, "run", "g", "--ddr", "64M", "--size", "128M", "--", "no-such-qemu")
            refused("ended before it answered", 125, "run", "g", "--ddr", "64M", "--size", "128M", "--", "/bin/false")
            refused("has only 256 MiB in all", 125, "run", "g", "--ddr", "64M", "--size", "1G", *qemu)
            refused("which machine?", 2, "attach", "g", "--size", "128M")
            refused("no machine's monitor answers", 5, "attach", "g", "--size", "128M", "--qmp", str(folder / "none"))
            refused("no command keeps", 3, "show", "g")
            refused("no command keeps", 3, "resize", "g", "128M")
            refused("mode 0700", 6, "list", folder_mode=0o755)


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    harness.main()
