# SPDX-License-Identifier: Apache-2.0
"""Attacks that need no protocol: one kind a run, until it is killed. Prints "attack KIND COUNT" once a second.

    attacks.py connections|garbage|giant|truncated|descriptors|silent|web SOCKET
"""

import array
import os
import random
import resource
import socket
import struct
import sys
import time

SEND_TIMEOUT = 2.0


def connect(path):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(SEND_TIMEOUT)
    client.connect(path)
    return client


def connections(path):
    """Opens connections up to its own limit of descriptors and keeps them; those that were closed are opened again."""
    limit = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 32)
    kept = []
    while True:
        try:
            if len(kept) < limit:
                kept.append(connect(path))
            else:
                kept.pop(0).close()
        except OSError:
            for one in kept[:16]:
                one.close()
            del kept[:16]
            time.sleep(0.01)
        yield


def once(path, *parts):
    """Sends and leaves, or is closed before."""
    try:
        with connect(path) as client:
            for part in parts:
                client.sendall(part)
    except OSError:
        pass


def garbage(path):
    chance = random.Random(7)
    while True:
        once(path, chance.randbytes(chance.randint(1, 65536)))
        yield


def giant(path):
    """Announces messages as large as the header can say, and sends zeros for as long as somebody takes them."""
    chance = random.Random(8)
    while True:
        segments = chance.choice((0, 1, 511, 2**32 - 1))
        sizes = struct.pack("<I", 2**31 - 1) * min(segments + 1, 512)
        once(path, struct.pack("<I", segments), sizes, *[bytes(65536)] * 64)
        yield


def truncated(path):
    """The beginning of a message, and then nothing, on many connections."""
    kept = []
    while True:
        try:
            client = connect(path)
            client.sendall(struct.pack("<II", 0, 32_000) + bytes(128_000))
            kept.append(client)
        except OSError:
            time.sleep(0.02)
        if len(kept) > 200:
            kept.pop(0).close()
        yield


def descriptors(path):
    """As many descriptors with each byte as the kernel lets through."""
    pipes = array.array("i", [end for _ in range(120) for end in os.pipe()])
    while True:
        try:
            with connect(path) as client:
                for _ in range(64):
                    client.sendmsg([bytes(8)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, pipes)])
        except OSError:
            pass
        yield


def silent(path):
    """Connects and says nothing, again and again."""
    while True:
        once(path)
        yield


def web(path):
    """As many requests over HTTP as go, dozens behind each other on as many connections as there may be, and new
    connections all the time."""
    place = os.path.join(os.path.dirname(path), "http.sock")
    asked = b"".join(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % what
                     for what in (b"/healthz", b"/metrics", b"/api/v1/openapi.json", b"/") * 8)
    kept = []
    while True:
        try:
            while len(kept) < 31:
                kept.append(connect(place))
            connect(place).close()
            for one in kept:
                one.sendall(asked)
            for one in kept:
                one.recv(1 << 20)
            for one in kept[:4]:
                one.close()
            del kept[:4]
        except OSError:
            for one in kept:
                one.close()
            kept.clear()
        yield


def main():
    kind, path = sys.argv[1:3]
    count, spoken = 0, time.monotonic()
    for _ in globals()[kind](path):
        count += 1
        if time.monotonic() - spoken > 1:
            spoken = time.monotonic()
            print(f"attack {kind} {count}", flush=True)


if __name__ == "__main__":
    main()
