// Granting: check, place, carve, then one durable commit.
#include <algorithm>

#include "core/base/limits.h"
#include "daemon/state/names.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

Error refused(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "Grant", .detail = std::move(detail)};
}

}  // namespace

Status StateMachine::check_grant(const Grant& command, const PoolRow* pool) const {
  if (pool == nullptr) {
    return refused(ErrorCode::not_found,
                   "there is no pool '" + command.pool + "'; `terrace pool list` shows those there are");
  }
  if (!valid_name(command.tenant) || !valid_name(command.host))
    return refused(ErrorCode::invalid_argument, "tenant and host need plain names of at most 63 characters");
  if (!valid_text(command.label, limits::label_bytes_max))
    return refused(ErrorCode::invalid_argument, "a label is printable text of at most 127 bytes");
  if (command.mode > LeaseMode::shared_coherent)
    return refused(ErrorCode::invalid_argument, "a lease of an unknown mode cannot be granted");
  if (command.bytes == 0) return refused(ErrorCode::invalid_argument, "a lease of 0 bytes cannot be granted");
  if (command.persistent && command.ttl_ns != 0)
    return refused(ErrorCode::invalid_argument, "a persistent lease has no TTL; give one or the other");
  if (command.ttl_ns != 0 && (command.ttl_ns < limits::ttl_ns_min || command.ttl_ns > limits::ttl_ns_max)) {
    return refused(ErrorCode::invalid_argument, "a TTL of " + format_duration(command.ttl_ns) + " is outside " +
                                                    format_duration(limits::ttl_ns_min) + " to " +
                                                    format_duration(limits::ttl_ns_max));
  }
  if (!command.label.empty()) {
    if (const LeaseRow* holder = find_lease_by_label(command.tenant, command.label)) {
      return refused(ErrorCode::already_exists, "lease " + std::to_string(holder->id.value) + " of tenant " +
                                                    command.tenant + " has the label '" + command.label + "'");
    }
  }
  if (leases_.size() >= limits::leases_max)
    return refused(ErrorCode::limit_exceeded, "this manager holds its limit of 1,000,000 leases");
  return {};
}

Step StateMachine::on(const Grant& command) {
  Step step;
  const bool keyed = command.request_high != 0 || command.request_low != 0;
  if (keyed) {
    const auto known = by_request_.find({command.tenant, command.request_high, command.request_low});
    if (known != by_request_.end()) {
      const LeaseRow& lease = leases_.at(known->second);
      if (lease.phase == LeasePhase::pending) {
        step.reply = Reply{GrantPending{lease.id}};
      } else {
        step.reply = Reply{LeaseReply{lease}};
      }
      return step;
    }
  }
  const PoolRow* pool = find_pool(command.pool);
  if (Status status = check_grant(command, pool); !status.ok()) {
    step.reply = std::move(status).error();
    return step;
  }
  const uint64_t granule_bytes = pool_granule_bytes(pool->id);
  const uint64_t granules = (command.bytes - 1) / granule_bytes + 1;
  auto extents = place(pool->id, granules);
  if (!extents.ok()) {
    step.reply = std::move(extents).error();
    return step;
  }

  LeaseRow lease;
  lease.id = LeaseId{meta_.next_lease++};
  lease.epoch = LeaseEpoch{meta_.next_epoch++};
  lease.pool = pool->id;
  lease.tenant = command.tenant;
  lease.host = command.host;
  lease.label = command.label;
  lease.object = "lease-" + std::to_string(lease.id.value);
  lease.extents = std::move(extents).value();
  lease.mode = command.mode;
  lease.movable = command.movable;
  lease.phase = LeasePhase::pending;
  lease.bytes = granules * granule_bytes;
  lease.ttl_ns = command.persistent ? 0 : (command.ttl_ns != 0 ? command.ttl_ns : limits::ttl_ns_default);
  lease.request_high = command.request_high;
  lease.request_low = command.request_low;
  index_lease(lease);
  step.reply = Reply{GrantPending{lease.id}};
  step.effects.push_back(CarveObject{lease.id, lease.object, lease.bytes, lease.extents});
  leases_.emplace(lease.id, std::move(lease));
  return step;
}

Step StateMachine::on(const CarveFinished& command) {
  Step step;
  const auto at = leases_.find(command.lease);
  if (at == leases_.end() || at->second.phase != LeasePhase::pending) {
    step.reply =
        Error{.code = ErrorCode::not_found, .where = "CarveFinished", .detail = "no such pending lease"};
    return step;
  }
  if (!command.status.ok()) {
    step.reply = command.status.error();
    forget(command.lease);
    return step;
  }
  LeaseRow& lease = at->second;
  if (const DeviceRow* lost = lost_device_of(lease.extents)) {
    const std::string what =
        "device " + lost->serial + (absent(lost->id) ? " vanished" : " was given up") + " meanwhile";
    step.reply = Error{.code = ErrorCode::unavailable, .where = "Grant", .detail = what};
    begin_fence(lease, LeaseCause::device_lost, what, step);
    step.delta.meta = meta_;
    return step;
  }
  unindex_lease(lease);
  lease.phase = LeasePhase::active;
  if (lease.ttl_ns != 0) lease.expiry_ns = command.now_ns + lease.ttl_ns;
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
  step.delta.meta = meta_;
  step.reply = Reply{LeaseReply{lease}};
  return step;
}

}  // namespace terrace::daemon
