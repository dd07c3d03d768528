// Where a lease goes: which granules of which devices of its pool.
#include <algorithm>

#include "core/base/limits.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

Error refused(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "Grant", .detail = std::move(detail)};
}

}  // namespace

bool StateMachine::placeable(const DeviceRow& device) const {
  return device.state == DeviceState::in_service && !absent_.contains(device.id);
}

// One run on one device where any has room for it, the shortest such run over all devices; otherwise the
// longest runs, device after device.
Result<std::vector<Extent>> StateMachine::place(PoolId pool, uint64_t granules) {
  std::vector<DeviceId> members;
  uint64_t free = 0;
  for (const auto& [id, device] : devices_) {
    if (device.pool != pool || !placeable(device)) continue;
    members.push_back(id);
    free += free_.at(id).free_granules();
  }
  const uint64_t granule_bytes = pool_granule_bytes(pool);
  if (free < granules) {
    const PoolUse use = pool_use(pool);
    return refused(ErrorCode::capacity_exhausted,
                   "pool " + find_pool(pool)->name + " has " + format_size(free * granule_bytes) + " free, " +
                       format_size((granules - free) * granule_bytes) + " short of the " +
                       format_size(granules * granule_bytes) + " asked for (capacity " +
                       format_size(use.capacity_bytes) + ", being scrubbed " +
                       format_size(use.scrubbing_bytes) + ", quarantined " +
                       format_size(use.quarantined_bytes) + ")");
  }

  ExtentMap* best = nullptr;
  DeviceId best_id;
  uint64_t best_run = UINT64_MAX;
  for (const DeviceId id : members) {
    const std::optional<uint64_t> run = free_.at(id).best_fit_length(granules);
    if (!run.has_value() || *run >= best_run) continue;
    best = &free_.at(id);
    best_id = id;
    best_run = *run;
  }
  if (best != nullptr) {
    const GranuleRun run = *best->take_best_fit(granules);
    return std::vector<Extent>{{best_id, run.first, run.count}};
  }

  std::vector<Extent> extents;
  uint64_t left = granules;
  while (left > 0 && extents.size() < limits::lease_extents_max) {
    DeviceId longest_id;
    uint64_t longest = 0;
    for (const DeviceId id : members) {
      if (free_.at(id).largest_run() <= longest) continue;
      longest = free_.at(id).largest_run();
      longest_id = id;
    }
    const GranuleRun run = *free_.at(longest_id).take_longest(left);
    extents.push_back({longest_id, run.first, run.count});
    left -= run.count;
  }
  if (left == 0) return extents;
  give_back(extents);
  return refused(ErrorCode::capacity_exhausted,
                 "pool " + find_pool(pool)->name +
                     " is too fragmented: " + format_size(granules * granule_bytes) + " would need more than " +
                     std::to_string(limits::lease_extents_max) + " pieces; ask for less, or release leases");
}

}  // namespace terrace::daemon
