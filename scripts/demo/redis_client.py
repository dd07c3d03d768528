# SPDX-License-Identifier: Apache-2.0
"""A small client for redis' protocol (RESP2) over a unix socket, with pipelining; and the values it stores."""

import random
import socket


class RedisError(Exception):
    """redis answered with an error, or not at all."""


class RedisClient:
    """One connection. Threads: one."""

    def __init__(self, path, timeout: float = 30.0):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        self._socket.connect(str(path))
        self._stream = self._socket.makefile("rb", buffering=1 << 20)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def call(self, *words):
        """One command, one reply."""
        return self.pipeline([words])[0]

    def pipeline(self, commands: list) -> list:
        """Sends all commands, then reads all replies. A batch should stay below the socket's buffers in one of the
        two directions: many SETs, or many GETs, not both."""
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            for word in words:
                data = word if isinstance(word, (bytes, bytearray, memoryview)) else str(word).encode()
                parts += (b"$%d\r\n" % len(data), data, b"\r\n")
        self._socket.sendall(b"".join(parts))
        return [self._reply() for _ in commands]

    def _reply(self):
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise RedisError("the connection was closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            length = int(rest)
            if length < 0:
                return None
            data = self._stream.read(length + 2)
            if len(data) != length + 2:
                raise RedisError("the connection was closed within a value")
            return memoryview(data)[:length]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        raise RedisError(f"not a reply: {line[:40]!r}")


class Values:
    """Deterministic contents: key number -> bytes. Sizes from 8 KiB to 256 KiB, seven of eight at least 64 KiB.
    Each value begins with its own number and is a window into one block of noise at an offset of its own, so
    that no two values are alike, and making one costs little more than copying it."""

    SMALL, LARGE = (8 << 10, 64 << 10), (64 << 10, 256 << 10)

    def __init__(self, total_bytes: int, seed: int = 20):
        chance = random.Random(seed)
        self._noise = memoryview(chance.randbytes((1 << 20) + self.LARGE[1]))
        self._shapes = []  # (size, offset)
        self.total_bytes = 0
        while self.total_bytes < total_bytes:
            low, high = self.SMALL if chance.random() < 0.125 else self.LARGE
            size = chance.randint(low, high)
            self._shapes.append((size, chance.randrange(1 << 20)))
            self.total_bytes += size

    def __len__(self) -> int:
        return len(self._shapes)

    def size(self, number: int) -> int:
        return self._shapes[number][0]

    def get(self, number: int) -> bytes:
        size, offset = self._shapes[number]
        head = b"%016d" % number
        return head + self._noise[offset:offset + size - len(head)]
