# SPDX-License-Identifier: Apache-2.0
"""The other process of kv_test.py: opens the space of a lease, or of a file, and does as it is told.

    kv_child.py SOCKET LABEL | FILE
"""

import sys

import python_base
from python_base import terrace

from terrace import kv


def attach():
    if len(sys.argv) == 3:
        session = terrace.Session(sys.argv[1])
        return kv.KvSpace.attach(session.attach(sys.argv[2]), namespace="n")
    return kv.KvSpace.open(sys.argv[1], namespace="n")


def main():
    space = attach()
    kept = []
    print("attached", flush=True)
    for line in sys.stdin:
        verb, key, *rest = line.split()
        if verb == "put":  # bytes, and how many
            print(space.put(key, bytes([int(rest[0])]) * int(rest[1])), flush=True)
        elif verb == "get":
            block = space.get(key)
            print(None if block is None else f"{block[0]} {len(block)} {len(set(block))}", flush=True)
        elif verb == "view":  # and keep
            kept.append(space.view(key))
            print(memoryview(kept[-1])[0], flush=True)
        elif verb == "drop":
            kept.clear()
            print("dropped", flush=True)
        elif verb == "begin":  # and never end
            kept.append(space.reserve(key, int(rest[0])))
            memoryview(kept[-1])[:int(rest[0]) // 2] = bytes(int(rest[0]) // 2)
            print("begun", flush=True)
        elif verb == "part":
            print(space.part, flush=True)


if __name__ == "__main__":
    main()
