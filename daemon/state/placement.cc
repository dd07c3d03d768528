// SPDX-License-Identifier: Apache-2.0
// Where a lease goes: which granules of which devices of its pool. daemon/model/placement.h has the policies.
#include "daemon/model/placement.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "daemon/model/kinds.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

Error exhausted(std::string detail) {
  return Error{.code = ErrorCode::capacity_exhausted, .where = "Grant", .detail = std::move(detail)};
}

Pieces place_as(const PoolRow& pool, const ExtentMaps& devices, uint64_t granules, uint64_t granule_bytes) {
  constexpr size_t pieces_max = limits::lease_extents_max;
  switch (pool.placement) {
    case Placement::striped:
      return place_striped(devices, granules, pool.stripe_bytes / granule_bytes, pieces_max);
    case Placement::spread: return place_spread(devices, granules, pieces_max);
    case Placement::linear: break;
  }
  return place_linear(devices, granules, pieces_max);
}

// As the pool's placement prefers devices, and a device with one run for all of it before others.
Pieces place_on_one(const PoolRow& pool, const ExtentMaps& devices, uint64_t granules) {
  std::vector<size_t> order(devices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (pool.placement != Placement::linear) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return devices[a]->free_granules() > devices[b]->free_granules();
    });
  }
  for (const size_t most : {size_t{1}, size_t{limits::lease_extents_max}}) {
    for (const size_t at : order) {
      Pieces pieces = place_linear({devices[at]}, granules, most);
      if (!pieces.has_value()) continue;
      for (Piece& piece : *pieces) piece.device = at;
      return pieces;
    }
  }
  return std::nullopt;
}

}  // namespace

bool StateMachine::placeable(const DeviceRow& device) const {
  return device.state == DeviceState::in_service && !absent_.contains(device.id);
}

std::vector<Extent> StateMachine::hold_window(PoolId pool) {
  std::vector<Extent> held;
  const auto plan = compactions_.find(pool);
  if (plan == compactions_.end()) return held;
  const GranuleRun window = plan->second.window;
  ExtentMap& free = free_.at(plan->second.device);
  for (const GranuleRun run : free.runs_within(window)) {
    TERRACE_CHECK(free.take_exact(run), "a free run of a window can be taken");
    held.push_back({plan->second.device, run.first, run.count});
  }
  return held;
}

Result<std::vector<Extent>> StateMachine::place(PoolId pool, uint64_t granules, Windows windows,
                                                const std::string& only) {
  std::vector<DeviceId> ids;
  ExtentMaps devices;
  uint64_t free = 0;
  for (const auto& [id, device] : devices_) {
    if (device.pool != pool || !placeable(device) || (!only.empty() && device.serial != only)) continue;
    ids.push_back(id);
    devices.push_back(&free_.at(id));
    free += devices.back()->free_granules();
  }
  const PoolRow& row = *find_pool(pool);
  const uint64_t granule_bytes = pool_granule_bytes(pool);
  const auto size_of = [granule_bytes](uint64_t count) {
    return format_size(count > UINT64_MAX / granule_bytes ? UINT64_MAX : count * granule_bytes);
  };
  if (free < granules && !only.empty()) {
    return exhausted("device " + only + " has " + size_of(free) + " to place on, " + size_of(granules) +
                     " is needed; release leases on it, or end its drain");
  }
  if (free < granules) {
    const PoolUse use = pool_use(pool);
    const uint64_t elsewhere = use.free_bytes + use.absent_bytes - use.grantable_bytes;
    return exhausted(
        "pool " + row.name + " has " + size_of(free) + " free, " + size_of(granules - free) + " short of the " +
        size_of(granules) + " asked for (capacity " + format_size(use.capacity_bytes) + ", being scrubbed " +
        format_size(use.scrubbing_bytes) + ", quarantined " + format_size(use.quarantined_bytes) +
        (elsewhere == 0 ? ")" : ", free on devices that take no leases now " + format_size(elsewhere) + ")"));
  }

  const bool on_one = memory_kind(pool_backend(pool)).one_device;
  const auto find_room = [&] {
    return on_one ? place_on_one(row, devices, granules) : place_as(row, devices, granules, granule_bytes);
  };
  const std::vector<Extent> held = hold_window(pool);
  Pieces pieces = find_room();
  give_back(held);
  if (!pieces.has_value() && !held.empty() && windows == Windows::if_needed) pieces = find_room();
  if (!pieces.has_value() && !held.empty() && windows == Windows::never) {
    return exhausted("pool " + row.name + " has no room for " + size_of(granules) +
                     " outside the window that a compaction keeps clear; retry when it has ended");
  }
  if (!pieces.has_value() && on_one) {
    return exhausted("no single device of pool " + row.name + " has room for " + size_of(granules) +
                     ", and a lease of " + pool_backend(pool) +
                     " memory lies on one device; ask for less, or release leases");
  }
  if (!pieces.has_value()) {
    return exhausted("pool " + row.name + " is too fragmented: " + size_of(granules) +
                     " would need more than " + std::to_string(limits::lease_extents_max) +
                     " pieces; ask for less, release leases, or compact it");
  }
  std::vector<Extent> extents;
  for (const Piece& piece : *pieces) extents.push_back({ids[piece.device], piece.run.first, piece.run.count});
  return extents;
}

}  // namespace terrace::daemon
