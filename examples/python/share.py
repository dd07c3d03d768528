# SPDX-License-Identifier: Apache-2.0
"""One tensor, several processes, no copy: share.py write, then share.py read. See docs/tutorials/python.md."""

import sys

import terrace

session = terrace.Session()
if sys.argv[1:] == ["write"]:
    # detached: it outlives this process, until its ttl ends or somebody releases it.
    lease = session.grant(64 << 20, mode="shared_coherent", label="kv", detached=True, ttl=600)
    terrace.TensorSpace.format(lease)  # once
    with terrace.TensorSpace(lease) as space:
        block = space.create("kv/17", (1 << 20,), "u8")
        with block.write() as array:  # published at its end; an exception gives it up
            array[...] = 7
    print("published")
elif sys.argv[1:] == ["read"]:
    with terrace.TensorSpace(session.attach("kv")) as space:
        block = space["kv/17"]
        with block.pin() as array:  # in place, read-only
            print(f"{(array == 7).sum()} of {array.size} bytes are 7")
        del array  # the pin goes with the last array over it
        try:
            space["kv/18"]
        except terrace.NotFound as error:
            print(error)
else:
    sys.exit("usage: share.py write|read")
