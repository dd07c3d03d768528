// SPDX-License-Identifier: Apache-2.0
// Moving a lease to other extents: a target of its own id is carved, the bytes are copied, then one step swaps
// object, extents and LeaseEpoch and leaves the old ones to be fenced and scrubbed under the target's id.
//
// Crash     A move is in memory only until the swap: a crash before it leaves the lease as it was, and the
//           target's object as an orphan. The swap writes both rows in one commit.
#include "core/base/limits.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

// While both copies exist, a move that the tenant wants for itself counts twice against its quota. One for a drain
// or a compaction does not, whoever copies: a quota that is full must not keep an operator's device in use.
uint64_t StateMachine::moving_bytes(const std::string& tenant) const {
  uint64_t bytes = 0;
  for (const auto& [target, move] : moves_) {
    const LeaseRow& row = leases_.at(target);
    if (move.asked_by_tenant && row.tenant == tenant) bytes += row.bytes;
  }
  return bytes;
}

// Not held up by the queue of a full pool: it gives back as much as it takes, and a compaction moves leases for
// the very request that waits.
Step StateMachine::on(const BeginMove& command) {
  constexpr const char* where = "BeginMove";
  if (Status status = check_changeable(command.lease, command.tenant, where, command.now_ns); !status.ok())
    return refuse(std::move(status).error());
  if (Status status = check_no_views(command.lease, where); !status.ok())
    return refuse(std::move(status).error());
  if (leases_.size() >= limits::leases_max)
    return refuse(ErrorCode::limit_exceeded, where, "this manager holds its limit of 1,000,000 leases");
  const LeaseRow& lease = leases_.at(command.lease);
  const Reasons reasons = reasons_to_move(lease);
  const bool own_accord = !command.tenant.empty() && !reasons.drain && !reasons.compaction;
  if (own_accord) {
    if (Status status = check_quota(lease.tenant, lease.bytes, 0); !status.ok())
      return refuse(std::move(status).error());
  }
  if (Status status = check_reservations(lease.pool, lease.tenant, lease.bytes); !status.ok())
    return refuse(std::move(status).error());
  auto extents = place(lease.pool, lease.bytes / pool_granule_bytes(lease.pool), Windows::never);
  if (!extents.ok()) return refuse(std::move(extents).error());

  LeaseRow target;
  target.id = LeaseId{meta_.next_lease++};
  target.epoch = LeaseEpoch{meta_.next_epoch++};
  target.pool = lease.pool;
  target.tenant = lease.tenant;
  target.host = lease.host;
  target.object = object_name(target, agent_of(lease));
  target.extents = std::move(extents).value();
  target.mode = lease.mode;
  target.phase = LeasePhase::pending;
  target.bytes = lease.bytes;
  target.ttl_ns = lease.ttl_ns;
  target.deadline_ns = command.now_ns + limits::move_ns_max;
  moves_[target.id] = {lease.id, false, own_accord};  // before it is counted: a target is nobody's use
  move_of_[lease.id] = target.id;
  const LeaseRow& added = add_lease(std::move(target));
  Step step;
  step.reply = Reply{GrantPending{added.id}};
  step.effects.push_back(CarveObject{added.id, added.object, added.bytes, added.extents});
  return step;
}

Step StateMachine::finish_target_carve(LeaseRow& target) {
  Step step;
  MoveUnderWay& move = moves_.at(target.id);
  if (!move.lease.valid()) {
    begin_fence(target, LeaseCause::released, "move given up", step);
    step.reply = refusal(ErrorCode::cancelled, "BeginMove", "the move was given up while its target was made");
  } else {
    move.carved = true;
    step.delta.meta = meta_;  // its id is shown from here on: it must never be given again
    step.reply = Reply{MoveReady{move.lease, target.id, target.object, target.bytes}};
  }
  return step;
}

Step StateMachine::on(const FinishMove& command) {
  constexpr const char* where = "FinishMove";
  LeaseRow* lease = mutable_lease(command.lease, command.tenant);
  if (lease == nullptr || ungranted(*lease)) return no_such_lease(where, command.lease);
  Step step;
  const auto move = moves_.find(command.target);
  if (move == moves_.end() || move->second.lease != command.lease) {
    const bool done = command.commit && command.target != command.lease && usable(*lease) &&
                      lease->object == object_name(*lease, agent_of(*lease), command.target);
    if (done) {  // repeated, because the first reply was lost
      step.reply = Reply{LeaseReply{*lease}};
      return step;
    }
    return refuse(ErrorCode::not_found, where,
                  lease_name(command.lease) + " is not being moved to " + lease_name(command.target) +
                      "; the move was given up, or took longer than " + format_duration(limits::move_ns_max));
  }
  if (!command.commit) {
    give_up_move(command.target, step);
    step.reply = Reply{LeaseReply{*lease}};
    return step;
  }
  if (!move->second.carved)
    return refuse(ErrorCode::busy, where, "the target " + lease_name(command.target) + " is still being made");
  if (Status status = check_live(*lease, where, command.now_ns); !status.ok())
    return refuse(std::move(status).error());
  LeaseRow& target = leases_.at(command.target);
  if (const DeviceRow* lost = lost_device_of(target.extents)) {
    return refuse(ErrorCode::unavailable, where,
                  "device " + lost->serial + " below the target " + lease_name(target.id) +
                      " was lost meanwhile; give this move up and begin another");
  }

  // No index depends on what is swapped: the sizes are equal.
  std::swap(lease->object, target.object);
  std::swap(lease->extents, target.extents);
  std::swap(lease->epoch, target.epoch);
  begin_fence(target, LeaseCause::moved, lease_name(lease->id) + " moved", step);
  step.delta.leases[lease->id] = *lease;
  step.reply = Reply{LeaseReply{*lease}};
  return step;
}

void StateMachine::give_up_move(LeaseId target_id, Step& step) {
  MoveUnderWay& move = moves_.at(target_id);
  LeaseRow& target = leases_.at(target_id);
  if (move.carved) {
    begin_fence(target, LeaseCause::released, "move given up", step);
    return;
  }
  unindex_lease(target);
  target.deadline_ns = 0;
  index_lease(target);
  move_of_.erase(move.lease);
  move.lease = LeaseId{};
}

// The order counts: while it is known as a target its row is not counted to its tenant.
void StateMachine::unlink_move(LeaseId target) {
  const auto move = moves_.find(target);
  if (move == moves_.end()) return;
  if (move->second.lease.valid()) move_of_.erase(move->second.lease);
  moves_.erase(move);
}

}  // namespace terrace::daemon
