# SPDX-License-Identifier: Apache-2.0
"""redis-server: many small and some large objects; a snapshot and a log rewrite under writes; restarts."""

import hashlib
import shutil
import signal
import subprocess

from demo.redis_client import RedisClient, RedisError
from devlib.apps.registry import App
from devlib.apps.side import AppFailure, Side
from terrace_harness import wait_until

BATCH = 200


def _value(key: int, version: int) -> bytes:
    """Some bytes of 32 for most keys, and up to 96 KiB for one of sixteen."""
    return hashlib.sha256(b"%d %d" % (key, version)).digest() * (1 + (key * 37 % 3000 if key % 16 == 0 else key % 12))


class _Server:
    def __init__(self, side: Side, *options, folder="data"):
        self.side = side
        self.path = side.folder / "redis.sock"
        self.path.unlink(missing_ok=True)
        (side.folder / folder).mkdir(exist_ok=True)
        self.process = side.start("redis-server", "--port", "0", "--unixsocket", self.path, "--dir",
                                  side.folder / folder, "--save", "", "--enable-debug-command", "yes", "--daemonize",
                                  "no", *options)
        self.client = side.wait_for(lambda: RedisClient(self.path), self.process, "an answer of redis")
        side.wait_for(self._loaded, self.process, "redis having loaded its data", 120)

    def _loaded(self) -> bool:
        try:
            return self.client.call("PING") == "PONG"
        except RedisError as error:
            if "LOADING" in str(error):
                return False
            raise

    def state(self) -> str:
        return f"{self.client.call('DBSIZE')} keys, {self.client.call('DEBUG', 'DIGEST')}"

    def info(self, name: str) -> str:
        text = bytes(self.client.call("INFO")).decode()
        return next(line.partition(":")[2] for line in text.splitlines() if line.startswith(f"{name}:"))

    def write(self, keys, version: int) -> None:
        batch = []
        for key in keys:
            batch.append(("SET", f"k{key}", _value(key, version)))
            if key % 5 == 0:
                batch.append(("HSET", f"h{key % 500}", f"field{key}", f"{key * 7919 % 100003} {version}"))
                batch.append(("RPUSH", f"l{key % 100}", f"{key}"))
                batch.append(("ZADD", f"z{key % 50}", key * 31 % 997, f"member{key}"))
            if key % 11 == 0:
                batch.append(("DEL", f"k{key // 2}"))
            if len(batch) >= BATCH:
                self.client.pipeline(batch)
                batch = []
        if batch:
            self.client.pipeline(batch)

    def read(self, count: int) -> str:
        seen = hashlib.sha256()
        for first in range(0, count, 50):
            for value in self.client.pipeline([("GET", f"k{key}") for key in range(first, min(first + 50, count))]):
                seen.update(b"-" if value is None else value)
        return seen.hexdigest()[:32]

    def stop(self) -> None:
        self.client.close()
        self.side.stop(self.process, signal.SIGTERM)


def _background(server: _Server, command: str, progress: str, status: str, writes) -> None:
    """A background save or rewrite while `writes` goes on; AppFailure when redis says that it went wrong."""
    # It pauses at each key: it lasts longer than the writes that race with it.
    server.client.call("CONFIG", "SET", "rdb-key-save-delay", "50")
    server.client.call(command)
    writes()
    server.client.call("CONFIG", "SET", "rdb-key-save-delay", "0")
    wait_until(lambda: server.info(progress) == "0", 180, f"the end of {command}", interval=0.1)
    if server.info(status) != "ok":
        raise AppFailure(f"{command}: {status} is {server.info(status)}\n{server.side.log()[-2000:]}")


def _benchmark(side: Side, server: _Server) -> None:
    if not shutil.which("redis-benchmark"):
        return
    count = "20000" if side.quick else "200000"
    # The load is plain on both sides, and its random keys are no part of what is compared.
    done = subprocess.run(["redis-benchmark", "-s", str(server.path), "-t", "set,get", "-n", count, "-r", "50000", "-d",
                           "200", "-P", "16", "-q", "--csv"], capture_output=True, text=True, check=False, timeout=300)
    for line in done.stdout.splitlines():
        words = [word.strip('"') for word in line.split(",")]
        if len(words) > 1 and words[0] in ("SET", "GET"):
            side.rate(f"redis_{words[0].lower()}_per_s", float(words[1]))
    server.client.call("FLUSHALL")


def _redis(side: Side) -> dict:
    count = 12000 if side.quick else 60000
    results = {}
    server = _Server(side, "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
    _benchmark(side, server)
    with side.clock():
        server.write(range(count), 0)
        results["values read"] = server.read(count)
    results["data set"] = before = server.state()
    _background(server, "BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status",
                lambda: server.write(range(0, count, 3), 1))
    shutil.copyfile(side.folder / "data" / "dump.rdb", side.folder / "snapshot.rdb")
    _background(server, "BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status",
                lambda: server.write(range(1, count, 3), 2))
    results["data set after writes"] = after = server.state()
    results["values read after writes"] = server.read(count)
    server.stop()
    server = _Server(side, "--appendonly", "yes")
    results["log replayed"] = server.state()
    server.stop()
    if results["log replayed"] != after:
        raise AppFailure(f"the log has {results['log replayed']}, the server had {after}")
    (side.folder / "restored").mkdir()
    shutil.copyfile(side.folder / "snapshot.rdb", side.folder / "restored" / "dump.rdb")
    server = _Server(side, folder="restored")
    results["snapshot loaded"] = server.state()
    server.stop()
    if results["snapshot loaded"] != before:
        raise AppFailure(f"the snapshot has {results['snapshot loaded']}, the data set at the save was {before}")
    return results


APPS = [App("redis", "SET/GET load, BGSAVE and AOF rewrite under writes, restarts", _redis,
            programs={"redis-server": "redis-server"})]
