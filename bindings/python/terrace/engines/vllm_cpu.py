# SPDX-License-Identifier: Apache-2.0
"""vLLM's tiers of KV blocks on machines without an accelerator: the copies between an engine's KV cache and its CPU tier.

vLLM 0.32 has a worker for them on GPUs only, and its specs refuse any other platform. HostTieringSpec is TieringOffloadingSpec
with a worker for the CPU; on other platforms it is TieringOffloadingSpec itself. In kv_connector_extra_config:

    "spec_name": "HostTieringSpec", "spec_module_path": "terrace.engines.vllm_cpu"

Threads: the worker's calls come from the thread that runs the model, so that a copy ends before the model stores again.
"""

import time

import numpy
import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

__all__ = ["HostTieringSpec", "HostWorker"]


class HostWorker(OffloadingWorker):
    """Copies blocks at once, in the call. Owns the region from the end of its construction on."""

    def __init__(self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion):
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._refs = kv_caches.group_data_refs
        self._finished = []
        self._engine, self._host = [], []  # a tensor's bytes: [block, byte]; [chunk, block of the chunk, byte]
        for cache in kv_caches.tensors:
            page = cache.page_size_bytes
            self._engine.append(cache.tensor.view(torch.int8).view((-1, page)).numpy())
            view = region.create_next_worker_view(page * blocks_per_chunk)
            self._host.append(view.unflatten(1, (blocks_per_chunk, page)).numpy())

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._copy(job_id, dst_spec, src_spec, to_host=False)

    def _copy(self, job_id: int, engine: GPULoadStoreSpec, host: LoadStoreSpec, *, to_host: bool) -> bool:
        begin, copied = time.monotonic(), 0
        for group, block, chunk, place in self._places(engine, host):
            for ref in self._refs[group]:
                size = ref.page_size_bytes
                inside = self._engine[ref.tensor_idx][block, :size]
                outside = self._host[ref.tensor_idx][chunk, place, :size]
                if to_host:
                    outside[:] = inside
                else:
                    inside[:] = outside
                copied += size
        self._finished.append(TransferResult(job_id=job_id, success=True, transfer_size=copied, transfer_time=time.monotonic() - begin))
        return True

    def _places(self, engine: GPULoadStoreSpec, host: LoadStoreSpec):
        """(group, the engine's block, chunk, the block's place in its chunk). The first and the last chunk of a group may be
        wanted in part only."""
        first_block = first_chunk = 0
        for group, (size, index) in enumerate(zip(engine.group_sizes, engine.block_indices)):
            if size == 0:
                continue
            at = numpy.arange(size) + index % self._blocks_per_chunk
            blocks = engine.block_ids[first_block:first_block + size]
            chunks = host.block_ids[first_chunk + at // self._blocks_per_chunk]
            for block, chunk, place in zip(blocks, chunks, at % self._blocks_per_chunk):
                yield group, block, chunk, place
            first_block += size
            first_chunk += int(at[-1]) // self._blocks_per_chunk + 1

    def get_finished(self) -> list:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set) -> None:
        """Nothing is under way after a call."""

    def shutdown(self) -> None:
        self._engine.clear()
        self._host.clear()  # the region is closed once nothing refers to it
        if self._region is not None:
            self._region.cleanup()
            self._region = None


class HostTieringSpec(TieringOffloadingSpec):
    """TieringOffloadingSpec that runs on the CPU, too."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            self._worker = self._host_worker(kv_caches)
        return self._worker

    def _host_worker(self, kv_caches: CanonicalKVCaches) -> HostWorker:
        if self.config.canonical_layout:
            raise ValueError("canonical_layout is not there on the CPU; leave it out of kv_connector_extra_config")
        region = SharedOffloadRegion(
            engine_id=self._engine_id, num_chunks=self.num_chunks, rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker)
        try:
            return HostWorker(kv_caches, self.blocks_per_chunk, region)
        except Exception:
            region.cleanup()
            raise
