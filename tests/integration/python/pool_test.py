# SPDX-License-Identifier: Apache-2.0
"""Sessions, leases and pools of tensors from Python, against a real daemon."""

import gc
import mmap
import os
import pathlib
import select
import subprocess
import sys
import threading
import time
import unittest

import python_base
from python_base import MIB, Harness, found, needs_numpy, numpy, terrace, wait_until


class Service(unittest.TestCase):
    def setUp(self):
        self.t = Harness(devices={"a": "256M"}, name="python")
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.session = terrace.Session(str(self.t.socket))
        self.addCleanup(gc.collect)


class Descriptors(unittest.TestCase):
    def test_leases_that_are_held_cost_the_manager_no_descriptors(self):
        """Each took one for as long as it was held: one program with as many leases as files may be open locked
        everybody out, the operator too. The memory stays reachable, and a second attach works as the first."""
        t = Harness(devices={"a": "1300M"}, name="descriptors", daemon_args=["--emulate-overcommit"])
        self.addCleanup(t.close)
        t.start()
        t.create_pool("p")
        session = terrace.Session(str(t.socket))
        before = t.cli("status").json["server"]["descriptors"]
        leases = [session.grant(2 * MIB) for _ in range(600)]
        again = [session.attach(lease.id) for lease in leases]
        just_carved = 256  # at most, of which it keeps the descriptor for the next step
        server = wait_until(lambda: [server for server in [t.cli("status").json["server"]]
                                     if server["descriptors"] < before + just_carved + 20], 10,
                            "descriptors to be closed")[0]
        self.assertGreaterEqual(server["descriptors_max"], 1024)
        for lease in (*leases[:2], *again[-2:]):
            with mmap.mmap(lease.fileno(), 2 * MIB) as memory:
                memory[:5] = b"here!"
                self.assertEqual(memory[:5], b"here!")
        del again


class Sessions(Service):
    def test_nobody_listens(self):
        with self.assertRaisesRegex(terrace.Unavailable, "/nonexistent/terraced.sock") as caught:
            terrace.Session("/nonexistent/terraced.sock", connect_timeout=0.1)
        self.assertEqual(caught.exception.code, "unavailable")
        self.assertIsInstance(caught.exception, terrace.Error)

    def test_a_lease_is_granted_told_resized_and_given_back(self):
        with self.session.grant(4 * MIB, label="scratch", ttl=60) as lease:
            self.assertEqual((lease.bytes, lease.state), (4 * MIB, "live"))
            info = lease.info()
            self.assertEqual((info.id, info.label, info.pool, info.bytes), (lease.id, "scratch", "p", 4 * MIB))
            self.assertEqual([one.id for one in self.session.leases()], [lease.id])
            self.assertEqual(lease.resize(6 * MIB).bytes, 6 * MIB)
            self.assertGreater(lease.epoch, 0)
            self.assertEqual(self.session.pools()[0].leased_bytes, 6 * MIB)
            same = self.session.attach("scratch", read_only=True)
            self.assertEqual(same.id, lease.id)
            self.assertEqual(self.session.attach(lease.id).id, lease.id)
            del same
        self.assertEqual(lease.state, "lost")
        self.t.wait_free()

    def test_errors_are_classes_with_the_whole_text(self):
        with self.assertRaisesRegex(terrace.CapacityExhausted, "capacity_exhausted"):
            self.session.grant(1 << 40)
        with self.assertRaises(terrace.NotFound) as caught:
            self.session.grant(MIB, pool="none")
        self.assertIsInstance(caught.exception, LookupError)
        self.assertIn("'none'", str(caught.exception))
        self.assertEqual(terrace.NotFound.__module__, "terrace", "what tracebacks name is what programs catch")
        with self.assertRaisesRegex(ValueError, "'public' is no lease mode"):
            self.session.grant(MIB, mode="public")
        with self.assertRaises(terrace.InvalidArgument):
            self.session.grant(MIB, ttl=-1.0)
        with self.assertRaises(terrace.InvalidArgument):
            self.session.attach("")

    def test_a_mapping_is_a_buffer(self):
        with self.session.grant(2 * MIB) as lease:
            mapping = terrace.Mapping(lease)
            self.assertEqual(len(mapping), 2 * MIB)
            memoryview(mapping)[:4] = b"four"
            self.assertEqual(bytes(memoryview(mapping)[:5]), b"four\0")
            if numpy:
                array = mapping.numpy()
                del mapping
                gc.collect()
                self.assertEqual(array[:4].tobytes(), b"four")

    def revoke(self, lease, grace="0s"):
        """What it prints is for nobody; with a grace it waits for the holder."""
        command = self.t.popen(self.t.terrace, "lease", "revoke", str(lease.id), "--grace", grace, "--reason", "maintenance",
                               stdout=subprocess.DEVNULL)
        self.addCleanup(command.wait)
        self.addCleanup(command.kill)

    def test_a_handler_is_called_with_each_notice_and_may_call_back(self):
        heard, states = [], []

        def handler(notice):
            heard.append(notice)
            if notice.state == "revoking":
                states.append(lease.state)
                lease.release()
                self.session.on_notice(None)
                raise ValueError("for sys.unraisablehook")

        told = []
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = told.append
        lease = self.session.grant(2 * MIB, ttl=60)
        self.session.on_notice(handler)
        self.revoke(lease, "1h")
        wait_until(lambda: told, 60, "the handler's exception")
        self.assertEqual([notice.reason for notice in heard], ["maintenance"])
        self.assertEqual((states, lease.state), (["revoking"], "lost"))
        self.t.wait_free(timeout=60)
        with self.assertRaises(terrace.InvalidArgument):
            self.session.on_notice(17)

    def test_a_notice_can_be_waited_for(self):
        self.assertIsNone(self.session.next_notice())
        self.assertIsNone(self.session.next_notice(timeout=0.01))
        lease = self.session.grant(2 * MIB, ttl=60)
        self.revoke(lease)
        readable, _, _ = select.select([self.session.notice_fd], [], [], 60)
        self.assertEqual(readable, [self.session.notice_fd])
        notice = self.session.next_notice(timeout=60)
        self.assertEqual((notice.lease, notice.state, notice.cause), (lease.id, "lost", "revoked"))
        self.assertEqual(select.select([self.session.notice_fd], [], [], 0)[0], [])

    def run_program(self, text, returncode=0):
        environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(terrace.__file__).parents[1]),
                           TERRACE_SOCKET=str(self.t.socket))
        done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, returncode, done.stderr)
        return done.stdout

    def test_a_program_ends_with_its_handler_still_there(self):
        self.assertEqual(self.run_program(
            "import terrace, sys\n"
            "s = terrace.Session(); lease = s.grant(2 << 20)\n"
            "s.on_notice(lambda notice: print(notice, s))\n"
            "sys.exit(3)", returncode=3), "")

    def test_a_program_runs_again_at_once(self):
        """However it ended, the next one gets the same label and all of the pool."""
        program = ("import os, sys, terrace\n"
                   "session = terrace.Session()\n"
                   "lease = session.grant(192 << 20, label='weights', wait=60)\n"
                   "pool = terrace.TensorPool(session, [lease], ddr_bytes=16 << 20)\n"
                   "weight = pool.create((1024, 1024), 'bfloat16', name='w0', hint='weights')\n"
                   "memoryview(weight).cast('B')[:4] = b'used'\n")
        for end, code in (("", 0), ("raise RuntimeError('an end')", 1), ("os.kill(os.getpid(), 9)", -9),
                          ("os.abort()", -6), ("os._exit(5)", 5), ("", 0)):
            self.run_program(program + end, returncode=code)
        self.t.wait_free()

    def test_a_revocation_is_told(self):
        lease = self.session.grant(2 * MIB, ttl=60)
        self.t.cli("lease", "revoke", lease.id, "--grace", "0s", "--reason", "maintenance")
        heard = []

        def lost():
            heard.extend(self.session.notices())
            return any(notice.state == "lost" for notice in heard)

        wait_until(lost, 60, "the notice")
        self.assertTrue(any(notice.lease == lease.id and notice.cause == "revoked" for notice in heard), heard)
        self.assertEqual(lease.state, "lost")
        with self.assertRaises(terrace.LeaseLost):
            lease.renew()

    def test_a_lease_keeps_its_session(self):
        lease = self.session.grant(2 * MIB, ttl=10)
        with self.session:
            pass
        self.session = None
        gc.collect()
        time.sleep(15)  # longer than the TTL: only renewals keep it
        self.assertEqual(lease.info().phase, "active")
        lease.release()


class Pools(Service):
    def setUp(self):
        super().setUp()
        self.lease = self.session.grant(64 * MIB)
        self.pool = terrace.TensorPool(self.session, [self.lease], ddr_bytes=16 * MIB)

    def test_created_found_and_told(self):
        tensor = self.pool.create((1024, 512), "bf16", name="w0", hint="weights", read_mostly=True)
        self.assertEqual((tensor.name, tensor.dtype, tensor.hint, tensor.nbytes), ("w0", "BF16", "weights", MIB))
        self.assertEqual((tensor.read_mostly, tensor.streaming), (True, False))
        self.assertEqual(repr(tensor), "<terrace.Tensor 'w0' BF16 [1024, 512]>")
        self.assertEqual(self.pool["w0"].address, tensor.address)
        residency = tensor.residency
        self.assertEqual(residency.ddr_bytes + residency.cxl_bytes, MIB)
        tensor.advise(hint="kv_cache", streaming=True, passes=2)
        self.assertEqual((tensor.hint, tensor.read_mostly, tensor.streaming), ("kv_cache", True, True))
        statistics = self.pool.statistics
        self.assertEqual((statistics.tensors, statistics.tensor_bytes), (1, MIB))
        del tensor
        self.assertFalse(found(self.pool, "w0"))

    def test_errors_say_which_tensor_and_how_much_is_short(self):
        with self.assertRaisesRegex(terrace.CapacityExhausted, "'big'.*short") as caught:
            self.pool.create((1 << 30,), "u8", name="big")
        self.assertEqual(caught.exception.code, "capacity_exhausted")
        kept = self.pool.create((16,), name="one")
        with self.assertRaisesRegex(terrace.AlreadyExists, "'one'"):
            self.pool.create((16,), name="one")
        with self.assertRaisesRegex(terrace.NotFound, "'two'"):
            self.pool["two"]
        with self.assertRaisesRegex(terrace.InvalidArgument, "'one'"):
            kept.unpin()
        with self.assertRaisesRegex(ValueError, "'hbm3' is no tier"):
            kept.pin("hbm3")
        with self.assertRaisesRegex(ValueError, "is no hint"):
            self.pool.create(1, hint="wait")
        for shape in (-1, (1, -2), "ab", (1,) * 9, 1.5, None):
            with self.assertRaises(ValueError):
                self.pool.create(shape)

    def test_pinned_and_moved(self):
        tensor = self.pool.create((4 * MIB,), "u8", name="m", hint="weights")
        view = memoryview(tensor)
        view[:] = bytes(range(256)) * (4 * MIB // 256)
        moves = not self.pool.statistics.reason
        if not moves:
            self.skipTest(self.pool.statistics.reason)
        tensor.move_to("cxl").wait(60)
        self.assertEqual(tensor.residency, terrace.Residency(0, 4 * MIB))
        move = tensor.pin("ddr")
        move.wait()
        self.assertTrue(move.done)
        self.assertEqual(move.bytes_there, 4 * MIB)
        self.assertEqual(tensor.statistics.pins, 1)
        with self.assertRaisesRegex(terrace.Busy, "'m'"):
            tensor.move_to("cxl").wait(60)
        tensor.unpin()
        tensor[: 2 * MIB].move_to("cxl").wait(60)
        tensor.prefetch().wait(60)
        self.assertEqual(bytes(view), bytes(range(256)) * (4 * MIB // 256))
        held = tensor.read(hold=True)
        with self.assertRaisesRegex(terrace.Busy, "'m'"):  # how the move ends, not that it goes on
            tensor.move_to("cxl").wait()
        held.close()
        tensor.move_to("cxl").wait()

    @needs_numpy
    def test_arrays_are_right_while_the_bytes_move(self):
        arrays = [self.pool.create((512, 1024), "i32", name=f"a{i}").numpy() for i in range(16)]
        for number, array in enumerate(arrays):
            array[...] = number
        stop = threading.Event()
        wrong = []

        def work():
            while not stop.is_set():
                for number, array in enumerate(arrays):
                    if array[::97, ::89].min() != number or array[::97, ::89].max() != number:
                        wrong.append(number)

        workers = [threading.Thread(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
        try:
            for _ in range(3):
                for number in range(16):
                    tensor = self.pool[f"a{number}"]
                    for tier in ("cxl", "ddr"):
                        try:
                            tensor.move_to(tier).wait(60)
                        except terrace.Unsupported as error:
                            self.skipTest(str(error))
                        except terrace.Error as error:
                            self.assertIn(error.code, ("capacity_exhausted", "busy", "cancelled"))
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        self.assertEqual(wrong, [])

    def test_steps_are_learned_through_guards(self):
        tensors = [self.pool.create((4 * MIB,), "u8", name=f"l{i}", hint="weights") for i in range(8)]
        for _ in range(5):
            for tensor in tensors:
                guard = tensor.read()
                guard.close()
                guard.close()  # twice is as once
            self.pool.step()
        statistics = self.pool.statistics
        self.assertEqual((statistics.steps, statistics.guards), (5, 40))
        if not statistics.reason:
            self.assertGreaterEqual(statistics.orders_learned, 1)
        self.assertEqual(tensors[0].statistics.reads, 5)

    def test_others_run_while_one_waits(self):
        """The GIL is let go: a thread that waits for room in a full pool does not stop the rest."""
        started, ended = threading.Event(), threading.Event()

        def waits():
            started.set()
            try:
                self.session.grant(250 * MIB, wait=30)
            except terrace.Error:
                pass
            ended.set()

        thread = threading.Thread(target=waits, daemon=True)
        thread.start()
        started.wait()
        for _ in range(1000):
            self.pool.statistics
        self.assertFalse(ended.is_set())
        self.t.kill()  # nobody is waited for in tearDown
        self.t.start()
        self.pool.close()
        gc.collect()
        self.lease.release()
        thread.join(90)
        self.assertTrue(ended.is_set())

    def test_a_session_closed_under_a_call_ends_after_it(self):
        session = terrace.Session(str(self.t.socket))  # nothing else keeps it
        started, answers = threading.Event(), []

        def waits():
            started.set()
            try:
                session.grant(250 * MIB, wait=3)
            except terrace.Error as error:
                answers.append(error.code)

        thread = threading.Thread(target=waits)
        thread.start()
        started.wait()
        session.close()
        thread.join(60)
        self.assertEqual(len(answers), 1)
        self.assertIn(answers[0], ("capacity_exhausted", "invalid_argument"))  # the latter: closed before the call
        with self.assertRaisesRegex(terrace.InvalidArgument, "was closed"):
            session.leases()

    def test_what_a_call_made_under_a_close_is_whole(self):
        session = terrace.Session(str(self.t.socket))
        made = []
        thread = threading.Thread(target=lambda: made.append(session.grant(200 * MIB, ttl=10, wait=None)),
                                  daemon=True)
        thread.start()

        def others_wait():
            try:
                self.session.grant(2 * MIB).release()
            except terrace.CapacityExhausted:  # it would pass who waits
                return True
            return False

        wait_until(others_wait, 60, "the call's turn to wait")
        session.close()
        self.pool.close()
        gc.collect()
        self.lease.release()
        thread.join(120)
        time.sleep(15)  # longer than the TTL: the lease's session renews it
        self.assertEqual(made[0].info().phase, "active")
        made[0].release()

    def test_none_is_as_long_as_may_be(self):
        lease = self.session.grant(2 * MIB, ttl=None, wait=None)
        self.assertEqual(lease.info().ttl_ns, 30 * 86400 * 10**9)
        lease.renew(60)
        lease.renew(None)
        self.assertEqual(lease.info().ttl_ns, 30 * 86400 * 10**9)

    @needs_numpy
    def test_everything_is_let_go_in_any_order(self):
        array = self.pool.create((MIB,), "u8", name="last").numpy()
        array[...] = 1
        self.pool.close()
        self.session.close()
        self.pool = self.lease = self.session = None
        gc.collect()
        self.assertEqual(int(array.sum()), MIB)  # its lease is renewed, its memory mapped
        del array
        gc.collect()

    @needs_numpy
    def test_threads_make_use_and_drop_tensors(self):
        failed = []

        def work(number):
            try:
                for i in range(100):
                    tensor = self.pool.create((64, 64), "i32", name=f"{number}/{i}")
                    with tensor.write() as array:
                        array[...] = number
                    with tensor[::2].read() as array:
                        assert (array == number).all()
            except Exception as error:  # told by the main thread
                failed.append(error)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(failed, [])
        gc.collect()
        self.assertEqual(self.pool.statistics.tensors, 0)


if __name__ == "__main__":
    python_base.harness.main()
