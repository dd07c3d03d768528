// A lease after its grant: renewed, released, revoked, expired; then fenced, scrubbed and free again.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "daemon/state/names.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

Step refuse(ErrorCode code, const char* where, std::string detail) {
  Step step;
  step.reply = Error{.code = code, .where = where, .detail = std::move(detail)};
  return step;
}

Step no_such_lease(const char* where, LeaseId id) {
  return refuse(ErrorCode::not_found, where, "there is no lease " + std::to_string(id.value));
}

// A reason stays within its bound whatever an error's text adds to it: the store checks it when loading.
void append_reason(std::string& reason, const std::string& more) {
  reason += more;
  for (char& c : reason)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  if (reason.size() > limits::reason_bytes_max) reason.resize(limits::reason_bytes_max);
  while (!valid_utf8(reason)) reason.pop_back();  // the cut went through a character
}

bool usable(const LeaseRow& lease) {
  return lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
}

}  // namespace

LeaseRow* StateMachine::mutable_lease(LeaseId id, const std::string& tenant) {
  const auto at = leases_.find(id);
  if (at == leases_.end()) return nullptr;
  if (!tenant.empty() && at->second.tenant != tenant) return nullptr;
  return &at->second;
}

void StateMachine::begin_fence(LeaseRow& lease, LeaseCause cause, std::string reason, Step& step) {
  unindex_lease(lease);
  lease.phase = LeasePhase::fencing;
  lease.expiry_ns = 0;
  lease.deadline_ns = 0;
  lease.cause = cause;
  lease.reason = std::move(reason);
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
  step.effects.push_back(FenceObject{lease.id, lease.object});
}

void StateMachine::quarantine(LeaseRow& lease, const std::string& more, Step& step) {
  unindex_lease(lease);
  lease.phase = LeasePhase::quarantined;
  // It is tried again when the device is there again.
  if (lost_device_of(lease.extents) != nullptr) lease.cause = LeaseCause::device_lost;
  append_reason(lease.reason, more);
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
}

void StateMachine::forget(LeaseId id) {
  const auto at = leases_.find(id);
  const LeaseRow& lease = at->second;
  unindex_lease(lease);
  give_back(lease.extents);
  leases_.erase(at);
}

void StateMachine::give_back(const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    const bool given = free_.at(extent.device).give({extent.first_granule, extent.granules});
    TERRACE_CHECK(given, "I2: an extent that is given back was free already");
  }
}

Step StateMachine::on(const Renew& command) {
  constexpr const char* where = "Renew";
  LeaseRow* lease = mutable_lease(command.lease, command.tenant);
  if (lease == nullptr || lease->phase == LeasePhase::pending) return no_such_lease(where, command.lease);
  const std::string name = "lease " + std::to_string(command.lease.value);
  if (lease->phase == LeasePhase::revoking)
    return refuse(ErrorCode::lease_revoked, where, name + " is being taken back: " + lease->reason);
  if (lease->phase != LeasePhase::active) {
    return refuse(lease->cause == LeaseCause::expired ? ErrorCode::lease_expired : ErrorCode::lease_revoked,
                  where, name + " has ended: " + lease->reason);
  }
  if (lease->expiry_ns != 0 && lease->expiry_ns <= command.now_ns) {
    return refuse(ErrorCode::lease_expired, where,
                  name + " lapsed " + format_duration(command.now_ns - lease->expiry_ns) + " ago");
  }
  Step step;
  if (lease->ttl_ns == 0) {
    if (command.ttl_ns != 0) {
      return refuse(ErrorCode::invalid_argument, where,
                    name + " is persistent and has no expiry to renew; leave the TTL out");
    }
    step.reply = Reply{LeaseReply{*lease}};
    return step;
  }
  if (command.ttl_ns != 0) {
    if (command.ttl_ns < limits::ttl_ns_min || command.ttl_ns > limits::ttl_ns_max) {
      return refuse(ErrorCode::invalid_argument, where,
                    "a TTL of " + format_duration(command.ttl_ns) + " is outside " +
                        format_duration(limits::ttl_ns_min) + " to " + format_duration(limits::ttl_ns_max));
    }
    lease->ttl_ns = command.ttl_ns;
  }
  due_.erase({lease->expiry_ns, lease->id});  // the other indexes do not depend on the expiry
  lease->expiry_ns = command.now_ns + lease->ttl_ns;
  due_.insert({lease->expiry_ns, lease->id});
  step.delta.leases[lease->id] = *lease;
  step.reply = Reply{LeaseReply{*lease}};
  return step;
}

// Released twice is no error while the memory is being erased: the first reply may have been lost.
Step StateMachine::on(const Release& command) {
  LeaseRow* lease = mutable_lease(command.lease, command.tenant);
  if (lease == nullptr || lease->phase == LeasePhase::pending) return no_such_lease("Release", command.lease);
  Step step;
  if (usable(*lease)) {
    begin_fence(*lease, LeaseCause::released, "released", step);
  } else if (lease->phase == LeasePhase::quarantined && command.tenant.empty()) {
    // The way out of quarantine: an administrator, having mended the cause, has it fenced and scrubbed again.
    begin_fence(*lease, LeaseCause::released, "released from quarantine", step);
  }
  return step;
}

Step StateMachine::on(const Revoke& command) {
  constexpr const char* where = "Revoke";
  LeaseRow* lease = mutable_lease(command.lease, "");
  if (lease == nullptr || lease->phase == LeasePhase::pending) return no_such_lease(where, command.lease);
  if (!usable(*lease)) {
    return refuse(ErrorCode::lease_revoked, where,
                  "lease " + std::to_string(command.lease.value) + " has ended already: " + lease->reason);
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
  if (command.grace_ns == 0) {
    begin_fence(*lease, LeaseCause::revoked, reason, step);
  } else {
    unindex_lease(*lease);
    // A second revocation may shorten the grace, never lengthen it.
    const bool sooner = lease->phase == LeasePhase::active || deadline_ns < lease->deadline_ns;
    if (sooner) lease->deadline_ns = deadline_ns;
    lease->phase = LeasePhase::revoking;
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
  while (!due_.empty() && due_.begin()->at_ns <= command.now_ns) {
    LeaseRow& lease = leases_.at(due_.begin()->lease);
    const bool deadline = lease.deadline_ns != 0 && lease.deadline_ns <= command.now_ns;
    begin_fence(lease, deadline ? lease.cause : LeaseCause::expired, deadline ? lease.reason : "expired", step);
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
    lease->phase = LeasePhase::scrubbing;  // the same to every index
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
  if (command.status.ok()) {
    const PoolId pool = lease->pool;
    step.delta.leases[command.lease] = std::nullopt;
    forget(command.lease);
    serve_waiting(pool, step);
  } else {
    quarantine(*lease, "; quarantined, could not be scrubbed: " + command.status.error().to_string(), step);
  }
  return step;
}

}  // namespace terrace::daemon
