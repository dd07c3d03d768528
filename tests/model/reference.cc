// SPDX-License-Identifier: Apache-2.0
#include "tests/model/reference.h"

#include <algorithm>
#include <utility>

#include "core/base/limits.h"

namespace terrace::model {
namespace {

using daemon::DeviceRow;
using daemon::LeaseRow;

Expected refused(ErrorCode code) {
  Expected expected;
  expected.code = code;
  return expected;
}

std::string effect(const char* kind, LeaseId id) {
  return std::string(kind) + " " + std::to_string(id.value);
}

bool usable(const LeaseRow& lease) {
  return lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
}

// Pending leases have their label and key already.
bool named(const LeaseRow& lease) {
  return usable(lease) || lease.phase == LeasePhase::transferring || lease.phase == LeasePhase::pending;
}

bool wrong_ttl(uint64_t ttl_ns) {
  return ttl_ns != 0 && (ttl_ns < limits::ttl_ns_min || ttl_ns > limits::ttl_ns_max);
}

}  // namespace

Expected Reference::apply(const daemon::Command& command) {
  return std::visit([this](const auto& c) { return on(c); }, command);
}

const DeviceRow* Reference::device(const std::string& serial) const {
  for (const DeviceRow& row : devices_) {
    if (row.serial == serial) return &row;
  }
  return nullptr;
}

bool Reference::has_pool(const std::string& name) const {
  return std::find(pools_.begin(), pools_.end(), name) != pools_.end();
}

LeaseRow* Reference::lease(LeaseId id, const std::string& tenant) {
  for (LeaseRow& row : leases_) {
    if (row.id == id && (tenant.empty() || row.tenant == tenant)) return &row;
  }
  return nullptr;
}

bool Reference::taken(DeviceId id, uint64_t granule) const {
  for (const LeaseRow& row : leases_) {
    for (const daemon::Extent& extent : row.extents) {
      if (extent.device == id && granule >= extent.first_granule && granule < extent.end()) return true;
    }
  }
  for (const auto& [lease, growth] : growths_) {
    for (const daemon::Extent& extent : growth.extents)
      if (extent.device == id && granule >= extent.first_granule && granule < extent.end()) return true;
  }
  return false;
}

uint64_t Reference::free_granules(const std::string& pool) const {
  uint64_t free = 0;
  for (const DeviceRow& row : devices_) {
    if (pool_of_device_.at(row.serial) != pool || is_absent(row.serial)) continue;
    for (uint64_t i = 0; i < row.capacity_bytes / row.granule_bytes; ++i) free += taken(row.id, i) ? 0 : 1;
  }
  return free;
}

std::optional<uint64_t> Reference::next_due_ns() const {
  std::optional<uint64_t> next;
  for (const LeaseRow& row : leases_) {
    for (const uint64_t at_ns : {row.expiry_ns, row.deadline_ns}) {
      if (at_ns != 0 && (!next.has_value() || at_ns < *next)) next = at_ns;
    }
  }
  for (const Reservation& row : reservations_) {
    if (row.expiry_ns != 0 && (!next.has_value() || row.expiry_ns < *next)) next = row.expiry_ns;
  }
  return next;
}

// --- devices and pools ------------------------------------------------------------------------------

Expected Reference::on(const daemon::AdoptDevice& c) {
  for (DeviceRow& known : devices_) {
    if (known.serial != c.serial) continue;
    const bool grown = known.backend == c.backend && known.granule_bytes == c.granule_bytes &&
                       known.capacity_bytes <= c.capacity_bytes;
    if (!grown) return refused(ErrorCode::already_exists);
    known.capacity_bytes = c.capacity_bytes;
    Expected expected;
    if (absent_.contains(c.serial)) come_back(c.serial, expected);
    return expected;
  }
  DeviceRow row;
  row.id = DeviceId{next_device_++};
  row.serial = c.serial;
  row.backend = c.backend;
  row.capacity_bytes = c.capacity_bytes;
  row.granule_bytes = c.granule_bytes;
  devices_.push_back(row);
  pool_of_device_[c.serial] = "";
  return {};
}

Expected Reference::on(const daemon::CreatePool& c) {
  if (has_pool(c.name)) return refused(ErrorCode::already_exists);
  if (c.device_serials.empty()) return refused(ErrorCode::invalid_argument);
  std::vector<std::string> before;
  for (const std::string& serial : c.device_serials) {
    const DeviceRow* row = device(serial);
    if (row == nullptr) return refused(ErrorCode::not_found);
    if (!pool_of_device_[serial].empty()) return refused(ErrorCode::busy);
    const DeviceRow* head = device(c.device_serials[0]);
    if (row->granule_bytes != head->granule_bytes || row->backend != head->backend)
      return refused(ErrorCode::invalid_argument);
    if (std::find(before.begin(), before.end(), serial) != before.end())
      return refused(ErrorCode::invalid_argument);
    before.push_back(serial);
  }
  pools_.push_back(c.name);
  if (c.trust == daemon::TenantTrust::mutual) trusting_.insert(c.name);
  for (const std::string& serial : c.device_serials) pool_of_device_[serial] = c.name;
  return {};
}

Expected Reference::on(const daemon::DeletePool& c) {
  if (!has_pool(c.name)) return refused(ErrorCode::not_found);
  for (const LeaseRow& row : leases_) {
    if (pool_of_lease_.at(row.id) == c.name) return refused(ErrorCode::busy);
  }
  for (const Reservation& row : reservations_)
    if (row.pool == c.name) return refused(ErrorCode::busy);
  pools_.erase(std::find(pools_.begin(), pools_.end(), c.name));
  trusting_.erase(c.name);
  for (auto& [serial, pool] : pool_of_device_) {
    if (pool == c.name) pool.clear();
  }
  return {};
}

// --- grants -----------------------------------------------------------------------------------------

Expected Reference::on(const daemon::Grant& c) {
  for (const LeaseRow& row : leases_) {
    const bool keyed = c.request_high != 0 || c.request_low != 0;
    if (!keyed || !named(row) || row.tenant != c.tenant || row.request_high != c.request_high ||
        row.request_low != c.request_low)
      continue;
    Expected expected;
    expected.same_lease = row.id;
    return expected;
  }
  if (!has_pool(c.pool)) return refused(ErrorCode::not_found);
  if (c.pins_outlast && !trusting_.contains(c.pool)) return refused(ErrorCode::permission_denied);
  if (c.bytes == 0 || (c.persistent && c.ttl_ns != 0) || wrong_ttl(c.ttl_ns))
    return refused(ErrorCode::invalid_argument);
  for (const LeaseRow& row : leases_) {
    if (!c.label.empty() && named(row) && row.tenant == c.tenant && row.label == c.label)
      return refused(ErrorCode::already_exists);
  }
  if (c.on_fence == daemon::OnFence::kill && c.movable) return refused(ErrorCode::invalid_argument);
  const uint64_t granule = granule_bytes(c.pool);
  const uint64_t granules = (c.bytes - 1) / granule + 1;
  if (granules > capacity_bytes(c.pool) / granule) return refused(ErrorCode::capacity_exhausted);
  if (!in_quota(c.tenant, granules * granule, 1)) return refused(ErrorCode::limit_exceeded);
  if (!room(c.pool, c.tenant, granules * granule)) return refused(ErrorCode::capacity_exhausted);
  return {};
}

Expected Reference::on(const daemon::CancelGrant&) {
  return {};  // nobody waits: that is the simulator's and queue_test's
}

Expected Reference::on(const daemon::CancelWaiting& c) {
  return refused(lease(c.lease, "") == nullptr ? ErrorCode::not_found : ErrorCode::busy);
}

std::string Reference::placed(const daemon::Grant& grant, const LeaseRow& row) {
  uint64_t bytes = 0;
  uint64_t granule_bytes = 0;
  for (const daemon::Extent& extent : row.extents) {
    const auto at = std::find_if(devices_.begin(), devices_.end(),
                                 [&](const DeviceRow& d) { return d.id == extent.device; });
    if (at == devices_.end() || pool_of_device_.at(at->serial) != grant.pool) return "a device of another pool";
    granule_bytes = at->granule_bytes;
    for (uint64_t i = extent.first_granule; i < extent.end(); ++i) {
      if (i >= at->capacity_bytes / at->granule_bytes) return "a granule beyond the device";
      if (taken(extent.device, i)) return "a granule of another lease";
    }
    bytes += extent.granules * granule_bytes;
  }
  if (bytes != row.bytes || bytes < grant.bytes || bytes - grant.bytes >= granule_bytes) return "wrong bytes";
  if (row.id.value <= last_id_ || row.epoch.value <= last_epoch_) return "an old id or epoch";
  for (const LeaseRow& other : leases_) {
    if (other.id == row.id || other.epoch == row.epoch || other.object == row.object) return "a used identity";
  }
  if (row.phase != LeasePhase::pending || row.expiry_ns != 0 || row.tenant != grant.tenant ||
      row.label != grant.label || row.mode != grant.mode || row.on_fence != grant.on_fence ||
      row.movable != grant.movable)
    return "a row that is not what was asked for";
  const uint64_t ttl_ns = grant.persistent ? 0 : (grant.ttl_ns == 0 ? limits::ttl_ns_default : grant.ttl_ns);
  if (row.ttl_ns != ttl_ns) return "a wrong TTL";
  leases_.push_back(row);
  pool_of_lease_[row.id] = grant.pool;
  return {};
}

Expected Reference::on(const daemon::CarveFinished& c) {
  LeaseRow* row = lease(c.lease, "");
  if (row == nullptr || row->phase != LeasePhase::pending) return refused(ErrorCode::not_found);
  if (!c.status.ok()) {
    moves_.erase(c.lease);
    std::erase_if(leases_, [&](const LeaseRow& other) { return other.id == c.lease; });
    return refused(c.status.error().code);
  }
  if (lost(row->extents)) {
    Expected expected = refused(ErrorCode::unavailable);
    for (auto& [target, move] : moves_)
      if (target == c.lease) move.carved = true;
    fence(*row, daemon::LeaseCause::device_lost, expected);
    return expected;
  }
  if (const auto move = moves_.find(c.lease); move != moves_.end()) {
    move->second.carved = true;
    if (move->second.lease.valid()) return {};
    Expected expected = refused(ErrorCode::cancelled);
    fence(*row, daemon::LeaseCause::released, expected);
    return expected;
  }
  row->phase = LeasePhase::active;
  if (row->ttl_ns != 0) row->expiry_ns = c.now_ns + row->ttl_ns;
  last_id_ = std::max(last_id_, row->id.value);
  last_epoch_ = std::max(last_epoch_, row->epoch.value);
  return {};
}

// --- restart ----------------------------------------------------------------------------------------

Expected Reference::restart(const std::map<std::string, uint64_t>& objects, const std::set<std::string>& seen,
                            bool same_boot, uint64_t now_ns) {
  using daemon::LeaseCause;
  Expected expected;
  for (const auto& [id, growth] : growths_) {  // durable as a lease of the new size that is cut to the old
    LeaseRow& row = *lease(id, "");
    if (growth.extents.empty()) continue;
    row.target_bytes = std::exchange(row.bytes, growth.bytes);
    row.extents.insert(row.extents.end(), growth.extents.begin(), growth.extents.end());
  }
  growths_.clear();
  moves_.clear();
  offers_.clear();
  absent_.clear();
  for (const DeviceRow& row : devices_)
    if (!seen.contains(row.serial)) absent_.insert(row.serial);
  std::erase_if(leases_, [](const LeaseRow& row) { return row.phase == LeasePhase::pending; });
  for (LeaseRow& row : leases_) {
    const auto object = objects.find(row.object);
    const LeaseCause gone = absent(row) ? LeaseCause::device_lost : LeaseCause::object_lost;
    if (row.phase == LeasePhase::fencing || row.phase == LeasePhase::scrubbing) {
      fence(row, row.cause, expected);
    } else if (row.phase == LeasePhase::quarantined) {
      if (row.cause == LeaseCause::device_lost && !lost(row.extents)) fence(row, row.cause, expected);
    } else if (row.phase == LeasePhase::transferring) {
      if (object == objects.end() && !objects.contains(row.next_object)) {
        fence(row, gone, expected);
      } else {
        expected.effects.insert(effect("rebind", row.id));
      }
    } else if (object == objects.end()) {
      fence(row, gone, expected);
    } else if (object->second < row.bytes && (row.target_bytes == 0 || object->second != row.target_bytes)) {
      fence(row, LeaseCause::object_lost, expected);
    } else {
      if (!same_boot && row.ttl_ns != 0) row.expiry_ns = now_ns + row.ttl_ns;
      if (same_boot && row.ttl_ns != 0 && row.phase == LeasePhase::active)
        row.expiry_ns = std::max(row.expiry_ns, now_ns + row.ttl_ns);  // renewals are in nobody's store
      if (row.phase == LeasePhase::revoking) {
        if (!same_boot) row.deadline_ns = now_ns;
        expected.effects.insert(effect("notice", row.id));
      }
      if (row.target_bytes != 0 || object->second > row.bytes)
        expected.effects.insert(effect("resize", row.id));
      if (row.target_bytes == 0 && object->second > row.bytes) growths_[row.id] = {{}, row.bytes};
    }
  }
  for (Reservation& row : reservations_)
    if (!same_boot && row.ttl_ns != 0) row.expiry_ns = now_ns + row.ttl_ns;
  for (auto& [part, owner] : owners_)
    if (!same_boot) owner = {owner.epoch, 0, {}};
  return expected;
}

}  // namespace terrace::model
