# SPDX-License-Identifier: Apache-2.0
"""Released clients of redis with a KV space behind `terrace kv serve`.

    TERRACE_ENGINE_DIR=build/engines/redis TERRACE_BUILD_DIR=build/release python3 tests/engines/redis/redis_test.py
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

ENGINE = pathlib.Path(os.environ["TERRACE_ENGINE_DIR"])
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/integration/kv_cli"), *map(str, ENGINE.glob("venv/lib/python3*/site-packages"))]
import redis  # noqa: E402
from kv_base import FileSpaces, Serve  # noqa: E402
import terrace_harness as harness  # noqa: E402

LONG = bytes(range(256)) * 1000


class Clients(FileSpaces):
    def serve(self):
        _, _, port = Serve(self, self.new_space()).address.rpartition(":")
        return int(port)

    def test_redis_py(self):
        port = self.serve()
        for options in ({}, {"protocol": 3}, {"protocol": 2}, {"client_name": "me", "username": "default", "password": "any"}):
            with self.subTest(options), redis.Redis(port=port, **options) as cache:
                cache.flushdb()
                self.assertTrue(cache.set("k", LONG, ex=3600))
                self.assertEqual(cache.get("k"), LONG)
                self.assertIsNone(cache.get("none"))
                self.assertIsNone(cache.set("k", b"other", nx=True))
                self.assertEqual(cache.mget(["none", "k"]), [None, LONG])
                self.assertTrue(cache.mset({"a": "1", "b": "2"}))
                self.assertEqual(cache.exists("a", "b", "none"), 2)
                self.assertGreater(cache.ttl("k"), 3000)
                self.assertEqual(sorted(cache.scan_iter(match="[ab]")), [b"a", b"b"])
                self.assertEqual(cache.info()["blocks"], 3)
                self.assertEqual(cache.config_get("save"), {})
                self.assertEqual(cache.delete("a", "b"), 2)
                pipeline = cache.pipeline(transaction=False)
                for index in range(100):
                    pipeline.set(f"p{index}", str(index)).get(f"p{index}")
                self.assertEqual(pipeline.execute()[1::2], [str(index).encode() for index in range(100)])
                with self.assertRaisesRegex(redis.ResponseError, "unknown command"):
                    cache.lpush("l", "v")
                if "client_name" in options:
                    self.assertEqual(cache.client_getname(), "me" if isinstance(cache.client_getname(), str) else b"me")

    def test_redis_py_asks_for_version_3_by_itself(self):
        with redis.Redis(port=self.serve()) as cache:
            self.assertEqual(cache.execute_command("HELLO")[b"proto"], 3)

    def test_a_user_that_is_not_there(self):
        with redis.Redis(port=self.serve(), username="root", password="any") as cache:
            self.assertRaisesRegex(redis.AuthenticationError, "invalid username", cache.ping)

    def test_node_redis(self):
        port = self.serve()
        for version in (2, 3):
            done = subprocess.run(["node", pathlib.Path(__file__).with_name("client.cjs"), str(port), str(version)], capture_output=True,
                                  text=True, timeout=120, env={**os.environ, "NODE_PATH": str(ENGINE / "node_modules")})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout), {"get": "one", "none": None, "nx": None, "mget": [None, "one"], "exists": 1, "length": 256_000,
                                                       "keys": ["k", "long"], "proto": version, "deleted": 2})


if __name__ == "__main__":
    harness.main()
