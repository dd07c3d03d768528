# SPDX-License-Identifier: Apache-2.0
"""Tensor spaces whose lease is revoked while they are used."""

import gc
import threading
import time
import unittest

from python_base import MIB, harness, needs_numpy, numpy, terrace, wait_until
from space_lease_test import InALease


@needs_numpy
class LostLease(InALease):
    """A lease that is revoked for good is terrace.LeaseLost from every call of a space; nothing dies, and everything can
    be dropped in any order."""

    def setUp(self):
        super().setUp()
        self.session = terrace.Session(str(self.t.socket))
        self.lease = self.session.grant(16 * MIB, mode="shared_coherent", label="space")
        terrace.TensorSpace.format(self.lease, parts=4, records_per_part=64)
        self.space = terrace.TensorSpace(self.lease)
        self.tensor = self.space.create("t", (1 << 18,), "u8", double_buffered=True)
        self.tensor.publish(numpy.full(1 << 18, 5, numpy.uint8))

    def lose(self):
        self.t.cli("lease", "revoke", self.lease.id, "--grace", "0s", "--reason", "maintenance")
        wait_until(lambda: self.lease.state == "lost", 60, "the end of the lease")

    def drop(self):
        del self.session, self.lease, self.space, self.tensor
        gc.collect()

    def test_every_call(self):
        write, pin = self.tensor.write(), self.tensor.pin()
        self.lose()
        data = numpy.zeros(1 << 18, numpy.uint8)
        calls = {
            "format": lambda: terrace.TensorSpace.format(self.lease, parts=4),
            "attach": lambda: terrace.TensorSpace(self.lease),
            "create": lambda: self.space.create("u", (16,), "u8"),
            "open": lambda: self.space.open("t"),
            "getitem": lambda: self.space["t"],
            "list": lambda: self.space.list(),
            "free_bytes": lambda: self.space.free_bytes,
            "read": lambda: self.tensor.read(),
            "version": lambda: self.tensor.version,
            "pin": lambda: self.tensor.pin(),
            "write": lambda: self.tensor.write(),
            "publish": lambda: self.tensor.publish(data),
            "wait": lambda: self.tensor.wait_for_version(99, timeout=0.1),
            "remove": lambda: self.tensor.remove(),
            "publish an open write": lambda: write.publish(),
            "renew": lambda: self.lease.renew(),
        }
        for name, call in calls.items():
            with self.subTest(call=name):
                with self.assertRaises(terrace.LeaseLost):
                    call()
        pin.close()
        write.close()
        del pin, write, calls
        self.drop()

    def test_dropped_in_each_order(self):
        for first in ("pin", "write", "tensor", "space", "lease", "session"):
            things = {"session": self.session, "lease": self.lease, "space": self.space, "tensor": self.tensor}
            things["pin"], things["write"] = self.tensor.pin(), self.tensor.write()
            self.lose()
            del self.session, self.lease, self.space, self.tensor
            del things[first]
            gc.collect()
            things.clear()
            gc.collect()
            self.t.wait_free()
            self.session = terrace.Session(str(self.t.socket))
            self.lease = self.session.grant(16 * MIB, mode="shared_coherent", label="space")
            terrace.TensorSpace.format(self.lease, parts=4, records_per_part=64)
            self.space = terrace.TensorSpace(self.lease)
            self.tensor = self.space.create("t", (1 << 18,), "u8", double_buffered=True)
            self.tensor.publish(numpy.full(1 << 18, 5, numpy.uint8))
        self.drop()

    def test_while_threads_read_and_write(self):
        seen, barrier = [], threading.Barrier(4)

        def use(call):
            barrier.wait()
            end = time.monotonic() + 60
            while time.monotonic() < end:
                try:
                    call()
                except terrace.LeaseLost:
                    return seen.append("lost")
                except terrace.Busy:
                    pass

        data = numpy.full(1 << 18, 6, numpy.uint8)
        calls = (lambda: self.tensor.publish(data), lambda: self.tensor.read(), lambda: self.space.open("t"))
        threads = [threading.Thread(target=use, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        barrier.wait()
        self.lose()
        for thread in threads:
            thread.join(90)
        self.assertEqual(seen, ["lost"] * 3)
        del threads, calls
        self.drop()


if __name__ == "__main__":
    harness.main()
