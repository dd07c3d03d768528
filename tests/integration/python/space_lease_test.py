# SPDX-License-Identifier: Apache-2.0
"""Tensor spaces in leases: their owners by the manager for each language, other users, the pool's coherence, readers
without a part, and what is told of leases and pools."""

import gc
import json
import mmap
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import python_base
from python_base import MIB, Harness, harness, needs_numpy, numpy, terrace, wait_until

CHILD = pathlib.Path(__file__).resolve().with_name("space_lease_child.py")
HEADERS = pathlib.Path(__file__).resolve().parents[3] / "libclient/include/terrace"
USER = 65534


class Child:
    """space_lease_child.py: a line of JSON in, a line of JSON out."""

    def __init__(self, case, service, **options):
        self.process = subprocess.Popen([sys.executable, "-B", str(CHILD), str(service.socket)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        case.addCleanup(self.end)

    def ask(self, verb, *words):
        print(json.dumps([verb, *words]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()
            except BrokenPipeError:
                pass


class InALease(unittest.TestCase):
    arguments = ()

    def setUp(self):
        self.t = Harness(devices={"a": "128M"}, name="space-lease", daemon_args=self.arguments)
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.addCleanup(gc.collect)

    def child(self, **options):
        return Child(self, self.t, **options)

    def cpp_holder(self):
        program = harness.find_binary("tests/integration/owners/owner_client", self.t.build_dir)
        process = self.t.popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def end():
            process.kill()
            process.communicate()

        self.addCleanup(end)
        self.assertEqual(process.stdout.readline().strip(), "ready")

        def ask(*words):
            print(*words, file=process.stdin, flush=True)
            return process.stdout.readline().strip()

        return ask


@needs_numpy
class Owners(InALease):
    def test_python_and_cpp_own_parts_by_one_manager(self):
        cpp = self.cpp_holder()
        self.assertTrue(cpp("grant", "space").isdigit())
        self.assertEqual(cpp("own", 0).split()[0], "0")
        self.assertEqual(cpp("create", "theirs"), "ok")
        lease = terrace.Session(str(self.t.socket)).attach("space")
        with self.assertRaisesRegex(terrace.Busy, "part 0"):
            terrace.TensorSpace(lease, part=0)
        space = terrace.TensorSpace(lease, own=True)
        self.assertEqual(space.part, 1)
        space.create("mine", (4096,), "u8").publish(numpy.full(4096, 7, numpy.uint8))
        self.assertEqual(cpp("read", "mine"), "7")
        self.assertEqual(cpp("publish", "theirs", 9), "ok")  # it is the owner still
        self.assertEqual(space["theirs"].read()[0].max(), 9)
        owners = {owner.part: owner for owner in lease.info().owners}
        self.assertEqual((owners[1].pid, owners[1].owned, owners[1].epoch), (os.getpid(), True, 1))
        self.assertEqual(sorted(owners), [0, 1])
        del space, lease, owners

    def test_owners_by_locks_are_refused_beside_the_managers(self):
        session = terrace.Session(str(self.t.socket))
        lease = session.grant(8 * MIB, mode="shared_coherent", label="space")
        terrace.TensorSpace.format(lease, parts=4, records_per_part=64)
        space = terrace.TensorSpace(lease)
        tensor = space.create("t", (16,), "u8")
        # As programs did before the manager's way was everybody's: through the descriptor, as root may.
        for own in (True, False):
            with self.assertRaisesRegex(terrace.PermissionDenied, "by the manager.*by file locks.*same kind"):
                terrace.TensorSpace(lease, fd=lease.fileno(), own=own)
        tensor.publish(numpy.full(16, 3, numpy.uint8))
        self.assertEqual(tensor.read()[0].max(), 3)
        del tensor, space
        gc.collect()
        # Also when nobody owns a part any more, and of a space that was formatted for the other kind.
        with self.assertRaisesRegex(terrace.PermissionDenied, "by the manager"):
            terrace.TensorSpace(lease, fd=lease.fileno())
        terrace.TensorSpace.format(lease, parts=4, records_per_part=64, ownership="locks")
        with self.assertRaisesRegex(terrace.PermissionDenied, "by file locks"):
            terrace.TensorSpace(lease)
        self.assertEqual(terrace.TensorSpace(lease, fd=lease.fileno(), own=True).part, 0)
        with self.assertRaisesRegex(terrace.InvalidArgument, "no kind of ownership"):
            terrace.TensorSpace.format(lease, ownership="me")
        del lease, session

    def test_a_reader_leaves_a_dead_writers_part_to_the_next_writer(self):
        writer, heir = self.child(), self.child()
        self.assertEqual(writer.ask("grant", "space", {"parts": 1, "seats": 2}), 8 * MIB)
        self.assertEqual(writer.ask("attach", {"own": True}), [0, None])
        writer.ask("publish", "t", 5)
        lease = terrace.Session(str(self.t.socket)).attach("space")
        space = terrace.TensorSpace(lease, own=False)
        self.assertEqual((space.part, space.seat), (None, None))
        writer.process.kill()
        writer.process.wait()
        tensor = space["t"]
        pin = tensor.pin()  # who pins needs a place for its pins: not the writer's
        array = pin.numpy()
        self.assertEqual((array.min(), array.max()), (5, 5))
        self.assertEqual((space.part, space.seat), (None, 0))
        self.assertEqual(heir.ask("take", "space"), 8 * MIB)
        self.assertEqual(heir.ask("attach", {"own": True}), [0, None])
        self.assertIsInstance(heir.ask("publish", "t", 6), int)  # the other slot
        self.assertEqual(heir.ask("publish", "t", 7)["error"], "busy")  # the pinned one
        self.assertEqual(array.max(), 5)
        for refused in (tensor.write, lambda: space.create("u", (1,), "u8")):
            with self.assertRaises(terrace.PermissionDenied):
                refused()
        pin.close()
        del array, pin
        gc.collect()
        wait_until(lambda: isinstance(heir.ask("publish", "t", 7), int), 60, "the slot")

        # Seats are for as many as there are, and the dead give theirs back.
        readers = [self.child() for _ in range(2)]
        for reader in readers:
            reader.ask("take", "space")
            self.assertEqual(reader.ask("attach", {"own": False}), [None, None])
        self.assertEqual(readers[0].ask("pin", "t"), 7)
        refused = readers[1].ask("pin", "t")
        self.assertEqual(refused["error"], "busy")
        self.assertIn("none of 2 seats", refused["text"])
        readers[0].process.kill()
        readers[0].process.wait()
        self.assertIsInstance(heir.ask("publish", "t", 8), int)
        wait_until(lambda: isinstance(heir.ask("publish", "t", 9), int), 60, "the dead reader's slot")
        self.assertEqual(readers[1].ask("pin", "t"), 9)
        del tensor, space, lease

    def test_who_only_reads_owns_nothing_without_saying_so(self):
        # Attached as every process is: it took the dead writer's part, and the writer that was started again got none.
        writer, heir = self.child(), self.child()
        self.assertEqual(writer.ask("grant", "space", {"parts": 1, "seats": 2}), 8 * MIB)
        self.assertEqual(writer.ask("attach", {}), [None, None])
        writer.ask("publish", "t", 5)
        lease = terrace.Session(str(self.t.socket)).attach("space")
        self.assertEqual([(one.part, one.owned) for one in lease.info().owners], [(0, True)])
        writer.process.kill()
        writer.process.wait()
        space = terrace.TensorSpace(lease)
        self.assertGreater(space.free_bytes, 0)
        with self.assertRaises(terrace.AlreadyExists):
            space.create("t", (1,), "u8")
        with space["t"].pin() as array:
            self.assertEqual(array.max(), 5)
        del array
        self.assertEqual((space.part, space.seat), (None, 0))
        heir.ask("take", "space")
        self.assertEqual(heir.ask("attach", {}), [None, None])
        self.assertIsInstance(heir.ask("publish", "t", 6), int)
        self.assertEqual(space["t"].read(wait=30)[0].max(), 6)
        with self.assertRaisesRegex(terrace.PermissionDenied, "which another holder owns"):
            space["t"].publish(numpy.zeros(4096, numpy.uint8))
        with self.assertRaisesRegex(terrace.Busy, "none of 1 parts"):
            space.create("u", (1,), "u8")
        heir.process.kill()
        heir.process.wait()
        self.assertIsInstance(space["t"].publish(numpy.full(4096, 7, numpy.uint8)), int)
        self.assertEqual((space.part, space.seat), (0, 0))  # the part of the tensor
        del space, lease


@needs_numpy
@unittest.skipUnless(os.geteuid() == 0, "only root can become another user")
class AnotherUser(InALease):
    arguments = ("--allow-unmapped-uids",)

    def user(self):
        identity = {"user": USER, "group": USER, "extra_groups": []}
        here = [str(CHILD), terrace._terrace.__file__]
        if any(subprocess.run(["test", "-r", path], check=False, **identity).returncode for path in here):
            self.skipTest("this user cannot read the package where it was built")
        return self.child(**identity)

    def test_shares_tensors_in_its_own_lease(self):
        self.t.directory.chmod(0o755)
        writer, reader, watcher = self.user(), self.user(), self.user()
        self.assertEqual(writer.ask("grant", "space", {}), 8 * MIB)
        self.assertEqual(writer.ask("attach", {"own": True}), [0, None])
        writer.ask("publish", "t", 5)
        self.assertEqual(reader.ask("take", "space"), 8 * MIB)
        self.assertEqual(reader.ask("attach", {"own": True}), [1, None])
        self.assertEqual(reader.ask("pin", "t"), 5)
        watcher.ask("take", "space")
        self.assertEqual(watcher.ask("attach", {"own": False}), [None, None])
        self.assertEqual(watcher.ask("pin", "t"), 5)
        writer.process.kill()
        writer.process.wait()
        heir = self.user()
        heir.ask("take", "space")
        self.assertEqual(heir.ask("attach", {"own": True}), [0, None])
        self.assertIsInstance(heir.ask("publish", "t", 6), int)
        self.assertEqual(watcher.ask("read", "t"), 6)


@needs_numpy
class Coherence(InALease):
    def formatted(self, how=None, **options):
        session = terrace.Session(str(self.t.socket))
        lease = session.grant(8 * MIB, mode="shared_coherent")
        memory = {None: lambda: lease, "mapping": lambda: terrace.Mapping(lease),
                  "buffer": lambda: terrace.Mapping(lease).numpy(),
                  "mmap": lambda: mmap.mmap(lease.fileno(), lease.bytes)}[how]()
        terrace.TensorSpace.format(memory, records_per_part=64, **options)
        kind = terrace.TensorSpace(lease, own=False).coherence
        del memory
        gc.collect()
        lease.release()
        return kind

    def test_the_default_is_the_pools(self):
        for said, kind in ((None, "noncoherent"), ("coherent", "coherent"), ("noncoherent", "noncoherent")):
            if said:
                self.t.cli("pool", "set", "p", "--coherence", said)
            for how in (None, "mapping", "buffer", "mmap"):
                with self.subTest(pool=said, memory=how):
                    self.assertEqual(self.formatted(how), kind)
        self.assertEqual(terrace.Session(str(self.t.socket)).pools()[0].coherence, "noncoherent")

    def test_a_contradiction_is_refused(self):
        self.assertEqual(self.formatted(coherence="coherent"), "coherent")  # the operator has said nothing
        self.t.cli("pool", "set", "p", "--coherence", "coherent")
        self.assertEqual(self.formatted(coherence="noncoherent"), "noncoherent")  # right everywhere
        self.t.cli("pool", "set", "p", "--coherence", "noncoherent")
        for how in (None, "mapping", "buffer", "mmap"):
            with self.assertRaisesRegex(terrace.InvalidArgument, "pool 'p' is noncoherent, as its operator says"):
                self.formatted(how, coherence="coherent")

    def test_plain_memory_is_coherent(self):
        memory = bytearray(MIB + 64)
        begin = -numpy.frombuffer(memory, numpy.uint8).ctypes.data % 64
        aligned = memoryview(memory)[begin:begin + MIB]
        terrace.TensorSpace.format(aligned, parts=2, records_per_part=16)
        self.assertEqual(terrace.TensorSpace(aligned, own=False).coherence, "coherent")

    def test_a_device_of_which_nothing_is_known_is_noncoherent(self):
        with tempfile.TemporaryDirectory(prefix="terrace-dax-", dir="/dev/shm") as folder:
            with open(pathlib.Path(folder) / "dax0.0", "w+b") as device:  # as a mapped one is named
                device.truncate(MIB)
                memory = mmap.mmap(device.fileno(), MIB)
            for options, kind in (({}, "noncoherent"), ({"coherence": "coherent"}, "coherent")):
                terrace.TensorSpace.format(memory, parts=2, records_per_part=16, **options)
                self.assertEqual(terrace.TensorSpace(memory, own=False).coherence, kind)


class Infos(InALease):
    @staticmethod
    def text_of(kind, name, header):
        text = re.search(rf"^{kind} {name}(?: final)? {{\n(.*?)\n}};", (HEADERS / header).read_text(), re.S | re.M)
        return re.sub(r"  struct \w+ \{.*?\n  \};|//[^\n]*", "", text.group(1), flags=re.S)

    @classmethod
    def members(cls, struct, header="session.h"):
        text = cls.text_of("struct", struct, header)
        names = set()
        for line in re.sub(r"  bool operator.*", "", text).split(";"):
            words = re.sub(r"= *[^,]*", "", line).strip()
            if words:
                names |= {re.split(r"\s+", name.strip())[-1] for name in words.split(",")}
        return names

    def test_every_field_that_cpp_has_is_there(self):
        for kind in (terrace.LeaseInfo, terrace.PoolInfo, terrace.TierFigures, terrace.ExtentInfo,
                     terrace.UsageReport, terrace.PartOwner, terrace.FreeRuns):
            with self.subTest(kind.__name__):
                self.assertEqual(set(kind._fields), self.members(kind.__name__))
        for name, header, kind in (("LeaseNotice", "session.h", terrace.LeaseNotice),
                                   ("TensorResidency", "tensor_pool.h", terrace.Residency),
                                   ("TensorStatistics", "tensor_pool.h", terrace.TensorStatistics),
                                   ("TensorPoolStatistics", "tensor_pool.h", terrace.TensorPoolStatistics),
                                   ("HbmStatistics", "tensor_device.h", terrace.HbmStatistics),
                                   ("TensorIdentity", "tensor_space.h", terrace.TensorIdentity),
                                   ("CheckpointInfo", "checkpoint.h", terrace.CheckpointInfo),
                                   ("CheckpointList", "checkpoint.h", terrace.CheckpointList),
                                   ("CheckpointProgress", "checkpoint.h", terrace.CheckpointProgress)):
            with self.subTest(name):
                self.assertEqual(set(kind._fields), self.members(name, header))

    def test_every_question_that_cpp_answers_is_there(self):
        called = {"bytes": "nbytes", "fd": "fileno", "notice_fd": "notice_fd"}
        for kind, header, python in (("Session", "session.h", terrace.Session), ("Lease", "session.h", terrace.Lease),
                                     ("SharedTensor", "tensor_space.h", terrace.SharedTensor),
                                     ("TensorSpace", "tensor_space.h", terrace.TensorSpace),
                                     ("Tensor", "tensor_pool.h", terrace.Tensor)):
            text = self.text_of("class", kind, header).split("private:")[0]
            questions = set(re.findall(r"(\w+)\(\) const\b", text)) - {"data"}
            self.assertGreater(len(questions), 2)
            for question in questions:
                with self.subTest(kind=kind, question=question):
                    self.assertTrue(hasattr(python, question) or hasattr(python, called.get(question, question)))

    @needs_numpy
    def test_what_is_told_of_spaces_and_their_tensors(self):
        session = terrace.Session(str(self.t.socket))
        lease = session.grant(8 * MIB, mode="shared_coherent", label="space")
        self.assertEqual((lease.access, session.attach("space", read_only=True).access), ("read_write", "read_only"))
        terrace.TensorSpace.format(lease, parts=2, records_per_part=16)
        space = terrace.TensorSpace(lease)
        self.assertEqual(space.health(), None)
        self.assertGreater(space.largest_free_bytes, 0)
        tensor = space.create("t", (3, 5), "f32", read_mostly=True, peers_may_remove=True)
        self.assertLessEqual(space.largest_free_bytes, space.free_bytes)
        self.assertEqual((tensor.strides, tensor.read_mostly, tensor.streaming, tensor.peers_may_remove, tensor.flags),
                         ((5, 1), True, False, True, 9))
        first = tensor.identity
        self.assertEqual(first, space["t"].identity)
        self.assertEqual((first.part, first.memory > 0), (0, True))
        tensor.remove()
        self.assertNotEqual(space.create("t", (3, 5), "f32").identity, first)
        lease.release()
        with self.assertRaises(terrace.LeaseExpired):
            wait_until(space.health, 60, "the end of the lease")
        del tensor, space, lease, session

    def test_fields_say_what_the_command_line_says(self):
        session = terrace.Session(str(self.t.socket))
        lease = session.grant(8 * MIB, mode="shared_coherent", label="space", movable=True)
        info = lease.info()
        shown = self.t.cli("lease", "show", "space").json["leases"][0]
        self.assertEqual((info.object, info.tier), (shown["object"], shown["tier"]))
        self.assertEqual([(one.device, one.offset_bytes, one.length_bytes) for one in info.extents],
                         [("emu:a", info.extents[0].offset_bytes, 8 * MIB)])
        self.assertEqual((info.cause, info.coherence, info.owners, info.usage.holder), ("", "unknown", [], ""))
        self.assertGreaterEqual(info.object_bytes, info.bytes)
        self.assertGreater(info.granule_bytes, 0)
        pool, = session.pools()
        self.assertEqual((pool.leases, pool.placement, pool.waiting, pool.coherence), (1, "linear", 0, "unknown"))
        self.assertEqual(sum(runs.bytes for runs in pool.free_runs), pool.free_bytes)
        self.assertLessEqual(pool.largest_free_bytes, pool.free_bytes)
        self.assertEqual(session.leases()[0].object, info.object)
        del lease, session


if __name__ == "__main__":
    python_base.harness.main()
