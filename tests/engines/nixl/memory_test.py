# SPDX-License-Identifier: Apache-2.0
"""Memory of a lease that agents in several processes read and write, by the released library of NIXL.

    TERRACE_ENGINE_DIR=build/engines/nixl TERRACE_BUILD_DIR=build/release python3 tests/engines/nixl/memory_test.py
"""

import hashlib
import random
import socket
import sys

from support import KIB, MIB, PATIENCE_S, SIZES, Failed, TestCase, content
import terrace_harness as harness
from ports import free_ports

AREA = 48 * MIB


def digest(data):
    return hashlib.sha256(data).hexdigest()


class WithMemory(TestCase):
    COHERENCE = "unknown"  # as a pool is made: counts as noncoherent

    def setUp(self):
        super().setUp()
        if self.COHERENCE != "unknown":
            self.t.cli("pool", "set", "p", "--coherence", self.COHERENCE)
        self.shared_lease("memory")

    def pair(self, **parameters):
        """An initiator with memory of its own, and a target whose memory lies in the lease. Returns the address there, too."""
        initiator, target = self.agent("initiator", **parameters), self.agent("target", leases="memory", **parameters)
        initiator.private("memory", AREA)
        address = target.lease("memory", "memory", size=AREA)
        self.assertEqual(initiator.load(target.metadata()), "target")
        return initiator, target, address


class Memory(WithMemory):
    def exchange(self, initiator, target, address, pieces, name):
        """Both directions, byte by byte, with other bytes each time. `pieces`: offset here, offset there, bytes."""
        for number, (here, _, size) in enumerate(pieces):
            initiator.fill("memory", here, size, f"{name} there {number}")
        self.assertEqual(initiator.transfer("WRITE", "memory", pieces, address, "target"), "DONE")
        for number, (_, there, size) in enumerate(pieces):
            self.assertEqual(target.digest("memory", there, size), digest(content(f"{name} there {number}", size)), (name, number))
            target.fill("memory", there, size, f"{name} back {number}")
        target.notify("initiator", "stored")  # what it stored by itself is written back with it
        self.assertEqual(initiator.notifications(1), [["target", "stored"]])
        self.assertEqual(initiator.transfer("READ", "memory", pieces, address, "target"), "DONE")
        for number, (here, _, size) in enumerate(pieces):
            self.assertEqual(initiator.digest("memory", here, size), digest(content(f"{name} back {number}", size)), (name, number))

    def test_bytes_of_every_size_in_both_directions(self):
        initiator, target, address = self.pair()
        target.load(initiator.metadata())
        for at, size in enumerate(SIZES):
            self.exchange(initiator, target, address, [(at * 3 + 1, at * 5 + 2, size)], f"size {size}")

    def test_many_descriptors(self):
        initiator, target, address = self.pair()
        target.load(initiator.metadata())
        order = random.Random(5)
        sizes = [order.choice((1, 17, 64, 1000, 4096, 30_011, 65_536)) for _ in range(600)]
        ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
        there = list(range(len(sizes)))
        order.shuffle(there)
        pieces = [(ends[number], ends[there[number]] if sizes[there[number]] >= sizes[number] else AREA // 2 + ends[number], sizes[number])
                  for number in range(len(sizes))]
        self.exchange(initiator, target, address, pieces, "many")

    def test_more_descriptors_than_one_notification_tells_of(self):
        initiator, target, address = self.pair()
        count = 50_000
        initiator.fill("memory", 0, count, "bytes")
        pieces = [(number, number * 128, 1) for number in range(count)]
        self.assertEqual(initiator.transfer("WRITE", "memory", pieces, address, "target", "all"), "DONE")
        self.assertEqual(target.notifications(1), [["initiator", "all"]])
        self.assertEqual(initiator.transfer("READ", "memory", [(MIB + number, number * 128, 1) for number in range(count)], address, "target"), "DONE")
        self.assertEqual(initiator.digest("memory", MIB, count), digest(content("bytes", count)))

    def test_what_lies_beside_stays(self):
        initiator, target, address = self.pair()
        target.fill("memory", 0, 64 * KIB, "around")
        around = bytearray(content("around", 64 * KIB))
        for number, (begin, size) in enumerate(((1, 1), (63, 2), (127, 1000), (4095, 4098), (60_001, 63))):
            initiator.fill("memory", 0, size, number)
            self.assertEqual(initiator.transfer("WRITE", "memory", [(0, begin, size)], address, "target"), "DONE")
            around[begin:begin + size] = content(number, size)
        self.assertEqual(target.digest("memory", 0, 64 * KIB), digest(around))

    def test_notifications_arrive_once_and_after_the_data(self):
        initiator, target, address = self.pair()
        target.load(initiator.metadata())
        for rounds, size in ((200, 4097), (20, 6 * MIB + 1)):
            target.begin("receive_stream", "memory", "initiator", rounds, size)
            self.assertEqual(initiator.send_stream("memory", address, "target", rounds, size), rounds)
            self.assertEqual(target.end(), rounds)
        count = 5000
        initiator.notify_many("target", count)
        self.assertEqual(target.notifications(count), [["initiator", str(number)] for number in range(count)])
        self.assertEqual(target.notifications(1, patience_s=1), [])

    def test_notifications_of_an_agent_whose_metadata_nobody_loaded(self):
        initiator, target, _ = self.pair()
        initiator.notify("target", "")
        initiator.notify("target", "x" * (3 * MIB))
        self.assertEqual(target.notifications(2), [["initiator", ""], ["initiator", "x" * (3 * MIB)]])

    def test_a_program_that_maps_the_path_itself(self):
        path = self.t.cli("lease", "path", "memory").json["path"]
        initiator, target = self.agent("initiator"), self.agent("target", leases="memory")
        initiator.private("memory", MIB)
        address = target.lease("memory", "memory", offset=5 * MIB, size=MIB, by=path)
        initiator.load(target.metadata())
        initiator.fill("memory", 0, MIB, "path")
        self.assertEqual(initiator.transfer("WRITE", "memory", [(0, 0, MIB)], address, "target"), "DONE")
        self.assertEqual(target.digest("memory", 0, MIB), digest(content("path", MIB)))

    def test_within_one_agent(self):
        agent = self.agent("one", leases="memory")
        address = agent.lease("leased", "memory", size=8 * MIB)
        agent.private("private", 8 * MIB)
        agent.fill("private", 0, 5 * MIB, "here")
        self.assertEqual(agent.transfer("WRITE", "private", [(0, 7, 5 * MIB)], address, "one", "done"), "DONE")
        self.assertEqual(agent.notifications(1), [["one", "done"]])
        self.assertEqual(agent.digest("leased", 7, 5 * MIB), digest(content("here", 5 * MIB)))

    def test_without_threads_and_with_several(self):
        for threads in ("0", "3"):
            initiator, target, address = self.pair(threads=threads)
            target.load(initiator.metadata())
            self.exchange(initiator, target, address, [(0, 3, 16 * MIB), (20 * MIB, 20 * MIB + 1, 5)], threads)


class CoherentMemory(Memory):
    COHERENCE = "coherent"


class Failures(WithMemory):
    def test_an_agent_that_is_killed(self):
        initiator, target, address = self.pair()
        initiator.prepare("again", "WRITE", "memory", [(0, 0, 4 * MIB)], address, "target")
        self.assertEqual(initiator.run("again"), "DONE")
        target.kill()
        with self.assertRaisesRegex(Failed, "nixlRemoteDisconnectError(.|\n)*agent target(.|\n)*has ended"):
            initiator.run("again")
        with self.assertRaisesRegex(Failed, "nixl(NotFound|RemoteDisconnect)Error"):
            initiator.notify("target", "hello")
        another = self.agent("target", leases="memory")
        address = another.lease("memory", "memory", size=AREA)
        initiator.release("again")
        initiator.forget("target")
        initiator.load(another.metadata())
        initiator.fill("memory", 0, MIB, "another")
        self.assertEqual(initiator.transfer("WRITE", "memory", [(0, 0, MIB)], address, "target", "done"), "DONE")
        self.assertEqual(another.notifications(1), [["initiator", "done"]])
        self.assertEqual(another.digest("memory", 0, MIB), digest(content("another", MIB)))

    def test_an_agent_that_is_killed_during_transfers(self):
        initiator, target, address = self.pair()
        initiator.prepare("again", "WRITE", "memory", [(0, 0, 16 * MIB)], address, "target", "done")
        self.assertEqual(initiator.run("again"), "DONE")
        initiator.begin("until_it_fails", "again", 1_000_000)
        target.notifications(3)
        target.kill()
        _, error = initiator.end()
        self.assertEqual(error, "nixlRemoteDisconnectError")

    def test_a_lease_that_ends_during_transfers(self):
        self.shared_lease("other", "16M")
        initiator, target, address = self.pair()
        second = self.agent("second", leases="other")
        kept = second.lease("memory", "other")
        initiator.load(second.metadata())
        for operation in ("WRITE", "READ"):
            initiator.prepare(operation, operation, "memory", [(0, 0, 16 * MIB)], address, "target")
            self.assertEqual(initiator.run(operation), "DONE")
        initiator.begin("until_it_fails", "WRITE", 1_000_000)
        self.t.cli("lease", "revoke", "memory", "--grace", "0s", "--reason", "drill")
        self.assertEqual(initiator.end()[1], "nixlBackendError")
        with self.assertRaisesRegex(Failed, "nixlBackendError(.|\n)*has ended"):
            initiator.run("READ")
        with self.assertRaisesRegex(Failed, "nixlNotAllowedError(.|\n)*has ended"):
            initiator.transfer("READ", "memory", [(0, 0, 1)], address, "target")
        initiator.fill("memory", 0, MIB, "goes on")
        self.assertEqual(initiator.transfer("WRITE", "memory", [(0, 1, MIB)], kept, "second", "done"), "DONE")
        self.assertEqual(second.notifications(1), [["initiator", "done"]])
        self.assertEqual(second.digest("memory", 1, MIB), digest(content("goes on", MIB)))

    def test_a_transfer_that_is_given_up(self):
        initiator, target, address = self.pair()
        initiator.give_up(100, "memory", address, "target")
        self.assertLessEqual(target.largest("memory"), 1)  # nothing that was stored after a release
        initiator.fill("memory", 0, MIB, "after")
        self.assertEqual(initiator.transfer("WRITE", "memory", [(0, 0, MIB)], address, "target", "after"), "DONE")
        harness.wait_until(lambda: ["initiator", "after"] in target.notifications(1), PATIENCE_S, "the last one's")
        self.assertEqual(target.digest("memory", 0, MIB), digest(content("after", MIB)))

    def test_memory_outside_of_leases_is_out_of_reach(self):
        initiator, target = self.agent("initiator"), self.agent("target")
        initiator.private("memory", MIB)
        address = target.private("memory", MIB)
        initiator.load(target.metadata())
        with self.assertRaisesRegex(Failed, "nixlNotAllowedError(.|\n)*agent target lies in no lease"):
            initiator.transfer("WRITE", "memory", [(0, 0, MIB)], address, "target")

    def test_a_lease_that_this_agent_cannot_have(self):
        target = self.agent("target", leases="memory")
        address = target.lease("memory", "memory", size=AREA)
        other = self.service("nixl-other")
        initiator = self.agent("initiator", service=other)  # at a manager that has no such lease
        initiator.private("memory", MIB)
        initiator.load(target.metadata())
        with self.assertRaisesRegex(Failed, "nixlNotAllowedError(.|\n)*agent target cannot be reached(.|\n)*not_found"):
            initiator.transfer("WRITE", "memory", [(0, 0, MIB)], address, "target")
        initiator.forget("target")
        own = self.shared_lease("own", "64M", other)  # of the same number, size and place on a device of the same name
        self.assertIn(own["id"], self.t.leases())
        initiator.load(target.metadata())
        with self.assertRaisesRegex(Failed, "nixlNotAllowedError(.|\n)*is other memory than the one"):
            initiator.transfer("WRITE", "memory", [(0, 0, MIB)], address, "target")

    def test_registrations_that_are_refused(self):
        agent = self.agent("a", leases="memory")
        agent.lease("cut", "memory", offset=64, size=1000, register=False)
        with self.assertRaisesRegex(Failed, "by whole lines of 64 bytes"):
            agent.register("cut")
        agent.register("cut", cut=1000 % 64)
        agent.lease("unaligned", "memory", offset=MIB + 1, size=640, register=False)
        with self.assertRaisesRegex(Failed, "by whole lines of 64 bytes"):
            agent.register("unaligned")

    def test_a_lease_that_may_only_be_read(self):
        self.t.cli("lease", "grant", "--pool", "p", "--size", "16M", "--persistent", "--mode", "shared_read_only", "--label", "read only")
        target = self.agent("target", leases="read only")
        address = target.lease("memory", "read only")
        reader = self.agent("reader")
        reader.private("memory", MIB)
        target.fill("memory", 0, MIB, "to be read")
        reader.load(target.metadata())
        target.load(reader.metadata())
        target.notify("reader", "stored")
        self.assertEqual(reader.notifications(1), [["target", "stored"]])
        self.assertEqual(reader.transfer("READ", "memory", [(0, 0, MIB)], address, "target"), "DONE")
        self.assertEqual(reader.digest("memory", 0, MIB), digest(content("to be read", MIB)))
        with self.assertRaisesRegex(Failed, "nixlNotAllowedError(.|\n)*may only read"):
            reader.transfer("WRITE", "memory", [(0, 0, MIB)], address, "target")

    def test_agents_that_reach_each_other_by_a_folder_and_by_tcp(self):
        folder = self.t.directory / "sockets"
        folder.mkdir()
        for number, listen in enumerate((str(folder), f"127.0.0.1:{free_ports(1)[0]}", "127.0.0.1:0")):
            target = self.agent(f"target{number}", leases="memory", listen=listen)
            initiator = self.agent(f"initiator{number}")
            initiator.private("memory", MIB)
            address = target.lease("memory", "memory")
            initiator.load(target.metadata())
            self.assertEqual(initiator.transfer("WRITE", "memory", [(0, 0, MIB)], address, f"target{number}", "by socket"), "DONE")
            self.assertEqual(target.notifications(1), [[f"initiator{number}", "by socket"]])
            target.kill()
            with self.assertRaisesRegex(Failed, "nixlRemoteDisconnectError"):
                initiator.transfer("WRITE", "memory", [(0, 0, MIB)], address, f"target{number}", "to nobody")
        self.assertEqual(len(list(folder.iterdir())), 1)  # the killed one's
        self.agent("another", listen=str(folder))
        self.assertEqual(len(list(folder.iterdir())), 1)  # its own

    def test_strangers_at_the_socket_are_sent_away(self):
        initiator, target, _ = self.pair()
        (port,) = free_ports(1)
        target = self.agent("listener", listen=f"127.0.0.1:{port}")
        initiator.load(target.metadata())
        for said in (b"GET / HTTP/1.0\r\n\r\n" + b"x" * 64, b"terrnix1" + bytes(16) + (4).to_bytes(4, "little") + b"evil" + bytes(4)):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as stranger:
                stranger.sendall(said)
                self.assertIn(self._answer(stranger), (b"", None))
        initiator.notify("listener", "right")
        self.assertEqual(target.notifications(1), [["initiator", "right"]])

    @staticmethod
    def _answer(stranger):
        try:
            return stranger.recv(100)
        except ConnectionResetError:
            return None


if __name__ == "__main__":
    sys.exit(harness.main())
