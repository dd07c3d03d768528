# SPDX-License-Identifier: Apache-2.0
"""A process of Mooncake's store, told what to do by lines of JSON, in an environment that has Mooncake.

    client.py HTTP_PORT RPC_PORT [PATH BYTES]     with PATH: it brings that memory into the store
"""

import hashlib
import json
import random
import sys

from mooncake.store import MooncakeDistributedStore


def content(key, size):
    return random.Random(key).randbytes(size)


def main():
    http, rpc = sys.argv[1:3]
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", f"http://127.0.0.1:{http}/metadata", 0, 16 << 20, "tcp", "", f"127.0.0.1:{rpc}")
    if code == 0 and len(sys.argv) > 3:
        code = store.mount_segment(sys.argv[3], int(sys.argv[4]), 0, "tcp", "")["ret"]
    print(json.dumps({"ready": code}), flush=True)
    for line in sys.stdin:
        act, key, size = json.loads(line)
        if act == "put":
            answer = store.put(key, content(key, size))
        else:
            value = store.get(key)
            answer = hashlib.sha256(value).hexdigest() == hashlib.sha256(content(key, size)).hexdigest()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
