# SPDX-License-Identifier: Apache-2.0
"""terrace health: each finding raised by a fault, and cleared when it is mended.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/health/health_test.py [TestClass[.test]]
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "agents"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))
import terrace_harness as harness  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402
import certificates_test  # noqa: E402
import clients_test  # noqa: E402
import fabric as fabric_module  # noqa: E402

MIB = 1 << 20
WARNINGS, CRITICAL, UNAVAILABLE = 1, 2, 5

# Short enough to wait for; a busy machine's commits are nobody's fault.
LIMITS = {"interval": "200ms", "draining_after": "1s", "queue_after": "1s", "scrub_after": "1s", "fence_after": "1s",
          "away_after": "0s", "window": "8s", "commit_max": "10s", "state_free_min": "1M"}


def config_text(limits, extra=""):
    def value(it):
        return str(it) if isinstance(it, int) else f'"{it}"'
    return "[health]\n" + "".join(f"{key} = {value(it)}\n" for key, it in limits.items()) + extra


class Asking:
    """What the manager says of its health; `t`: another manager than the case's own."""

    def findings(self, t=None):
        return {one["code"]: one for one in (t or self.t).cli("health", check=False).json["findings"]}

    def raised(self, code, timeout=30, t=None):
        return wait_until(lambda: self.findings(t).get(code), timeout, f"finding {code}")

    def cleared(self, code, timeout=30, t=None):
        wait_until(lambda: code not in self.findings(t), timeout, f"the end of finding {code}")


class Case(Asking, unittest.TestCase):
    limits = {}
    devices = {"a": "64M", "b": "64M"}

    def setUp(self):
        self.t = Harness(devices=self.devices, name="health")
        self.addCleanup(self.t.close)
        config = self.t.directory / "terraced.toml"
        config.write_text(config_text({**LIMITS, **self.limits}, self.extra()))
        self.t.daemon_args += ["--config", str(config)]

    def extra(self):
        return ""

    def start(self, **options):
        self.t.start(**options)
        self.t.create_pool("p")

    def log(self):
        return self.t.log.read_text(errors="replace")

    def unplugged(self, name):
        directory = self.t.cli("status").json["server"]["object_directory"]
        mark = pathlib.Path(directory) / f"{name}.unplugged"
        self.addCleanup(mark.unlink, missing_ok=True)
        return mark


class Devices(Case):
    def test_nothing_is_wrong(self):
        self.start()
        self.assertEqual(self.t.cli("health", json=False, check=0).out, "healthy\n")
        self.assertEqual(self.t.cli("health", check=0).json,
                         {"severity": "healthy", "critical": 0, "warnings": 0, "findings": []})
        status = self.t.cli("status")
        self.assertEqual(status.json["health"], {"severity": "healthy", "critical": 0, "warnings": 0})
        self.assertIn("\nhealth: nothing to do\n", self.t.cli("status", json=False).out)
        self.t.stop()
        self.t.cli("health", check=UNAVAILABLE)

    # Found on a machine whose device was pulled out under 26 leases: nothing said so, and its bytes were free.
    def test_a_device_is_unplugged_under_a_lease(self):
        self.start()
        lease = self.t.grant("8M", "p", "--ttl", "1h")
        gone = lease["extents"][0]["device"]
        other = next(serial for serial in ("emu:a", "emu:b") if serial != gone)
        mark = self.unplugged(gone[len("emu:"):])
        mark.touch()
        finding = self.raised("device_absent")
        self.assertEqual((finding["severity"], finding["kind"], finding["name"]), ("critical", "device", gone))
        self.assertEqual(finding["page"], "docs/operations/health.md#device_absent")
        self.assertIn("8 MiB", finding["text"])
        self.assertIn(f"device remove {gone}", finding["advice"])
        self.assertLess(abs(finding["since_wall_ns"] / 1e9 - time.time()), 60)

        said = self.t.cli("health", json=False, check=CRITICAL).out
        self.assertIn(f"1 critical\n  device_absent, device {gone}: ", said)
        self.assertIn("    do: bring it back", said)
        self.assertIn("    see: docs/operations/health.md#device_absent\n", said)
        status = self.t.cli("status")
        self.assertEqual(status.json["health"]["severity"], "critical")
        self.assertIn("\nhealth: 1 critical", self.t.cli("status", json=False).out)

        # What nobody can be given is not free.
        pool = status.json["pools"][0]
        self.assertEqual((pool["free_bytes"], pool["grantable_bytes"], pool["capacity_bytes"]),
                         (64 * MIB, 64 * MIB, 128 * MIB))
        self.assertEqual((pool["absent_bytes"], pool["absent_devices"]), (56 * MIB, [gone]))
        self.assertEqual(pool["largest_free_bytes"], 64 * MIB)
        self.assertEqual(sum(run["bytes"] for run in pool["free_runs"]), 64 * MIB)
        row = self.t.cli("pool", "list", json=False).out.splitlines()[1]
        self.assertIn("128 MiB  64 MiB", row)
        self.assertIn("2, 1 absent", row)
        shown = self.t.cli("pool", "show", "p", json=False).out
        self.assertIn(f"? absent       56 MiB, nobody's, of {gone}, not there now", shown)
        self.assertIn(". free         64 MiB\n", shown)
        self.assertIn("nothing while it is absent", self.t.cli("device", "show", gone, json=False).out)
        self.assertEqual(self.t.cli("device", "show", other).json["device"]["free_bytes"], 64 * MIB)

        mark.unlink()
        self.cleared("device_absent")
        self.t.wait_free("p")
        self.cleared("quarantine_growing")
        self.t.cli("health", check=0)
        self.assertIn(f"health: device_absent, critical, device {gone}: ", self.log())
        self.assertIn(f"health: device_absent, over, device {gone}: it lasted ", self.log())
        self.assertEqual(self.log().count("health: device_absent, critical"), 1)

    def test_watch_tells_what_changes(self):
        self.start()
        watches = {}
        for form in ([], ["--json"]):
            watch = self.t.popen(self.t.terrace, *form, "health", "--watch", stdout=subprocess.PIPE, text=True)
            self.addCleanup(watch.stdout.close)
            self.addCleanup(watch.wait)
            self.addCleanup(watch.kill)
            watches["json" if form else "text"] = watch.stdout
        self.assertEqual(watches["text"].readline(), "healthy\n")
        mark = self.unplugged("b")
        mark.touch()
        line = json.loads(watches["json"].readline())
        self.assertEqual((line["change"], line["finding"]["code"]), ("raised", "device_absent"))
        self.assertIn("  raised  warning  device_absent, device emu:b: ", watches["text"].readline())
        mark.unlink()
        line = json.loads(watches["json"].readline())
        self.assertEqual((line["change"], line["finding"]["name"]), ("cleared", "emu:b"))
        self.assertIn("  cleared  warning  device_absent, device emu:b: ", watches["text"].readline())

    def test_a_drain_that_an_immovable_lease_holds_up(self):
        self.start()
        lease = self.t.grant("8M", "p", "--ttl", "1h")
        serial = lease["extents"][0]["device"]
        self.t.cli("device", "drain", serial)
        finding = self.raised("device_draining")
        self.assertEqual((finding["severity"], finding["name"]), ("warning", serial))
        self.assertGreaterEqual(finding["lasted_ns"], 10**9)
        self.t.cli("health", check=WARNINGS)
        self.t.cli("lease", "release", lease["id"])
        self.cleared("device_draining")


class Pools(Case):
    limits = {"pool_largest_run_percent_min": 60}

    def test_a_pool_fills_up(self):
        self.start()
        lease = self.t.grant("120M", "p", "--ttl", "1h")
        finding = self.raised("pool_nearly_full")
        self.assertEqual((finding["severity"], finding["kind"], finding["name"]), ("warning", "pool", "p"))
        self.assertIn("8 MiB of 128 MiB", finding["text"])
        self.t.cli("lease", "release", lease["id"])
        self.cleared("pool_nearly_full")

    def test_a_pool_in_pieces(self):
        self.start()
        leases = [self.t.grant("16M", "p", "--ttl", "1h")["id"] for _ in range(8)]
        for lease in leases[::2]:
            self.t.cli("lease", "release", lease)
        finding = self.raised("pool_fragmented")
        self.assertIn("of 64 MiB free, the longest runs of its devices are 32 MiB together", finding["text"])
        for lease in leases[1::2]:
            self.t.cli("lease", "release", lease)
        self.cleared("pool_fragmented")

    def test_a_grant_that_waits(self):
        self.start()
        self.t.grant("128M", "p", "--ttl", "1h")
        waiting = self.t.popen(self.t.terrace, "lease", "grant", "--pool", "p", "--size", "8M", "--wait", "10m",
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(waiting.wait)
        self.addCleanup(waiting.kill)
        finding = self.raised("queue_stuck")
        self.assertIn("1 grant for 8 MiB waits, the oldest for", finding["text"])
        self.t.cli("queue", "cancel", self.t.cli("queue", "list").json["waiting"][0]["lease"])
        self.cleared("queue_stuck")


class Work(Case):
    def start_with(self, failpoints):
        self.t.start(failpoints=failpoints)
        if not self.t.cli("status").json["server"]["failpoints"]:
            self.skipTest("this build has no failpoints")
        self.t.create_pool("p")

    def test_a_fence_that_fails(self):
        self.start_with("fence_before_truncate=error:EIO")
        lease = self.t.grant("8M", "p", "--ttl", "1h")["id"]
        self.t.cli("lease", "release", lease)
        finding = self.raised("fence_failed")
        self.assertEqual(finding["severity"], "critical")
        self.assertIn(f"lease {lease}: ", finding["text"])
        self.assertIn("8 MiB", self.raised("quarantine_growing")["text"])
        self.cleared("fence_failed")
        self.cleared("quarantine_growing")
        self.assertEqual(len(self.t.cli("lease", "quarantined").json["leases"]), 1)

    def test_erasing_that_fails_is_quarantine_that_grows(self):
        self.start_with("scrub_before_verify=error:EIO")
        self.t.cli("lease", "release", self.t.grant("8M", "p", "--ttl", "1h")["id"])
        self.assertIn("8 MiB", self.raised("quarantine_growing")["text"])
        self.assertNotIn("fence_failed", self.findings())
        self.t.restart()
        self.cleared("quarantine_growing")

    def test_a_fence_that_takes_long(self):
        self.start_with("fence_before_truncate=delay:8000")
        lease = self.t.grant("48M", "p", "--ttl", "1h")["id"]
        self.t.cli("lease", "release", lease)
        finding = self.raised("fence_slow")
        self.assertIn(f"1 fence under way, that of lease {lease} for", finding["text"])
        self.cleared("fence_slow")

    def test_erasing_that_takes_long(self):
        self.start_with("scrub_before_verify=delay:8000")
        self.t.cli("lease", "release", self.t.grant("48M", "p", "--ttl", "1h")["id"])
        self.assertIn("48 MiB wait to be erased", self.raised("scrub_behind")["text"])
        self.cleared("scrub_behind")


class SlowStore(Case):
    limits = {"commit_max": "40ms"}

    def test_commits_that_take_long(self):
        self.t.start(failpoints="journal_before_append=delay:60")
        if not self.t.cli("status").json["server"]["failpoints"]:
            self.skipTest("this build has no failpoints")
        self.t.create_pool("p")  # two adoptions and a pool: a commit each
        for size in range(1, 4):
            self.t.cli("quota", "set", "training", "--bytes", f"{size}G")
        self.assertIn("took longer than 40 ms", self.raised("store_slow")["text"])
        self.cleared("store_slow")  # for a while nothing was written

    def test_a_store_that_takes_no_commits(self):
        self.t.start(failpoints="journal_before_append=error:EIO@8")
        if not self.t.cli("status").json["server"]["failpoints"]:
            self.skipTest("this build has no failpoints")
        self.t.create_pool("p")
        deadline, size = time.monotonic() + 60, 0
        while "health: store_failing, critical, store: " not in self.log() and time.monotonic() < deadline:
            size += 1  # or nothing would be written
            self.t.cli("quota", "set", "training", "--bytes", f"{size}G", check=False)
        self.assertIn("health: store_failing, critical, store: the state cannot be written", self.log())
        self.t.restart()
        self.assertNotIn("store_failing", self.findings())


@unittest.skipUnless(harness.can_mount(), "needs to mount a tmpfs")
class StateDisk(Case):
    limits = {"state_free_min": "8M"}

    def test_the_file_system_of_the_state_fills_up(self):
        disk = pathlib.Path(tempfile.mkdtemp(prefix="terrace-health-disk-"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48M", "none", disk], check=True)
        self.addCleanup(disk.rmdir)
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        self.t.state = disk / "state.db"
        self.addCleanup(self.t.close)
        self.start()
        self.assertNotIn("state_disk_filling", self.findings())
        free = int(subprocess.run(["stat", "-f", "-c", "%a %S", disk], capture_output=True, text=True,
                                  check=True).stdout.split()[0]) * 4096
        filler = disk / "filler"
        filler.write_bytes(bytes(free - 6 * MIB))
        finding = self.raised("state_disk_filling")
        self.assertEqual((finding["severity"], finding["kind"]), ("warning", "store"))
        self.assertIn(str(self.t.state), finding["text"])
        with open(filler, "ab") as more:
            more.write(bytes(5 * MIB))
        wait_until(lambda: self.findings()["state_disk_filling"]["severity"] == "critical", 20, "almost nothing left")
        filler.unlink()
        self.cleared("state_disk_filling")


class Http(http.client.HTTPConnection):
    """To the manager's unix socket: a commit a request, without a program for each."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)

    def ask(self, path, body=None):
        headers = {"Content-Type": "application/json", "X-Terrace-Action": "1"}
        self.request("GET" if body is None else "POST", path, json.dumps(body) if body else None, headers if body else {})
        answer = self.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise AssertionError(f"{path}: {answer.status} {text}")
        return text


@unittest.skipUnless(harness.can_mount(), "needs to mount a file system")
class JournalLeft(Case):
    """A disk that is full, and a journal that is filled up since it cannot be folded into the database there."""
    limits = {"state_free_min": "64K"}

    def disk(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-health-journal-"))
        self.addCleanup(shutil.rmtree, folder)
        image, mount = folder / "image", folder / "mount"
        mount.mkdir()
        with open(image, "wb") as file:
            file.truncate(48 * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        if subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, check=False).returncode != 0:
            self.skipTest("no loop device can be had")  # a tmpfs would need ten times as many commits
        self.addCleanup(subprocess.run, ["umount", mount], check=True)
        return mount

    def test_what_is_left_of_the_journal_counts_and_comes_back(self):
        disk = self.disk()
        self.t.state = disk / "state.db"
        self.addCleanup(self.t.close)
        self.start()
        free = lambda: os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
        with open(disk / "filler", "wb", buffering=0) as filler:
            while free() > 48 << 10:
                filler.write(bytes(max(4096, min(MIB, free() - (48 << 10)))))
                os.fsync(filler.fileno())
        http_ = Http(self.t.runtime / "http.sock")
        self.addCleanup(http_.close)
        used = lambda: float(re.search(r"(?m)^terrace_store_journal_used_bytes (\S+)", http_.ask("/metrics"))[1])
        found = lambda: next((one for one in json.loads(http_.ask("/api/v1/health"))["findings"]
                              if one["code"] == "state_disk_filling"), None)
        wait_until(found, 60, "the finding")
        self.assertRegex(found()["text"], r"and the journal 15.\d+ MiB of 15.\d+ MiB; when both are full, nothing is granted")
        count = 0
        while used() < 9 * MIB and count < 8000:
            for _ in range(20):
                count += 1
                http_.ask("/api/v1/set_quota", {"tenant": "training", "bytes_max": (1 + count % 2) << 30})
        self.assertGreater(used(), 8 * MIB, f"{count} commits")
        wait_until(lambda: re.search(r"and the journal [3-7](\.\d+)? MiB of 15\.\d+ MiB", found()["text"]), 60, "what is left of the journal")
        self.assertEqual(found()["severity"], "critical")
        self.assertNotIn("store_failing", self.findings())
        (disk / "filler").unlink()
        self.cleared("state_disk_filling")
        wait_until(lambda: used() < MIB, 60, "the journal to be folded")
        self.t.restart(hard=True)
        self.assertEqual(self.t.cli("quota", "list").json["quotas"][0]["bytes_max"], (1 + count % 2) << 30)


class SmallSharedMemory(Harness):
    """As a user other than root, with a /dev/shm of its own that is small."""
    USER = 65534

    def daemon_command(self):
        for path in (self.directory, *self.directory.rglob("*")):
            os.chown(path, self.USER, self.USER)
        script = 'mount -t tmpfs -o size=96M,mode=1777 none /dev/shm && exec setpriv --reuid=$0 --regid=$0 --clear-groups "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(self.USER), *super().daemon_command()]


@unittest.skipUnless(os.geteuid() == 0 and harness.can_mount(), "needs a mount namespace, and to become another user")
class Machine(Case):
    def setUp(self):
        harness.need_build_for_all()
        self.t = SmallSharedMemory(devices={"a": "8M"}, name="health")
        self.addCleanup(self.t.close)
        config = self.t.directory / "terraced.toml"
        config.write_text(config_text(LIMITS))
        self.t.daemon_args += ["--config", str(config)]

    def test_a_machine_without_the_memory_that_a_manager_needs(self):
        self.t.start()
        self.t.create_pool("p")
        look = lambda: {one["name"]: one for one in self.t.cli("doctor", "--manager", check=False).json["checks"]}
        self.assertEqual(look()["dev_shm"]["state"], "ok")
        self.assertNotIn("kernel_lacks", self.findings())
        filler = pathlib.Path("/proc", str(self.t.pid), "root", "dev/shm/filler")
        filler.write_bytes(bytes(64 * MIB))

        def looked_anew(code, there):  # what was seen counts for some seconds
            look()
            return (code in self.findings()) == there
        wait_until(lambda: looked_anew("kernel_lacks", True), 90, "the finding", interval=1)
        finding = self.findings()["kernel_lacks"]
        self.assertEqual((finding["severity"], finding["kind"], finding["name"]), ("warning", "machine", "dev_shm"))
        self.assertIn("a daemon without root cannot keep emulated memory there", finding["text"])
        self.assertIn("remount", finding["advice"])
        filler.unlink()
        wait_until(lambda: looked_anew("kernel_lacks", False), 90, "the end of the finding", interval=1)


class AilingMemdev(Harness):
    """With a memdev as libcxl would list one (ailing_memdev.cc), and the bus that it would be on."""

    def daemon_command(self):
        library = harness.find_binary("tests/integration/health/libterrace_ailing_memdev.so")
        options = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))
        script = "mount -t tmpfs none /sys/bus && mkdir /sys/bus/cxl && exec env \"$@\""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", f"LD_PRELOAD={library}",
                f"ASAN_OPTIONS={options}", f"TERRACE_AILING_MEMDEV={self.directory}/memdev", *super().daemon_command()]


@unittest.skipUnless(harness.can_mount(), "needs a mount namespace")
class Memdevs(Case):
    """By libcxl's interface: neither the kernel nor QEMU has a memdev that can be made to ail."""

    def setUp(self):
        self.t = AilingMemdev(devices=self.devices, name="health")
        self.addCleanup(self.t.close)
        config = self.t.directory / "terraced.toml"
        config.write_text(config_text(LIMITS))
        self.t.daemon_args += ["--config", str(config)]

    def test_a_memdev_that_says_of_itself_that_it_ails(self):
        says = self.t.directory / "memdev"
        says.write_text("lost, replace")
        self.start()
        finding = self.raised("device_unhealthy", 90)
        self.assertEqual((finding["severity"], finding["kind"], finding["text"]),
                         ("critical", "memdev", "says of itself: media lost data, to be replaced"))
        memdev = self.t.cli("device", "list", "--hardware").json["inventory"]["memdevs"][0]
        self.assertEqual((memdev["serial"], memdev["health"]), (finding["name"], "media lost data, to be replaced"))
        says.write_text("")
        self.cleared("device_unhealthy", 150)  # it is asked once a minute


# Two sets of blocks, either of which fills its DDR, in turn, until its standard input ends.
THRASHING = """
import select, sys, time
sets = [[bytearray(2 << 20) for _ in range(7)] for _ in range(2)]
print("ready", flush=True)
turn = 0
while True:
    until = time.monotonic() + 3
    while time.monotonic() < until:
        if select.select([sys.stdin], [], [], 0)[0]: sys.exit()
        for one in sets[turn]:
            for i in range(0, len(one), 4096): one[i] = 1
    turn = 1 - turn
"""


class Programs(Case):
    devices = {"a": "256M"}
    limits = {"thrash_turns_min": 1, "window": "20s"}

    def test_a_program_whose_memory_goes_up_and_down(self):
        if [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]] < [6, 7]:
            self.skipTest("nothing moves before Linux 6.7")
        if not os.access("/dev/userfaultfd", os.R_OK | os.W_OK):
            self.skipTest("this kernel has no /dev/userfaultfd, or not for this user")
        self.start()
        program = self.t.popen(self.t.terrace, "run", "--ddr", "16M", "--cxl", "64M", "--", "/usr/bin/python3",
                               "-c", THRASHING, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env={"TERRACE_MALLOC_LIBRARY": harness.find_binary("libterrace_heap.so")})
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), b"ready\n")
        finding = self.raised("tier_thrash", timeout=180)
        self.assertEqual((finding["severity"], finding["kind"]), ("warning", "tenant"))
        self.assertRegex(finding["text"], r"exchanged .* between DDR and CXL in the last 20 s")
        program.communicate(timeout=60)
        self.cleared("tier_thrash", timeout=90)


class Denied(Case):
    def extra(self):
        return f'[[sockets]]\npath = "{self.t.runtime}/training/t.sock"\ntenant = "training"\n'

    def test_a_tenant_that_calls_what_is_an_operators(self):
        self.start()
        for _ in range(3):
            self.t.cli("--socket", self.t.runtime / "training/t.sock", "device", "list", check=6)
        finding = self.raised("calls_denied")
        self.assertEqual((finding["kind"], finding["name"]), ("tenant", "training"))
        self.assertIn("3 calls of the operator's interface refused", finding["text"])
        self.cleared("calls_denied")


@unittest.skipIf(fabric_module.why_not(), fabric_module.why_not())
class Hosts(Asking, certificates_test.Case):
    def setUp(self):
        super().setUp()
        config = self.fabric.directory / "health.toml"
        config.write_text(config_text(LIMITS))
        self.options = ["--config", config]

    def test_an_agent_that_ends(self):
        manager = self.manager(*self.options)
        b = self.fabric.agent("hostb")
        self.assertEqual(self.findings(manager), {})
        b.cli("lease", "grant", "--pool", "p", "--size", "8M", "--ttl", "1h")
        b.kill()
        finding = self.raised("host_away", t=manager)
        self.assertEqual((finding["severity"], finding["kind"], finding["name"]), ("warning", "host", "hostb"))
        # Two seconds, which the command line may miss on a busy machine.
        manager.wait_log("health: host_lease_running_out, critical, host hostb: not heard of for")
        manager.wait_log("health: host_lease_running_out, over, host hostb: it lasted")
        self.assertIn("its leases have ended", self.raised("host_away", t=manager)["text"])
        b.start()
        self.fabric.wait_state("hostb", "connected")
        self.cleared("host_away", t=manager)

    @unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed: nothing else makes old certificates")
    def test_a_certificate_that_ends(self):
        manager = self.manager(*self.options)
        certificates_test.Warned.old_certificate(self, "hostb", 5)
        b = self.fabric.agent("hostb")
        finding = self.raised("certificate_ending", t=manager)
        self.assertEqual((finding["severity"], finding["name"]), ("warning", "hostb"))
        self.assertIn("ends in 5 days", finding["text"])
        b.kill()
        self.cleared("certificate_ending", t=manager)


@unittest.skipIf(shutil.which("openssl") is None, "openssl is not installed: nothing else makes old certificates")
class Clients(Asking, clients_test.Case):
    DAY = 86400

    def begin(self, of_tls=""):
        self.write_config(self.config.read_text().replace("[tls]", "[tls]" + of_tls) + config_text(LIMITS))
        self.start()

    def of(self, client):
        return {one["name"]: one for one in self.t.cli("health", check=False).json["findings"]
                if one["code"] == "certificate_ending"}.get(client)

    def old(self, client, days):
        self.made_by_openssl(client, days * self.DAY + 600, began_s=30 * self.DAY)
        self.at(client, "status")

    def test_certificates_of_clients_that_end(self):
        self.begin()
        self.at("ops", "status")
        self.assertEqual(self.findings(), {})
        self.old("weekly", 5)
        finding = self.raised("certificate_ending")
        self.assertEqual((finding["severity"], finding["kind"], finding["name"]), ("warning", "client", "weekly"))
        self.assertEqual(finding["text"], "the certificate of client weekly ends in 5 days")
        self.assertIn("`terrace cert client weekly`", finding["advice"])
        self.old("late", 2)
        self.assertEqual(self.of("late")["severity"], "critical")
        # It comes with a newer one. Somebody else who still has the old one changes nothing.
        old = (self.ca / "weekly.pem").read_bytes(), (self.ca / "weekly.key").read_bytes()
        self.old("weekly", 200)
        self.assertIsNone(self.of("weekly"))
        (self.ca / "weekly.pem").write_bytes(old[0])
        (self.ca / "weekly.key").write_bytes(old[1])
        self.at("weekly", "status")
        self.assertIsNone(self.of("weekly"))
        self.revoke("late", "--client")
        self.cleared("certificate_ending")

    def test_one_that_a_command_renews_is_none(self):
        self.begin(f'\nca_key = "{self.ca}/ca.key"\nrenew_days = 7\nrenew_clients = true\n')
        self.old("weekly", 2)
        self.assertEqual(len(self.audit("renew-certificate")), 1)
        self.assertIsNone(self.of("weekly"))

    def test_one_that_has_ended_is_told(self):
        self.begin()
        self.made_by_openssl("gone", 45, began_s=30 * self.DAY)
        self.at("gone", "status")
        self.assertEqual(self.of("gone")["severity"], "critical")
        wait_until(lambda: self.of("gone")["text"] == "the certificate of client gone has ended", 120, "its end")


if __name__ == "__main__":
    harness.main()
