# SPDX-License-Identifier: Apache-2.0
"""terrace kv serve: a space for redis-cli, redis-benchmark, and clients of our own.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/kv_cli/kv_serve_test.py [TestClass[.test]]
"""

import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

from kv_base import CONFLICT, DENIED, FAILED, MIB, NOT_FOUND, USAGE, Closed, FileSpaces, LeaseSpaces, Resp, RespError, Serve
import terrace_harness as harness


class Serving:
    def serve(self, *arguments, where=None, **options):
        self.where = where or self.new_space()
        return Serve(self, self.where, *arguments, **options)

    def test_blocks_go_in_and_out(self):
        with self.serve().client() as client:
            self.assertEqual(client.ask("PING"), "PONG")
            self.assertEqual(client.ask("ECHO", b"\0\r\n"), b"\0\r\n")
            self.assertEqual(client.ask("SET", "k", "one"), "OK")
            self.assertEqual(client.ask("SET", "k", "one"), "OK")
            self.assertEqual(client.ask("GET", "k"), b"one")
            self.assertEqual(client.ask("SET", "k", "two"), "OK")
            self.assertEqual(client.ask("GET", "k"), b"two")
            self.assertIsNone(client.ask("SET", "k", "three", "NX"))
            self.assertEqual(client.ask("SETNX", "k", "three"), 0)
            self.assertEqual(client.ask("SETNX", "n", "three"), 1)
            self.assertEqual(client.ask("MSET", "a", "1", "b", "2"), "OK")
            self.assertEqual(client.ask("MGET", "a", "none", "b", "k"), [b"1", None, b"2", b"two"])
            self.assertEqual(client.ask("EXISTS", "a", "a", "none"), 2)
            self.assertEqual((client.ask("STRLEN", "k"), client.ask("STRLEN", "none")), (3, 0))
            self.assertEqual((client.ask("TYPE", "k"), client.ask("TYPE", "none")), ("string", "none"))
            self.assertEqual(client.ask("DBSIZE"), 4)
            self.assertEqual(sorted(client.ask("KEYS", "[ab]")), [b"a", b"b"])
            self.assertEqual(client.ask("DEL", "a", "none", "b"), 2)
            self.assertEqual(client.ask("UNLINK", "n"), 1)
            self.assertEqual(client.ask("FLUSHALL"), "OK")
            self.assertEqual(client.ask("DBSIZE"), 0)
            self.assertIsNone(client.ask("GET", "k"))

    def test_blocks_end_when_they_should(self):
        with self.serve().client() as client:
            self.assertEqual(client.ask("SET", "k", "v", "EX", 100), "OK")
            self.assertTrue(95 <= client.ask("TTL", "k") <= 100)
            self.assertTrue(95_000 <= client.ask("PTTL", "k") <= 100_000)
            self.assertEqual(client.ask("SET", "for ever", "v"), "OK")
            self.assertEqual((client.ask("TTL", "for ever"), client.ask("TTL", "none")), (-1, -2))
            self.assertEqual(client.ask("SET", "soon", "v", "PX", 300), "OK")
            harness.wait_until(lambda: client.ask("GET", "soon") is None, 10, "the block's end")

    def test_what_is_not_there_is_refused_as_clients_know_it(self):
        with self.serve().client() as client:
            self.assertEqual(client.error("LPUSH", "a", "b"),
                             "ERR unknown command 'LPUSH', with args beginning with: 'a' 'b' ")
            self.assertEqual(client.error("GET"), "ERR wrong number of arguments for 'get' command")
            self.assertIn("XX or GET is not supported", client.error("SET", "k", "v", "XX"))
            self.assertEqual(client.error("SET", "k", "v", "EX", "0"), "ERR invalid expire time in 'set' command")
            self.assertEqual(client.error("SET", "k", "v", "EX"), "ERR syntax error")
            self.assertIn("DB index", client.error("SELECT", 1))
            self.assertEqual(client.ask("SELECT", 0), "OK")
            self.assertTrue(client.error("HELLO", 4).startswith("NOPROTO"))
            self.assertEqual(client.ask("HELLO", 2)[:2], [b"server", b"terrace"])
            self.assertIn("1 to 512 bytes", client.error("SET", "k" * 513, "v"))
            self.assertIsNone(client.ask("GET", "k" * 513))
            self.assertEqual((client.ask("COMMAND"), client.ask("COMMAND", "DOCS"), client.ask("CONFIG", "GET", "save")),
                             ([], [], []))
            self.assertEqual(client.ask("CLIENT", "SETNAME", "me"), "OK")
            self.assertEqual(client.ask("CLIENT", "GETNAME"), b"me")
            self.assertIn(b"blocks:", client.ask("INFO"))
            self.assertEqual(client.ask("QUIT"), "OK")
            self.assertRaises(Closed, client.reply)

    def test_each_client_has_its_version_of_the_protocol(self):
        server = self.serve()
        long = os.urandom(100_000)
        with server.client() as old, server.client() as new:
            hello = new.ask("HELLO", 3, "AUTH", "default", "any", "SETNAME", "new")
            self.assertEqual((hello[b"server"], hello[b"proto"], hello[b"modules"]), (b"terrace", 3, []))
            self.assertEqual(new.ask("CLIENT", "GETNAME"), b"new")
            self.assertEqual(new.ask("SET", "k", long), "OK")
            for client, nil in ((old, b"$-1\r\n"), (new, b"_\r\n")):
                self.assertEqual(client.ask("MGET", "none", "k", "none"), [None, long, None])
                self.assertIsNone(client.ask("SET", "k", long, "NX"))  # kept until it is compared
                self.assertIsNone(client.ask("SET", "k", bytes(100_000), "NX"))
                client.send(client.encode("GET", "none"))
                while len(client.buffer) < len(nil):
                    client._fill()
                self.assertEqual(bytes(client.buffer), nil)
                client.buffer.clear()
            self.assertEqual((new.ask("CONFIG", "GET", "save"), new.ask("COMMAND", "DOCS")), ({}, {}))
            self.assertEqual(old.ask("CONFIG", "GET", "save"), [])
            self.assertTrue(new.ask("INFO").startswith("txt:# Server\r\n"))
            self.assertTrue(old.ask("INFO").startswith(b"# Server\r\n"))
            self.assertTrue(new.error("HELLO", 2, "AUTH", "somebody", "any").startswith("WRONGPASS"))
            self.assertIsInstance(new.ask("HELLO"), dict)
            self.assertEqual(new.ask("HELLO", 2)[5], 2)
            self.assertEqual(new.ask("CONFIG", "GET", "save"), [])

    def test_long_values_and_long_pipelines(self):
        stat_max = 512 << 10  # a 64th of 32 MiB
        values = {f"k{size}": os.urandom(size) for size in (0, 1, 16 << 10, (16 << 10) + 1, 65535, 65536, 300_000, stat_max)}
        with self.serve("--namespace", "long").client() as client:
            for key, value in values.items():
                self.assertEqual(client.ask("SET", key, value), "OK")
            for key, value in values.items():
                self.assertEqual(client.ask("GET", key), value, key)
                self.assertEqual(client.ask("SET", key, value), "OK")  # the same bytes
            other = os.urandom(stat_max)
            self.assertEqual(client.ask("SET", "k300000", other), "OK")
            self.assertEqual(client.ask("GET", "k300000"), other)
            self.assertIsNone(client.ask("SET", "k300000", values["k300000"], "NX"))
            self.assertEqual(client.ask("SET", "new", other, "NX"), "OK")
            self.assertIn("no block of this space has more", client.error("SET", "big", bytes(stat_max + 1)))
            self.assertIn("no block of this space has more", client.error("SET", "big", bytes(20 * MIB)))
            self.assertEqual(client.ask("PING"), "PONG")
            requests = [("SET", f"p{index}", b"x" * (index * 37 % 9000)) for index in range(500)]
            requests += [("GET", f"p{index}") for index in range(500)]
            sender = threading.Thread(target=client.send, args=(b"".join(Resp.encode(*one) for one in requests),))
            sender.start()
            answers = [client.reply() for _ in requests]
            sender.join()
            self.assertEqual(answers[:500], ["OK"] * 500)
            self.assertEqual(answers[500:], [one[2] for one in requests[:500]])
            keys = [f"p{index % 600}" for index in range(4096)]
            self.assertEqual(len(client.ask("MGET", *keys)), 4096)
            self.assertIn("arguments", client.error("DEL", *keys))
            self.assertEqual(client.ask("PING"), "PONG")

    def test_scan_gives_each_key(self):
        with self.serve().client() as client:
            keys = {f"key:{index}".encode() for index in range(300)}
            for key in keys:
                client.ask("SET", key, "v")
            seen, cursor, rounds = [], 0, 0
            while rounds == 0 or cursor != 0:
                cursor, some = client.ask("SCAN", cursor, "COUNT", 20)
                cursor, rounds = int(cursor), rounds + 1
                seen += some
                client.ask("SET", f"new:{rounds}", "v")
            self.assertEqual(len([key for key in seen if key in keys]), 300)
            self.assertEqual(set(seen) & keys, keys)
            found = client.ask("SCAN", 0, "MATCH", "key:1?", "COUNT", 1000)
            self.assertEqual((found[0], len(found[1])), (b"0", 10))

    def test_two_servers_on_one_space_see_each_others_blocks(self):
        one = self.serve()
        two = self.serve(where=self.where)
        with one.client() as a, two.client() as b:
            for index in range(50):
                a.ask("SET", f"a{index}", f"of a {index}")
                b.ask("SET", f"b{index}", f"of b {index}")
            self.assertEqual(b.ask("MGET", "a0", "a49"), [b"of a 0", b"of a 49"])
            self.assertEqual(a.ask("GET", "b7"), b"of b 7")
            self.assertEqual((a.ask("DBSIZE"), b.ask("DBSIZE")), (100, 100))
            self.assertEqual(b.ask("DEL", "a0", "b0"), 2)
            self.assertEqual(a.ask("EXISTS", "a0", "b0"), 0)
            self.assertEqual(b.ask("SET", "a1", "changed by b"), "OK")
            self.assertEqual(a.ask("GET", "a1"), b"changed by b")
            self.assertEqual(one.stop(), 0)
            self.assertEqual(b.ask("GET", "a2"), b"of a 2")
            self.assertEqual(b.ask("SET", "a2", "the owner has left"), "OK")
            self.assertEqual(b.ask("GET", "a2"), b"the owner has left")

    def test_hot_blocks_are_served_from_local_copies(self):
        where = self.new_space()
        self.assertIn("1 MiB", self.kv("serve", where, "--local", "1K", json=False, check=USAGE).err)
        server, other = self.serve("--local", "4M", where=where), self.serve(where=where)
        with server.client() as client, other.client() as changer:
            changer.ask("SET", "hot", b"bytes" * 1000)
            for _ in range(5):
                self.assertEqual(client.ask("GET", "hot"), b"bytes" * 1000)
            lines = dict(line.split(":", 1) for line in client.ask("INFO").decode().splitlines() if ":" in line)
            self.assertGreaterEqual(int(lines["local_hits"]), 3)
            self.assertEqual(lines["local_maxmemory"], str(4 * MIB))
            self.assertGreaterEqual(int(lines["local_memory"]), 5000)
            changer.ask("SET", "hot", b"changed")
            for _ in range(4):
                self.assertEqual(client.ask("GET", "hot"), b"changed")
            changer.ask("DEL", "hot")
            self.assertIsNone(client.ask("GET", "hot"))

    def test_evicted_blocks_are_served_from_a_spill(self):
        folder = tempfile.TemporaryDirectory(prefix="terrace-spill-")
        self.addCleanup(folder.cleanup)
        spill = pathlib.Path(folder.name)
        server = self.serve("--spill", f"{spill}:256M", where=self.new_space("--block", "64K", "--max-block", "1M"))
        values = {f"k{index}": bytes([index]) * 900_000 for index in range(60)}
        with server.client() as client:
            for key, value in values.items():
                client.ask("SET", key, value)
            found = [client.ask("GET", key) for key in values]
            self.assertEqual([value for value in found if value is not None],
                             [value for value, got in zip(values.values(), found) if got is not None])
            self.assertGreater(sum(value is not None for value in found), 40)
            client.ask("SET", "k0", b"another")  # of a key that may be in the folder alone
            self.assertEqual(client.ask("GET", "k0"), b"another")
        stat = self.kv("stat", self.where, "--spill", spill).json
        self.assertGreater(stat["spill"]["blocks"], 20)
        self.assertEqual(stat["spill"]["budget_bytes"], 256 * MIB)
        self.assertIn("spill", self.kv("stat", self.where, "--spill", spill, json=False).out)
        alone = self.kv("stat", "--spill", spill)
        self.assertEqual(alone.json, {"spill": stat["spill"]})
        self.assertRegex(self.kv("stat", "--spill", spill, json=False).out, "^ *spill .*\n *blocks ")
        self.error("stat", "--spill", spill / "none", code=NOT_FOUND, contains="none")
        self.error("stat", code=USAGE, contains="--spill DIR")
        self.error("stat", self.where, "--spill", spill / "none", code=NOT_FOUND, contains="none")

    def test_a_server_that_is_killed_leaves_whole_blocks(self):
        self.where = self.new_space("--checksums")
        stop, wrong = threading.Event(), []

        def put(address, seed):
            numbers = random.Random(seed)
            try:
                with Resp(address) as client:
                    while not stop.is_set():
                        key = f"{seed}:{numbers.randrange(100)}"
                        client.ask("SET", key, numbers.randbytes(numbers.randrange(300_000)))
            except (OSError, Closed, RespError) as error:
                if not stop.is_set():
                    wrong.append(f"before the end: {error!r}")

        for round_ in range(3):
            serve = self.serve(where=self.where)
            stop.clear()
            threads = [threading.Thread(target=put, args=(serve.address, 10 * round_ + one)) for one in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.7)
            stop.set()
            serve.kill()
            for thread in threads:
                thread.join()
            verified = self.kv("verify", self.where).json
            self.assertEqual((verified["wrong"], wrong), ([], []))
        self.assertGreater(verified["blocks"], 0)
        with self.serve(where=self.where).client() as client:
            self.assertEqual(client.ask("SET", "after", "all"), "OK")
            for block in self.kv("list", self.where, "--limit", 20).json["blocks"]:
                self.assertEqual(len(client.ask("GET", block["key"]) or b"x" * block["bytes"]), block["bytes"])

    def test_one_that_only_reads(self):
        where = self.new_space()
        self.kv("put", where, "--key", "k", stdin="v" * 100_000)
        with self.serve("--readonly", where=where).client() as client:
            self.assertEqual(client.ask("GET", "k"), b"v" * 100_000)
            for words in (("SET", "a", "b"), ("DEL", "k"), ("FLUSHALL",), ("MSET", "a", "b"), ("SETNX", "a", "b")):
                self.assertTrue(client.error(*words).startswith("READONLY"))
            self.assertIn("--readonly", client.error("SET", "a", bytes(100_000)))
            self.assertEqual(client.ask("GET", "k"), b"v" * 100_000)
        self.assertNotIn("owned", [part["state"] for part in self.kv("stat", where).json["parts"]])

    def test_it_ends_in_order(self):
        path = self.folder / "socket"
        serve = self.serve(listen=f"unix:{path}")
        with serve.client() as client:
            self.assertEqual(client.ask("SET", "k", "v"), "OK")
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            said = self.kv("serve", self.where, "--listen", f"unix:{path}", json=False, check=CONFLICT)
            self.assertIn("somebody listens", said.err)
            self.assertEqual(serve.stop(), 0)
            self.assertTrue(client.closed())
        self.assertFalse(path.exists())
        killed = self.serve(where=self.where, listen=f"unix:{path}")
        killed.kill()
        self.assertTrue(path.exists())
        with self.serve(where=self.where, listen=f"unix:{path}").client() as client:
            self.assertEqual(client.ask("GET", "k"), b"v")

    def test_where_it_does_not_listen(self):
        where = self.new_space()
        said = self.kv("serve", where, "--listen", "0.0.0.0:0", json=False, check=DENIED)
        self.assertIn("no passwords", said.err)
        busy = self.serve(where=where)
        said = self.kv("serve", where, "--listen", busy.address, json=False, check=CONFLICT)
        self.assertIn("somebody listens", said.err)
        self.assertTrue(self.serve("--insecure", where=where, listen="0.0.0.0:0").address.startswith("0.0.0.0:"))

    @unittest.skipUnless(shutil.which("redis-cli"), "redis-tools are not installed")
    def test_redis_cli_and_redis_benchmark(self):
        _, _, port = self.serve().address.rpartition(":")

        def cli(*words, **options):
            return subprocess.run(["redis-cli", "-p", port, *words], capture_output=True, text=True, timeout=60, check=True,
                                  **options).stdout
        self.assertEqual(cli("set", "k", "v"), "OK\n")
        self.assertEqual(cli("get", "k"), "v\n")
        self.assertEqual(cli("-x", "set", "from-input", input="line\n"), "OK\n")
        self.assertEqual(sorted(cli("--scan").split()), ["from-input", "k"])
        self.assertEqual(cli("mget", "k", "none"), "v\n\n")
        self.assertIn("ERR unknown command", cli("lpush", "a", "b"))
        self.assertEqual(cli("-3", "mget", "k", "none"), "v\n\n")
        self.assertEqual(cli("-3", "get", "none"), "\n")
        self.assertIn("# Server", cli("-3", "info"))
        told = cli("-3", "hello", "3").split()
        self.assertEqual((told[told.index("proto") + 1], told[told.index("server") + 1]), ("3", "terrace"))
        for more in (("-d", "100"), ("-d", "100", "-P", "16"), ("-d", "100000", "-n", "300")):
            done = subprocess.run(["redis-benchmark", "-p", port, "-t", "set,get,mset", "-n", "2000", "-r", "50", "-c", "10", "-q",
                                   *more], capture_output=True, text=True, timeout=200, check=True)
            self.assertIn("MSET (10 keys)", done.stdout)
            self.assertNotIn("rror", done.stdout + done.stderr.replace("WARNING: Could not fetch server CONFIG", ""))


class OnFile(Serving, FileSpaces):
    def test_a_file_that_is_cut_ends_the_server(self):
        serve = self.serve()
        with serve.client() as client:
            self.assertEqual(client.ask("SET", "k", bytes(100_000)), "OK")
            os.truncate(self.where, 0)
            code, said = serve.wait()
            self.assertEqual(code, FAILED)
            self.assertIn(self.where, said)

    def test_a_file_that_is_cut_under_a_value(self):
        serve = self.serve()
        value = bytes(400_000)
        with serve.client() as client:
            request = Resp.encode("SET", "k", value)
            client.send(request[:200_000])
            time.sleep(0.5)
            os.truncate(self.where, 0)
            try:
                client.send(request[200_000:])
                self.assertRegex(str(client.reply()), "ERR|NOPERM")
            except (Closed, ConnectionError):
                pass
            self.assertEqual(serve.wait()[0], FAILED)


class OnLease(Serving, LeaseSpaces):
    def test_a_lease_that_is_taken_back_ends_the_server(self):
        serve = self.serve()
        with serve.client() as client:
            self.assertEqual(client.ask("SET", "k", "v"), "OK")
            self.t.cli("lease", "revoke", self.where, "--grace", "0s")
            code, said = serve.wait()
            self.assertEqual(code, FAILED)
            self.assertIn("lease", said)

    def test_a_lease_that_is_taken_back_under_a_value(self):
        serve = self.serve()
        request = Resp.encode("SET", "k", bytes(400_000))
        with serve.client() as client:
            client.send(request[:200_000])
            harness.wait_until(lambda: "owned" in [part["state"] for part in self.kv("stat", self.where).json["parts"]], 10,
                               "the value's begin")
            self.t.cli("lease", "revoke", self.where, "--grace", "0s")
            try:
                client.send(request[200_000:])
                self.assertIn("lease_expired", str(client.reply()))
            except (Closed, ConnectionError):
                pass
            self.assertEqual(serve.wait()[0], FAILED)

    def test_it_outlives_the_manager(self):
        serve = self.serve()
        with serve.client() as client:
            self.assertEqual(client.ask("SET", "k", "v"), "OK")
            self.t.kill()
            self.assertEqual(client.ask("GET", "k"), b"v")
            self.assertEqual(client.ask("SET", "more", "v"), "OK")
            self.t.start()
            self.assertEqual(client.ask("MGET", "k", "more"), [b"v", b"v"])


if __name__ == "__main__":
    harness.main()
