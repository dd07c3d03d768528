# SPDX-License-Identifier: Apache-2.0
"""terrace kv serve: what one client sends, or does not read, hurts no other one.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/kv_cli/kv_hostile_test.py [TestClass[.test]]
"""

import os
import pathlib
import random
import resource
import socket
import time

from kv_base import MIB, Closed, FileSpaces, Resp, RespError, Serve
import terrace_harness as harness

GARBAGE = [
    b"\0" * 1000, b"\xff" * 1000, b"*", b"*1\r\n", b"*1\r\n$", b"*1\r\n$5\r\nab", b"*-5\r\n", b"*99999999999\r\n",
    b"*2147483648\r\n", b"*4097\r\n", b"*1\r\n$99999999999999999999\r\n", b"*1\r\n$-1\r\n", b"*1\r\n:1\r\n", b"$3\r\nGET\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$500000\r\n" + b"x" * 100_000,
    b"*3\r\n$4\r\nMSET\r\n$1\r\nk\r\n$536870912\r\n", b"*2\r\n$3\r\nGET\r\n$1\r\nkk\r\n", b"get \"\r\n", b"x" * 100_000,
    b"\r\n" * 1000, b"*0\r\n" * 1000, b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET k evil\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nFLUSHALL\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,
]


def resident_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


class Hostile(FileSpaces):
    def setUp(self):
        self.where = self.new_space()
        self.server = Serve(self, self.where)
        self.good = self.server.client()
        self.addCleanup(self.good.close)
        self.good.ask("SET", "k", "v")

    def check_good(self):
        """The one that behaves is answered, within a second."""
        begin = time.monotonic()
        self.assertEqual(self.good.ask("GET", "k"), b"v")
        self.assertLess(time.monotonic() - begin, harness.PATIENCE_S)

    def test_garbage_costs_its_sender_only(self):
        for garbage in GARBAGE:
            with self.subTest(garbage[:40]), self.server.client() as bad:
                bad.send(garbage)
                self.check_good()
                bad.socket.shutdown(socket.SHUT_WR)
                self.assertTrue(bad.closed())
                self.check_good()
        self.assertEqual(self.good.ask("DBSIZE"), 1)

    def test_a_wrong_request_is_told_of(self):
        for garbage, text in ((b"*1\r\n:1\r\n", "expected '$', got ':'"), (b"*4098\r\n", "invalid multibulk length"),
                              (b"*1\r\n$536870913\r\n", "invalid bulk length"), (b"get \"a\r\n", "unbalanced quotes"),
                              (b"*3\r\n$4\r\nMSET\r\n$1\r\nk\r\n$536870912\r\n", "a request of more than")):
            with self.subTest(garbage), self.server.client() as bad:
                bad.send(Resp.encode("PING") + garbage + b"x" * 100_000)
                self.assertEqual(bad.reply(), "PONG")
                self.assertIn(text, str(bad.reply()))
                self.assertRaises((Closed, ConnectionError), bad.reply)

    def test_random_bytes(self):
        numbers = random.Random(7)
        words = [b"*", b"$", b"\r\n", b"3", b"SET", b"GET", b"k", b"-1", b"MGET", b"\0", b" ", b"9999", b"\"", b"DEL"]
        for _ in range(150):
            with self.server.client() as bad:
                bad.send(b"".join(numbers.choice(words) for _ in range(numbers.randrange(200))))
                if numbers.random() < 0.5:
                    bad.socket.shutdown(socket.SHUT_WR)
        self.check_good()

    def test_half_requests_wait_and_cost_little(self):
        before = resident_bytes(self.server.process.pid)
        waiting = []
        for _ in range(200):
            bad = self.server.client()
            self.addCleanup(bad.close)
            bad.send(b"*3\r\n$4\r\nMSET\r\n$1\r\nk\r\n$400000\r\nabc")  # announced, and not sent
            waiting.append(bad)
        self.check_good()
        self.assertLess(resident_bytes(self.server.process.pid) - before, 64 * MIB)
        one = waiting[0]
        one.send(b"x" * 399_997 + b"\r\n")
        self.assertEqual(one.reply(), "OK")
        self.assertEqual(self.good.ask("STRLEN", "k"), 400_000)

    def test_a_byte_at_a_time(self):
        with self.server.client() as slow:
            for byte in Resp.encode("SET", "slow", "value") + b"PING\r\n":
                slow.send(bytes([byte]))
            self.assertEqual((slow.reply(), slow.reply()), ("OK", "PONG"))

    def test_who_does_not_read_is_not_read_from(self):
        self.good.ask("SET", "big", os.urandom(500_000))
        before = resident_bytes(self.server.process.pid)
        with self.server.client() as bad:
            bad.socket.settimeout(3)
            some, sent = Resp.encode("GET", "big") * 1000 + Resp.encode("GET", "k") * 1000, 0
            with self.assertRaises(TimeoutError, msg="the server must stop reading"):
                while sent < 100 * MIB:
                    bad.send(some)
                    sent += len(some)
            self.check_good()
            self.assertLess(resident_bytes(self.server.process.pid) - before, 256 * MIB)

    def test_who_stops_reading_loses_its_view(self):
        self.good.ask("SET", "big", os.urandom(500_000))
        with self.server.client() as bad:
            bad.send(Resp.encode("GET", "big") * 60)
            time.sleep(0.5)
            self.assertRegex(self.good.error("DEL", "big"), "BUSY")  # it is being read in place
            begin = time.monotonic()

            def erased():
                self.good.send(Resp.encode("DEL", "big"))
                return self.good.reply() == 1
            harness.wait_until(erased, 30, "the end of the views")
            self.assertGreater(time.monotonic() - begin, 5)
            self.assertTrue(bad.closed())

    def test_who_stops_sending_loses_its_block(self):
        with self.server.client() as bad:
            bad.send(Resp.encode("SET", "half", bytes(400_000))[:200_000])
            begin = time.monotonic()
            self.assertTrue(bad.closed())
            self.assertTrue(8 < time.monotonic() - begin)
        self.assertEqual(self.good.ask("EXISTS", "half"), 0)

    def test_many_clients(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 1200:
            self.skipTest("this process may not have 1200 descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        many = []
        for _ in range(1023):
            many.append(self.server.client())
            self.addCleanup(many[-1].close)
        self.assertEqual(many[-1].ask("PING"), "PONG")
        with self.server.client() as refused:
            self.assertIn("max number of clients", str(refused.reply()))
        self.check_good()
        many[0].close()

        def admitted():
            with self.server.client() as again:
                try:
                    return again.ask("PING") == "PONG"
                except (Closed, OSError, RespError):
                    return False
        harness.wait_until(admitted, 10, "a place for one more")


if __name__ == "__main__":
    harness.main()
