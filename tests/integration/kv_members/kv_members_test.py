# SPDX-License-Identifier: Apache-2.0
"""terrace kv grow and shrink: a space of several leases or files, used by servers while members come and go, and while
whoever changes them, or everybody, is killed. What is read is compared with what was put.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/kv_members/kv_members_test.py [TestClass[.test]]

TERRACE_KV_KILLS=N: how many times each kind of verb is killed (default 3).
"""

import hashlib
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "kv_cli"))
from kv_base import CONFLICT, FAILED, NOT_FOUND, USAGE, Closed, FileSpaces, LeaseSpaces, RespError, Serve  # noqa: E402
import terrace_harness as harness  # noqa: E402

KILLS = int(os.environ.get("TERRACE_KV_KILLS", "3"))
SMALL = ("--parts", 4, "--block", "4K", "--max-block", "64K")


def value_of(key):
    """Bytes that follow from the key."""
    return hashlib.sha256(key.encode()).digest() * 128  # 4 KiB


class Traffic:
    """Sets and gets keys by a server until it ends. `wrong`: what was not as it was put; `failed`: other answers."""

    def __init__(self, server, prefix, keys=200):
        self.server, self.prefix, self.keys = server, prefix, keys
        self.wrong, self.failed, self.hits = [], [], 0
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        rng = random.Random(self.prefix)
        with self.server.client(timeout=120) as client:
            while not self.ends.is_set():
                key = f"{self.prefix}{rng.randrange(self.keys)}"
                try:
                    client.ask("SET", key, value_of(key))
                    got = client.ask("GET", key)
                    if rng.random() < 0.3:  # put again later, maybe elsewhere
                        client.ask("DEL", key)
                except RespError as error:
                    if not str(error).startswith(("OOM", "BUSY")):
                        self.failed.append(str(error))
                    continue
                except (Closed, OSError) as error:
                    if not self.ends.is_set():
                        self.failed.append(repr(error))
                    return
                self.hits += got is not None
                if got is not None and got != value_of(key):
                    self.wrong.append(key)

    def stop(self, test, expects_hits=True):
        self.ends.set()
        self.thread.join()
        test.assertEqual((self.wrong, self.failed), ([], []))
        if expects_hits:
            test.assertGreater(self.hits, 0)


class Members:
    def members(self, where):
        return {member["where"]: member["state"] for member in self.kv("stat", where).json["members"]}

    def put_all(self, server, keys):
        with server.client(timeout=120) as client:
            for key in keys:
                client.ask("SET", key, value_of(key))

    def check_all(self, server, keys):
        with server.client(timeout=120) as client:
            for key in keys:
                self.assertTrue(client.ask("GET", key) == value_of(key), key)

    def start_verb(self, *words):
        return self.t.popen(self.t.terrace, "kv", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_for(self, condition, what):
        end = time.monotonic() + 60
        while not condition():
            if time.monotonic() > end:
                self.fail(what)
            time.sleep(0.1)

    def test_it_grows_and_shrinks_under_servers(self):
        where = self.new_space(*SMALL)
        servers = [Serve(self, where) for _ in range(2)]
        keys = [f"key{index}" for index in range(100)]
        self.put_all(servers[0], keys)
        traffic = [Traffic(server, f"t{index}-") for index, server in enumerate(servers)]
        grown = self.kv("grow", where, "--size", "16M").json
        self.assertEqual(grown["members"], 2)
        second = grown["grown"]
        self.assertEqual(self.members(second), self.members(where))
        blocks = lambda: self.kv("stat", where).json["members"][1]["blocks"]  # noqa: E731
        self.wait_for(lambda: blocks() > 20, "the servers put nothing into the new member")
        self.assertEqual(self.kv("grow", where, "--with", second).json["members"], 2)  # it is one already
        late = [f"late{index}" for index in range(60)]
        self.put_all(servers[1], late)
        keys += late
        text = self.kv("stat", where, json=False).out
        self.assertRegex(text, r"MEMBER +WHERE +STATE")
        shrunk = self.kv("shrink", where, "--lease", second, "--wait", "60s").json["shrunk"]
        self.assertEqual((shrunk["holders"], shrunk["left_behind"]), (0, 0))
        self.assertGreater(shrunk["moved"], 0)
        for one in traffic:
            one.stop(self)
        self.assertEqual(len(self.members(where)), 1)
        for server in servers:
            self.check_all(server, keys)
        # The first one may go, too; who comes by it is led to the others.
        self.kv("grow", where, "--with", second)
        self.wait_for(lambda: len(self.members(where)) == 2, "no second member")
        self.kv("shrink", second, "--lease", where, "--wait", "60s")
        self.check_all(servers[1], keys)
        self.assertEqual(list(self.members(where)), [second])
        self.assertEqual(self.kv("verify", where).json["wrong"], [])

    def test_whoever_changes_it_is_killed_at_any_moment(self):
        where = self.new_space(*SMALL)
        server = Serve(self, where)
        keys = [f"key{index}" for index in range(150)]
        self.put_all(server, keys)
        traffic = Traffic(server, "t")
        begin = time.monotonic()
        second = self.kv("grow", where, "--size", "16M").json["grown"]
        grow_s = time.monotonic() - begin
        begin = time.monotonic()
        self.kv("shrink", where, "--lease", second, "--wait", "60s")
        shrink_s = time.monotonic() - begin
        rng = random.Random(5)
        for round_ in range(KILLS):
            for verb, most_s in ((("grow", where, "--with", second), grow_s),
                                 (("shrink", where, "--lease", second, "--wait", "60s"), shrink_s)):
                process = self.start_verb(*verb)
                time.sleep(rng.uniform(0.2, 1.1) * most_s)
                process.kill()
                process.wait()
                self.assertIn(len(self.members(where)), (1, 2), verb)
                done = self.kv(*verb, check=False)
                # What was done before it was killed is done.
                self.assertIn(done.code, (0, FAILED), done.err)
                self.assertEqual(len(self.members(where)), 2 if verb[0] == "grow" else 1, (round_, verb, done.err))
                self.check_all(server, keys)
        traffic.stop(self)
        self.assertEqual(self.kv("verify", where).json["wrong"], [])

    def test_all_are_killed_at_once(self):
        where = self.new_space(*SMALL)
        rng = random.Random(6)
        keys = [f"key{index}" for index in range(60)]
        second = where + "-2"
        for round_ in range(KILLS):
            servers = [Serve(self, where) for _ in range(2)]
            self.put_all(servers[0], keys)
            traffic = [Traffic(server, f"t{round_}{index}-") for index, server in enumerate(servers)]
            words = ("--size", "16M", "--label", second)
            process = self.start_verb("grow", where, *words)
            time.sleep(rng.uniform(0.1, 1.5))
            for one in traffic:
                one.ends.set()
            process.kill()
            for server in servers:
                server.kill()
            process.wait()
            for one in traffic:
                one.stop(self, expects_hits=False)
            self.assertEqual(self.kv("grow", where, *words).json["grown"], second)
            self.assertEqual(set(self.members(second).values()), {"filling"})
            self.assertEqual(len(self.members(where)), 2)
            self.assertEqual(self.kv("verify", where).json["wrong"], [])
            again = Serve(self, where)
            self.check_all(again, keys)
            again.stop()
            self.kv("shrink", where, "--lease", second, "--wait", "60s")

    def test_more_members_have_more_holders(self):
        where = self.new_space("--parts", 1, "--block", "4K", "--max-block", "64K")
        self.kv("put", where, "--key", "first", stdin="1")
        for _ in range(2):
            self.kv("grow", where, "--size", "16M")
        servers = [Serve(self, where) for _ in range(3)]
        for index, server in enumerate(servers):
            with server.client(timeout=120) as client:
                def sets(client=client, index=index):
                    try:
                        return client.ask("SET", f"of{index}", f"{index}") == "OK"
                    except RespError:
                        return False
                self.wait_for(sets, "no part for a server though a member has one")
        for server in servers:
            with server.client(timeout=120) as client:
                self.assertEqual(client.ask("MGET", "first", "of0", "of1", "of2"), [b"1", b"0", b"1", b"2"])
        self.assertEqual([part["state"] for part in self.kv("stat", where).json["parts"]], ["owned"] * 3)

    def test_verbs_work_over_all_members(self):
        where = self.new_space(*SMALL)
        second = self.kv("grow", where, "--size", "16M").json["grown"]
        for index in range(12):
            self.kv("put", where if index % 2 else second, "--key", f"k{index}", "--namespace", "n", stdin="x" * 4096)
        self.assertEqual({block["member"] for block in self.kv("list", where).json["blocks"]}, {0, 1})
        self.assertEqual(len(self.keys(second, "--namespace", "n")), 12)
        self.kv("policy", second, "--budget", "n=1M", "--keep", "k")
        for member in (where, second):
            self.assertEqual(self.kv("policy", member).json["budgets"][0]["used_bytes"], 12 * (4096 + 64))
        self.error("put", where, "--key", "k3", "--namespace", "n", code=CONFLICT, stdin="x")
        self.kv("erase", where, "--key", "k3", "--key", "k4", "--namespace", "n")
        self.assertEqual(self.kv("evict", where, 5 * 4096).json["evicted"], 5)
        self.assertEqual(self.kv("flush", second, "--namespace", "n").json["flushed"], 5)

    def test_what_is_refused(self):
        where = self.new_space(*SMALL)
        self.error("grow", where, code=USAGE, contains="--size")
        self.error("shrink", where, "--lease", where, code=NOT_FOUND)
        other = self.new_space(*SMALL)
        self.kv("put", other, "--key", "k", stdin="v")
        self.error("grow", where, "--with", other, code=CONFLICT, contains="a KV space of its own")
        self.error("grow", where, "--with", "/nowhere/at/all", code=NOT_FOUND)


class InFiles(Members, FileSpaces):
    def memory(self):
        FileSpaces.made += 1
        return str(self.folder / f"members{FileSpaces.made}"), ("--bytes", "16M")

    def test_a_member_that_is_cut_costs_its_blocks(self):
        where = self.new_space(*SMALL)
        second = self.kv("grow", where, "--size", "16M").json["grown"]
        server = Serve(self, where)
        keys = [f"key{index}" for index in range(100)]
        self.put_all(server, keys)
        # Half sent, straight into their blocks, in either member.
        clients = [server.client(timeout=120) for _ in range(8)]
        requests = [client.encode("SET", f"large{index}", bytes(65536)) for index, client in enumerate(clients)]
        for client, request in zip(clients, requests):
            self.addCleanup(client.close)
            client.send(request[:40000])
        with server.client(timeout=120) as client:
            client.ask("PING")
        os.truncate(where, 0)  # the first one
        answers = []
        for client, request in zip(clients, requests):
            try:
                client.send(request[40000:])
                answers.append(client.reply())
            except (Closed, OSError):
                answers.append("closed")
        for answer in answers:
            self.assertTrue(answer in ("OK", "closed") or "memory of the space is gone" in str(answer), answers)
        self.assertIn("OK", answers)
        with server.client(timeout=120) as client:
            there = sum(client.ask("GET", key) == value_of(key) for key in keys)
            self.assertTrue(10 < there < 90, there)
            for key in keys:
                client.ask("SET", key, value_of(key))
        self.check_all(server, keys)
        self.wait_for(lambda: self.members(second)[where] == "lost", "nobody says that it is lost")
        self.kv("shrink", second, "--lease", where)
        self.assertEqual(list(self.members(second)), [second])


class InLeases(Members, LeaseSpaces):
    def memory(self):
        LeaseSpaces.made += 1
        label = f"members{LeaseSpaces.made}"
        lease = self.t.grant("16M", "p", "--persistent", "--mode", "shared_coherent", "--label", label)
        for name in (label, f"{label}-2", f"{label}-3"):
            self.addCleanup(self.t.cli, "lease", "release", name, check=False)
        return label, ()

    def test_a_member_that_is_revoked_costs_its_blocks(self):
        where = self.new_space(*SMALL)
        second = self.kv("grow", where, "--size", "16M").json["grown"]
        server = Serve(self, where)
        keys = [f"key{index}" for index in range(100)]
        self.put_all(server, keys)
        self.t.cli("lease", "revoke", where, "--grace", "0s")
        with server.client(timeout=120) as client:
            there = sum(client.ask("GET", key) == value_of(key) for key in keys)
            self.assertTrue(10 < there < 90, there)
            for key in keys:
                client.ask("SET", key, value_of(key))
        self.check_all(server, keys)
        stat = self.kv("stat", second).json
        self.assertEqual({member["where"]: member["state"] for member in stat["members"]},
                         {where: "lost", second: "filling"})
        self.assertIn("is lost", self.kv("stat", second, json=False).out)
        self.kv("shrink", second, "--lease", where)
        self.assertEqual(list(self.members(second)), [second])

    def test_it_goes_on_while_the_manager_is_away(self):
        where = self.new_space(*SMALL)
        self.kv("grow", where, "--size", "16M")
        server = Serve(self, where)
        keys = [f"key{index}" for index in range(50)]
        self.put_all(server, keys)
        self.t.kill()
        self.check_all(server, keys)
        self.t.start()
        self.check_all(server, keys)


if __name__ == "__main__":
    harness.main()
