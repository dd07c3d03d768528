# SPDX-License-Identifier: Apache-2.0
"""What is told about leases, pools and tensors: plain values, as they were when asked."""

from typing import TYPE_CHECKING, Dict, List, NamedTuple, Tuple

if TYPE_CHECKING:
    from ._terrace import Tensor

__all__ = [
    "CheckpointInfo", "CheckpointList", "CheckpointProgress", "DeviceInfo", "DeviceUse", "HbmStatistics", "Restored",
    "KvBlockInfo", "KvCounters", "KvMemberInfo", "KvPartInfo", "KvShrunk", "KvStat", "KvVerified",
    "LeaseInfo", "LeaseNotice", "PoolInfo", "Residency", "TensorIdentity", "TensorPoolStatistics", "TensorStatistics",
    "TierFigures",
    "ExtentInfo", "FreeRuns", "PartOwner", "UsageReport",
]


class TierFigures(NamedTuple):
    """How fast, how durable and how separate memory is; 0, -1 and "" where it is not known."""

    latency_ns: int
    bandwidth_bytes_per_s: int
    node: int
    distance: int
    persistent: bool
    source: str
    isolation: str


class ExtentInfo(NamedTuple):
    """device: its serial."""

    device: str
    offset_bytes: int
    length_bytes: int


class UsageReport(NamedTuple):
    """What a holder told of a lease; holder "": nothing."""

    ddr_bytes: int
    cxl_bytes: int
    live_bytes: int
    holder: str


class PartOwner(NamedTuple):
    """Who owns a part of a tensor space, or owned it last. ended: its process, on the manager's own host, is no more.
    host: the process' host; empty: the manager's own, or nobody's."""

    part: int
    epoch: int
    owned: bool
    ended: bool
    pid: int
    holder: str
    host: str


class FreeRuns(NamedTuple):
    """Free runs of at least run_bytes_min and less than twice that."""

    run_bytes_min: int
    runs: int
    bytes: int


class LeaseInfo(NamedTuple):
    """cause: why it was taken, "" if it was not. coherence: of its pool, as its operator says. owners: of the parts
    of a tensor space in it; not in Session.leases()."""

    id: int
    epoch: int
    pool: str
    tenant: str
    host: str
    label: str
    phase: str
    reason: str
    mode: str
    bytes: int
    ttl_ns: int
    expires_in_ns: int
    movable: bool
    holders: int
    figures: TierFigures
    object: str
    tier: str
    isolation: str
    granule_bytes: int
    object_bytes: int
    huge_pages: bool
    extents: List[ExtentInfo]
    usage: UsageReport
    usage_age_ns: int
    cause: str
    coherence: str
    owners: List[PartOwner]
    offered_to: str
    on_fence: str
    further_hosts: List[str]


class PoolInfo(NamedTuple):
    """placement: "linear", "striped" or "spread". coherence: "unknown" until its operator says."""

    name: str
    devices: List[str]
    capacity_bytes: int
    free_bytes: int
    leased_bytes: int
    grantable_bytes: int
    granule_bytes: int
    figures: TierFigures
    scrubbing_bytes: int
    quarantined_bytes: int
    largest_free_bytes: int
    leases: int
    placement: str
    stripe_bytes: int
    free_runs: List[FreeRuns]
    reserved_bytes: int
    waiting: int
    waiting_bytes: int
    coherence: str


class LeaseNotice(NamedTuple):
    """state "revoking": stop using the lease within grace_ns; "lost": it is gone, cause says why."""

    lease: int
    state: str
    grace_ns: int
    reason: str
    cause: str
    move_requested: bool


class Residency(NamedTuple):
    """Where a tensor's bytes are now. Those in hbm are beside the others; dirty: newer than the host's."""

    ddr_bytes: int
    cxl_bytes: int
    hbm_bytes: int = 0
    hbm_dirty_bytes: int = 0


class TensorIdentity(NamedTuple):
    """Which tensor of a space it is. memory: the space's address in this process."""

    memory: int
    part: int
    record: int
    incarnation: int


class TensorStatistics(NamedTuple):
    reads: int
    writes: int
    uses_per_step: float
    guard_waits: int
    guard_wait_ns: int
    pins: int
    device_reads: int
    device_writes: int


class DeviceInfo(NamedTuple):
    """kind: "cuda" or "emulated". ordinal: the driver's number of it. driver_version: 12040 for CUDA 12.4. Both are
    0 for an emulated one, whose description says that it is one."""

    kind: str
    ordinal: int
    name: str
    capacity_bytes: int
    driver_version: int
    description: str


class DeviceUse(NamedTuple):
    """free_bytes: of the whole device, which others use too. allocated_bytes: by this Device, for its pools."""

    capacity_bytes: int
    free_bytes: int
    allocated_bytes: int


class HbmStatistics(NamedTuple):
    """Of a pool's device; capacity_bytes 0: it has none. used_bytes: with what is promised to copies under way."""

    capacity_bytes: int
    budget_bytes: int
    used_bytes: int
    pinned_bytes: int
    in_use_bytes: int
    dirty_bytes: int
    stale_bytes: int
    under_way_bytes: int
    replicas: int
    uploads: int
    uploaded_bytes: int
    uploads_ahead: int
    write_backs: int
    written_back_bytes: int
    evictions: int
    evicted_bytes: int
    failed_copies: int
    refused: int
    guards: int
    guard_waits: int
    guard_wait_ns: int
    host_waits: int
    host_wait_ns: int
    following: bool
    uses_per_step: int
    planned_bytes_per_step: int


class TensorPoolStatistics(NamedTuple):
    """step_state: "off", "observing" or "following". reason: why nothing moves; empty: it does."""

    tensors: int
    tensor_bytes: int
    capacity_bytes: int
    free_bytes: int
    ddr_bytes_max: int
    ddr_bytes: int
    cxl_bytes: int
    pinned_bytes: int
    step_state: str
    reason: str
    steps: int
    orders_learned: int
    orders_forgotten: int
    deviations: int
    uses_per_step: int
    planned_bytes_per_step: int
    copied_to_ddr_bytes: int
    copied_to_cxl_bytes: int
    copy_ns: int
    guards: int
    guard_waits: int
    guard_wait_ns: int
    guard_waits_given_up: int
    hbm: HbmStatistics


class CheckpointInfo(NamedTuple):
    """file: the safetensors file; created_unix_ns: when it was begun."""

    name: str
    tensors: int
    tensor_bytes: int
    file_bytes: int
    created_unix_ns: int
    file: str


class CheckpointList(NamedTuple):
    """damaged: never offered, and why. half_written: left by writers that died, removed now."""

    checkpoints: List[CheckpointInfo]
    damaged: Dict[str, str]
    half_written: int
    being_written: int


class CheckpointProgress(NamedTuple):
    """pause_ns: how long nobody might store. reason: why copied_at_once_bytes were copied meanwhile."""

    file_bytes: int
    written_bytes: int
    pause_ns: int
    snapshot_bytes: int
    copied_bytes: int
    copied_at_once_bytes: int
    room_bytes: int
    waits_for_room: int
    reason: str


class Restored(NamedTuple):
    """What came out of a checkpoint: tensors by name, which live as long as somebody has them."""

    tensors: "Dict[str, Tensor]"
    metadata: Dict[str, str]


class KvBlockInfo(NamedTuple):
    """A block of a KV space. expires_unix_s: 0: never. used_unix_s: put, or last known use, to some seconds."""

    namespace: str
    key: bytes
    nbytes: int
    part: int
    expires_unix_s: int
    used_unix_s: int
    has_parent: bool
    has_checksum: bool
    member: int


class KvPartInfo(NamedTuple):
    """A part of a KV space. state: "unused", "owned", "left" (in order) or "dead". chunk_bytes: of the data. member: by
    its place in KvStat.members."""

    part: int
    host: int
    state: str
    blocks: int
    block_bytes: int
    chunk_bytes: int
    member: int


class KvMemberInfo(NamedTuple):
    """A lease (its id or label) or a file (its path) of a KV space. state: "filling", "leaving" or "lost"; loss: why.
    older_policy: its policy is not the space's newest; a holder with a part of it puts that there."""

    where: str
    state: str
    loss: str
    data_bytes: int
    free_bytes: int
    blocks: int
    block_bytes: int
    older_policy: bool


class KvShrunk(NamedTuple):
    """How a member left. left_behind: blocks for which the others had no room. holders: that still have it."""

    moved: int
    moved_bytes: int
    left_behind: int
    holders: int


class KvBudget(NamedTuple):
    """How many bytes the blocks of a namespace, and of all whose names begin with it and a "/", may have."""

    namespaces: str
    nbytes: int


class KvKept(NamedTuple):
    """What no want of room takes. key: one block of the namespace called namespaces; b"": all, as in KvBudget."""

    namespaces: str
    key: bytes = b""


class KvPolicy(NamedTuple):
    """An operator's word, which the space has until there is another one."""

    budgets: List[KvBudget]
    kept: List[KvKept]


class KvStat(NamedTuple):
    """How full a KV space is. free_bytes: in chunks that no part has. budgets: pairs of a KvBudget and the bytes in use.
    kept_bytes: of blocks that the policy keeps."""

    data_bytes: int
    free_bytes: int
    blocks: int
    block_bytes: int
    blocks_max: int
    max_block_bytes: int
    coherence: str
    checksums: bool
    parts: List[KvPartInfo]
    budgets: List[Tuple[KvBudget, int]]
    kept_bytes: int
    local_blocks: int
    local_bytes: int
    local_max_bytes: int
    members: List[KvMemberInfo]


class KvCounters(NamedTuple):
    """What a process did with a KV space. puts_refused: no room, also after waiting. chunks_given: to processes that
    needed room. parts_adopted: dead or left ones, to evict from. spilled: evicted blocks that went to the spill
    folder; spill_hits: of the hits, from there; spill_dropped: that it did not take. local_hits: of the hits, from
    copies in this process; local_copied: blocks that got one; local_evicted: copies that made room for others;
    local_stale: copies whose block was gone."""

    hits: int
    misses: int
    hit_bytes: int
    puts: int
    put_bytes: int
    puts_refused: int
    evicted: int
    evicted_bytes: int
    expired: int
    erased: int
    chunks_given: int
    parts_adopted: int
    spilled: int
    spill_hits: int
    spill_dropped: int
    local_hits: int
    local_hit_bytes: int
    local_copied: int
    local_evicted: int
    local_stale: int
    members_joined: int
    members_lost: int


class KvVerified(NamedTuple):
    """blocks, nbytes: that were compared. changed: gone before they were read. wrong: without their checksum."""

    blocks: int
    nbytes: int
    without_checksum: int
    changed: int
    wrong: List[KvBlockInfo]
