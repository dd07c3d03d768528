# SPDX-License-Identifier: Apache-2.0
"""A process with SGLang's own classes (node_main.py): a pool in host memory, and the storage backend that its factory makes.

    node.py storage JSON     "pool": mha or mla, "layout", "rank", "size", "model", and "extra": the JSON of
                             --hicache-storage-backend-extra-config
"""

import json
import pathlib
import random
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from node_main import main  # noqa: E402

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorageConfig, HiCacheStorageExtraInfo, PoolHitPolicy, PoolName,  # noqa: E402
                                                  PoolTransfer)
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController  # noqa: E402
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402

LAYERS, PAGE, TOKENS, CPU = 4, 16, 2048, torch.device("cpu")
CACHE = torch.bfloat16


def _rows(*shape):
    return tuple(torch.zeros(*shape, dtype=CACHE) for _ in range(LAYERS))


def _pointers(tensors):
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)


def mha(layout, label="kv"):
    keys, values = _rows(PAGE, 8, 64), _rows(PAGE, 8, 64)
    buffers = KVBuffers(k=keys, v=values, k_data_ptrs=_pointers(keys), v_data_ptrs=_pointers(values), layout=KVBufferLayout.NHD)
    info = MHABufferInfo(buffers=buffers, page_size=PAGE, head_num=8, head_dim=64, v_head_dim=64, dtype=CACHE, device=CPU)
    return MHATokenToKVPoolHost(info, 1.0, 0, PAGE, layout, pin_memory=False, device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS,
                                pool_label=label)


def mla(layout, label="kv"):
    rows = _rows(PAGE, 1, 576)
    info = MLABufferInfo(buffers=rows, data_ptrs=_pointers(rows), layer_indices=tuple(range(LAYERS)), device_layer_num=LAYERS, page_size=PAGE,
                         kv_lora_rank=512, qk_rope_head_dim=64, kv_cache_dim=576, dtype=CACHE, device=CPU)
    return MLATokenToKVPoolHost(info, 1.0, 0, PAGE, layout, pin_memory=False, device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS,
                                target_layer_num=LAYERS, pool_label=label)


class Storage:
    def __init__(self, text):
        wanted = json.loads(text)
        make = {"mha": mha, "mla": mla}[wanted["pool"]]
        layout = wanted.get("layout", "page_first")
        with host_memory_budget_scope(1 << 30):
            self.pool, self.side = make(layout), make(layout, "indexer")
        # As HiCacheController does: the JSON is parsed, its own keys taken out, and the factory asked.
        extra, *_ = HybridCacheController.parse_storage_backend_extra_config(json.dumps(wanted["extra"]))
        config = HiCacheStorageConfig(
            tp_rank=wanted.get("rank", 0), tp_size=wanted.get("size", 1), pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
            is_mla_model=wanted["pool"] == "mla", enable_storage_metrics=True, is_page_first_layout=layout == "page_first",
            model_name=wanted.get("model", "meta/llama"), extra_config=extra)
        self.storage = StorageBackendFactory.create_backend("dynamic", config, self.pool)
        self.storage.register_mem_pool_host(self.pool)
        self.storage.register_mem_host_pool_v2(self.pool, PoolName.KV)
        self.storage.register_mem_host_pool_v2(self.side, PoolName.INDEXER)
        self.storage.on_host_pools_registered()

    def _page(self, name, pool):
        return torch.frombuffer(bytearray(random.Random(f"{name}{pool.pool_label}").randbytes(pool.get_dummy_flat_data_page().nbytes)),
                                dtype=torch.uint8).view(pool.dtype)

    @staticmethod
    def _places(names, pool):
        """Free pages of the pool, from its end to its begin, so that none lies beside the one before."""
        pages = [pool.page_num - 1 - 2 * number for number in range(len(names))]
        return torch.tensor([page * PAGE + token for page in pages for token in range(PAGE)], dtype=torch.int64)

    def _fill(self, names, pool):
        places = self._places(names, pool)
        for name, place in zip(names, places[::PAGE].tolist()):
            pool.set_from_flat_data_page(place, self._page(name, pool))
        return places

    def _empty(self, names, pool):
        for buffer in (pool.kv_buffer,) if torch.is_tensor(pool.kv_buffer) else pool.kv_buffer:
            buffer.view(torch.uint8).fill_(0xEE)
        return self._places(names, pool)

    def _judge(self, names, pool, places, done):
        return ["absent" if not got else "right" if torch.equal(pool.get_data_page(place).flatten().view(torch.uint8),
                                                                self._page(name, pool).view(torch.uint8)) else "wrong"
                for name, place, got in zip(names, places[::PAGE].tolist(), done)]

    # interface_v1

    def set_v1(self, names, before=()):
        return self.storage.batch_set_v1(names, self._fill(names, self.pool), HiCacheStorageExtraInfo(prefix_keys=list(before) or None))

    def set_on(self, names):
        """A batch of two after the other, told one by one, until the process is killed."""
        for pair in zip(names[::2], names[1::2]):
            if all(self.set_v1(list(pair))):
                self.tell(pair)
        return "end"

    def get_v1(self, names):
        places = self._empty(names, self.pool)
        return self._judge(names, self.pool, places, self.storage.batch_get_v1(names, places))

    # v2: the pool of the KV cache, and one beside it

    def set_v2(self, names):
        both = [PoolTransfer(name=name, keys=names, host_indices=self._fill(names, pool))
                for name, pool in ((PoolName.KV, self.pool), (PoolName.INDEXER, self.side))]
        return self.storage.batch_set_v2(both)

    def set_side(self, names):
        return self.storage.batch_set_v2([PoolTransfer(name=PoolName.INDEXER, keys=names, host_indices=self._fill(names, self.side))])

    def get_v2(self, names):
        places = self._empty(names, self.side)
        got = self.storage.batch_get_v2([PoolTransfer(name=PoolName.INDEXER, keys=names, host_indices=places)])
        return self._judge(names, self.side, places, got[PoolName.INDEXER])

    def exists_v2(self, names, policy, last=1):
        """[pages of the prefix, of each pool, lengths that can be restored]"""
        side = PoolTransfer(name=PoolName.INDEXER, keys=names[-last:], hit_policy=PoolHitPolicy(policy))
        found = self.storage.batch_exists_v2(names, [side])
        return [found.kv_hit_pages, {str(name): pages for name, pages in found.extra_pool_hit_pages.items()}, found.restorable_prefix_pages]

    # Whole pages as tensors, as the controller does without interface_v1

    def set_flat(self, names):
        places = self._fill(names, self.pool)
        return self.storage.batch_set(names, [self.pool.get_data_page(place) for place in places[::PAGE].tolist()])

    def get_flat(self, names):
        pages = self.storage.batch_get(names, [self.pool.get_dummy_flat_data_page() for _ in names])
        places = self._empty(names, self.pool)
        for place, page in zip(places[::PAGE].tolist(), pages):
            if page is not None:
                self.pool.set_from_flat_data_page(place, page)
        return self._judge(names, self.pool, places, [page is not None for page in pages])

    def one_by_one(self, name):
        page = self._page(name, self.pool)
        before = [self.storage.exists(name), self.storage.get(name, torch.empty_like(page))]
        put = self.storage.set(name, page)
        got = self.storage.get(name, torch.empty_like(page))
        strided = torch.zeros(page.numel(), 2, dtype=page.dtype)[:, 0]
        self.storage.get(name, strided)
        return [before, put, self.storage.exists(name), *(torch.equal(some.contiguous().view(torch.uint8), page.view(torch.uint8)) for some in (got, strided))]

    # The rest

    def exists(self, names):
        return self.storage.batch_exists(names)

    def refuses(self, verb, names, tokens):
        try:
            getattr(self.storage, verb)(names, torch.arange(tokens))
        except ValueError as error:
            return str(error)
        return None

    def stats(self):
        metrics = self.storage.get_stats()
        assert all(rate > 0 for rate in metrics.prefetch_bandwidth + metrics.backup_bandwidth)
        return [metrics.prefetch_pgs, metrics.backup_pgs]

    def clear(self):
        return self.storage.clear()

    def close(self):
        self.storage.close()
        return "closed"


if __name__ == "__main__":
    main({"storage": Storage})
