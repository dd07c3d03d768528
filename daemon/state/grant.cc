// SPDX-License-Identifier: Apache-2.0
// Granting: check, place, carve, then one durable commit.
#include <algorithm>

#include "core/base/limits.h"
#include "daemon/model/phases.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

Error refused(ErrorCode code, std::string detail) {
  return refusal(code, "Grant", std::move(detail));
}

}  // namespace

// --- terms ------------------------------------------------------------------------------------------
// A bound (`ttl_max`, daemon/config) that was lowered since ends no lease: a renewal that names no TTL keeps the
// lease's own. What begins anew is within the bound of now: a grant, a lease that changes hands, a start after a
// reboot.

Status StateMachine::check_ttl(uint64_t ttl_ns, const char* where) const {
  if (ttl_ns == 0) return {};
  if (ttl_ns < limits::ttl_ns_min || ttl_ns > limits::ttl_ns_max) {
    return refusal(ErrorCode::invalid_argument, where,
                   "a TTL of " + format_duration(ttl_ns) + " is outside " +
                       format_duration(limits::ttl_ns_min) + " to " + format_duration(limits::ttl_ns_max));
  }
  if (ttl_ns <= ttl_ns_max_) return {};
  return refusal(ErrorCode::invalid_argument, where,
                 "a TTL of " + format_duration(ttl_ns) + " is beyond this manager's ttl_max of " +
                     format_duration(ttl_ns_max_));
}

Status StateMachine::check_persistent(const char* where) const {
  if (ttl_ns_max_ >= limits::ttl_ns_max) return {};
  return refusal(ErrorCode::invalid_argument, where,
                 "a persistent lease is beyond this manager's ttl_max of " + format_duration(ttl_ns_max_) +
                     "; only one with a TTL, which its holder renews, is within it");
}

uint64_t StateMachine::within_term(uint64_t ttl_ns) const {
  return std::min(ttl_ns, ttl_ns_max_);
}

// --- grants -----------------------------------------------------------------------------------------

Status StateMachine::check_grant(const Grant& command, const PoolRow* pool) const {
  if (pool == nullptr && command.pool.empty()) {
    return refused(ErrorCode::not_found,
                   pools_.empty()
                       ? "there is no pool yet; `terrace device list` shows the devices, and an "
                         "administrator makes a pool of them: `terrace pool create main --adopt "
                         "--device SERIAL`"
                       : "there are several pools; name one with --pool, `terrace pool list` shows them");
  }
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
  TERRACE_RETURN_IF_ERROR(check_trust(*pool, command.pins_outlast, "Grant"));
  if (command.bytes == 0) return refused(ErrorCode::invalid_argument, "a lease of 0 bytes cannot be granted");
  if (command.persistent && command.ttl_ns != 0)
    return refused(ErrorCode::invalid_argument, "a persistent lease has no TTL; give one or the other");
  TERRACE_RETURN_IF_ERROR(check_ttl(command.ttl_ns, "Grant"));
  if (command.persistent) TERRACE_RETURN_IF_ERROR(check_persistent("Grant"));
  if (!command.device.empty()) {
    const DeviceRow* device = find_device(command.device);
    if (device == nullptr || device->pool != pool->id)
      return refused(ErrorCode::not_found, "device '" + command.device + "' is not in pool " + pool->name);
    if (command.wait_ns != 0)
      return refused(ErrorCode::invalid_argument, "a lease on a device of choice does not wait in the queue");
  }
  if (command.wait_ns > limits::wait_ns_max) {
    return refused(ErrorCode::invalid_argument, "waiting " + format_duration(command.wait_ns) + " is beyond " +
                                                    format_duration(limits::wait_ns_max));
  }
  if (!command.label.empty()) {
    if (const LeaseRow* holder = find_lease_by_label(command.tenant, command.label)) {
      return refused(ErrorCode::already_exists, "lease " + std::to_string(holder->id.value) + " of tenant " +
                                                    command.tenant + " has the label '" + command.label + "'");
    }
  }
  if (command.on_fence == OnFence::kill && command.movable) {
    return refused(
        ErrorCode::invalid_argument,
        "a lease whose holders may pin its memory (--on-fence kill) cannot be moved: leave --movable out");
  }
  if (leases_.size() >= limits::leases_max)
    return refused(ErrorCode::limit_exceeded, "this manager holds its limit of 1,000,000 leases");
  return {};
}

Step StateMachine::on(const Grant& command) {
  Step step;
  const bool keyed = command.request_high != 0 || command.request_low != 0;
  if (keyed) {
    const auto known =
        leases_.find(index_.by_request(command.tenant, command.request_high, command.request_low));
    if (known != leases_.end()) {
      LeaseRow& lease = known->second;
      if (lease.phase == LeasePhase::waiting) return join_waiting(lease, command);
      if (ungranted(lease)) {
        step.reply = Reply{GrantPending{lease.id}};
      } else {
        step.reply = Reply{LeaseReply{lease}};
      }
      return step;
    }
  }
  const PoolRow* pool = find_pool(command.pool);
  if (Status status = check_grant(command, pool); !status.ok()) return refuse(std::move(status).error());
  const uint64_t granule_bytes = pool_granule_bytes(pool->id);
  const uint64_t granules = (command.bytes - 1) / granule_bytes + 1;
  if (const uint64_t capacity = pool_use(pool->id).capacity_bytes; granules > capacity / granule_bytes) {
    return refuse(refused(ErrorCode::capacity_exhausted, "pool " + pool->name + " has only " +
                                                             format_size(capacity) + " in all, less than the " +
                                                             format_size(command.bytes) + " asked for"));
  }
  LeaseRow lease;
  lease.pool = pool->id;
  lease.tenant = command.tenant;
  lease.host = command.host;
  lease.label = command.label;
  lease.mode = command.mode;
  lease.bytes = granules * granule_bytes;
  const uint64_t ttl_ns = command.ttl_ns != 0 ? command.ttl_ns : within_term(limits::ttl_ns_default);
  lease.ttl_ns = command.persistent ? 0 : ttl_ns;
  lease.request_high = command.request_high;
  lease.request_low = command.request_low;
  lease.movable = command.movable;
  lease.on_fence = command.on_fence;
  if (Status status = check_quota(lease.tenant, lease.bytes, 1); !status.ok())
    return refuse(std::move(status).error());
  auto extents = take_room(lease.pool, lease.tenant, granules, command.device);
  if (!extents.ok()) {
    if (command.wait_ns > 0 && extents.error().code == ErrorCode::capacity_exhausted)
      return enqueue(std::move(lease), command);
    return refuse(std::move(extents).error());
  }
  lease.id = LeaseId{meta_.next_lease++};
  lease.epoch = LeaseEpoch{meta_.next_epoch++};
  lease.object = object_name(lease, command.agent);
  lease.extents = std::move(extents).value();
  lease.phase = LeasePhase::pending;
  const LeaseRow& added = add_lease(std::move(lease));
  step.reply = Reply{GrantPending{added.id}};
  step.effects.push_back(CarveObject{added.id, added.object, added.bytes, added.extents});
  return step;
}

Result<std::vector<Extent>> StateMachine::take_room(PoolId pool, const std::string& tenant, uint64_t granules,
                                                    const std::string& only) {
  const uint64_t bytes = granules * pool_granule_bytes(pool);
  TERRACE_RETURN_IF_ERROR(check_turn(pool, tenant, bytes));
  TERRACE_RETURN_IF_ERROR(check_reservations(pool, tenant, bytes));
  return place(pool, granules, Windows::if_needed, only);
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
    const PoolId pool = at->second.pool;
    step.reply = command.status.error();
    forget(command.lease);
    serve_waiting(pool, step);
    return step;
  }
  LeaseRow& lease = at->second;
  if (const DeviceRow* lost = lost_device_of(lease.extents)) {
    const std::string what =
        "device " + lost->serial + (absent(lost->id) ? " vanished" : " was given up") + " meanwhile";
    step.reply = refused(ErrorCode::unavailable, what);
    begin_fence(lease, LeaseCause::device_lost, what, step);
    step.delta.meta = meta_;
    return step;
  }
  if (is_move_target(lease.id)) return finish_target_carve(lease);
  unindex_lease(lease);
  change_phase(lease, LeasePhase::active);
  if (lease.ttl_ns != 0) lease.expiry_ns = command.now_ns + lease.ttl_ns;
  index_lease(lease);
  step.delta.leases[lease.id] = lease;
  step.delta.meta = meta_;
  step.reply = Reply{LeaseReply{lease}};
  return step;
}

}  // namespace terrace::daemon
