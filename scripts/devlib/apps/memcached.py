# SPDX-License-Identifier: Apache-2.0
"""memcached: values of all sizes, replaced, appended to, deleted and read back by several connections."""

import hashlib
import os
import socket
import threading

from devlib.apps.registry import App
from devlib.apps.side import AppFailure, Side

CONNECTIONS = 4


class _Link:
    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        self._stream = self._socket.makefile("rb")

    def store(self, verb: bytes, items: list) -> list:
        self._socket.sendall(b"".join(b"%s %s 0 0 %d\r\n%s\r\n" % (verb, key, len(value), value)
                                      for key, value in items))
        return [self._stream.readline() for _ in items]

    def delete(self, keys: list) -> list:
        self._socket.sendall(b"".join(b"delete %s\r\n" % key for key in keys))
        return [self._stream.readline() for _ in keys]

    def get(self, keys: list) -> dict:
        self._socket.sendall(b"get " + b" ".join(keys) + b"\r\n")
        found = {}
        while True:
            line = self._stream.readline()
            if line == b"END\r\n":
                return found
            if not line.startswith(b"VALUE "):
                raise AppFailure(f"memcached answered {line!r}")
            _, key, _, size = line.split()
            found[key] = self._stream.read(int(size))
            self._stream.readline()

    def close(self):
        self._stream.close()
        self._socket.close()


def _load(path, part: int, count: int, seen: list) -> None:
    link = _Link(path)
    answers, values = hashlib.sha256(), hashlib.sha256()
    keys = [b"key:%d:%d" % (part, at) for at in range(count)]

    def value(at, version):
        return hashlib.sha256(b"%d %d %d" % (part, at, version)).digest() * (1 + at * 53 % (600 if at % 9 == 0 else 12))
    try:
        for version in range(3):
            for first in range(0, count, 40):
                span = range(first, min(first + 40, count))
                answers.update(b"".join(link.store(b"set", [(keys[at], value(at, version)) for at in span])))
                answers.update(b"".join(link.store(b"append", [(keys[at], b"tail") for at in span if at % 4 == 0])))
                answers.update(b"".join(link.delete([keys[at] for at in span if (at + version) % 17 == 0])))
        for first in range(0, count, 40):
            found = link.get(keys[first:first + 40])
            for key in keys[first:first + 40]:
                values.update(found.get(key, b"-"))
        seen[part] = f"{answers.hexdigest()[:16]} {values.hexdigest()[:32]}"
    finally:
        link.close()


def _memcached(side: Side) -> dict:
    path = side.folder / "memcached.sock"
    user = ["-u", "root"] if os.geteuid() == 0 else []
    server = side.start("memcached", "-s", path, "-m", "512", "-t", "4", *user)
    side.wait_for(lambda: _Link(path).close() or True, server, "an answer of memcached")
    seen = ["a thread failed"] * CONNECTIONS
    count = 1500 if side.quick else 9000
    threads = [threading.Thread(target=_load, args=(path, part, count, seen)) for part in range(CONNECTIONS)]
    with side.clock():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    side.stop(server)
    return {f"connection {part}": text for part, text in enumerate(seen)}


APPS = [App("memcached", f"set, append, delete and get over {CONNECTIONS} connections, values up to 19 KiB", _memcached,
            programs={"memcached": "memcached"})]
