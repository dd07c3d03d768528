// SPDX-License-Identifier: Apache-2.0
// A lease after its grant: renewed, released, revoked, expired; then fenced, scrubbed and free again.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "daemon/model/phases.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
LeaseRow* StateMachine::mutable_lease(LeaseId id, const std::string& tenant) {
  const auto at = row_of_.find(id);
  if (at == row_of_.end()) return nullptr;
  LeaseRow* lease = at->second;
  return tenant.empty() || lease->tenant == tenant ? lease : nullptr;
}

void StateMachine::begin_fence(LeaseRow& lease, LeaseCause cause, std::string reason, Step& step) {
  if (const auto move = move_of_.find(lease.id); move != move_of_.end()) give_up_move(move->second, step);
  awaited_.erase(lease.id);
  offers_.erase(lease.id);
  forget_owners(lease.id, step);
  unindex_lease(lease);
  if (is_move_target(lease.id)) {
    unlink_move(lease.id);
    step.delta.meta = meta_;  // its id and epoch were in memory only
  }
  if (growths_.contains(lease.id)) {
    // The object may be of either size: what it grew by is fenced and erased with it.
    const Growth growth = end_growth(lease.id);
    lease.extents = joined(std::move(lease.extents), growth.extents);
    lease.bytes = growth.bytes;
  }
  change_phase(lease, LeasePhase::fencing);
  lease.expiry_ns = 0;
  lease.deadline_ns = 0;
  lease.target_bytes = 0;
  lease.cause = cause;
  lease.reason = std::move(reason);
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
  step.effects.push_back(fence_of(lease));
}

void StateMachine::fence_due(LeaseRow& lease, uint64_t now_ns, Step& step) {
  const bool deadline = lease.deadline_ns != 0 && lease.deadline_ns <= now_ns;
  begin_fence(lease, deadline ? lease.cause : LeaseCause::expired, deadline ? lease.reason : "expired", step);
}

void StateMachine::quarantine(LeaseRow& lease, const std::string& more, Step& step) {
  unindex_lease(lease);
  change_phase(lease, LeasePhase::quarantined);
  // It is tried again when the device is there again.
  if (lost_device_of(lease.extents) != nullptr) lease.cause = LeaseCause::device_lost;
  append_reason(lease.reason, more);
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
}

void StateMachine::forget(LeaseId id) {
  const auto at = leases_.find(id);
  TERRACE_CHECK(at != leases_.end(), "I5: a lease that is forgotten has a row");
  const LeaseRow& lease = at->second;
  awaited_.erase(id);
  unindex_lease(lease);
  unlink_move(id);
  give_back(lease.extents);
  row_of_.erase(id);
  leases_.erase(at);
}

void StateMachine::give_back(const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    const bool given = free_.at(extent.device).give({extent.first_granule, extent.granules});
    TERRACE_CHECK(given, "I2: an extent that is given back was free already");
  }
}

Result<const LeaseRow*> StateMachine::renew(LeaseId id, const std::string& tenant, uint64_t ttl_ns,
                                            uint64_t now_ns, Delta& delta) {
  constexpr const char* where = "Renew";
  LeaseRow* lease = mutable_lease(id, tenant);
  if (lease == nullptr || ungranted(*lease)) return no_such_lease_error(where, id);
  if (Status status = check_live(*lease, where, now_ns); !status.ok()) return std::move(status).error();
  if (lease->ttl_ns == 0) {
    if (ttl_ns == 0) return lease;
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = lease_name(id) + " is persistent and has no expiry to renew; leave the TTL out"};
  }
  if (Status status = check_ttl(ttl_ns, where); !status.ok()) return std::move(status).error();
  const bool other_ttl = ttl_ns != 0 && ttl_ns != lease->ttl_ns;
  if (other_ttl) lease->ttl_ns = ttl_ns;
  index_.set_expiry(*lease, now_ns + lease->ttl_ns);
  // The expiry alone need not be durable: each start gives a full TTL (recover_times), which is no less.
  if (other_ttl) delta.leases[id] = *lease;
  return lease;
}

Step StateMachine::on(const Renew& command) {
  Step step;
  Result<const LeaseRow*> renewed =
      renew(command.lease, command.tenant, command.ttl_ns, command.now_ns, step.delta);
  if (!renewed.ok()) return refuse(std::move(renewed).error());
  step.reply = Reply{LeaseReply{**renewed}};
  return step;
}

Step StateMachine::on(const RenewMany& command) {
  Step step;
  RenewalsReply renewals;
  for (const LeaseId id : command.leases) {
    Result<const LeaseRow*> renewed = renew(id, command.tenant, command.ttl_ns, command.now_ns, step.delta);
    if (!renewed.ok()) renewals.failed.emplace_back(id, std::move(renewed).error());
  }
  step.reply = Reply{std::move(renewals)};
  return step;
}

// Released twice is no error while the memory is being erased: the first reply may have been lost.
Step StateMachine::on(const Release& command) {
  LeaseRow* lease = mutable_lease(command.lease, command.tenant);
  if (lease == nullptr || ungranted(*lease)) return no_such_lease("Release", command.lease);
  if (lease->phase == LeasePhase::transferring)
    return refuse(check_live(*lease, "Release", command.now_ns).error());
  Step step;
  if (usable(*lease)) {
    begin_fence(*lease, LeaseCause::released, "released", step);
  } else if (lease->phase == LeasePhase::quarantined && command.tenant.empty()) {
    // The way out of quarantine: an administrator, having fixed the cause, has it fenced and scrubbed again.
    begin_fence(*lease, LeaseCause::released, "released from quarantine", step);
  }
  return step;
}

Step StateMachine::on(const Revoke& command) {
  constexpr const char* where = "Revoke";
  LeaseRow* lease = mutable_lease(command.lease, "");
  if (lease == nullptr || ungranted(*lease)) return no_such_lease(where, command.lease);
  if (lease->phase == LeasePhase::transferring)
    return refuse(check_live(*lease, where, command.now_ns).error());
  if (!usable(*lease)) {
    return refuse(ErrorCode::lease_revoked, where,
                  lease_name(command.lease) + " has ended already: " + lease->reason);
  }
  if (!valid_text(command.reason, limits::reason_bytes_max))
    return refuse(ErrorCode::invalid_argument, where, "a reason is printable text of at most 255 bytes");
  if (command.grace_ns > limits::grace_ns_max) {
    return refuse(ErrorCode::invalid_argument, where,
                  "a grace of " + format_duration(command.grace_ns) + " is beyond " +
                      format_duration(limits::grace_ns_max));
  }
  const std::string reason = command.reason.empty() ? "revoked by an operator" : command.reason;
  Step step;
  const uint64_t deadline_ns = command.now_ns + command.grace_ns;
  if (lease->expiry_ns != 0 && lease->expiry_ns <= command.now_ns) {
    fence_due(*lease, command.now_ns, step);  // it has lapsed, only the Tick is late: no grace revives it
  } else if (command.grace_ns == 0) {
    begin_fence(*lease, LeaseCause::revoked, reason, step);
  } else {
    unindex_lease(*lease);
    // A second revocation may shorten the grace, never lengthen it.
    const bool sooner = lease->phase == LeasePhase::active || deadline_ns < lease->deadline_ns;
    if (sooner) lease->deadline_ns = deadline_ns;
    change_phase(*lease, LeasePhase::revoking);
    lease->cause = LeaseCause::revoked;
    lease->reason = reason;
    // It cannot be renewed any more, and its holder was told of the grace: it does not lapse within it.
    if (lease->ttl_ns != 0) lease->expiry_ns = std::max(lease->expiry_ns, lease->deadline_ns);
    index_lease(*lease);
    step.delta.leases[lease->id] = *lease;
    const uint64_t left_ns = lease->deadline_ns > command.now_ns ? lease->deadline_ns - command.now_ns : 0;
    step.effects.push_back(NotifyHolders{lease->id, reason, left_ns, false, lease->cause});
  }
  step.reply = Reply{LeaseReply{*lease}};
  return step;
}

Step StateMachine::on(const Tick& command) {
  Step step;
  std::set<PoolId> left;  // pools that somebody stopped waiting for
  const std::set<LeaseIndex::Due>& due = index_.due();
  while (!due.empty() && due.begin()->at_ns <= command.now_ns) {
    LeaseRow& lease = leases_.at(due.begin()->lease);
    if (lease.phase == LeasePhase::waiting) {
      left.insert(lease.pool);
      const uint64_t since_ns = queues_.at(lease.pool).since_ns(lease.id, lease.tenant);
      refuse_waiting(lease.id, waited_in_vain(lease, command.now_ns - std::min(command.now_ns, since_ns)),
                     step);
    } else if (is_move_target(lease.id)) {
      give_up_move(lease.id, step);
    } else {
      fence_due(lease, command.now_ns, step);
    }
  }
  while (!due_reservations_.empty() && due_reservations_.begin()->first <= command.now_ns)
    remove_reservation(due_reservations_.begin()->second, step);
  for (const PoolId pool : left) serve_waiting(pool, step);
  next_phases(command.now_ns, step);
  return step;
}

// Never more than a full TTL from now. What had lapsed before the gap stays lapsed. Nothing is written: as of a renewal.
Step StateMachine::on(const ResumeAfterGap& command) {
  Step step;
  for (auto& [id, lease] : leases_) {
    if (lease.phase != LeasePhase::active || lease.ttl_ns == 0) continue;
    const uint64_t left_ns = lease.expiry_ns > command.now_ns ? lease.expiry_ns - command.now_ns : 0;
    if (left_ns >= lease.ttl_ns / 2) continue;
    index_.set_expiry(lease, std::min(lease.expiry_ns + command.gap_ns, command.now_ns + lease.ttl_ns));
  }
  return step;
}

// Reaching `scrubbing` is not recorded: after a crash the lease is fenced once more, which is harmless.
Step StateMachine::on(const FenceFinished& command) {
  LeaseRow* lease = mutable_lease(command.lease, "");
  if (lease == nullptr || lease->phase != LeasePhase::fencing)
    return no_such_lease("FenceFinished", command.lease);
  Step step;
  if (const DeviceRow* absent = absent_device_of(lease->extents); command.status.ok() && absent != nullptr) {
    step.effects.push_back(NotifyHolders{lease->id, lease->reason, 0, true, lease->cause});
    quarantine(*lease, "; quarantined, device " + absent->serial + " is gone", step);
  } else if (command.status.ok()) {
    change_phase(*lease, LeasePhase::scrubbing);  // the same to every index
    step.effects.push_back(NotifyHolders{lease->id, lease->reason, 0, true, lease->cause});
    step.effects.push_back(ScrubObject{lease->id, lease->object, lease->bytes, lease->extents, lease->pool});
  } else {
    quarantine(*lease, "; quarantined, could not be fenced: " + command.status.error().to_string(), step);
  }
  return step;
}

Step StateMachine::on(const ScrubFinished& command) {
  LeaseRow* lease = mutable_lease(command.lease, "");
  if (lease == nullptr || lease->phase != LeasePhase::scrubbing)
    return no_such_lease("ScrubFinished", command.lease);
  Step step;
  if (command.status.ok() && !lease->next_object.empty()) {
    // A transfer that failed: its bytes may be in the other object, on the same extents.
    lease->object = std::move(lease->next_object);
    lease->next_object.clear();
    change_phase(*lease, LeasePhase::fencing);  // the same to every index
    step.delta.leases[lease->id] = *lease;
    step.effects.push_back(fence_of(*lease));
  } else if (command.status.ok()) {
    const PoolId pool = lease->pool;
    step.delta.leases[command.lease] = std::nullopt;
    forget_views(command.lease, step.delta);
    forget(command.lease);
    serve_waiting(pool, step);
  } else {
    quarantine(*lease, "; quarantined, could not be scrubbed: " + command.status.error().to_string(), step);
  }
  return step;
}

// At least one granule stays until the scrub has ended: the row is what shows that it has not.
Step StateMachine::on(const ScrubAdvanced& command) {
  LeaseRow* lease = mutable_lease(command.lease, "");
  if (lease == nullptr || lease->phase != LeasePhase::scrubbing)
    return no_such_lease("ScrubAdvanced", command.lease);
  Step step;
  const uint64_t granule_bytes = pool_granule_bytes(lease->pool);
  uint64_t left = std::min(command.granules, lease->bytes / granule_bytes - 1);
  if (left == 0 || !lease->next_object.empty()) return step;  // another object may still show these granules
  unindex_lease(*lease);
  lease->bytes -= left * granule_bytes;
  while (left > 0) {
    Extent& last = lease->extents.back();
    const uint64_t count = std::min(left, last.granules);
    give_back({{last.device, last.end() - count, count}});
    last.granules -= count;
    if (last.granules == 0) lease->extents.pop_back();
    left -= count;
  }
  index_lease(*lease);
  step.delta.leases[lease->id] = *lease;
  serve_waiting(lease->pool, step);
  return step;
}

}  // namespace terrace::daemon
