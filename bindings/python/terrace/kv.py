# SPDX-License-Identifier: Apache-2.0
"""KV spaces: a cache of immutable blocks, found by key, that processes of several hosts share.

    from terrace import kv

    kv.KvSpace.format(lease)                                  # once
    with kv.KvSpace.attach(lease, namespace=kv.namespace(model="llama", dtype="bf16")) as space:
        space.put(key, block)
        cached = space.get(key)                               # None: compute it

docs/python.md of the sources has the rest.
"""

from ._terrace import KvSpace, KvView, KvWrite
from ._terrace import kv_namespace as namespace
from ._types import KvBlockInfo, KvBudget, KvCounters, KvKept, KvMemberInfo, KvPartInfo, KvPolicy, KvShrunk, KvStat, KvVerified

__all__ = [
    "KvBlockInfo", "KvBudget", "KvCounters", "KvKept", "KvMemberInfo", "KvPartInfo", "KvPolicy", "KvShrunk", "KvSpace", "KvStat", "KvVerified",
    "KvView", "KvWrite",
    "namespace",
]
