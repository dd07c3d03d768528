"""Tensor spaces in leases: their owners by the manager for each language, other users, the pool's coherence, readers
without a part, and what is told of leases and pools."""

import gc
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import python_base
from python_base import MIB, Harness, harness, needs_numpy, numpy, terrace, wait_until

CHILD = pathlib.Path(__file__).resolve().with_name("space_lease_child.py")
SESSION_H = pathlib.Path(__file__).resolve().parents[3] / "libclient/include/terrace/session.h"
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
        space = terrace.TensorSpace(lease)
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
        self.assertEqual(terrace.TensorSpace(lease, fd=lease.fileno()).part, 0)
        with self.assertRaisesRegex(terrace.InvalidArgument, "no kind of ownership"):
            terrace.TensorSpace.format(lease, ownership="me")
        del lease, session

    def test_a_reader_leaves_a_dead_writers_part_to_the_next_writer(self):
        writer, heir = self.child(), self.child()
        self.assertEqual(writer.ask("grant", "space", {"parts": 1, "seats": 2}), 8 * MIB)
        self.assertEqual(writer.ask("attach", {}), [0, None])
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
        self.assertEqual(heir.ask("attach", {}), [0, None])
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
        self.assertEqual(writer.ask("attach", {}), [0, None])
        writer.ask("publish", "t", 5)
        self.assertEqual(reader.ask("take", "space"), 8 * MIB)
        self.assertEqual(reader.ask("attach", {}), [1, None])
        self.assertEqual(reader.ask("pin", "t"), 5)
        watcher.ask("take", "space")
        self.assertEqual(watcher.ask("attach", {"own": False}), [None, None])
        self.assertEqual(watcher.ask("pin", "t"), 5)
        writer.process.kill()
        writer.process.wait()
        heir = self.user()
        heir.ask("take", "space")
        self.assertEqual(heir.ask("attach", {}), [0, None])
        self.assertIsInstance(heir.ask("publish", "t", 6), int)
        self.assertEqual(watcher.ask("read", "t"), 6)


@needs_numpy
class Coherence(InALease):
    def formatted(self, how=None, **options):
        session = terrace.Session(str(self.t.socket))
        lease = session.grant(8 * MIB, mode="shared_coherent")
        memory = {None: lambda: lease, "mapping": lambda: terrace.Mapping(lease),
                  "buffer": lambda: terrace.Mapping(lease).numpy()}[how]()
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
            for how in (None, "mapping", "buffer"):
                with self.subTest(pool=said, memory=how):
                    self.assertEqual(self.formatted(how), kind)
        self.assertEqual(terrace.Session(str(self.t.socket)).pools()[0].coherence, "noncoherent")

    def test_a_contradiction_is_refused(self):
        self.assertEqual(self.formatted(coherence="coherent"), "coherent")  # the operator has said nothing
        self.t.cli("pool", "set", "p", "--coherence", "coherent")
        self.assertEqual(self.formatted(coherence="noncoherent"), "noncoherent")  # right everywhere
        self.t.cli("pool", "set", "p", "--coherence", "noncoherent")
        for how in (None, "mapping", "buffer"):
            with self.assertRaisesRegex(terrace.InvalidArgument, "pool 'p' is noncoherent, as its operator says"):
                self.formatted(how, coherence="coherent")

    def test_plain_memory_is_coherent(self):
        memory = bytearray(MIB + 64)
        begin = -numpy.frombuffer(memory, numpy.uint8).ctypes.data % 64
        aligned = memoryview(memory)[begin:begin + MIB]
        terrace.TensorSpace.format(aligned, parts=2, records_per_part=16)
        self.assertEqual(terrace.TensorSpace(aligned, own=False).coherence, "coherent")


class Infos(InALease):
    @staticmethod
    def members(struct):
        text = re.search(rf"struct {struct} {{\n(.*?)\n}};", SESSION_H.read_text(), re.S).group(1)
        names = set()
        for line in re.sub(r"//.*|  bool operator.*", "", text).split(";"):
            words = re.sub(r"= *[^,]*", "", line).strip()
            if words:
                names |= {re.split(r"\s+", name.strip())[-1] for name in words.split(",")}
        return names

    def test_every_field_that_cpp_has_is_there(self):
        for kind in (terrace.LeaseInfo, terrace.PoolInfo, terrace.TierFigures, terrace.ExtentInfo,
                     terrace.UsageReport, terrace.PartOwner, terrace.FreeRuns):
            with self.subTest(kind.__name__):
                self.assertEqual(set(kind._fields), self.members(kind.__name__))

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
