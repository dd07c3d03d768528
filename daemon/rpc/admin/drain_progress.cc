// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/admin/drain_progress.h"

#include <algorithm>
#include <map>

#include "daemon/event_loop/processes.h"
#include "daemon/rpc/wire.h"

namespace terrace::daemon {
namespace {

struct MoveState {
  std::string text;
  bool blocked = false;
};

// Of a lease that is on its way out anyway, or cannot be used now.
std::optional<MoveState> of_phase(const LeaseRow& lease) {
  switch (lease.phase) {
    case LeasePhase::active: return std::nullopt;
    case LeasePhase::pending: return MoveState{"being granted", false};
    case LeasePhase::revoking: return MoveState{"being revoked", false};
    case LeasePhase::fencing: return MoveState{"being fenced", false};
    case LeasePhase::scrubbing: return MoveState{"being erased", false};
    case LeasePhase::transferring: return MoveState{"being handed over", false};
    case LeasePhase::waiting: return MoveState{"waits in the queue", false};
    case LeasePhase::quarantined:
      return MoveState{"quarantined: release it to have it erased again, or give it up with the device", true};
  }
  return std::nullopt;
}

MoveState state_of(const LeaseRow& lease, const WantedMove* wanted, Service& service) {
  if (wanted != nullptr && wanted->target.valid()) return {"moving", false};
  if (const auto phase = of_phase(lease)) return *phase;
  if (!lease.movable || (wanted != nullptr && !wanted->movable))
    return {"not movable: release or revoke it", true};
  const size_t holders = service.holders(lease.id);
  if (holders > 1)
    return {"held by " + std::to_string(holders) + " sessions: all but one have to end, or revoke it", true};
  const uint64_t room = service.engine().state().pool_use(lease.pool).grantable_bytes;
  if (room < lease.bytes) {
    return {"waits for room: the pool has " + format_size(room) + " elsewhere and it needs " +
                format_size(lease.bytes) + "; release leases or add a device",
            true};
  }
  if (const auto owner = holders == 0 ? living_owner(service.engine().state(), lease.id) : std::nullopt) {
    return {"part " + std::to_string(part_of(owner->id)) + " is owned by " + owner->holder +
                ", which lives and has no session now: it has to come back or to end",
            true};
  }
  if (holders == 0) return {"will be moved by the manager", false};
  const std::string asked = service.holders().asked_to_move(lease.id);
  if (asked.empty()) return {"its holder will be asked", false};
  return {"asked its holder, " + asked, false};
}

using WantedMoves = std::map<LeaseId, WantedMove>;

WantedMoves wanted_moves(const StateMachine& state) {
  WantedMoves wanted;
  for (const WantedMove& move : state.moves_wanted()) wanted.emplace(move.lease, move);
  return wanted;
}

// The blocked ones first: they are what an operator looks for. As many as fit a message.
template <typename Builder>
void write_moves(Builder out, const std::vector<const LeaseRow*>& leases, Service& service) {
  const WantedMoves wanted = wanted_moves(service.engine().state());
  std::vector<std::pair<const LeaseRow*, MoveState>> moves;
  for (const LeaseRow* lease : leases) {
    const auto at = wanted.find(lease->id);
    moves.emplace_back(lease, state_of(*lease, at == wanted.end() ? nullptr : &at->second, service));
  }
  std::stable_sort(moves.begin(), moves.end(),
                   [](const auto& a, const auto& b) { return a.second.blocked && !b.second.blocked; });
  if (moves.size() > limits::leases_per_page_max) moves.resize(limits::leases_per_page_max);
  auto list = out.initMoves(static_cast<uint32_t>(moves.size()));
  for (uint32_t i = 0; i < moves.size(); ++i) {
    list[i].setLease(moves[i].first->id.value);
    list[i].setTenant(moves[i].first->tenant);
    list[i].setLabel(moves[i].first->label);
    list[i].setBytes(moves[i].first->bytes);
    list[i].setState(moves[i].second.text);
    list[i].setBlocked(moves[i].second.blocked);
  }
}

uint64_t granules_within(const LeaseRow& lease, DeviceId device, uint64_t first, uint64_t end) {
  uint64_t granules = 0;
  for (const Extent& extent : lease.extents) {
    if (extent.device != device || extent.first_granule >= end || extent.end() <= first) continue;
    granules += std::min(extent.end(), end) - std::max(extent.first_granule, first);
  }
  return granules;
}

}  // namespace

void write_progress(rpc::DeviceProgress::Builder out, const DeviceRow& device, Service& service) {
  const StateMachine& state = service.engine().state();
  std::vector<const LeaseRow*> leases;
  DeviceUse use;
  for (const auto& [id, lease] : state.leases()) {
    const uint64_t granules = granules_within(lease, device.id, 0, UINT64_MAX);
    if (granules == 0) continue;
    leases.push_back(&lease);
    ++use.leases;
    use.bytes += granules * device.granule_bytes;
  }
  write_device(out.initDevice(), device, use, "", service.engine());
  out.setLeftBytes(use.bytes);
  write_moves(out, leases, service);
}

void write_compaction(rpc::Compaction::Builder out, const PoolRow& pool, Service& service) {
  const StateMachine& state = service.engine().state();
  const StateMachine::CompactionPlan* plan = state.compaction_of(pool.id);
  const DeviceRow* device = plan == nullptr ? nullptr : state.find_device(plan->device);
  if (device == nullptr) return;
  out.setActive(true);
  out.setDevice(device->serial);
  out.setOffset(plan->window.first * device->granule_bytes);
  out.setLength(plan->window.count * device->granule_bytes);
  std::vector<const LeaseRow*> leases;
  uint64_t left = 0;
  for (const auto& [id, lease] : state.leases()) {
    const uint64_t granules =
        granules_within(lease, device->id, plan->window.first, plan->window.first + plan->window.count);
    if (granules == 0) continue;
    leases.push_back(&lease);
    left += granules;
  }
  out.setLeftBytes(left * device->granule_bytes);
  write_moves(out, leases, service);
}

}  // namespace terrace::daemon
