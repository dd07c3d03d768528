# SPDX-License-Identifier: Apache-2.0
"""A virtual machine whose memory is a lease, by lease exec.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/machines/qemu_memory_test.py [TestClass[.test]]
"""

import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

QEMU = "qemu-system-x86_64"
LOW = 640 << 10  # bytes that every firmware of a PC uses as memory


class Monitor:
    """QEMU's monitor for programs (QMP)."""

    def __init__(self, path):
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.settimeout(120)
        self.stream.connect(str(path))
        self.lines = self.stream.makefile()
        self.lines.readline()  # its greeting
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        self.stream.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = json.loads(self.lines.readline())
            if "event" not in answer:
                assert "return" in answer, answer
                return answer["return"]

    def close(self):
        self.lines.close()
        self.stream.close()


class Machine(unittest.TestCase):
    def setUp(self):
        self.t = Harness(name="machine", devices={"a": "256M"})
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.socket = self.t.directory / "monitor"

    def start(self, *options):
        """The process of `lease exec`, and the machine's monitor."""
        process = self.t.popen(
            self.t.terrace, "lease", "exec", "vm", "--size", "64M", "--mode", "shared_coherent", *options, "--",
            QEMU, "-accel", "tcg", "-m", "64M", "-nodefaults", "-display", "none",
            "-object", "memory-backend-file,id=ram,size={bytes},mem-path={path},share=on", "-machine", "q35,memory-backend=ram",
            "-qmp", f"unix:{self.socket},server=on,wait=off", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: [one.close() for one in (process.stdout, process.stderr)])
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

        def there():
            self.assertIsNone(process.poll(), process.poll() is not None and process.stderr.read())
            return self.socket.exists()
        wait_until(there, 120, "the machine's monitor")
        monitor = Monitor(self.socket)
        self.addCleanup(monitor.close)
        return process, monitor

    def memory(self):
        with open(self.t.cli("lease", "path", "vm", "--ro").json["path"], "rb") as file:
            return file.read(LOW)

    def test_the_machines_memory_is_the_lease(self):
        process, monitor = self.start()
        wait_until(lambda: any(self.memory()), 120, "the firmware writes to memory")
        monitor.ask("stop")
        saved = self.t.directory / "saved"
        monitor.ask("pmemsave", val=0, size=LOW, filename=str(saved))
        self.assertEqual(saved.read_bytes(), self.memory())
        monitor.ask("quit")
        self.assertEqual(process.wait(120), 0)
        wait_until(lambda: not self.t.leases(), 60, "the lease goes with the machine")

    def test_it_runs_on_over_a_restart_of_the_manager_and_ends_with_a_fence(self):
        process, monitor = self.start()
        self.t.kill()
        self.t.start()
        wait_until(lambda: any(one["holders"] for one in self.t.leases().values()), 120, "its session is back")
        self.assertEqual(monitor.ask("query-status")["status"], "running")
        self.t.cli("lease", "revoke", "vm", "--grace", "0s", "--reason", "drill")
        self.assertEqual(process.wait(120), 128 + signal.SIGBUS)
        self.assertIn("lost: drill", process.stderr.read())

    def test_a_revoke_with_grace_shuts_it_down_in_time(self):
        process, _ = self.start("--signal", "TERM")
        self.t.cli("lease", "revoke", "vm", "--grace", "60s")
        self.assertEqual(process.wait(120), 0)  # QEMU's own end at SIGTERM
        wait_until(lambda: not self.t.leases(), 60, "the lease goes at once")


if __name__ == "__main__":
    if shutil.which(QEMU) is None:
        print(f"skipped: {QEMU} is not installed")
        sys.exit(77)
    harness.main()
