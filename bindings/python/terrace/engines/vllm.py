# SPDX-License-Identifier: Apache-2.0
"""A tier of vLLM's KV cache in a KV space (docs/operations/vllm.md).

vLLM copies blocks between its own KV cache and its CPU tier, and asks the tiers behind that for what it lacks. TerraceTier is one of
those: it puts blocks of the CPU tier into a KV space, where other engines and later ones find them, and copies them back. TerraceConnector
is vLLM's OffloadingConnector; it tells the tier which model this is, which vLLM's interface of tiers does not.

Threads: the scheduler's thread calls; it only looks keys up. Blocks are copied by threads of the tier.
Errors: wrong configuration raises when the engine starts. Later nothing is raised: a block is missed, or not put. When the lease
ends the engine goes on without the tier, which attaches again where another lease of that label has a space (_space.py).
"""

import collections
import concurrent.futures
import time

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (Locality, LookupResult, Medium, OffloadingCounterMetadata, OffloadingGaugeMetadata,
                                     RequestOffloadingContext)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

import terrace
from terrace import kv
from terrace.engines import vllm_names as names
from terrace.engines._space import SoftSpace

__all__ = ["TerraceConnector", "TerraceTier"]

logger = init_logger("vllm.terrace")  # below vLLM's own, so that it is written where that is

STATS_SECONDS = 2.0
WAIT_AGAIN_SECONDS = 1.0
_METRIC = "vllm:kv_offload_terrace_"
_GAUGES = {
    "up": "Whether the KV space's memory is there: 0 from the end of its lease until there is another one.",
    "space_bytes": "Bytes that the KV space has for blocks.",
    "free_bytes": "Bytes of the KV space that nobody has.",
    "blocks": "Blocks in the KV space, of all engines and namespaces.",
}
_COUNTERS = {
    "puts": "Blocks that this engine put, as they were not there.",
    "puts_refused": "Blocks that found no room in the KV space.",
    "hit_bytes": "Bytes read from the KV space.",
    "evicted": "Blocks that this engine evicted from the KV space.",
    "expired": "Blocks of this engine whose time was over.",
    "lost": "How often the KV space's memory was gone.",
    "attached_again": "How often there was a KV space again after that.",
}


class TerraceConnector(OffloadingConnector):
    """OffloadingConnector with TerraceTier among its tiers."""

    def __init__(self, vllm_config, role, kv_cache_config):
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        tiers = [tier for tier in extra.get("secondary_tiers", ()) if tier.get("type") == TerraceTier.__name__]
        if not tiers:
            raise ValueError("TerraceConnector has no tier: kv_connector_extra_config needs secondary_tiers with "
                             '{"type": "TerraceTier", "module_path": "terrace.engines.vllm", "lease": LABEL}')
        names.check_hashes(vllm_config.cache_config.prefix_caching_hash_algo)
        for tier in tiers if role == KVConnectorRole.SCHEDULER else ():  # whose process has the tiers
            if tier.get("variant") is None:
                tier["variant"] = names.model_identity(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)


class TerraceTier(SecondaryTierManager):
    medium = Medium.CPU
    cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED  # beside HOST, the CPU tier, in vLLM's statistics

    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None, *, lease=None, path=None,
                 socket="", tenant="", variant=None, layout_version="", ttl_s=0, wait_s=0.05, read_threads=4, write_threads=2,
                 locality=None, **unknown):
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if unknown:
            raise ValueError(f"the tier {tier_type} has no option {', '.join(sorted(unknown))}; it has lease or path, socket, tenant, "
                             "variant, layout_version, ttl_s, wait_s, read_threads, write_threads, locality, backpressure")
        if (lease is None) == (path is None):
            raise ValueError(f"the tier {tier_type} needs one of lease (its label or number) and path (of a file with a KV space)")
        names.check_texts(tier_type, path=path or "", lease=str(lease) if type(lease) is int else lease or "", socket=socket, tenant=tenant,
                          layout_version=layout_version)
        if variant is None:
            raise ValueError(f"the tier {tier_type} cannot tell which model this is: use kv_connector TerraceConnector with "
                             "kv_connector_module_path terrace.engines.vllm, or give the tier variant, a text of your own that "
                             "changes whenever weights or configuration do")
        names.check_numbers(tier_type, ttl_s=ttl_s, wait_s=wait_s, read_threads=read_threads, write_threads=write_threads)
        self.locality = None if locality is None else Locality(locality)
        self._wait_s, self._refused_at = wait_s, -WAIT_AGAIN_SECONDS
        self._session = None
        self._where = f"lease {lease!r}" if path is None else path

        def attach():
            return self._attach(lease, path, socket, tenant)

        self._space = SoftSpace(attach(), self._where, attach, who=f"The tier {tier_type}", ttl_s=ttl_s, log=logger)
        tenant = tenant or (self._session.tenant if self._session else "")
        self._name_space = None  # once vLLM's hashes are known, which is after this
        self._name_of = lambda keys: names.name_space(offloading_spec, tenant=tenant, variant=variant, layout_version=layout_version,
                                                      row_bytes=self._block_size_bytes, keys=keys)
        self._name_of("")  # whether it is short enough
        self._off = False  # no other engine would find its blocks
        self._blocks = primary_kv_view.cast("B")
        self._failed = {}  # by request: blocks that were found, but not copied; looked up again and again otherwise
        self._jobs, self._finished = {}, collections.deque()
        self._stats_at, self._counted = 0.0, self._space.counters()
        self._readers = concurrent.futures.ThreadPoolExecutor(read_threads, "terrace_read")
        self._writers = concurrent.futures.ThreadPoolExecutor(write_threads, "terrace_write")

    def _attach(self, lease, path, socket, tenant):
        """The space, in which a block of this engine has room."""
        where, session = self._where, None
        try:
            if path is not None:
                space = kv.KvSpace.open(path)
            else:
                session = terrace.Session(socket, tenant=tenant, client_name="vllm")
                space = kv.KvSpace.attach(session.attach(lease))
            stat = space.stat()
        except terrace.Error as error:
            raise RuntimeError(f"no KV space for the tier {self.tier_type} in {where}: {error}. To make one: terrace lease grant --mode "
                               f"shared_coherent, then terrace kv format WHERE --block {self._block_size_bytes}") from error
        if self._block_size_bytes > stat.max_block_bytes:
            raise RuntimeError(f"a block of this engine has {self._block_size_bytes} bytes, the KV space in {where} takes "
                               f"{stat.max_block_bytes} at most: format it with --max-block {self._block_size_bytes}, or set fewer "
                               "blocks_per_chunk")
        logger.info("The tier %s has blocks of %d bytes in %s, which has room for %d bytes", self.tier_type, self._block_size_bytes, where,
                    stat.data_bytes)
        self._session = session
        return space

    # -- the scheduler's questions

    def lookup(self, key, req_context) -> LookupResult:
        if key in self._failed.get(req_context.req_id, ()) or not self._ready():
            return LookupResult.MISS
        return LookupResult.HIT if self._space.exists((key,), namespace=self._name_space)[0] else LookupResult.MISS

    def on_new_request(self, req_context) -> RequestOffloadingContext:
        self._failed[req_context.req_id] = set()
        return RequestOffloadingContext()

    def on_request_finished(self, req_context) -> None:
        self._failed.pop(req_context.req_id, None)

    # -- copies

    def submit_store(self, job_metadata) -> None:
        parents = names.parents(job_metadata.req_context, job_metadata.keys)
        self._begin(self._writers, self._store, job_metadata, list(zip(job_metadata.keys, map(int, job_metadata.chunk_ids), parents)))

    def submit_load(self, job_metadata) -> None:
        self._begin(self._readers, self._load, job_metadata, list(zip(job_metadata.keys, map(int, job_metadata.chunk_ids))))

    def _begin(self, threads, copy, job, blocks):
        self._jobs[job.job_id] = threads.submit(self._run, copy, job, blocks)

    def _run(self, copy, job, blocks):
        """Every job ends, however: the blocks of one that does not stay pinned in the CPU tier."""
        begin, done = time.monotonic(), []
        try:
            if self._ready():
                done = copy(blocks)
        except Exception as error:  # noqa: BLE001
            logger.warning("The tier %s could not copy blocks: %s: %s", self.tier_type, type(error).__name__, error)
        whole = len(done) == len(blocks)
        self._finished.append((job, JobResult(
            job_id=job.job_id, success=whole, successful_keys=tuple(done) if done and job.is_promotion and not whole else None,
            transfer_time=time.monotonic() - begin, transfer_bytes=len(done) * self._block_size_bytes)))

    def _row(self, chunk):
        return self._blocks[chunk * self._block_size_bytes:(chunk + 1) * self._block_size_bytes]

    # Both copy many blocks a call: between calls they would wait for the interpreter's lock, which the scheduler has.

    def _store(self, blocks) -> list:
        done = []
        for run in names.chains(blocks):
            # While others give no room, not each of hundreds of blocks waits for it.
            wait = self._wait_s if time.monotonic() - self._refused_at >= WAIT_AGAIN_SECONDS else 0
            put = self._space.put([(key, self._row(chunk)) for key, chunk, _ in run], parent=run[0][2], chain=True, wait=wait,
                                  namespace=self._name_space)
            if not all(put):
                self._refused_at = time.monotonic()
            done += [key for (key, _, _), there in zip(run, put) if there]  # also those that were there
        return done

    def _load(self, blocks) -> list:
        got = self._space.get_into([(key, self._row(chunk)) for key, chunk in blocks], namespace=self._name_space)
        return [key for (key, _), whole in zip(blocks, got) if whole]

    def get_finished_jobs(self):
        results = []
        while self._finished:
            job, result = self._finished.popleft()
            self._jobs.pop(job.job_id, None)
            if job.is_promotion and not result.success and job.req_context.req_id in self._failed:
                self._failed[job.req_context.req_id].update(set(job.keys).difference(result.successful_keys or ()))
            results.append(result)
        return results

    def drain_jobs(self) -> None:
        concurrent.futures.wait(list(self._jobs.values()))

    # -- the end

    def _ready(self) -> bool:
        if self._name_space is None and not self._off:
            seed = names.keys_identity()
            if seed is None:
                self._off = True
                logger.error("The tier %s is off: %s", self.tier_type, names.UNSTABLE)
            else:
                self._name_space = self._name_of(seed)
                logger.info("The tier %s uses the namespace %s", self.tier_type, self._name_space)
        return not self._off

    def shutdown(self) -> None:
        for threads in (self._readers, self._writers):
            threads.shutdown(wait=True, cancel_futures=True)
        self._blocks.release()
        self._space.close()
        if self._session is not None:
            self._session.close()

    # -- statistics

    @classmethod
    def build_metric_definitions(cls, extra_config) -> dict:
        return {_METRIC + name: kind(documentation=text) for kind, texts in
                ((OffloadingGaugeMetadata, _GAUGES), (OffloadingCounterMetadata, _COUNTERS)) for name, text in texts.items()}

    def get_stats(self):
        if time.monotonic() - self._stats_at < STATS_SECONDS:
            return None
        self._stats_at = time.monotonic()
        stats = OffloadingConnectorStats()
        counted = self._space.counters()
        for name in _COUNTERS:
            if new := counted[name] - self._counted[name]:
                stats.increase_counter(_METRIC + name, new)
        self._counted = counted
        if stat := self._space.stat():
            for name, value in (("space_bytes", stat.data_bytes), ("free_bytes", stat.free_bytes), ("blocks", stat.blocks)):
                stats.set_gauge(_METRIC + name, value)
        stats.set_gauge(_METRIC + "up", int(not self._off and not self._space.lost))
        return stats
