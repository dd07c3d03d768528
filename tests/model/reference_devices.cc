// SPDX-License-Identifier: Apache-2.0
// Devices in the reference: their states, and what happens to the leases on them.
#include <algorithm>

#include "tests/model/reference.h"

namespace terrace::model {
namespace {

using daemon::DeviceRow;
using daemon::DeviceState;
using daemon::LeaseCause;
using daemon::LeaseRow;

Expected refused(ErrorCode code) {
  Expected expected;
  expected.code = code;
  return expected;
}

bool lies_on(const std::vector<daemon::Extent>& extents, DeviceId id) {
  return std::any_of(extents.begin(), extents.end(), [id](const daemon::Extent& e) { return e.device == id; });
}

}  // namespace

DeviceRow* Reference::mutable_device(const std::string& serial) {
  for (DeviceRow& row : devices_)
    if (row.serial == serial) return &row;
  return nullptr;
}

const DeviceRow& Reference::device(DeviceId id) const {
  return *std::find_if(devices_.begin(), devices_.end(), [id](const DeviceRow& row) { return row.id == id; });
}

bool Reference::absent(const LeaseRow& lease) const {
  return std::any_of(lease.extents.begin(), lease.extents.end(),
                     [this](const daemon::Extent& e) { return absent_.contains(device(e.device).serial); });
}

bool Reference::lost(const std::vector<daemon::Extent>& extents) const {
  return std::any_of(extents.begin(), extents.end(), [this](const daemon::Extent& e) {
    const DeviceRow& row = device(e.device);
    return row.state == DeviceState::failed || absent_.contains(row.serial);
  });
}

// Also what is only growing onto it, and targets of moves that are made already.
void Reference::fence_all_on(DeviceId id, Expected& expected) {
  for (LeaseRow& row : leases_) {
    const auto growth = growths_.find(row.id);
    const auto move = moves_.find(row.id);
    const bool held = row.phase == LeasePhase::active || row.phase == LeasePhase::revoking ||
                      row.phase == LeasePhase::transferring || (move != moves_.end() && move->second.carved);
    const bool there =
        lies_on(row.extents, id) || (growth != growths_.end() && lies_on(growth->second.extents, id));
    if (held && there) fence(row, LeaseCause::device_lost, expected);
  }
}

void Reference::retry_quarantined(DeviceId id, bool failed_too, Expected& expected) {
  for (LeaseRow& row : leases_) {
    if (row.phase != LeasePhase::quarantined || row.cause != LeaseCause::device_lost ||
        !lies_on(row.extents, id))
      continue;
    if (failed_too ? !absent(row) : !lost(row.extents)) fence(row, LeaseCause::device_lost, expected);
  }
}

void Reference::come_back(const std::string& serial, Expected& expected) {
  absent_.erase(serial);
  retry_quarantined(mutable_device(serial)->id, true, expected);
}

Expected Reference::on(const daemon::AddDevice& c) {
  if (!has_pool(c.pool)) return refused(ErrorCode::not_found);
  const DeviceRow* row = device(c.serial);
  if (row == nullptr) return refused(ErrorCode::not_found);
  std::string& pool = pool_of_device_.at(c.serial);
  if (pool == c.pool) return {};
  if (!pool.empty()) return refused(ErrorCode::busy);
  for (const DeviceRow& other : devices_) {
    if (pool_of_device_.at(other.serial) != c.pool) continue;
    if (other.granule_bytes != row->granule_bytes || other.backend != row->backend)
      return refused(ErrorCode::invalid_argument);
  }
  pool = c.pool;
  return {};
}

Expected Reference::on(const daemon::DrainDevice& c) {
  DeviceRow* row = mutable_device(c.serial);
  if (row == nullptr) return refused(ErrorCode::not_found);
  if (row->state == DeviceState::failed) return refused(ErrorCode::busy);
  row->state = DeviceState::draining;
  return {};
}

Expected Reference::on(const daemon::UndrainDevice& c) {
  DeviceRow* row = mutable_device(c.serial);
  if (row == nullptr) return refused(ErrorCode::not_found);
  Expected expected;
  const bool failed = row->state == DeviceState::failed;
  row->state = DeviceState::in_service;
  if (failed) retry_quarantined(row->id, false, expected);
  return expected;
}

Expected Reference::on(const daemon::FailDevice& c) {
  DeviceRow* row = mutable_device(c.serial);
  if (row == nullptr) return refused(ErrorCode::not_found);
  Expected expected;
  if (row->state == DeviceState::failed) return expected;
  row->state = DeviceState::failed;
  fence_all_on(row->id, expected);
  return expected;
}

Expected Reference::on(const daemon::DeviceLost& c) {
  Expected expected;
  const DeviceRow* row = mutable_device(c.serial);
  if (row != nullptr && absent_.insert(c.serial).second) fence_all_on(row->id, expected);
  return expected;
}

Expected Reference::on(const daemon::DeviceBack& c) {
  Expected expected;
  if (absent_.contains(c.serial)) come_back(c.serial, expected);
  return expected;
}

Expected Reference::on(const daemon::RemoveDevice& c) {
  const DeviceRow* row = mutable_device(c.serial);
  if (row == nullptr) return refused(ErrorCode::not_found);
  const DeviceId id = row->id;
  const bool gone = row->state == DeviceState::failed || absent_.contains(c.serial);
  for (const LeaseRow& other : leases_) {
    const auto growth = growths_.find(other.id);
    if (growth != growths_.end() && lies_on(growth->second.extents, id)) return refused(ErrorCode::busy);
    if (!lies_on(other.extents, id)) continue;
    if (other.phase != LeasePhase::quarantined || !gone || !c.forget_quarantined)
      return refused(ErrorCode::busy);
  }
  Expected expected;
  for (LeaseRow& other : leases_) {
    if (!lies_on(other.extents, id)) continue;
    std::erase_if(other.extents, [id](const daemon::Extent& e) { return e.device == id; });
    other.bytes = 0;
    for (const daemon::Extent& e : other.extents) other.bytes += e.granules * device(e.device).granule_bytes;
    if (!other.extents.empty()) fence(other, LeaseCause::device_lost, expected);
  }
  std::erase_if(leases_, [](const LeaseRow& other) { return other.extents.empty(); });
  std::erase_if(devices_, [id](const DeviceRow& other) { return other.id == id; });
  pool_of_device_.erase(c.serial);
  absent_.erase(c.serial);
  return expected;
}

}  // namespace terrace::model
