// SPDX-License-Identifier: Apache-2.0
// Quotas, reservations and room in the reference, each sum by a walk over everything.
#include <algorithm>

#include "core/base/limits.h"
#include "tests/model/reference.h"

namespace terrace::model {
namespace {

using daemon::LeaseRow;

Expected refused(ErrorCode code) {
  Expected expected;
  expected.code = code;
  return expected;
}

bool counts(const LeaseRow& row) {
  return row.phase == LeasePhase::pending || row.phase == LeasePhase::active ||
         row.phase == LeasePhase::revoking || row.phase == LeasePhase::transferring;
}

}  // namespace

uint64_t Reference::granule_bytes(const std::string& pool) const {
  for (const daemon::DeviceRow& row : devices_)
    if (pool_of_device_.at(row.serial) == pool) return row.granule_bytes;
  return limits::granule_bytes;
}

uint64_t Reference::capacity_bytes(const std::string& pool) const {
  uint64_t bytes = 0;
  for (const daemon::DeviceRow& row : devices_)
    if (pool_of_device_.at(row.serial) == pool) bytes += row.capacity_bytes;
  return bytes;
}

uint64_t Reference::grantable_bytes(const std::string& pool) const {
  uint64_t bytes = 0;
  for (const daemon::DeviceRow& row : devices_) {
    if (pool_of_device_.at(row.serial) != pool || row.state != daemon::DeviceState::in_service ||
        absent_.contains(row.serial))
      continue;
    for (uint64_t i = 0; i < row.capacity_bytes / row.granule_bytes; ++i)
      if (!taken(row.id, i)) bytes += row.granule_bytes;
  }
  return bytes;
}

bool Reference::in_quota(const std::string& tenant, uint64_t bytes, uint64_t leases) const {
  auto quota = quotas_.find(tenant);
  if (quota == quotas_.end()) quota = quotas_.find("*");
  if (quota == quotas_.end()) return true;
  uint64_t had_bytes = 0, had_leases = 0;
  for (const LeaseRow& row : leases_) {
    if (const auto move = moves_.find(row.id);
        move != moves_.end() && move->second.own_accord && row.tenant == tenant)
      had_bytes += row.bytes;
    if (row.tenant != tenant || !counts(row) || moves_.contains(row.id)) continue;
    const auto growth = growths_.find(row.id);
    had_bytes += growth == growths_.end() ? row.bytes : growth->second.bytes;
    ++had_leases;
  }
  const daemon::QuotaRow& most = quota->second;
  return (most.bytes_max == 0 || had_bytes + bytes <= most.bytes_max) &&
         (most.leases_max == 0 || leases == 0 || had_leases + leases <= most.leases_max);
}

uint64_t Reference::use_in(const std::string& pool, const std::string& tenant) const {
  uint64_t bytes = 0;
  for (const LeaseRow& row : leases_) {
    if (pool_of_lease_.at(row.id) != pool || row.tenant != tenant || !counts(row) || moves_.contains(row.id))
      continue;
    const auto growth = growths_.find(row.id);
    bytes += growth == growths_.end() ? row.bytes : growth->second.bytes;
  }
  return bytes;
}

uint64_t Reference::kept_for_others(const std::string& pool, const std::string& but,
                                    const std::string& lessened, uint64_t less) const {
  std::map<std::string, uint64_t> reserved;
  for (const Reservation& row : reservations_)
    if (row.pool == pool && row.tenant != but) reserved[row.tenant] += row.bytes;
  uint64_t sum = 0;
  for (const auto& [tenant, bytes] : reserved) {
    const uint64_t use = use_in(pool, tenant) - (tenant == lessened ? less : 0);
    if (use < bytes) sum += bytes - use;
  }
  return sum;
}

bool Reference::room(const std::string& pool, const std::string& tenant, uint64_t bytes) const {
  return grantable_bytes(pool) >= bytes + kept_for_others(pool, tenant) ||
         (kept_for_others(pool, tenant) == 0 && grantable_bytes(pool) >= bytes);
}

Expected Reference::on(const daemon::SetQuota& c) {
  quotas_.erase(c.quota.tenant);
  if (c.quota.bytes_max != 0 || c.quota.leases_max != 0) quotas_[c.quota.tenant] = c.quota;
  return {};
}

Expected Reference::on(const daemon::CreateReservation& c) {
  if (!has_pool(c.pool)) return refused(ErrorCode::not_found);
  if (c.bytes == 0 || (c.ttl_ns != 0 && (c.ttl_ns < limits::ttl_ns_min || c.ttl_ns > limits::ttl_ns_max)))
    return refused(ErrorCode::invalid_argument);
  const uint64_t granule = granule_bytes(c.pool);
  const uint64_t bytes = (c.bytes + granule - 1) / granule * granule;
  uint64_t reserved = bytes;
  for (const Reservation& row : reservations_)
    if (row.pool == c.pool && row.tenant == c.tenant) reserved += row.bytes;
  const uint64_t use = use_in(c.pool, c.tenant);
  const uint64_t missing = reserved > use ? reserved - use : 0;
  if (c.bytes > capacity_bytes(c.pool) || missing + kept_for_others(c.pool, c.tenant) > grantable_bytes(c.pool))
    return refused(ErrorCode::capacity_exhausted);
  Reservation row{ReservationId{next_reservation_++}, c.pool, c.tenant, bytes, c.ttl_ns, 0};
  if (c.ttl_ns != 0) row.expiry_ns = c.now_ns + c.ttl_ns;
  reservations_.push_back(row);
  return {};
}

Expected Reference::on(const daemon::RemoveReservation& c) {
  const size_t removed = std::erase_if(reservations_, [&](const auto& row) { return row.id == c.reservation; });
  return removed == 0 ? refused(ErrorCode::not_found) : Expected{};
}

// Only ended here: what a compaction plans is compaction_test's and the simulator's.
Expected Reference::on(const daemon::CompactPool& c) {
  return has_pool(c.pool) ? Expected{} : refused(ErrorCode::not_found);
}

}  // namespace terrace::model
