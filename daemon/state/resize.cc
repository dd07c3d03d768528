// SPDX-License-Identifier: Apache-2.0
// Growing and shrinking a lease at its end.
//
// Crash     A shrink is in the row (target_bytes) before its object is cut: recovery goes on with it. A growth
//           is in the row before its object is longer, as a shrink from the new size to the old: recovery cuts
//           back what was never acknowledged. What is cut off is another row in the same commit that makes the
//           lease shorter, so that no granule is ever free before it was erased, also where a holder wrote to
//           it.
// Backend   A resize that fails leaves the object as long as it was (backend.h), but a growth may have been
//           seen before that: what it took is erased like what is cut off.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
std::vector<Extent> StateMachine::cut(std::vector<Extent>& extents, uint64_t granules) {
  std::vector<Extent> head, tail;
  for (const Extent& extent : extents) {
    const uint64_t kept = std::min(granules, extent.granules);
    granules -= kept;
    if (kept > 0) head.push_back({extent.device, extent.first_granule, kept});
    if (kept < extent.granules)
      tail.push_back({extent.device, extent.first_granule + kept, extent.granules - kept});
  }
  extents = std::move(head);
  return tail;
}

std::vector<Extent> StateMachine::joined(std::vector<Extent> extents, const std::vector<Extent>& more) {
  for (const Extent& extent : more) {
    if (!extents.empty() && extents.back().device == extent.device &&
        extents.back().end() == extent.first_granule) {
      extents.back().granules += extent.granules;
    } else {
      extents.push_back(extent);
    }
  }
  return extents;
}

LeaseRow StateMachine::durable_row(const LeaseRow& lease) const {
  LeaseRow row = lease;
  const auto growth = growths_.find(lease.id);
  if (growth == growths_.end() || growth->second.extents.empty() || !usable(lease)) return row;
  row.extents = joined(std::move(row.extents), growth->second.extents);
  row.bytes = growth->second.bytes;
  row.target_bytes = lease.bytes;
  return row;
}

Status StateMachine::check_changeable(LeaseId id, const std::string& tenant, const char* where,
                                      uint64_t now_ns) const {
  const LeaseRow* lease = find_lease(id);
  if (lease == nullptr || ungranted(*lease) || (!tenant.empty() && lease->tenant != tenant))
    return no_such_lease_error(where, id);
  TERRACE_RETURN_IF_ERROR(check_live(*lease, where, now_ns));
  if (awaited_.contains(id)) {
    return refusal(ErrorCode::unavailable, where,
                   lease_name(id) + " waits for device " + absent_device_of(lease->extents)->serial +
                       ", which is not there yet; try again when it is");
  }
  if (growths_.contains(id) || lease->target_bytes != 0)
    return refusal(ErrorCode::busy, where, lease_name(id) + " is being resized; try again");
  if (const auto move = move_of_.find(id); move != move_of_.end()) {
    return refusal(
        ErrorCode::busy, where,
        lease_name(id) + " is being moved to " + lease_name(move->second) + "; finish that move or give it up");
  }
  return {};
}

Step StateMachine::on(const Resize& command) {
  constexpr const char* where = "Resize";
  if (Status status = check_changeable(command.lease, command.tenant, where, command.now_ns); !status.ok())
    return refuse(std::move(status).error());
  if (command.bytes == 0) {
    return refuse(ErrorCode::invalid_argument, where,
                  "a lease cannot be resized to 0 bytes; release it instead");
  }
  if (Status status = check_no_views(command.lease, where); !status.ok())
    return refuse(std::move(status).error());
  LeaseRow& lease = leases_.at(command.lease);
  const uint64_t granule_bytes = pool_granule_bytes(lease.pool);
  const uint64_t granules = (command.bytes - 1) / granule_bytes + 1;
  if (granules > lease.bytes / granule_bytes) return grow(lease, granules);
  if (granules < lease.bytes / granule_bytes) return shrink(lease, granules);
  Step step;
  step.reply = Reply{LeaseReply{lease}};
  return step;
}

void StateMachine::begin_growth(LeaseId id, std::vector<Extent> extents, uint64_t bytes) {
  account_.take(extents);
  const bool begun = growths_.try_emplace(id, Growth{std::move(extents), bytes}).second;
  TERRACE_CHECK(begun, "I4: a lease that grows grows once at a time");
}

StateMachine::Growth StateMachine::end_growth(LeaseId id) {
  const auto at = growths_.find(id);
  TERRACE_CHECK(at != growths_.end(), "I4: a growth that ends was begun");
  Growth growth = std::move(at->second);
  growths_.erase(at);
  account_.give(growth.extents);
  return growth;
}

Step StateMachine::grow(LeaseRow& lease, uint64_t granules) {
  const uint64_t granule_bytes = pool_granule_bytes(lease.pool);
  const uint64_t capacity = pool_use(lease.pool).capacity_bytes;
  if (granules > capacity / granule_bytes) {
    return refuse(ErrorCode::capacity_exhausted, "Resize",
                  "pool " + find_pool(lease.pool)->name + " has only " + format_size(capacity) + " in all");
  }
  const uint64_t more = granules - lease.bytes / granule_bytes;
  if (Status status = check_quota(lease.tenant, more * granule_bytes, 0); !status.ok())
    return refuse(std::move(status).error());
  auto room = take_room(lease.pool, lease.tenant, more);
  if (!room.ok()) return refuse(std::move(room).error());
  std::vector<Extent> all = joined(lease.extents, *room);
  if (all.size() > limits::lease_extents_max) {
    give_back(*room);
    return refuse(ErrorCode::capacity_exhausted, "Resize",
                  "pool " + find_pool(lease.pool)->name + " is too fragmented: " + lease_name(lease.id) +
                      " would have more than " + std::to_string(limits::lease_extents_max) +
                      " pieces; grow it by less, or take a second lease");
  }
  const uint64_t bytes = granules * granule_bytes;
  begin_growth(lease.id, std::move(room).value(), bytes);
  Step step;
  step.delta.leases[lease.id] = lease;
  step.reply = Reply{ChangePending{lease.id}};
  step.effects.push_back(ResizeObject{lease.id, lease.object, lease.bytes, bytes, std::move(all)});
  return step;
}

Step StateMachine::shrink(LeaseRow& lease, uint64_t granules) {
  lease.target_bytes = granules * pool_granule_bytes(lease.pool);
  std::vector<Extent> kept = lease.extents;
  cut(kept, granules);
  Step step;
  step.delta.leases[lease.id] = lease;
  step.reply = Reply{ChangePending{lease.id}};
  step.effects.push_back(
      ResizeObject{lease.id, lease.object, lease.bytes, lease.target_bytes, std::move(kept)});
  return step;
}

Step StateMachine::on(const ResizeFinished& command) {
  constexpr const char* where = "ResizeFinished";
  const auto at = leases_.find(command.lease);
  if (at == leases_.end() || ungranted(at->second)) return no_such_lease(where, command.lease);
  LeaseRow& lease = at->second;
  if (!usable(lease)) {  // taken back meanwhile, with all that the resize was about
    return refuse(lease.cause == LeaseCause::expired ? ErrorCode::lease_expired : ErrorCode::lease_revoked,
                  where, lease_name(lease.id) + " has ended: " + lease.reason);
  }
  if (growths_.contains(lease.id)) return finish_growth(lease, command.status);
  if (lease.target_bytes != 0) return finish_shrink(lease, command.status);
  return refuse(ErrorCode::not_found, where, lease_name(lease.id) + " is not being resized");
}

Step StateMachine::finish_growth(LeaseRow& lease, const Status& status) {
  Step step;
  if (const DeviceRow* lost = lost_device_of(growths_.at(lease.id).extents)) {
    // Its object may show what is not there any more; the growth ends with the lease.
    const std::string what = "device " + lost->serial + " was lost while the lease grew onto it";
    begin_fence(lease, LeaseCause::device_lost, what, step);
    step.reply = refusal(ErrorCode::lease_revoked, "Resize", lease_name(lease.id) + " has ended: " + what);
    return step;
  }
  const Growth growth = end_growth(lease.id);
  if (growth.extents.empty()) {  // recovery has it cut back to its row
    if (status.ok())
      step.reply = Reply{LeaseReply{lease}};
    else
      step.reply = status.error();
    return step;
  }
  const uint64_t bytes_before = lease.bytes;
  unindex_lease(lease);
  lease.extents = joined(std::move(lease.extents), growth.extents);
  lease.bytes = growth.bytes;
  index_lease(lease);
  if (!status.ok()) {
    // The object is as long as it was, and may have been longer for a moment: a holder can have written there.
    lease.target_bytes = bytes_before;
    step = finish_shrink(lease, Status());
    step.reply = status.error();
    return step;
  }
  step.delta.leases[lease.id] = lease;
  step.reply = Reply{LeaseReply{lease}};
  return step;
}

// The tail lives on under a lease of its own, which nobody holds, until it is erased. Its object does not
// exist.
Step StateMachine::finish_shrink(LeaseRow& lease, const Status& status) {
  Step step;
  if (!status.ok()) {
    lease.target_bytes = 0;
    step.delta.leases[lease.id] = lease;
    step.reply = status.error();
    return step;
  }
  LeaseRow tail;
  tail.id = LeaseId{meta_.next_lease++};
  tail.epoch = LeaseEpoch{meta_.next_epoch++};
  tail.pool = lease.pool;
  tail.tenant = lease.tenant;
  tail.host = lease.host;
  tail.object = object_name(tail, agent_of(lease), {}, "-tail");
  tail.mode = lease.mode;
  tail.phase = LeasePhase::scrubbing;
  tail.cause = LeaseCause::released;
  tail.reason = "cut off " + lease_name(lease.id);
  tail.ttl_ns = lease.ttl_ns;
  tail.bytes = lease.bytes - lease.target_bytes;

  unindex_lease(lease);
  tail.extents = cut(lease.extents, lease.target_bytes / pool_granule_bytes(lease.pool));
  lease.bytes = lease.target_bytes;
  lease.target_bytes = 0;
  index_lease(lease);
  const LeaseRow& added = add_lease(std::move(tail));
  step.delta.leases[lease.id] = lease;
  step.delta.leases[added.id] = added;
  step.delta.meta = meta_;
  step.effects.push_back(ScrubObject{added.id, added.object, added.bytes, added.extents, added.pool});
  step.reply = Reply{LeaseReply{lease}};
  return step;
}

}  // namespace terrace::daemon
