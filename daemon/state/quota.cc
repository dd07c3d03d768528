// SPDX-License-Identifier: Apache-2.0
// Claims on a pool's room: what a tenant may have at most (quotas) and what is kept for it (reservations).
#include <algorithm>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {

// --- quotas -----------------------------------------------------------------------------------------

// A bound below what the tenant has takes nothing away; it gets nothing more until it is below the bound.
Step StateMachine::on(const SetQuota& command) {
  constexpr const char* where = "SetQuota";
  const QuotaRow& row = command.quota;
  if (row.tenant != "*" && !valid_name(row.tenant)) {
    return refuse(
        ErrorCode::invalid_argument, where,
        "'" + row.tenant + "' is no tenant; give a plain name, or * for all without a quota of their own");
  }
  Step step;
  const auto known = quotas_.find(row.tenant);
  if (row.bytes_max == 0 && row.leases_max == 0) {
    if (known == quotas_.end()) return step;
    quotas_.erase(known);
    step.delta.quotas[row.tenant] = std::nullopt;
    return step;  // nobody waits for a quota: a request beyond it is refused
  }
  if (known != quotas_.end() && known->second == row) return step;
  if (known == quotas_.end() && quotas_.size() >= limits::quotas_max)
    return refuse(ErrorCode::limit_exceeded, where, "no more than 65536 quotas can be set; use * for the rest");
  quotas_[row.tenant] = row;
  step.delta.quotas[row.tenant] = row;
  serve_all_waiting(step);  // a turn that the new bound forbids must not hold up the others
  return step;
}

QuotaRow StateMachine::quota_of(const std::string& tenant) const {
  auto at = quotas_.find(tenant);
  if (at == quotas_.end()) at = quotas_.find("*");
  return at == quotas_.end() ? QuotaRow{tenant, 0, 0} : at->second;
}

Status StateMachine::check_quota(const std::string& tenant, uint64_t more_bytes, uint64_t more_leases) const {
  const QuotaRow quota = quota_of(tenant);
  if (quota.bytes_max == 0 && quota.leases_max == 0) return {};
  TenantUse use = tenant_use(tenant);
  use.bytes += moving_bytes(tenant);
  const std::string whose = "tenant " + tenant + " may have ";
  if (quota.bytes_max != 0 && more_bytes != 0 &&
      (use.bytes > quota.bytes_max || more_bytes > quota.bytes_max - use.bytes)) {
    const uint64_t room = quota.bytes_max - std::min(quota.bytes_max, use.bytes);
    return refusal(ErrorCode::limit_exceeded, "quota",
                   whose + format_size(quota.bytes_max) + " and has " + format_size(use.bytes) + "; " +
                       format_size(more_bytes) + " more is " + format_size(more_bytes - room) + " too much");
  }
  if (quota.leases_max != 0 && more_leases != 0 &&
      (use.leases > quota.leases_max || more_leases > quota.leases_max - use.leases)) {
    const uint64_t room = quota.leases_max - std::min(quota.leases_max, use.leases);
    return refusal(ErrorCode::limit_exceeded, "quota",
                   whose + std::to_string(quota.leases_max) + " leases and has " + std::to_string(use.leases) +
                       "; " + std::to_string(more_leases) + " more is " + std::to_string(more_leases - room) +
                       " too many");
  }
  return {};
}

// Nobody waits for a quota: what is asked for beyond it is refused now, not when its turn comes.
Status StateMachine::check_waiting_quota(const LeaseRow& lease) const {
  const QuotaRow quota = quota_of(lease.tenant);
  uint64_t bytes = lease.bytes;
  uint64_t leases = 1;
  if (quota.bytes_max == 0 && quota.leases_max == 0) return {};
  for (const auto& [pool, queue] : queues_) {
    for (const LeaseId id : queue.requests(lease.tenant, UINT64_MAX)) {
      const uint64_t more = leases_.at(id).bytes;
      bytes = more > UINT64_MAX - bytes ? UINT64_MAX : bytes + more;
      ++leases;
    }
  }
  Status status = check_quota(lease.tenant, bytes, leases);
  if (status.ok() || leases == 1) return status;
  Error error = std::move(status).error();
  error.detail += ", with the " + std::to_string(leases - 1) + (leases == 2 ? " request" : " requests") +
                  " of its that wait; wait for those, or cancel some";
  return error;
}

// --- reservations -----------------------------------------------------------------------------------

uint64_t StateMachine::grantable_bytes(PoolId pool) const {
  uint64_t bytes = 0;
  for (const auto& [id, device] : devices_)
    if (device.pool == pool && placeable(device)) bytes += free_.at(id).free_granules() * device.granule_bytes;
  return bytes;
}

uint64_t StateMachine::filling_bytes(PoolId pool, const std::string& tenant) const {
  uint64_t bytes = tenant_bytes_in(pool, tenant);
  for (const auto& [id, growth] : growths_) {
    const LeaseRow& lease = leases_.at(id);
    if (lease.pool == pool && lease.tenant == tenant) bytes += growth.bytes - lease.bytes;
  }
  return bytes;
}

uint64_t StateMachine::unfilled_reservation(PoolId pool, const std::string& tenant) const {
  const auto at = reserved_bytes_.find({pool, tenant});
  if (at == reserved_bytes_.end()) return 0;
  return at->second - std::min(at->second, filling_bytes(pool, tenant));
}

uint64_t StateMachine::unfilled_of_others(PoolId pool, const std::string& but, const std::string& lessened,
                                          uint64_t less_bytes) const {
  uint64_t sum = 0;
  for (auto at = reserved_bytes_.lower_bound({pool, ""}); at != reserved_bytes_.end(); ++at) {
    const auto& [there, tenant] = at->first;
    if (there != pool) break;
    if (tenant == but) continue;
    uint64_t use = filling_bytes(pool, tenant);
    TERRACE_CHECK(tenant != lessened || use >= less_bytes, "I10: a tenant has what it gives away");
    if (tenant == lessened) use -= less_bytes;
    sum += at->second - std::min(at->second, use);
  }
  return sum;
}

Status StateMachine::check_reservations(PoolId pool, const std::string& tenant, uint64_t bytes) const {
  const uint64_t kept = unfilled_of_others(pool, tenant);
  if (kept == 0) return {};
  const uint64_t free = grantable_bytes(pool);
  if (free >= bytes && free - bytes >= kept) return {};
  return refusal(ErrorCode::capacity_exhausted, "reservations",
                 "pool " + find_pool(pool)->name + " has " + format_size(free) + " free, of which " +
                     format_size(std::min(kept, free)) + " is reserved for other tenants; " +
                     format_size(bytes) + " does not fit into the rest");
}

void StateMachine::index_reservation(const ReservationRow& row, bool in) {
  const std::pair<PoolId, std::string> key{row.pool, row.tenant};
  uint64_t& reserved = reserved_bytes_[key];
  if (in) {
    TERRACE_CHECK(reserved <= UINT64_MAX - row.bytes, "I11: a sum of reservations would wrap");
    reserved += row.bytes;
    const bool inserted = row.expiry_ns == 0 || due_reservations_.insert({row.expiry_ns, row.id}).second;
    TERRACE_CHECK(inserted, "I7: a reservation that is taken in was due already");
    return;
  }
  TERRACE_CHECK(reserved >= row.bytes, "I11: a sum of reservations would fall below zero");
  reserved -= row.bytes;
  if (reserved == 0) reserved_bytes_.erase(key);
  const bool removed = row.expiry_ns == 0 || due_reservations_.erase({row.expiry_ns, row.id}) == 1;
  TERRACE_CHECK(removed, "I7: a reservation that is taken out was not due");
}

Step StateMachine::on(const CreateReservation& command) {
  constexpr const char* where = "CreateReservation";
  const PoolRow* pool = find_pool(command.pool);
  if (pool == nullptr) return refuse(ErrorCode::not_found, where, "there is no pool '" + command.pool + "'");
  if (!valid_name(command.tenant))
    return refuse(ErrorCode::invalid_argument, where, "a tenant is a plain name of at most 63 characters");
  if (command.bytes == 0) return refuse(ErrorCode::invalid_argument, where, "0 bytes cannot be reserved");
  if (command.ttl_ns != 0 && (command.ttl_ns < limits::ttl_ns_min || command.ttl_ns > limits::ttl_ns_max)) {
    return refuse(ErrorCode::invalid_argument, where,
                  "a TTL of " + format_duration(command.ttl_ns) + " is outside " +
                      format_duration(limits::ttl_ns_min) + " to " + format_duration(limits::ttl_ns_max));
  }
  if (reservations_.size() >= limits::reservations_max)
    return refuse(ErrorCode::limit_exceeded, where, "no more than 4096 reservations can be made");

  const uint64_t free = grantable_bytes(pool->id);
  const uint64_t capacity = pool_use(pool->id).capacity_bytes;
  const uint64_t kept = unfilled_of_others(pool->id, command.tenant);
  const auto own = reserved_bytes_.find({pool->id, command.tenant});
  const uint64_t reserved = own == reserved_bytes_.end() ? 0 : own->second;
  ReservationRow row;
  row.pool = pool->id;
  row.tenant = command.tenant;
  row.ttl_ns = command.ttl_ns;
  uint64_t missing = command.bytes;
  if (command.bytes <= capacity) {
    row.bytes = round_up(command.bytes, pool_granule_bytes(pool->id));
    // What the tenant has there beyond its other reservations fills this one.
    const uint64_t use = filling_bytes(pool->id, command.tenant);
    missing = reserved + row.bytes - std::min(reserved + row.bytes, use);
  }
  if (missing > free || kept > free - missing) {
    return refuse(ErrorCode::capacity_exhausted, where,
                  "pool " + pool->name + " has " + format_size(free) + " free, of which " + format_size(kept) +
                      " is reserved for other tenants; tenant " + command.tenant + " would need " +
                      format_size(missing) + " kept");
  }
  row.id = ReservationId{meta_.next_reservation++};
  if (row.ttl_ns != 0) row.expiry_ns = command.now_ns + row.ttl_ns;
  index_reservation(row, true);
  reservations_.emplace(row.id, row);
  Step step;
  step.delta.reservations[row.id] = row;
  step.delta.meta = meta_;
  step.reply = Reply{ReservationReply{std::move(row)}};
  return step;
}

void StateMachine::remove_reservation(ReservationId id, Step& step) {
  const auto at = reservations_.find(id);
  const PoolId pool = at->second.pool;
  index_reservation(at->second, false);
  reservations_.erase(at);
  step.delta.reservations[id] = std::nullopt;
  serve_waiting(pool, step);
}

Step StateMachine::on(const RemoveReservation& command) {
  if (!reservations_.contains(command.reservation)) {
    return refuse(ErrorCode::not_found, "RemoveReservation",
                  "there is no reservation " + std::to_string(command.reservation.value));
  }
  Step step;
  remove_reservation(command.reservation, step);
  return step;
}

Status StateMachine::check_unclaimed(const PoolRow& pool) const {
  const auto reserved = reserved_bytes_.lower_bound({pool.id, ""});
  if (reserved != reserved_bytes_.end() && reserved->first.first == pool.id) {
    return refusal(ErrorCode::busy, "DeletePool",
                   "pool " + pool.name + " has a reservation of tenant " + reserved->first.second +
                       "; remove its reservations first");
  }
  if (const auto queue = queues_.find(pool.id); queue != queues_.end()) {
    return refusal(ErrorCode::busy, "DeletePool",
                   std::to_string(queue->second.size()) + " requests wait for pool " + pool.name +
                       "; let them be served or time out first");
  }
  return {};
}

}  // namespace terrace::daemon
