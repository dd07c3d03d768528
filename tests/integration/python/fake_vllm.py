# SPDX-License-Identifier: Apache-2.0
"""What of vLLM its tier (terrace.engines.vllm) uses, without vLLM: classes of the same names, which keep what they are told. The
real ones are in tests/engines/vllm."""

import contextlib
import enum
import logging
import sys
import types

_MODULES = ("vllm", "vllm.distributed", "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector",
            "vllm.distributed.kv_transfer.kv_connector.v1", "vllm.distributed.kv_transfer.kv_connector.v1.offloading",
            "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics", "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector",
            "vllm.logger", "vllm.platforms", "vllm.v1", "vllm.v1.core", "vllm.v1.core.kv_cache_utils", "vllm.v1.kv_offload",
            "vllm.v1.kv_offload.base", "vllm.v1.kv_offload.tiering", "vllm.v1.kv_offload.tiering.base", "vllm.v1.metrics",
            "vllm.v1.metrics.cache_hit_source", "torch")


class LookupResult(enum.Enum):
    MISS, HIT = range(2)


class SecondaryTierManager:
    def __init__(self, spec, primary_kv_view, tier_type, backpressure_detector):
        self._block_size_bytes, self.tier_type = spec.block_bytes, tier_type


class JobResult(types.SimpleNamespace):
    pass


class Stats:
    def __init__(self):
        self.counters, self.gauges = {}, {}

    def increase_counter(self, name, by):
        self.counters[name] = by

    def set_gauge(self, name, value):
        self.gauges[name] = value


@contextlib.contextmanager
def imported():
    """The module terrace.engines.vllm over these; nothing of either is left."""
    made = {name: types.ModuleType(name) for name in _MODULES}
    ours = ("terrace.engines.vllm", "terrace.engines.vllm_names")
    at = "vllm.distributed.kv_transfer.kv_connector.v1"
    made[at].KVConnectorRole = enum.Enum("KVConnectorRole", "SCHEDULER WORKER")
    made[f"{at}.offloading.metrics"].OffloadingConnectorStats = Stats
    made[f"{at}.offloading_connector"].OffloadingConnector = object
    made["vllm.logger"].init_logger = logging.getLogger
    made["vllm.platforms"].current_platform = None
    made["vllm.v1.core"].kv_cache_utils = made["vllm.v1.core.kv_cache_utils"]
    base = made["vllm.v1.kv_offload.base"]
    base.get_offload_group_idx = lambda key: 0
    base.Locality, base.Medium = enum.Enum("Locality", "LOCAL"), enum.Enum("Medium", "CPU")
    base.LookupResult = LookupResult
    base.OffloadingCounterMetadata = base.OffloadingGaugeMetadata = base.RequestOffloadingContext = types.SimpleNamespace
    made["vllm.v1.kv_offload.tiering.base"].JobResult = JobResult
    made["vllm.v1.kv_offload.tiering.base"].SecondaryTierManager = SecondaryTierManager
    made["vllm.v1.metrics.cache_hit_source"].CacheHitSource = enum.Enum("CacheHitSource", "EXTERNAL_UNSPECIFIED")
    before = {name: sys.modules.get(name) for name in (*made, *ours)}
    for name in ours:
        sys.modules.pop(name, None)
    sys.modules.update(made)
    try:
        from terrace.engines import vllm as tier
        tier.names.name_space = lambda spec, *, keys, **_: f"test/{keys}"
        tier.names.keys_identity = lambda: "seed"
        yield tier
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
