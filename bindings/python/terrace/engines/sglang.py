# SPDX-License-Identifier: Apache-2.0
"""SGLang: a KV space as the third level of its hierarchical cache (HiCache), by `--hicache-storage-backend dynamic`.

    --hicache-storage-backend-extra-config '{"backend_name": "terrace", "module_path": "terrace.engines.sglang",
        "class_name": "TerraceStorage", "interface_v1": 1, "terrace": {"lease": "cache", "tenant": "team-a"}}'

With interface_v1 pages are copied straight between the space and SGLang's pool in host memory. A page of K and V apart is two
blocks, one of an MLA model is one. SGLang calls from several threads.

docs/operations/sglang.md of the sources has the rest.
"""

import ctypes
import functools
import hashlib
import time

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult

from ._space import names, open_space


class _Pool:
    """One of SGLang's pools in host memory: where its pages lie, and what they are called in the space."""

    def __init__(self, host, name: str, namespace: str):
        self.host, self.suffix, self.namespace = host, "" if name == PoolName.KV else f".{name}", namespace
        # A logical pool has no bytes of its own: other pools hold what its pages stand for.
        self.is_logical = name == PoolName.KV and getattr(host, "kv_buffer", None) is None
        self.page_tokens = getattr(host, "logical_page_size", None) or getattr(host, "page_size", None) or 1
        self._parts = None

    @property
    def parts(self) -> int:
        """Blocks of a page."""
        if self._parts is None:
            self._parts = len(self._meta(torch.arange(self.page_tokens))[0])
        return self._parts

    def keys(self, pages: list) -> list:
        return [f"{page}{self.suffix}.{part}" for page in pages for part in range(self.parts)]

    def blocks(self, pages: list, indices) -> list:
        """Pairs of key and memory. `indices` are tokens of the pool, as many as the pages have."""
        if indices is None or len(indices) != len(pages) * self.page_tokens:
            raise ValueError(f"sglang: {0 if indices is None else len(indices)} indices for {len(pages)} pages of {self.page_tokens}")
        pointers, sizes = self._meta(indices)
        return list(zip(self.keys(pages), map(_memory, pointers, sizes)))

    def whole(self, answers: list) -> list:
        """Of each page, whether all its blocks are right."""
        return [all(answers[at:at + self.parts]) for at in range(0, len(answers), self.parts)]

    def _meta(self, indices):
        pointers, sizes = self.host.get_page_buffer_meta(indices.cpu())
        if pointers and isinstance(pointers[0], (list, tuple)):  # several buffers for what the pool calls one
            return [p for some in pointers for p in some], [s for some in sizes for s in some]
        return pointers, sizes


class TerraceStorage(HiCacheStorage):
    """The storage backend. Nothing that the space lacks or loses raises; wrong arguments do."""

    def __init__(self, storage_config, kwargs=None):
        self.config = storage_config
        options = (storage_config.extra_config or {}).get("terrace")
        if not isinstance(options, dict):
            raise ValueError("sglang: the extra config needs \"terrace\": {\"lease\": ...}, which says where the KV space is")
        self._options = options
        self._whole_namespace = self._namespace(None, shared=storage_config.is_mla_model)
        self._space = open_space(options, namespace=self._whole_namespace, who="sglang")
        self._pools = {}
        self._stats = {"prefetch": [], "backup": []}
        self._by_pages = bool((storage_config.extra_config or {}).get("interface_v1", 0))

    # Pools

    def register_mem_pool_host(self, mem_pool_host):
        """The pool of the KV cache. Its layout and type are part of the namespace."""
        super().register_mem_pool_host(mem_pool_host)
        self._pools[PoolName.KV] = self._pool(mem_pool_host, PoolName.KV)
        self._whole_namespace = self._pools[PoolName.KV].namespace

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        """A pool beside it, as for states or an indexer."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != PoolName.KV:
            self._pools[host_pool_name] = self._pool(host_pool, host_pool_name)

    def _pool(self, host, name) -> _Pool:
        # Each rank has its own heads and states; the keys and values of MLA are the same in all.
        shared = self.config.is_mla_model and name != PoolName.MAMBA
        if shared and name in (PoolName.DRAFT, PoolName.DRAFT_SWA):
            shared = not hasattr(host, "v_buffer")
        return _Pool(host, name, self._namespace(host, shared))

    def _namespace(self, host, shared: bool) -> str:
        """Whatever changes the bytes of a page is in it."""
        config = self.config
        of = [getattr(host, name, None) for name in ("dtype", "layout", "page_size", "size_per_token", "start_layer", "end_layer", "storage_format_tag")]
        of += [config.pp_rank, config.pp_size, config.attn_cp_rank, config.attn_cp_size, config.dcp_rank, config.dcp_size]
        of += [] if shared else [config.tp_rank, config.tp_size]
        layout = f"sglang-{getattr(host, 'layout', 'flat')}-{hashlib.sha256(repr(of).encode()).hexdigest()[:16]}"
        dtype = str(getattr(host, "dtype", "")).removeprefix("torch.")
        return names(self._options, model=config.model_name or "", dtype=dtype, layout=layout)

    # Pages between pool and space: interface_v1, and v2 for models with several pools

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._get(self._pools[PoolName.KV], keys, host_indices)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._set(self._pools[PoolName.KV], keys, host_indices, extra_info)

    def batch_get_v2(self, transfers, extra_info=None):
        return {transfer.name: self._get(self._pools[transfer.name], transfer.keys or [], transfer.host_indices) for transfer in transfers}

    def batch_set_v2(self, transfers, extra_info=None):
        return {transfer.name: self._set(self._pools[transfer.name], transfer.keys or [], transfer.host_indices, extra_info)
                for transfer in transfers}

    def _get(self, pool: _Pool, pages: list, indices) -> list:
        if pool.is_logical or not pages:
            return [True] * len(pages)
        begin = time.perf_counter()
        blocks = pool.blocks(pages, indices)
        got = pool.whole(self._space.get_into(blocks, namespace=pool.namespace))
        self._note("prefetch", blocks, pages, begin)
        return got

    def _set(self, pool: _Pool, pages: list, indices, extra_info) -> list:
        if pool.is_logical or not pages:
            return [True] * len(pages)
        begin = time.perf_counter()
        blocks = pool.blocks(pages, indices)
        before = (extra_info.prefix_keys if extra_info else None) or []
        parent = pool.keys(before[-1:])[-1] if before else None
        put = pool.whole(self._space.put(blocks, parent=parent, chain=True, namespace=pool.namespace))
        self._note("backup", blocks, pages, begin)
        return put

    # Looks only

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys, extra_info=None):
        pool = self._pools.get(PoolName.KV)
        if not self._by_pages or pool is None:
            return self._space.prefix([_flat(key) for key in keys], namespace=self._whole_namespace)
        if pool.is_logical:
            return len(keys)
        return self._space.prefix(pool.keys(keys), namespace=pool.namespace) // pool.parts

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        pages = self.batch_exists(keys, extra_info)
        hits = {PoolName.KV: pages} if pages else {}
        usable = set(range(1, pages + 1))  # lengths of the prefix that every pool can serve
        for transfer in pool_transfers or []:
            pool = self._pools[transfer.name]
            there = pool.whole(self._space.exists(pool.keys(keys[:pages]), namespace=pool.namespace)) if pages else []
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                served = set(range(1, (there + [False]).index(False) + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                last = max(1, len(transfer.keys or []))
                served = {length for length in range(1, pages + 1) if all(there[max(0, length - last):length])}
            else:
                raise ValueError(f"sglang: pools of the policy {transfer.hit_policy} are not supported")
            if served:
                hits[transfer.name] = max(served)
            usable &= served
        return PoolTransferResult(max(usable, default=0), hits, sorted(usable))

    # Whole pages as tensors, without interface_v1

    def get(self, key, target_location=None, target_sizes=None):
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        targets = list(target_locations or [])
        if len(targets) != len(keys) or any(not isinstance(target, torch.Tensor) for target in targets):
            raise ValueError("sglang: get() needs a tensor for each key, as SGLang's own controller passes it")
        rooms = [target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format) for target in targets]
        got = self._space.get_into([(_flat(key), _bytes(room)) for key, room in zip(keys, rooms)], namespace=self._whole_namespace)
        for done, room, target in zip(got, rooms, targets):
            if done and room is not target:
                target.copy_(room)
        return [target if done else None for done, target in zip(got, targets)]

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value])

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        if values is None or len(values) != len(keys):
            raise ValueError("sglang: set() needs a tensor for each key, as SGLang's own controller passes it")
        blocks = [(_flat(key), _bytes(value.contiguous())) for key, value in zip(keys, values)]
        return all(self._space.put(blocks, chain=True, namespace=self._whole_namespace))

    # The rest

    def clear(self):
        """Erases this model's pages, of all processes that share them."""
        for namespace in {self._whole_namespace, *(pool.namespace for pool in self._pools.values())}:
            self._space.flush(namespace=namespace)
        return True

    def get_stats(self):
        """Pages and bandwidth since the last call, where SGLang has metrics enabled."""
        from sglang.srt.observability.metrics_collector import StorageMetrics  # pylint: disable=import-outside-toplevel
        metrics = StorageMetrics()
        for what, noted in self._stats.items():
            taken, noted[:] = list(noted), []
            getattr(metrics, f"{what}_pgs").extend(pages for pages, _ in taken)
            getattr(metrics, f"{what}_bandwidth").extend(rate for _, rate in taken)
        return metrics

    def _note(self, what: str, blocks: list, pages: list, begin: float) -> None:
        if self.config.enable_storage_metrics:
            seconds = max(time.perf_counter() - begin, 1e-9)
            self._stats[what].append((len(pages), sum(len(memory) for _, memory in blocks) / seconds / (1 << 30)))

    def close(self):
        """Finds and puts nothing any more."""
        self._space.close()


def _flat(key: str) -> str:
    """Of a whole page in one block, which is not the page in blocks of its parts."""
    return f"{key}.flat"


@functools.lru_cache(maxsize=64)
def _bytes_type(size: int):
    return ctypes.c_ubyte * size  # ctypes keeps each new one for good


def _memory(pointer: int, size: int):
    return _bytes_type(size).from_address(pointer)


def _bytes(tensor):
    """A contiguous tensor's memory, which the tensor must outlive."""
    return _memory(tensor.data_ptr(), tensor.numel() * tensor.element_size())
