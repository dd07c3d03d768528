# SPDX-License-Identifier: Apache-2.0
"""LMCache's own L2 adapter, storage manager and Device-DAX L1, over KV spaces and leases of a real manager.

    TERRACE_ENGINE_DIR=build/engines/lmcache TERRACE_BUILD_DIR=build/release python3 tests/engines/lmcache/lmcache_test.py
"""

import json
import os
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2] / "support")]
import terrace_harness as harness  # noqa: E402
from node_process import Node, NodeServer, Started, content, package_path  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

MIB, KIB = 1 << 20, 1 << 10
PYTHON = pathlib.Path(os.environ["TERRACE_ENGINE_DIR"]) / "venv/bin/python"
NODE = pathlib.Path(__file__).with_name("node.py")
SERVER = None  # of all nodes
NAMES = [f"chunk{number}" for number in range(40)]


class OverALease(unittest.TestCase):
    lease_size = "64M"

    def setUp(self):
        self.t = Harness(name="lmcache", devices={"a": "128M"})
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.t.grant(self.lease_size, "p", "--persistent", "--mode", "shared_coherent", "--label", "cache")
        self.format()

    def format(self, *options):
        self.t.cli("kv", "format", "cache", "--force", "--block", "256K", *options)

    def spec(self, **parameters):
        parameters = {"lease": "cache", "socket": str(self.t.socket), "tenant": "team", "dtype": "bf16", **parameters}
        return json.dumps({"type": "native_plugin", "module_path": "terrace.engines.lmcache", "class_name": "Connector",
                           "adapter_params": {name: value for name, value in parameters.items() if value is not None}})

    def node(self, *arguments, before=()):
        if before:
            return Started(self, self.t, [*before, PYTHON, "-B", NODE, *arguments])
        return Node(self, self.t, SERVER, *arguments)

    def adapter(self, **parameters):
        node = self.node("adapter", self.spec(**parameters))
        self.assertEqual(node.ready, "ready")
        return node


class Adapter(OverALease):
    def test_two_processes_share_blocks_byte_by_byte(self):
        one, other = self.adapter(), self.adapter(workers=1)
        self.assertEqual(other.ask("lookup", NAMES), [False] * 40)
        self.assertEqual(one.ask("store", NAMES[:20], 300 * KIB), [True, 20 * 300 * KIB])
        self.assertEqual(other.ask("store", NAMES[20:], 300 * KIB), [True, 20 * 300 * KIB])
        for node in (one, other):
            self.assertEqual(node.ask("lookup", NAMES), [True] * 40)
            self.assertEqual(node.ask("load", NAMES, 300 * KIB), ["right"] * 40)
        self.assertEqual(one.ask("close"), "closed")
        self.assertEqual(self.adapter().ask("load", NAMES, 300 * KIB), ["right"] * 40)

    def test_what_is_there_in_part_is_found_in_part(self):
        node = self.adapter()
        node.ask("store", NAMES[:5] + NAMES[7:9], 4096)
        self.assertEqual(node.ask("lookup", NAMES[:10]), [True] * 5 + [False] * 2 + [True] * 2 + [False])
        self.assertEqual(node.ask("load", NAMES[:10], 4096), ["right"] * 5 + ["absent"] * 2 + ["right"] * 2 + ["absent"])

    def test_lengths_that_are_no_multiples_of_anything(self):
        node = self.adapter()
        sizes = {f"size{size}": size for size in (1, 63, 65, 4097, 100_003, MIB - 4097)}
        self.assertEqual(node.ask("store_sizes", sizes), [True, sum(sizes.values())])
        for name, size in sizes.items():
            self.assertEqual(node.ask("load", [name], size), ["right"], name)
            self.assertEqual(node.ask("load", [name], size + 1), ["absent"], name)  # the buffer of another layout

    def test_a_block_that_does_not_fit_fails_alone(self):
        node = self.adapter()
        sizes = {"first": 4096, "large": 40 * MIB, "last": 4096}
        self.assertEqual(node.ask("store_sizes", sizes), [False, 0])  # LMCache knows one answer a batch
        self.assertEqual(node.ask("lookup", list(sizes)), [True, False, True])
        self.assertEqual(node.ask("load", ["first", "last"], 4096), ["right"] * 2)
        self.assertEqual(node.errors().count("limit_exceeded"), 1)

    def test_one_key_of_a_load_that_fails_leaves_the_others(self):
        node = self.adapter()
        node.ask("store_sizes", {"a": 4096, "longer": 8192, "b": 4096})
        self.assertEqual(node.ask("load", ["a", "longer", "b"], 4096), ["right", "absent", "right"])

    def test_other_model_rank_tenant_and_type_are_never_found(self):
        one = self.adapter()
        one.ask("store", NAMES[:4], 4096)
        self.assertEqual(one.ask("load", NAMES[:4], 4096, "other"), ["absent"] * 4)
        self.assertEqual(one.ask("load", NAMES[:4], 4096, "llama", 1), ["absent"] * 4)
        for parameters in ({"tenant": "stranger"}, {"dtype": "fp16"}, {"model": "llama-v2"}, {"layout": "other"}):
            self.assertEqual(self.adapter(**parameters).ask("lookup", NAMES[:4]), [False] * 4, parameters)
        self.assertEqual(self.adapter().ask("load", NAMES[:4], 4096), ["right"] * 4)

    def test_names_longer_than_a_key_of_a_space(self):
        node = self.adapter(model="m" * 3000, tenant="t" * 300)
        long, longer = "x" * 600, "x" * 601
        self.assertEqual(node.ask("store", NAMES[:2], 4096, long), [True, 8192])
        self.assertEqual(node.ask("load", NAMES[:2], 4096, long), ["right"] * 2)
        self.assertEqual(node.ask("load", NAMES[:2], 4096, longer), ["absent"] * 2)
        self.assertEqual(self.adapter(model="m" * 3001, tenant="t" * 300).ask("lookup", NAMES[:2], long), [False] * 2)

    def test_delete_counts_what_is_gone(self):
        one, other = self.adapter(), self.adapter()
        one.ask("store", NAMES[:10], 4096)
        self.assertEqual(one.ask("delete", NAMES[:4]), 6 * 4096)
        self.assertEqual(other.ask("lookup", NAMES[:10]), [False] * 4 + [True] * 6)
        other.ask("delete", NAMES[4:6])  # blocks of another process's part
        self.assertEqual(one.ask("lookup", NAMES[:10]), [False] * 6 + [True] * 4)
        self.assertEqual(one.ask("delete", NAMES[4:6]), 4 * 4096)  # gone already: LMCache counts them no longer
        self.assertEqual(one.ask("delete", ["never there"]), 4 * 4096)

    def test_readonly_finds_and_puts_nothing(self):
        self.adapter().ask("store", NAMES[:3], 4096)
        reader = self.adapter(readonly=True)
        self.assertEqual(reader.ask("load", NAMES[:3], 4096), ["right"] * 3)
        self.assertEqual(reader.ask("store", NAMES[3:5], 4096), [False, 0])
        self.assertEqual(reader.ask("lookup", NAMES[:5]), [True] * 3 + [False] * 2)

    def test_killed_in_the_middle_of_storing(self):
        victim, other = self.adapter(), self.adapter()
        names = [f"kill{number}" for number in range(2000)]
        victim.send("store_on", names, 300 * KIB)
        told = [name for _ in range(12) for name in victim.answer()]
        victim.kill()
        loaded = other.ask("load", told, 300 * KIB)
        self.assertEqual(loaded, ["right"] * len(told))
        rest = [name for name in names[:200] if name not in told]
        self.assertNotIn("wrong", other.ask("load", rest, 300 * KIB))
        self.assertEqual(other.ask("store", NAMES, 300 * KIB), [True, 40 * 300 * KIB])
        self.assertEqual(self.adapter().ask("load", NAMES, 300 * KIB), ["right"] * 40)

    def test_the_manager_starts_anew(self):
        node = self.adapter()
        node.ask("store", NAMES[:10], 4096)
        self.t.kill()
        self.assertEqual(node.ask("load", NAMES[:10], 4096), ["right"] * 10)
        self.assertEqual(node.ask("store", NAMES[10:20], 4096), [True, 40960])
        self.t.start()
        self.assertEqual(self.adapter().ask("load", NAMES[:20], 4096), ["right"] * 20)

    def test_the_lease_ends(self):
        node = self.adapter()
        node.ask("store", NAMES[:10], 300 * KIB)
        self.t.cli("lease", "revoke", "cache", "--grace", "0s")
        wait_until(lambda: node.ask("lookup", NAMES[:10]) == [False] * 10, 60, "the loss is noticed")
        self.assertEqual(node.ask("load", NAMES[:10], 300 * KIB), ["absent"] * 10)
        self.assertEqual(node.ask("store", NAMES[10:20], 300 * KIB), [False, 0])
        self.assertEqual(node.ask("delete", NAMES[:2]), 8 * 300 * KIB)
        self.assertTrue(node.ask("healthy"))
        self.assertEqual(node.ask("close"), "closed")
        self.assertEqual(node.errors().count("the KV space of cache is gone"), 1)
        self.assertNotIn("Traceback", node.errors())


class Small(OverALease):
    lease_size = "24M"

    def test_old_blocks_go_and_none_is_wrong(self):
        one, other = self.adapter(), self.adapter()
        names = [f"many{number}" for number in range(600)]
        for begin in range(0, 600, 20):
            node = (one, other)[begin // 20 % 2]
            self.assertEqual(node.ask("store", names[begin:begin + 20], 100 * KIB), [True, 20 * 100 * KIB])
        loaded = [answer for begin in range(0, 600, 50) for answer in one.ask("load", names[begin:begin + 50], 100 * KIB)]
        self.assertNotIn("wrong", loaded)
        self.assertGreater(loaded.count("absent"), 300)  # 24 MiB have no room for 60 MB
        self.assertGreater(loaded.count("right"), 50)
        self.assertEqual(loaded[-20:], ["right"] * 20)


class Configuration(OverALease):
    def refused(self, **parameters):
        answer = self.node("adapter", self.spec(**parameters)).ready
        self.assertIsInstance(answer, dict)
        return answer["error"]

    def test_what_is_wrong_is_named(self):
        self.assertIn("either 'lease'", self.refused(lease=None, socket=None))
        self.assertIn("either 'lease'", self.refused(path="/dev/shm/x"))
        self.assertIn("unknown option leese; there are path, lease", self.refused(leese="cache"))
        self.assertIn("option 'workers' is 1 to 64", self.refused(workers=0))
        self.assertIn("option 'wait_s' cannot be 'long'", self.refused(wait_s="long"))
        self.assertIn("cannot open the KV space of other", self.refused(lease="other"))
        self.assertIn("no manager listens at /nowhere", self.refused(socket="/nowhere"))
        self.t.grant("8M", "p", "--persistent", "--mode", "shared_coherent", "--label", "empty")
        self.assertIn("'terrace kv format empty'", self.refused(lease="empty"))

    def test_a_space_in_a_file(self):
        path = self.t.directory / "space"
        self.t.cli("kv", "format", path, "--bytes", "32M")
        where = {"lease": None, "socket": None, "path": str(path)}
        self.assertEqual(self.adapter(**where).ask("store", NAMES[:3], 4096), [True, 12288])
        self.assertEqual(self.adapter(**where).ask("load", NAMES[:3], 4096), ["right"] * 3)

    def test_lmcaches_own_check(self):
        done = self.t.run(PYTHON, "-B", "-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--num-keys", "32", "--obj-size", 65537,
                          "--l2-adapter", self.spec(), env={"PYTHONPATH": package_path(), "LMCACHE_TRACK_USAGE": "false"}, timeout=300)
        for line in ("32/32 correctly absent", "Batch store OK", "32/32 found", "Validation (loaded): 32/32", "Validation (content): 32/32"):
            self.assertIn(line, done.out)
        self.assertNotIn("Failed", done.out)


class Server(OverALease):
    """LMCache's storage manager, with its controllers: what its server runs, without the GPU's side."""

    SIZE = 256 * KIB

    def manager(self, *arguments, before=()):
        node = self.node("manager", "--l1-size-gb", "0.03125", "--eviction-policy", "LRU", *arguments, "--l2-adapter", self.spec(),
                         before=before)
        self.assertEqual(node.ready, "ready")
        return node

    def blocks(self):
        return self.t.cli("kv", "stat", "cache").json["blocks"]

    def test_blocks_come_back_from_the_space_in_another_process(self):
        one = self.manager()
        self.assertEqual(one.ask("write", NAMES[:20], self.SIZE), 20)
        wait_until(lambda: self.blocks() == 20, 60, "all 20 stored in the space")
        wait_until(lambda: one.ask("clear"), 60, "the L1 is empty")
        self.assertEqual(one.ask("fetch", NAMES[:20], self.SIZE), [20, 20, 20])
        other = self.manager()
        self.assertEqual(other.ask("fetch", NAMES[:25], self.SIZE), [20, 20, 20])  # the prefix that is there
        one.kill()
        self.assertEqual(self.manager().ask("fetch", NAMES[:20], self.SIZE), [20, 20, 20])

    def test_it_serves_on_from_its_l1_when_the_lease_ends(self):
        node = self.manager()
        node.ask("write", NAMES[:10], self.SIZE)
        wait_until(lambda: self.blocks() == 10, 60, "all 10 stored in the space")
        self.t.cli("lease", "revoke", "cache", "--grace", "0s")
        self.assertEqual(node.ask("write", NAMES[10:20], self.SIZE), 10)
        self.assertEqual(node.ask("fetch", NAMES[:20], self.SIZE), [20, 0, 20])
        wait_until(lambda: node.ask("clear"), 60, "the L1 is empty")
        self.assertEqual(node.ask("fetch", NAMES[:20], self.SIZE), [0, 0, 0])
        self.assertEqual(node.errors().count("the KV space of cache is gone"), 1)

    def test_an_l1_in_a_lease(self):
        node = self.manager("--no-l1-use-lazy", "--l1-devdax-path", "{path}",
                            before=(self.t.terrace, "lease", "exec", "l1", "--size", "32M", "--mode", "shared_coherent", "--"))
        self.assertEqual(node.ask("write", NAMES[:10], self.SIZE), 10)
        self.assertEqual(node.ask("fetch", NAMES[:10], self.SIZE), [10, 0, 10])
        memory = pathlib.Path(self.t.cli("lease", "path", "l1", "--ro").json["path"]).read_bytes()
        for name in NAMES[:10]:
            self.assertIn(content(name, self.SIZE), memory)
        wait_until(lambda: self.blocks() == 10, 60, "all 10 stored in the space")
        wait_until(lambda: node.ask("clear"), 60, "the L1 is empty")
        self.assertEqual(node.ask("fetch", NAMES[:10], self.SIZE), [10, 10, 10])  # from one lease into the other
        self.assertEqual(node.ask("close"), "closed")


def setUpModule():
    global SERVER
    SERVER = NodeServer(PYTHON, NODE)
    unittest.addModuleCleanup(SERVER.close)


if __name__ == "__main__":
    if not PYTHON.exists():
        sys.exit(f"no {PYTHON}: scripts/dev engines lmcache installs it")
    harness.main()
