# SPDX-License-Identifier: Apache-2.0
"""SGLang's own pools in host memory and its factory of storage backends, over a KV space in a lease of a real manager.

    TERRACE_ENGINE_DIR=build/engines/sglang TERRACE_BUILD_DIR=build/release python3 tests/engines/sglang/sglang_test.py
"""

import json
import os
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parents[2] / "support")]
import terrace_harness as harness  # noqa: E402
from node_process import Node, NodeServer  # noqa: E402
from terrace_harness import Harness, wait_until  # noqa: E402

PYTHON = pathlib.Path(os.environ["TERRACE_ENGINE_DIR"]) / "venv/bin/python"
NODE = pathlib.Path(__file__).with_name("node.py")
SERVER = None  # of all nodes
PAGES = [f"{number:064x}" for number in range(1, 41)]
RIGHT, ABSENT = ["right"], ["absent"]


class OverALease(unittest.TestCase):
    lease_size = "64M"

    def setUp(self):
        self.t = Harness(name="sglang", devices={"a": "128M"})
        self.addCleanup(self.t.close)
        self.t.start()
        self.t.create_pool("p")
        self.t.grant(self.lease_size, "p", "--persistent", "--mode", "shared_coherent", "--label", "cache")
        self.t.cli("kv", "format", "cache", "--block", "64K")

    def node(self, pool="mha", v1=1, terrace=None, **wanted):
        place = {"lease": "cache", "socket": str(self.t.socket), "tenant": "team"}
        extra = {"backend_name": "terrace", "module_path": "terrace.engines.sglang", "class_name": "TerraceStorage", "interface_v1": v1,
                 "prefetch_threshold": 64, "terrace": {**place, **(terrace or {})}}
        node = Node(self, self.t, SERVER, "storage", json.dumps({"pool": pool, "extra": extra, **wanted}))
        return node

    def started(self, *arguments, **wanted):
        node = self.node(*arguments, **wanted)
        self.assertEqual(node.ready, "ready")
        return node


class Pages(OverALease):
    def test_two_processes_share_pages_of_each_pool_and_layout(self):
        for pool in ("mha", "mla"):
            for layout in ("page_first", "page_first_direct", "layer_first"):
                with self.subTest(pool=pool, layout=layout):
                    one, other = self.started(pool, layout=layout), self.started(pool, layout=layout)
                    self.assertEqual(other.ask("exists", PAGES[:20]), 0)
                    self.assertEqual(one.ask("set_v1", PAGES[:20]), [True] * 20)
                    self.assertEqual(other.ask("exists", PAGES), 20)
                    self.assertEqual(other.ask("get_v1", PAGES[:25]), RIGHT * 20 + ABSENT * 5)
                    self.assertEqual(other.ask("set_v1", PAGES[15:25]), [True] * 10)  # half of it was there
                    self.assertEqual(one.ask("get_v1", PAGES[:25]), RIGHT * 25)
                    self.assertEqual(one.ask("stats"), [[25], [20]])
                    self.assertEqual(one.ask("stats"), [[], []])
                    one.close()
                    other.close()

    def test_a_prefix_ends_where_a_page_is_missing(self):
        node = self.started()
        node.ask("set_v1", PAGES[:5] + PAGES[6:9])
        self.assertEqual(node.ask("exists", PAGES[:9]), 5)
        self.assertEqual(node.ask("exists", PAGES[5:9]), 0)
        self.assertEqual(node.ask("get_v1", PAGES[:9]), RIGHT * 5 + ABSENT + RIGHT * 3)

    def test_a_page_is_there_only_with_all_its_blocks(self):
        node = self.started()
        node.ask("set_v1", PAGES[:3])
        keys = [block["key"] for block in self.t.cli("kv", "list", "cache").json["blocks"]]
        self.assertEqual(sorted(keys), sorted(f"{page}.{part}" for page in PAGES[:3] for part in (0, 1)))
        namespace = self.t.cli("kv", "list", "cache").json["blocks"][0]["namespace"]
        self.t.cli("kv", "erase", "cache", "--namespace", namespace, "--key", f"{PAGES[1]}.1")
        self.assertEqual(node.ask("exists", PAGES[:3]), 1)
        self.assertEqual(node.ask("get_v1", PAGES[:3]), RIGHT + ABSENT + RIGHT)

    def test_pages_follow_those_before_them(self):
        node = self.started()
        node.ask("set_v1", PAGES[:2])
        node.ask("set_v1", PAGES[2:4], PAGES[:2])
        blocks = {block["key"]: block["has_parent"] for block in self.t.cli("kv", "list", "cache").json["blocks"]}
        self.assertEqual([key for key, has_parent in blocks.items() if not has_parent], [f"{PAGES[0]}.0"])

    def test_whole_pages_without_interface_v1(self):
        for layout in ("layer_first", "page_first"):
            one, other = self.started(v1=0, layout=layout), self.started(v1=0, layout=layout)
            self.assertIs(one.ask("set_flat", PAGES[:10]), True)
            self.assertEqual(other.ask("exists", PAGES[:12]), 10)
            self.assertEqual(other.ask("get_flat", PAGES[:12]), RIGHT * 10 + ABSENT * 2)
            self.assertEqual(one.ask("one_by_one", "page"), [[False, None], True, True, True, True])

    def test_pools_beside_the_kv_cache(self):
        for pool in ("mha", "mla"):
            one, other = self.started(pool), self.started(pool)
            self.assertEqual(one.ask("set_v2", PAGES[:8]), {"kv": [True] * 8, "indexer": [True] * 8})
            self.assertEqual(other.ask("get_v2", PAGES[:9]), RIGHT * 8 + ABSENT)
            self.assertEqual(other.ask("get_v1", PAGES[:9]), RIGHT * 8 + ABSENT)
            self.assertEqual(other.ask("exists_v2", PAGES[:10], "all_pages"), [8, {"kv": 8, "indexer": 8}, list(range(1, 9))])

    def test_the_usable_prefix_is_what_each_pool_can_serve(self):
        node = self.started()
        node.ask("set_v1", PAGES[:8])
        self.assertEqual(node.ask("exists_v2", PAGES[:10], "all_pages"), [0, {"kv": 8}, []])
        node.ask("set_side", PAGES[:3] + PAGES[4:6])
        self.assertEqual(node.ask("exists_v2", PAGES[:10], "all_pages"), [3, {"kv": 8, "indexer": 3}, [1, 2, 3]])
        self.assertEqual(node.ask("exists_v2", PAGES[:10], "trailing_pages", 2), [6, {"kv": 8, "indexer": 6}, [1, 2, 3, 6]])
        self.assertEqual(node.ask("exists_v2", PAGES[20:30], "all_pages"), [0, {}, []])

    def test_clear_erases_what_is_the_models(self):
        one, other = self.started(), self.started(model="other")
        one.ask("set_v2", PAGES[:5])
        other.ask("set_v1", PAGES[:5])
        self.assertIs(one.ask("clear"), True)
        self.assertEqual(one.ask("exists", PAGES[:5]), 0)
        self.assertEqual(one.ask("get_v2", PAGES[:5]), ABSENT * 5)
        self.assertEqual(other.ask("get_v1", PAGES[:5]), RIGHT * 5)

    def test_indices_that_are_not_of_the_pages(self):
        node = self.started()
        for verb in ("batch_set_v1", "batch_get_v1"):
            self.assertIn("40 indices for 3 pages of 16", node.ask("refuses", verb, PAGES[:3], 40))


class Whose(OverALease):
    def test_ranks_have_their_own_heads_and_share_what_mla_has(self):
        for pool, found in (("mha", ABSENT), ("mla", RIGHT)):
            self.started(pool, rank=0, size=2).ask("set_v1", PAGES[:3])
            self.assertEqual(self.started(pool, rank=0, size=2).ask("get_v1", PAGES[:3]), RIGHT * 3)
            self.assertEqual(self.started(pool, rank=1, size=2).ask("get_v1", PAGES[:3]), found * 3, pool)
            self.assertEqual(self.started(pool, rank=0, size=4).ask("get_v1", PAGES[:3]), found * 3, pool)

    def test_other_model_tenant_pool_and_layout_never_meet(self):
        self.started().ask("set_v1", PAGES[:3])
        for other in ({"model": "meta/llama-2"}, {"terrace": {"tenant": "stranger"}}, {"layout": "page_first_direct"}, {"pool": "mla"},
                      {"terrace": {"model": "renamed"}}):
            node = self.started(**other)
            self.assertEqual(node.ask("exists", PAGES[:3]), 0, other)
            self.assertEqual(node.ask("get_v1", PAGES[:3]), ABSENT * 3, other)
        self.assertEqual(self.started(model="/models/x", terrace={"model": "meta/llama"}).ask("get_v1", PAGES[:3]), RIGHT * 3)

    def test_readonly_puts_nothing(self):
        node = self.started(terrace={"readonly": True})
        self.assertEqual(node.ask("set_v1", PAGES[:3]), [False] * 3)
        self.started().ask("set_v1", PAGES[:3])
        self.assertEqual(node.ask("get_v1", PAGES[:3]), RIGHT * 3)

    def test_what_is_wrong_is_named(self):
        def refused(**terrace):
            return self.node(terrace=terrace).ready["error"]

        self.assertIn("either 'lease'", refused(lease="", socket=""))
        self.assertIn("unknown option layout", refused(layout="mine"))
        self.assertIn("cannot open the KV space of nobody", refused(lease="nobody"))
        node = Node(self, self.t, SERVER, "storage", json.dumps({"pool": "mha", "extra": {
            "backend_name": "terrace", "module_path": "terrace.engines.sglang", "class_name": "TerraceStorage"}}))
        self.assertIn('needs "terrace": {"lease"', node.ready["error"])


class Losses(OverALease):
    def test_killed_in_the_middle_of_setting(self):
        victim, other = self.started(), self.started()
        pages = [f"kill{number}" for number in range(2000)]
        victim.send("set_on", pages)
        told = [page for _ in range(12) for page in victim.answer()]
        victim.kill()
        self.assertEqual(other.ask("get_v1", told), RIGHT * len(told))
        rest = [page for page in pages[:80] if page not in told]
        self.assertNotIn("wrong", other.ask("get_v1", rest))
        self.assertEqual(other.ask("set_v1", PAGES), [True] * 40)
        self.assertEqual(self.started().ask("get_v1", PAGES), RIGHT * 40)

    def test_the_lease_ends(self):
        node = self.started()
        node.ask("set_v2", PAGES[:5])
        self.t.cli("lease", "revoke", "cache", "--grace", "0s")
        wait_until(lambda: node.ask("exists", PAGES[:5]) == 0, 60, "the loss is noticed")
        self.assertEqual(node.ask("get_v1", PAGES[:5]), ABSENT * 5)
        self.assertEqual(node.ask("set_v1", PAGES[5:8]), [False] * 3)
        self.assertIs(node.ask("set_flat", PAGES[:2]), False)
        self.assertEqual(node.ask("get_flat", PAGES[:2]), ABSENT * 2)
        self.assertEqual(node.ask("exists_v2", PAGES[:5], "all_pages"), [0, {}, []])
        self.assertEqual(node.ask("close"), "closed")
        self.assertEqual(node.ask("get_v1", PAGES[:2]), ABSENT * 2)  # nor after it was detached
        self.assertEqual(node.errors().count("the KV space of cache is gone"), 1)
        self.assertNotIn("Traceback", node.errors())

    def test_the_manager_starts_anew(self):
        node = self.started()
        node.ask("set_v1", PAGES[:5])
        self.t.kill()
        self.assertEqual(node.ask("get_v1", PAGES[:5]), RIGHT * 5)
        self.assertEqual(node.ask("set_v1", PAGES[5:10]), [True] * 5)
        self.t.start()
        self.assertEqual(self.started().ask("get_v1", PAGES[:10]), RIGHT * 10)


class Small(OverALease):
    lease_size = "16M"

    def test_old_pages_go_and_none_is_wrong(self):
        one, other = self.started(), self.started()
        pages = [f"many{number}" for number in range(400)]  # of 128 KiB
        for begin in range(0, 400, 20):
            self.assertEqual((one, other)[begin // 20 % 2].ask("set_v1", pages[begin:begin + 20]), [True] * 20)
        loaded = [answer for begin in range(0, 400, 50) for answer in one.ask("get_v1", pages[begin:begin + 50])]
        self.assertNotIn("wrong", loaded)
        self.assertGreater(loaded.count("absent"), 200)
        self.assertGreater(loaded.count("right"), 30)


def setUpModule():
    global SERVER
    SERVER = NodeServer(PYTHON, NODE)
    unittest.addModuleCleanup(SERVER.close)


if __name__ == "__main__":
    if not PYTHON.exists():
        sys.exit(f"no {PYTHON}: scripts/dev engines sglang installs it")
    harness.main()
