# SPDX-License-Identifier: Apache-2.0
"""The parts of scripts/qemu that decide without a guest: archive, module order, command lines, grouping, verdicts."""

import json
import lzma
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devlib.output import Failure  # noqa: E402
from qemu import boot, guest, kernel, machine, runner, warm  # noqa: E402
from qemu.cpio import Archive  # noqa: E402
import outside  # noqa: E402  (tests/guest, put on the path by qemu.runner)
from pattern import pattern  # noqa: E402


def entries(data):
    """name -> (mode, bytes, device) of a newc archive, read by its definition."""
    found, at = {}, 0
    while True:
        assert data[at:at + 6] == b"070701" and at % 4 == 0, at
        numbers = [int(data[at + 6 + 8 * i:at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_length = numbers[1], numbers[6], numbers[11]
        name = data[at + 110:at + 110 + name_length - 1].decode()
        begin = (at + 110 + name_length + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, data[begin:begin + size], (numbers[9], numbers[10]))
        at = (begin + size + 3) // 4 * 4


class ArchiveTest(unittest.TestCase):
    def archive(self):
        archive = Archive()
        archive.file("/usr/bin/a program", b"odd", 0o755)
        archive.file("usr/bin/empty", b"")
        archive.link("bin/sh", "busybox")
        archive.device("dev/console", 5, 1)
        return archive.bytes()

    def test_every_entry_is_there_after_its_folder(self):
        found = entries(self.archive())
        self.assertEqual(list(found), ["usr", "usr/bin", "usr/bin/a program", "usr/bin/empty", "bin", "bin/sh", "dev",
                                       "dev/console"])
        self.assertEqual(found["usr/bin/a program"], (0o100755, b"odd", (0, 0)))
        self.assertEqual(found["bin/sh"][:2], (0o120777, b"busybox"))
        self.assertEqual(found["dev/console"], (0o020600, b"", (5, 1)))

    def test_warm_files_lie_at_their_real_places_with_their_links(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name).resolve()
            (folder / "real").mkdir(mode=0o751)
            (folder / "real").chmod(0o751)
            (folder / "real/lib.so.1.2").write_bytes(b"code")
            (folder / "real/lib.so.1").symlink_to("lib.so.1.2")
            (folder / "way").symlink_to("real")
            found = entries(warm.archive([f"{folder}/way/lib.so.1", f"{folder}/real/lib.so.1.2"]))
        real = f"warm{folder}/real"
        self.assertEqual(found[real][0], 0o040751)
        self.assertEqual(found[f"{real}/lib.so.1"][:2], (0o120777, b"lib.so.1.2"))
        self.assertEqual(found[f"{real}/lib.so.1.2"][1], b"code")
        self.assertNotIn(f"warm{folder}/way", found)

    def test_equal_contents_give_equal_bytes(self):
        first = self.archive()
        time.sleep(0.01)
        self.assertEqual(first, self.archive())

    def test_cpio_reads_it(self):
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = subprocess.run(["cpio", "-t", "--quiet"], input=self.archive(), cwd=folder, capture_output=True,
                                      check=False)
            except FileNotFoundError:
                self.skipTest("cpio is not installed")
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertIn(b"usr/bin/a program", done.stdout)


class KernelTest(unittest.TestCase):
    DEPENDENCIES = """kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet.ko:
kernel/fs/netfs/netfs.ko:
kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio.ko:
kernel/drivers/dax/dax-hmem.ko:
"""

    def order(self, *wanted):
        paths = kernel.closure(list(wanted), self.DEPENDENCIES, "kernel/drivers/cxl/cxl_core.ko\n")
        return [pathlib.PurePath(path).stem for path in paths]

    def test_newest_package_by_version_not_by_text(self):
        names = ["linux-image-6.1.0-9-amd64-unsigned", "linux-image-6.1.0-56-amd64-unsigned",
                 "linux-image-6.1.0-56-cloud-amd64-unsigned", "linux-image-6.12.9-1-amd64-unsigned",
                 "linux-image-6.1.0-57-amd64"]
        self.assertEqual(kernel.newest(names), "linux-image-6.1.0-56-amd64-unsigned")
        self.assertEqual(kernel.newest(["linux-image-amd64"]), "")

    def test_modules_come_after_what_they_need_and_once(self):
        self.assertEqual(self.order("9pnet_virtio", "9p"),
                         ["virtio", "virtio_ring", "9pnet", "9pnet_virtio", "netfs", "9p"])

    def test_dash_and_underscore_are_the_same_and_what_is_built_in_needs_no_file(self):
        self.assertEqual(self.order("dax_hmem", "cxl_core"), ["dax-hmem"])
        with self.assertRaisesRegex(Failure, "no_such"):
            self.order("no_such")


    def test_kernel_inside_a_boot_image(self):
        inner = b"\x7fELF" + bytes(1000)
        packed = lzma.compress(inner, lzma.FORMAT_XZ)
        image = bytearray(5 * 512 + 64) + packed + b"size"
        image[0x1F1], image[0x202:0x206] = 4, b"HdrS"
        image[0x248:0x250] = (64).to_bytes(4, "little") + (len(packed) + 4).to_bytes(4, "little")
        self.assertEqual(kernel.payload(bytes(image)), inner)
        image[0x202] = 0
        self.assertEqual(kernel.payload(bytes(image)), b"")
        self.assertEqual(kernel.payload(b"MZ"), b"")


class CommandLineTest(unittest.TestCase):
    FILES = guest.Files("/k", "/i", "/share", "/media", "/labels", "/exchange")

    def command(self, name, **options):
        return guest.command_line("qemu", guest.TOPOLOGIES[name], self.FILES, **options)

    def devices(self, name, kind):
        command = self.command(name)
        return [word for flag, word in zip(command, command[1:]) if flag == "-device" and word.startswith(kind + ",")]

    def test_instructions_are_always_emulated(self):
        for name in guest.TOPOLOGIES:
            command = self.command(name)
            self.assertEqual(command[command.index("-accel") + 1], "tcg,thread=multi", name)
            self.assertFalse([word for word in command if "kvm" in word])

    def test_every_bridge_has_two_ports_but_where_the_trap_is_shown(self):
        for name, topology in guest.TOPOLOGIES.items():
            for bridge in topology.bridges:
                self.assertEqual(len(bridge.ports) >= 2, name != "one-port", name)

    def test_regions_of_their_own_need_bridges_of_their_own(self):
        command = " ".join(self.command("standard"))
        self.assertIn("cxl-fmw.0.targets.0=cxl.0,cxl-fmw.0.size=4294967296,cxl-fmw.1.targets.0=cxl.1", command)
        across = " ".join(self.command("two-bridges"))
        self.assertIn("cxl-fmw.0.targets.0=cxl.0,cxl-fmw.0.targets.1=cxl.1,cxl-fmw.0.size", across)

    def test_names_are_unique_and_every_device_names_its_bus(self):
        for name in guest.TOPOLOGIES:
            command = self.command(name)
            options = [word for flag, word in zip(command, command[1:]) if flag in ("-device", "-object", "-fsdev")]
            ids = [part for word in options for part in word.split(",") if part.startswith("id=")]
            self.assertEqual(len(ids), len(set(ids)), name)
            for word in options:
                if word.startswith(("virtio-", "pxb-")):
                    self.assertIn("bus=pcie.0", word)
            chassis = [part for word in options for part in word.split(",") if part.startswith("chassis=")]
            self.assertEqual(len(chassis), len(set(chassis)), name)

    def test_memdevs_sit_where_the_topology_says(self):
        self.assertEqual([word.split(",")[1] for word in self.devices("interleave", "cxl-type3")],
                         ["bus=rp0-0", "bus=rp0-1"])
        self.assertEqual([word.split(",")[1] for word in self.devices("switch", "cxl-type3")],
                         ["bus=down0-0-0", "bus=down0-0-1"])
        self.assertEqual(len(self.devices("switch", "cxl-upstream")), 1)

    def test_hosts_root_is_read_only(self):
        shares = [word for word in self.command("plain") if word.startswith("local,id=fs-")]
        self.assertEqual([",readonly=on" in word for word in shares], [True, False])

    def test_commas_in_paths_are_escaped(self):
        files = guest.Files("/k", "/i", "/a,b", "/m,n", "/l", "/x")
        command = guest.command_line("qemu", guest.TOPOLOGIES["standard"], files)
        self.assertTrue([word for word in command if "path=/a,,b," in word])
        self.assertTrue([word for word in command if "mem-path=/m,,n/node1.raw" in word])

    def test_forwarded_ports_listen_on_loopback_only(self):
        command = self.command("plain", forwards=((17000, 7000),))
        self.assertIn("user,id=net0,hostfwd=tcp:127.0.0.1:17000-:7000", command)

    def test_media_match_the_memory_on_the_command_line(self):
        for name, topology in guest.TOPOLOGIES.items():
            command = " ".join(self.command(name))
            for file, size in {**guest.media_files(topology), **guest.label_files(topology)}.items():
                self.assertIn(f"/{file},size={size}", command, name)


class SelectionTest(unittest.TestCase):
    def test_patterns_select_and_an_unknown_one_is_an_error(self):
        names = [test.name for test in runner.select(["cli-*"], False)]
        self.assertIn("cli-pool", names)
        self.assertNotIn("session", names)
        with self.assertRaisesRegex(Failure, "no guest test 'nothing'"):
            runner.select(["cli-pool", "nothing"], False)

    def test_catalogue_is_consistent(self):
        names = [test.name for test in runner.TESTS]
        self.assertEqual(len(names), len(set(names)))
        for test in runner.TESTS:
            topology = guest.TOPOLOGIES[test.topology]
            self.assertEqual(len(test.commands), topology.hosts, test.name)
            for argv in test.commands:
                script = next(part for part in argv if "{tree}" in part)
                self.assertTrue(pathlib.Path(script.replace("{tree}", str(ROOT)).partition(":")[0]).is_file(), script)

    def test_libraries_are_read_from_ldd(self):
        text = """\tlinux-vdso.so.1 (0x00007ffd)
\tlibcxl.so.1 => /lib/x86_64-linux-gnu/libcxl.so.1 (0x00007f00)
\tlibgone.so => not found
\t/lib64/ld-linux-x86-64.so.2 (0x00007f01)
"""
        self.assertEqual(warm.libraries(text), ["/lib/x86_64-linux-gnu/libcxl.so.1", "/lib64/ld-linux-x86-64.so.2"])
        self.assertEqual(warm.libraries("\tnot a dynamic executable\n"), [])

    def test_tests_share_a_boot_unless_they_must_not(self):
        def test(name, topology="plain", alone=False):
            return runner.GuestTest(name, (("x",),), topology, alone=alone)

        made = runner.groups([test("a"), test("b", alone=True), test("c"), test("d", "hmem"), test("e", "two-hosts"),
                              test("f", "two-hosts")])
        self.assertEqual([[entry.name for entry in group] for group in made], [["a", "c"], ["b"], ["d"], ["e"], ["f"]])


class Quiet:
    """A machine that reports what it is told to, a list at a time, then is as alive as it is told to be."""

    host, processor_s = 0, 1.5

    def __init__(self, *reports, alive=False):
        self.began = time.monotonic()
        self._reports, self._alive = list(reports), alive

    @property
    def alive(self):
        return bool(self._reports) or self._alive

    def events(self):
        return self._reports.pop(0) if self._reports else []


def event(kind, **fields):
    return {"event": kind, "uptime": 1.0, **fields}


END = {"code": 0, "seconds": 1.0, "left": [], "kernel": []}


class FollowerTest(unittest.TestCase):
    def follow(self, *reports, alive=False):
        follower = boot._Follower(Quiet(*reports, alive=alive), lambda outcome: None)
        for _ in range(len(reports) + 2):
            follower.step()
        return follower

    def test_whole_run(self):
        follower = self.follow([event("init")], [event("ready"), event("start", name="a", limit_s=5)],
                               [event("end", name="a", **END), event("quit", code=0)])
        self.assertTrue(follower.finished)
        self.assertEqual((follower.broken, [o.code for o in follower.outcomes]), ("", [0]))

    def test_death_is_told_with_the_moment(self):
        self.assertIn("ended before init", self.follow().broken)
        self.assertIn("before its devices", self.follow([event("init")]).broken)
        follower = self.follow([event("init"), event("ready"), event("start", name="a", limit_s=5)])
        self.assertIn("ended during a", follower.broken)
        self.assertEqual([(o.name, o.code) for o in follower.outcomes], [("a", -1)])

    def test_silence_ends_at_the_limit(self):
        follower = boot._Follower(Quiet(alive=True), lambda outcome: None)
        follower.machine.began -= boot.BOOT_LIMIT_S
        follower._deadline -= boot.BOOT_LIMIT_S + 1
        follower.step()
        self.assertIn("hung before init", follower.broken)

    def test_given_up_it_fails_what_it_ran(self):
        follower = self.follow([event("init"), event("ready"), event("start", name="a", limit_s=5)], alive=True)
        follower.give_up(boot.OUT_OF_TIME)
        self.assertEqual([(o.name, o.reason) for o in follower.outcomes], [("a", boot.OUT_OF_TIME)])
        ended = self.follow([event("init"), event("ready"), event("quit", code=0)])
        ended.give_up(boot.OUT_OF_TIME)
        self.assertEqual(ended.broken, "")

    def test_a_complaint_of_the_kernel_is_a_reason(self):
        follower = self.follow([event("init"), event("ready"), event("start", name="a", limit_s=5),
                                event("end", name="a", **{**END, "kernel": ["BUG: unable to handle page fault"]})])
        self.assertIn("unable to handle", follower.outcomes[0].reason)

    def test_last_words_of_a_guest_that_ended_are_heard(self):
        follower = boot._Follower(Quiet([event("init"), event("ready"), event("quit", code=0)]), lambda outcome: None)
        follower.machine._alive = False
        follower.step()
        self.assertTrue(follower.finished)


class PowerCutTest(unittest.TestCase):
    """A guest that asks for it is killed in the middle of its command, and started again with that command."""

    def test_the_machine_is_another_one_afterwards(self):
        begun = [event("init"), event("ready"), event("start", name="a", limit_s=5)]
        first = Quiet([*begun, event("cut", after_s=0)], alive=True)
        first.closed = False
        first.close = lambda: setattr(first, "closed", True)
        second = Quiet([*begun, event("end", name="a", **END), event("quit", code=0)])
        asked = []
        follower = boot._Follower(first, lambda outcome: None, 1, lambda cuts, name: asked.append((cuts, name)) or second)
        for _ in range(4):
            follower.step()
        self.assertTrue(first.closed)
        self.assertEqual(asked, [(1, "a")])
        self.assertEqual(follower.earlier_s, first.processor_s)
        self.assertTrue(follower.finished)
        self.assertEqual((follower.broken, [o.code for o in follower.outcomes]), ("", [0]))

    def test_a_guest_that_does_not_come_back_is_told(self):
        first = Quiet([event("init"), event("ready"), event("start", name="a", limit_s=5), event("cut", after_s=0)], alive=True)
        first.close = lambda: None
        follower = boot._Follower(first, lambda outcome: None, 1, lambda cuts, name: Quiet())
        for _ in range(4):
            follower.step()
        self.assertIn("ended before init", follower.broken)

    def test_it_begins_with_the_command_that_ran(self):
        job = machine.Job(({"name": "a"}, {"name": "b"}), (), (("X", "1"),))
        self.assertIs(boot._after_cuts(job, 0, ""), job)
        after = boot._after_cuts(job, 2, "b")
        self.assertEqual((after.commands, dict(after.environment)), (({"name": "b"},), {"X": "1", "TERRACE_QEMU_CUTS": "2"}))


class ProcessTest(unittest.TestCase):
    """QEMU as a process: followed to its end, ended, and asked what it took, whichever came first."""

    def machine(self, *command):
        made = machine.Machine.__new__(machine.Machine)
        made.processor_s, made._process = 0.0, subprocess.Popen(command)
        self.addCleanup(made.close)
        return made

    def test_one_that_ends_by_itself_tells_what_it_took(self):
        made = self.machine(sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass")
        while made.alive:
            time.sleep(0.01)
        made.close()
        self.assertGreaterEqual(made.processor_s, 0.25)
        self.assertFalse(made.alive)
        made.close()

    def test_one_that_goes_on_is_ended(self):
        made = self.machine("sleep", "1000")
        self.assertTrue(made.alive)
        made.close()
        self.assertFalse(made.alive)
        self.assertEqual(made.wait(), -9)


class SideBySideTest(unittest.TestCase):
    """Which boots the runner has under way at a time."""

    def run_all(self, tests, left=lambda group, turn: []):
        machine = runner.Runner.__new__(runner.Runner)
        machine.patience, machine.show_output = 1, True
        self.beside, self.order, turns = {}, [], {}
        under_way, changed = [], threading.Condition()

        def run_group(group, rows):
            name = group[0].name
            with changed:
                under_way.append(name)
                self.order.append(name)
                changed.notify_all()
                # The next one has a while to begin, if it may.
                changed.wait_for(lambda: len(under_way) > 1, 0.2)
                self.beside[name] = set(under_way) | self.beside.get(name, set())
            time.sleep(0.05)
            with changed:
                under_way.remove(name)
                for test in group:
                    rows[test.name].result = "passed"
                turns[name] = turns.get(name, 0) + 1
                return left(group, turns[name])

        machine._run_group = run_group
        return machine.run(tests)

    @staticmethod
    def guest_test(name, topology="plain"):
        return runner.GuestTest(name, (("x",),) * guest.TOPOLOGIES[topology].hosts, topology, alone=True)

    def test_two_guests_at_a_time_and_several_hosts_alone(self):
        rows = self.run_all([self.guest_test("a"), self.guest_test("b"), self.guest_test("both", "two-hosts"), self.guest_test("c")])
        self.assertEqual({row.result for row in rows}, {"passed"})
        self.assertEqual(self.beside["a"] | self.beside["b"], {"a", "b"})
        self.assertEqual(self.beside["both"], {"both"})
        self.assertEqual(self.order[2:], ["both", "c"])

    def test_what_a_lost_guest_left_has_another_boot(self):
        shared = [runner.GuestTest(name, (("x",),), "plain") for name in ("a", "b")]
        self.run_all(shared, lambda group, _: group[1:])
        self.assertEqual(self.order, ["a", "b"])

    def test_a_defect_ends_the_run(self):
        def broken(_group, _turn):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.run_all([self.guest_test("a"), self.guest_test("b")], broken)


class VerdictTest(unittest.TestCase):
    def judge(self, *outcomes, hosts=1, text=""):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            (place / "out").mkdir()
            (place / "out/t.log").write_text(text)

            class Folder:
                media = place

                @staticmethod
                def share(_host):
                    return place

            test = runner.GuestTest("t", (("x",),) * hosts)
            row = runner.Row("t", "plain")
            machine = runner.Runner.__new__(runner.Runner)
            machine.show_output = True
            machine._judge(test, row, list(outcomes), Folder)
            return row

    def test_skipped_is_not_passed(self):
        row = self.judge(boot.Outcome("t", 0, 77), text="test_x ... skipped 'no device'\n\nOK (skipped=1)\n")
        self.assertEqual(row.result, "skipped")
        self.assertIn("skipped", row.reason)

    def test_a_lost_host_fails_the_test(self):
        self.assertEqual(self.judge(boot.Outcome("t", 0, 0), hosts=2).result, "failed")
        self.assertEqual(self.judge(boot.Outcome("t", 0, 0), boot.Outcome("t", 1, 1), hosts=2).result, "failed")
        self.assertEqual(self.judge(boot.Outcome("t", 0, 0), boot.Outcome("t", 1, 0), hosts=2).result, "passed")

    def test_a_kernel_complaint_fails_a_test_that_passed(self):
        row = self.judge(boot.Outcome("t", 0, 0, reason="kernel: Oops"))
        self.assertEqual((row.result, row.reason), ("failed", "kernel: Oops"))

    def test_what_the_time_for_all_did_not_reach_is_not_run_and_says_so(self):
        machine = runner.Runner.__new__(runner.Runner)
        machine.patience = 1
        machine.show_output = True
        rows = machine.run([runner.GuestTest("t", (("x",),))], limit_s=0)
        self.assertEqual([(row.name, row.result, row.reason) for row in rows], [("t", "not run", boot.OUT_OF_TIME)])
        with self.assertRaises(Failure):
            runner.conclude(rows, time.monotonic(), "")

    def test_failed_or_unrun_tests_fail_the_verb(self):
        rows = [runner.Row("a", "plain", "passed"), runner.Row("b", "plain")]
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(Failure, "qemu: b"):
            runner.conclude(rows, time.monotonic(), f"{folder}/results.json")
        runner.conclude(rows[:1], time.monotonic(), "")

    def test_results_are_written_for_machines(self):
        with tempfile.TemporaryDirectory() as folder:
            runner.conclude([runner.Row("a", "plain", "passed", 1.5)], time.monotonic(), f"{folder}/results.json")
            document = json.loads(pathlib.Path(f"{folder}/results.json").read_text())
        self.assertEqual(document["tests"][0]["result"], "passed")


class OutsideTest(unittest.TestCase):
    """The look into the media files finds what is there, and nothing else."""

    LENGTH = 4096

    def write(self, folder, ways, granularity, offset, swap=False):
        data = pattern(3, self.LENGTH)
        media = [bytearray(16384) for _ in range(ways)]
        for at in range(0, self.LENGTH, granularity):
            chunk = (offset + at) // granularity
            where = chunk // ways * granularity
            media[chunk % ways][where:where + granularity] = data[at:at + granularity]
        names = [f"mem-{number}.raw" for number in range(ways)]
        for name, bytes_ in zip(reversed(names) if swap else names, media):
            (folder / name).write_bytes(bytes_)
        (folder / "placement.json").write_text(json.dumps(
            {"media": names, "ways": ways, "granularity": granularity, "offset": offset, "length": self.LENGTH,
             "seed": 3}))

    def test_interleaved_bytes_are_found(self):
        for ways, granularity, offset in ((1, 4096, 8192), (2, 256, 512), (4, 256, 256)):
            with tempfile.TemporaryDirectory() as name, self.subTest(ways=ways):
                folder = pathlib.Path(name)
                self.write(folder, ways, granularity, offset)
                self.assertIn("4 KiB found", outside.placement(folder, folder))

    def test_wrong_order_or_place_is_noticed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.write(folder, 2, 256, 0, swap=True)
            with self.assertRaisesRegex(AssertionError, "byte . of 4096"):
                outside.placement(folder, folder)
            self.write(folder, 2, 256, 0)
            told = json.loads((folder / "placement.json").read_text())
            (folder / "placement.json").write_text(json.dumps({**told, "offset": 512}))
            with self.assertRaises(AssertionError):
                outside.placement(folder, folder)

    def test_patterns_differ_by_place_and_seed(self):
        words = [pattern(seed, 64)[at:at + 8] for seed in (1, 2) for at in range(0, 64, 8)]
        self.assertEqual(len(set(words)), 16)


if __name__ == "__main__":
    unittest.main()
