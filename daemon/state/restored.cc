// SPDX-License-Identifier: Apache-2.0
// The start from a store that is a copy of an earlier state: a restored backup, or files that were copied back by hand.
// Its rows are true for then. Since then leases were granted, resized, moved, ended; their ids and epochs were given.
//
//   memory that no row knows            quarantined, on free granules of its device or of a pool of its kind
//   an object of another size           its lease goes on with the size that it has now
//   memory that is found by its place   the place may be another lease's by now: quarantined
//   ids, epochs                         go on far beyond what can have been given
//
// Nothing that was somebody's is fenced or erased by such a start. What leaves quarantine, an administrator decides.
#include <algorithm>
#include <charconv>

#include "core/base/limits.h"
#include "daemon/model/kinds.h"
#include "daemon/model/phases.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

// How far ids and epochs jump: a thousand grants a second for two years. docs/operations/backup.md says so.
constexpr uint64_t restore_jump = uint64_t{1} << 36;
// Beyond, the number of a part of a lease would wrap (part_id).
constexpr uint64_t restored_id_max = uint64_t{1} << 58;

// What the name of an object says: of "lease-7" and "numa:lease-7-12" the id 7, of the latter the epoch 12 as well, under
// which it was handed over. 0: of another name.
struct NamedIds {
  uint64_t lease = 0, epoch = 0;
};
NamedIds ids_in(const std::string& object) {
  const size_t colon = object.find(':');
  const std::string own = colon == std::string::npos ? object : object.substr(colon + 1);
  NamedIds ids;
  if (!own.starts_with("lease-")) return ids;
  const char* const end = own.data() + own.size();
  const auto lease = std::from_chars(own.data() + 6, end, ids.lease);
  if (lease.ptr != end && *lease.ptr == '-') std::from_chars(lease.ptr + 1, end, ids.epoch);
  return ids;
}

bool placed_by_extents(const std::string& object) {
  return object_kind(object) == kinds::devdax;
}

}  // namespace

bool StateMachine::skip_given_ids(const Observation& observed, Recovery& recovery) {
  uint64_t lease = meta_.next_lease, epoch = meta_.next_epoch;
  for (const auto& object : observed.objects) {
    const NamedIds ids = ids_in(object.first);
    if (ids.lease < restored_id_max) lease = std::max(lease, ids.lease + 1);
    if (ids.epoch < restored_id_max) epoch = std::max(epoch, ids.epoch + 1);
  }
  // An object that was left where it is by an earlier start like this one: that one has jumped.
  if (!meta_.restored && lease == meta_.next_lease && epoch == meta_.next_epoch) return true;
  if (std::max(lease, epoch) > restored_id_max - restore_jump) return false;
  meta_.next_lease = lease + restore_jump;
  meta_.next_epoch = epoch + restore_jump;
  meta_.restored = false;
  recovery.delta.meta = meta_;
  recovery.findings.push_back(
      "this store is an older copy: memory that it does not know is quarantined, and ids and epochs go on at " +
      std::to_string(meta_.next_lease) + " and " + std::to_string(meta_.next_epoch));
  return true;
}

std::optional<std::vector<Extent>> StateMachine::take_anywhere(PoolId pool, DeviceId only, uint64_t granules) {
  std::vector<Extent> taken;
  for (const auto& [id, device] : devices_) {
    if (device.pool != pool || (only.valid() && id != only) || absent_.contains(id)) continue;
    while (granules > 0 && taken.size() < limits::lease_extents_max) {
      const auto run = free_.at(id).take_longest(granules);
      if (!run.has_value()) break;
      taken.push_back({id, run->first, run->count});
      granules -= run->count;
    }
  }
  if (granules == 0 && !taken.empty()) return taken;
  give_back(taken);
  return std::nullopt;
}

bool StateMachine::quarantine_unknown(const std::string& object, uint64_t bytes, const Observation& observed,
                                      Recovery& recovery) {
  const std::string& why = observed.kept.at(object);
  const auto lies_on = observed.lies_on.find(object);
  const std::string serial = lies_on == observed.lies_on.end() ? std::string() : lies_on->second;
  const uint64_t named_id = ids_in(object).lease;
  const bool named = valid_name(object) && named_id != 0 && object.find('@') == std::string::npos;
  if (!named || placed_by_extents(object)) return false;
  for (const auto& [id, pool] : pools_) {
    if (pool_backend(id) != object_kind(object)) continue;
    DeviceId only;
    for (const auto& [device_id, device] : devices_)
      if (device.serial == serial && device.pool == id) only = device_id;
    if (!serial.empty() && !only.valid()) continue;
    const uint64_t granule_bytes = pool_granule_bytes(id);
    const uint64_t granules = bytes / granule_bytes + (bytes % granule_bytes != 0 ? 1 : 0);
    auto extents = take_anywhere(id, only, granules);
    if (!extents.has_value()) continue;
    LeaseRow lease;
    lease.id = LeaseId{named_id};
    if (leases_.contains(lease.id) || named_id >= meta_.next_lease) lease.id = LeaseId{meta_.next_lease++};
    lease.pool = id;
    lease.tenant = "unknown@restored";
    lease.host = "unknown";
    lease.object = object;
    lease.reason = "found after a restore; the store of the backup does not know it";
    lease.extents = std::move(*extents);
    lease.epoch = LeaseEpoch{meta_.next_epoch++};
    lease.phase = LeasePhase::quarantined;
    lease.bytes = granules * granule_bytes;
    const LeaseRow& added = add_lease(std::move(lease));
    recovery.delta.leases[added.id] = added;
    recovery.delta.meta = meta_;
    recovery.findings.push_back("object " + object + " (" + format_size(bytes) +
                                ") is not known to this store, which is an older copy: quarantined as " +
                                lease_name(added.id) + " (" + why + "); an administrator's release erases it");
    return true;
  }
  return false;
}

// No transition of its life: what it was before is not true any more.
void StateMachine::quarantine_as_found(LeaseRow& lease, std::string reason, Recovery& recovery) {
  Step step;
  forget_owners(lease.id, step);
  unindex_lease(lease);
  lease.phase = LeasePhase::quarantined;
  lease.expiry_ns = 0;
  lease.deadline_ns = 0;
  lease.target_bytes = 0;
  lease.cause = LeaseCause::none;
  lease.reason = std::move(reason);
  index_lease(lease);
  recovery.delta.merge(std::move(step.delta));
  recovery.delta.leases[lease.id] = lease;
  recovery.findings.push_back(lease_name(lease.id) + " is quarantined: " + lease.reason);
}

bool StateMachine::recover_copied(LeaseRow& lease, uint64_t object_bytes, Recovery& recovery) {
  if (placed_by_extents(lease.object)) {
    if (lease.phase != LeasePhase::quarantined)
      quarantine_as_found(lease, "restored from a backup; its place may be another lease's by now", recovery);
    return true;
  }
  if (!usable(lease) || (object_bytes == lease.bytes && lease.target_bytes == 0)) return false;
  const uint64_t granule_bytes = pool_granule_bytes(lease.pool);
  const uint64_t now = object_bytes / granule_bytes, before = lease.bytes / granule_bytes;
  std::vector<Extent> extents = lease.extents;
  std::vector<Extent> surplus;
  bool fits = object_bytes % granule_bytes == 0 && object_kind(lease.object) != kinds::pmem;
  if (fits && now < before) surplus = cut(extents, now);
  if (fits && now > before) {
    const DeviceId only = memory_kind(object_kind(lease.object)).one_device ? extents[0].device : DeviceId{};
    const auto more = take_anywhere(lease.pool, only, now - before);
    fits = more.has_value();
    if (fits) extents = joined(std::move(extents), *more);
    if (fits && extents.size() > limits::lease_extents_max) {
      give_back(*more);
      fits = false;
    }
  }
  if (!fits) {
    quarantine_as_found(lease, "its memory has another size than the backup knows", recovery);
    return true;
  }
  unindex_lease(lease);
  lease.extents = std::move(extents);
  lease.bytes = object_bytes;
  lease.target_bytes = 0;
  give_back(surplus);
  index_lease(lease);
  recovery.delta.leases[lease.id] = lease;
  recovery.findings.push_back(lease_name(lease.id) + " was resized after the backup: it has " +
                              format_size(object_bytes));
  return false;
}

}  // namespace terrace::daemon
