# SPDX-License-Identifier: Apache-2.0
"""terrace kv format, stat, list, put, get, erase, evict, flush, verify: what they do, and what they refuse.

    TERRACE_BUILD_DIR=build/dev python3 tests/integration/kv_cli/kv_verbs_test.py [TestClass[.test]]
"""

import mmap
import os
import pathlib
import time

from kv_base import CAPACITY, CONFLICT, MIB, MISMATCH, NOT_FOUND, USAGE, FileSpaces, LeaseSpaces, Serve
import terrace_harness as harness


class Verbs:
    def test_a_block_goes_in_and_comes_out(self):
        where = self.new_space()
        self.assertEqual(self.kv("put", where, "--key", "greeting", stdin="hello").json,
                         {"put": {"key": "greeting", "namespace": "", "bytes": 5}})
        self.assertEqual(self.kv("get", where, "--key", "greeting", json=False).out, "hello")
        file = self.folder / "bytes"
        file.write_bytes(os.urandom(300_000))
        self.kv("put", where, file, "--key", "prompt/7", "--parent", "greeting", "--ttl", "1h")
        self.assertEqual(self.value(where, "prompt/7"), file.read_bytes())
        blocks = {block["key"]: block for block in self.kv("list", where).json["blocks"]}
        self.assertEqual(set(blocks), {"greeting", "prompt/7"})
        self.assertTrue(blocks["prompt/7"]["has_parent"])
        self.assertAlmostEqual(blocks["prompt/7"]["expires_unix_s"], time.time() + 3600, delta=120)
        self.assertEqual((blocks["greeting"]["bytes"], blocks["greeting"]["expires_unix_s"]), (5, 0))
        as_text = self.kv("list", where, json=False).out.splitlines()
        self.assertEqual(as_text[0].split(), ["NAMESPACE", "KEY", "SIZE", "PART", "USED", "EXPIRES"])
        self.assertEqual(len(as_text), 3)
        self.assertEqual(len(self.kv("list", where, "--limit", 1).json["blocks"]), 1)
        self.assertEqual(self.kv("erase", where, "--key", "greeting").json, {"erased": ["greeting"]})
        self.assertEqual(self.keys(where), ["prompt/7"])

    def test_stat_says_what_there_is(self):
        where = self.new_space("--parts", 3, "--seats", 5, "--block", "16K", "--max-block", "1M")
        self.kv("put", where, "--key", "a", stdin="x" * 100)
        stat = self.kv("stat", where).json
        self.assertEqual((stat["blocks"], stat["max_block_bytes"], len(stat["parts"])), (1, MIB, 3))
        self.assertGreater(stat["data_bytes"], 16 * MIB)
        states = sorted(part["state"] for part in stat["parts"])
        self.assertEqual(states, ["left", "unused", "unused"])
        as_text = self.kv("stat", where, json=False).out
        self.assertIn("1 of at most", as_text)
        self.assertRegex(as_text, r"PART +STATE +HOST +BLOCKS +BYTES +HAS")

    def test_any_bytes_are_a_key(self):
        where = self.new_space()
        for key in ("0x00ff", "0x30783030", "a b", "käse"):
            self.kv("put", where, "--key", key, stdin=key)
            self.assertEqual(self.value(where, key).decode(), key)
        self.assertEqual(self.keys(where), sorted(["0x00ff", "0x30783030", "a b", "käse"]))
        self.kv("erase", where, "--key", "0x00FF", "--key", "a b")
        self.assertEqual(self.keys(where), ["0x30783030", "käse"])
        self.error("get", where, "--key", "0x1", "--output", self.folder / "x", code=USAGE, contains="hex digits")
        self.error("put", where, "--key", "k" * 513, code=USAGE, contains="1 to 512 bytes", stdin="")

    def test_namespaces_are_apart(self):
        where = self.new_space()
        for name in ("", "a/b", "c"):
            self.kv("put", where, "--key", "k", *(["--namespace", name] if name else []), stdin=f"of {name}")
        self.assertEqual(self.value(where, "k", "--namespace", "a/b"), b"of a/b")
        self.assertEqual(len(self.kv("list", where).json["blocks"]), 3)
        self.assertEqual(len(self.kv("list", where, "--namespace", "c").json["blocks"]), 1)
        self.assertEqual(self.kv("flush", where).json, {"flushed": 1})
        self.assertEqual(self.kv("flush", where, "--namespace", "c").json, {"flushed": 1})
        self.assertEqual(self.kv("flush", where, "--all").json, {"flushed": 1})
        self.assertEqual(self.keys(where), [])
        self.kv("flush", where, "--all", "--namespace", "c", json=False, check=USAGE)

    def test_a_block_is_never_replaced(self):
        where = self.new_space("--max-block", "1M")
        self.kv("put", where, "--key", "k", stdin="one")
        self.error("put", where, "--key", "k", code=CONFLICT, contains="kv erase", stdin="two")
        self.assertEqual(self.value(where, "k"), b"one")
        self.error("get", where, "--key", "other", "--output", self.folder / "x", code=NOT_FOUND)
        self.error("erase", where, "--key", "other", code=NOT_FOUND)
        self.error("put", where, "--key", "big", code=CAPACITY, contains="longer than 1 MiB", stdin="x" * (MIB + 1))
        self.kv("put", where, "--key", "big", stdin="x" * MIB)

    def test_erase_goes_on_after_one_that_is_not_there(self):
        where = self.new_space()
        for key in "ab":
            self.kv("put", where, "--key", key, stdin=key)
        done = self.kv("erase", where, "--key", "a", "--key", "none", "--key", "b", check=NOT_FOUND).json
        self.assertEqual(done["erased"], ["a", "b"])
        self.assertIn("error", done)

    def test_evict_makes_room(self):
        where = self.new_space("--block", "1M")
        for index in range(10):
            self.kv("put", where, "--key", f"k{index}", stdin="x" * MIB)
        evicted = self.kv("evict", where, "3M").json
        self.assertEqual(evicted, {"evicted": 3, "wanted_bytes": 3 * MIB})
        self.assertEqual(len(self.keys(where)), 7)  # any three: uses are known to some seconds

    def test_a_policy_is_shown_changed_and_kept(self):
        where = self.new_space()
        self.assertEqual(self.kv("policy", where).json, {"budgets": [], "kept": [], "kept_bytes": 0})
        self.kv("policy", where, "--budget", "a=64K", "--budget", "a/b=1M", "--keep", "shared", "--namespace", "n", "--keep-key", "0x00ff")
        self.kv("put", where, "--key", "k", "--namespace", "shared/x", stdin="kept")
        for number in range(40):
            self.kv("put", where, "--key", f"k{number}", "--namespace", "a/c", stdin="x" * 4000)
        shown = self.kv("policy", where).json
        self.assertEqual([(one["namespaces"], one["bytes"]) for one in shown["budgets"]], [("a", 65536), ("a/b", 1 << 20)])
        self.assertEqual(shown["kept"], [{"namespaces": "shared", "key": ""}, {"namespaces": "n", "key": "0x00ff"}])
        self.assertEqual(self.kv("stat", where).json["budgets"], shown["budgets"])
        self.assertTrue(50000 < shown["budgets"][0]["used_bytes"] <= 65536, shown)
        self.assertGreater(shown["kept_bytes"], 0)
        self.kv("evict", where, "1G")
        self.assertEqual(self.keys(where), ["k"])
        self.kv("flush", where, "--all")
        after = self.kv("policy", where, "--no-budget", "a", "--no-keep", "shared", "--no-keep-key", "0x00ff", "--namespace", "n").json
        self.assertEqual(after, {"budgets": [{"namespaces": "a/b", "bytes": 1 << 20, "used_bytes": 0}], "kept": [], "kept_bytes": 0})
        self.error("policy", where, "--no-budget", "a", code=NOT_FOUND, contains="no budget of 'a'")
        self.error("policy", where, "--no-keep", "a", code=NOT_FOUND, contains="kept")
        self.error("policy", where, "--budget", "a", code=USAGE, contains="NAMESPACES=SIZE")
        self.error("policy", where, "--budget", "a=0", code=USAGE, contains="is 0")
        self.error("policy", where, "--budget", "a=many", code=USAGE, contains="many")
        self.assertEqual(self.kv("policy", where).json, after)

    def test_a_ttl_ends(self):
        where = self.new_space()
        self.kv("put", where, "--key", "soon", "--ttl", "1s", stdin="x")
        self.kv("put", where, "--key", "never", stdin="x")
        harness.wait_until(lambda: self.kv("get", where, "--key", "soon", "--output", self.folder / "x",
                                           check=False).code == NOT_FOUND, 10, "the block's end")
        self.value(where, "never")

    def test_format_keeps_what_is_there(self):
        where = self.new_space()
        self.kv("put", where, "--key", "k", stdin="x")
        self.error("format", where, code=CONFLICT, contains="--force")
        self.assertEqual(self.keys(where), ["k"])
        self.kv("format", where, "--force")
        self.assertEqual(self.keys(where), [])

    def test_format_leaves_living_owners_alone(self):
        where = self.new_space()
        serve = Serve(self, where)
        with serve.client() as client:
            self.assertEqual(client.ask("SET", "k", "v"), "OK")
        self.error("format", where, "--force", code=CONFLICT, contains="owned by a program")
        self.assertIn("owned", [part["state"] for part in self.kv("stat", where).json["parts"]])
        self.assertEqual(serve.stop(), 0)
        self.kv("format", where, "--force")

    def test_format_says_what_it_cannot(self):
        where, more = self.memory()
        self.error("format", where, *more, "--parts", 64, "--seats", 10, code=USAGE)
        self.kv("format", where, *more, "--parts", 64)

    def test_verify_of_a_good_space(self):
        where = self.new_space("--checksums")
        for index in range(5):
            self.kv("put", where, "--key", f"k{index}", stdin="x" * 1000)
        verified = self.kv("verify", where).json
        self.assertEqual((verified["blocks"], verified["without_checksum"], verified["wrong"]), (5, 0, []))
        self.assertIn("5 blocks", self.kv("verify", where, json=False).out)


class OnFile(Verbs, FileSpaces):
    def test_a_file_is_made_private_and_once(self):
        path = self.new_space()
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertEqual(os.stat(path).st_size, 32 * MIB)
        self.error("format", path, "--bytes", "32M", code=CONFLICT, contains="is there already")

    def test_a_file_goes_again_where_it_cannot_be_a_space(self):
        path, _ = self.memory()
        self.error("format", path, "--bytes", "4K", code=CAPACITY)
        self.assertFalse(os.path.exists(path))
        self.error("format", path, code=NOT_FOUND, contains="--bytes SIZE")
        self.error("format", "name", "--bytes", "32M", code=USAGE, contains="./name")

    def test_other_bytes_are_kept(self):
        path = self.folder / "photo"
        path.write_bytes(b"\xff\xd8" * MIB * 4)
        self.error("format", path, code=CONFLICT, contains="something else")
        self.error("stat", path, code=NOT_FOUND, contains="terrace kv format")
        self.assertEqual(path.read_bytes()[:2], b"\xff\xd8")
        self.kv("format", path, "--force")

    def test_what_is_no_memory(self):
        self.error("stat", f"{self.folder}/none", code=NOT_FOUND)
        (self.folder / "empty").touch()
        self.error("stat", self.folder / "empty", code=USAGE, contains="is empty")

    def test_verify_names_the_block_that_is_wrong(self):
        path = self.new_space("--checksums")
        self.kv("put", path, "--key", "good", stdin="A" * 5000)
        self.kv("put", path, "--key", "bad", "--namespace", "n", stdin="B" * 5000)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            memory[memory.find(b"B" * 5000) + 2500] = ord("C")
        verified = self.kv("verify", path, check=MISMATCH).json
        self.assertEqual([(block["namespace"], block["key"]) for block in verified["wrong"]], [("n", "bad")])
        self.assertIn("'bad' of 'n'", self.kv("verify", path, json=False, check=MISMATCH).out)
        self.error("get", path, "--key", "bad", "--namespace", "n", "--output", self.folder / "x", code=8)
        self.assertEqual(self.value(path, "good"), b"A" * 5000)


class OnLease(Verbs, LeaseSpaces):
    def test_only_memory_of_several_holders(self):
        lease = self.t.grant("8M", "p", "--persistent", "--label", "mine")
        self.addCleanup(self.t.cli, "lease", "release", lease["id"])
        self.error("format", "mine", code=USAGE, contains="--mode shared_coherent")
        self.error("stat", "nobodys", code=NOT_FOUND)
        self.error("stat", "999999", code=NOT_FOUND)

    def test_a_lease_by_its_id(self):
        where = self.new_space()
        lease = next(lease for lease in self.t.leases().values() if lease["label"] == where)
        self.kv("put", lease["id"], "--key", "k", stdin="x")
        self.assertEqual(self.keys(where), ["k"])

    def test_a_lease_that_has_none(self):
        where, _ = self.memory()
        self.error("list", where, code=NOT_FOUND, contains=f"terrace kv format {where}")


if __name__ == "__main__":
    harness.main()
