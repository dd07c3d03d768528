// SPDX-License-Identifier: Apache-2.0
// Devices: adopted, added to pools, drained, given up, lost and back, removed.
//
// A device is absent when discovery does not see it, which no row records: each start looks anew. It is failed
// when an operator said so, which is durable. Both take the leases on it with them, and no others.
#include <algorithm>

#include "core/base/limits.h"
#include "daemon/state/names.h"
#include "daemon/state/refuse.h"
#include "daemon/state/state_machine.h"

namespace terrace::daemon {
namespace {

Step not_adopted(const char* where, const std::string& serial) {
  return refuse(ErrorCode::not_found, where,
                "device '" + serial + "' is not adopted; `terrace device list` shows those there are");
}

bool lies_on(const std::vector<Extent>& extents, DeviceId device) {
  return std::any_of(extents.begin(), extents.end(), [&](const Extent& e) { return e.device == device; });
}

}  // namespace

DeviceRow* StateMachine::mutable_device(const std::string& serial) {
  for (auto& [id, device] : devices_)
    if (device.serial == serial) return &device;
  return nullptr;
}

const DeviceRow* StateMachine::absent_device_of(const std::vector<Extent>& extents) const {
  for (const Extent& extent : extents)
    if (absent_.contains(extent.device)) return find_device(extent.device);
  return nullptr;
}

const DeviceRow* StateMachine::lost_device_of(const std::vector<Extent>& extents) const {
  for (const Extent& extent : extents) {
    const DeviceRow* device = find_device(extent.device);
    if (device->state == DeviceState::failed || absent_.contains(extent.device)) return device;
  }
  return nullptr;
}

std::map<DeviceId, StateMachine::DeviceUse> StateMachine::device_uses() const {
  std::map<DeviceId, DeviceUse> uses;
  const auto add = [&uses](const std::vector<Extent>& extents, std::set<DeviceId>& counted) {
    for (const Extent& extent : extents) {
      DeviceUse& use = uses[extent.device];
      use.bytes += extent.granules;  // in granules until the end
      if (counted.insert(extent.device).second) ++use.leases;
    }
  };
  for (const auto& [id, lease] : leases_) {
    std::set<DeviceId> counted;
    add(lease.extents, counted);
    if (const auto growth = growths_.find(id); growth != growths_.end()) add(growth->second.extents, counted);
  }
  for (auto& [id, use] : uses) use.bytes *= devices_.at(id).granule_bytes;
  return uses;
}

Step StateMachine::on(const AdoptDevice& command) {
  constexpr const char* where = "AdoptDevice";
  if (!valid_name(command.serial))
    return refuse(ErrorCode::invalid_argument, where, "'" + command.serial + "' is no device serial");
  if (!is_power_of_two(command.granule_bytes) || command.granule_bytes < limits::granule_bytes ||
      command.granule_bytes > limits::granule_bytes_max || command.capacity_bytes < command.granule_bytes ||
      command.capacity_bytes / command.granule_bytes > device_granules_max) {
    return refuse(ErrorCode::invalid_argument, where,
                  "device " + command.serial + " has " + format_size(command.capacity_bytes) +
                      " in granules of " + format_size(command.granule_bytes) +
                      "; it needs at least one granule of 2 MiB to 1 GiB, and at most 2^40 of them");
  }
  const uint64_t usable = command.capacity_bytes / command.granule_bytes * command.granule_bytes;
  DeviceRow* known = mutable_device(command.serial);
  uint64_t adopted = usable;
  for (const auto& [id, device] : devices_)
    if (&device != known) adopted += std::min(device.capacity_bytes, adopted_bytes_max);
  if (usable > adopted_bytes_max || adopted > adopted_bytes_max)
    return refuse(ErrorCode::limit_exceeded, where, "no more than 2^62 bytes can be adopted");

  Step step;
  if (known != nullptr) {
    if (known->backend != command.backend || known->granule_bytes != command.granule_bytes ||
        usable < known->capacity_bytes) {
      return refuse(ErrorCode::already_exists, where,
                    "device " + command.serial + " was adopted as " + known->backend + " with " +
                        format_size(known->capacity_bytes) + " in granules of " +
                        format_size(known->granule_bytes) + " and now shows " + command.backend + " with " +
                        format_size(usable) + " in granules of " + format_size(command.granule_bytes) +
                        "; it may grow, never shrink: restore it, or drain and remove it and adopt it anew");
    }
    const bool grown = usable > known->capacity_bytes;
    if (grown) {
      const uint64_t more = (usable - known->capacity_bytes) / known->granule_bytes;
      free_.at(known->id).grow(more);
      account_.grow_device(known->id, more);
      known->capacity_bytes = usable;
      step.delta.devices[known->id] = *known;
    }
    step.reply = Reply{DeviceReply{*known}};
    // Where leases wait for it, what is on it has to be looked at first: DeviceBack.
    if (absent_.contains(known->id) && awaiting(known->id).empty()) {
      come_back(*known, step);
    } else if (grown) {
      serve_all_waiting(step);
    }
    return step;
  }
  if (devices_.size() >= limits::devices_max)
    return refuse(ErrorCode::limit_exceeded, where, "no more than 4096 devices can be adopted");

  DeviceRow row;
  row.id = DeviceId{meta_.next_device++};
  row.serial = command.serial;
  row.backend = command.backend;
  row.granule_bytes = command.granule_bytes;
  row.capacity_bytes = usable;
  free_.emplace(row.id, ExtentMap(row.capacity_bytes / row.granule_bytes));
  account_.add_device(row.id, row.capacity_bytes / row.granule_bytes);
  devices_.emplace(row.id, row);
  step.delta.devices[row.id] = row;
  step.delta.meta = meta_;
  step.reply = Reply{DeviceReply{std::move(row)}};
  return step;
}

// --- drained, and back ------------------------------------------------------------------------------

Step StateMachine::on(const DrainDevice& command) {
  constexpr const char* where = "DrainDevice";
  DeviceRow* device = mutable_device(command.serial);
  if (device == nullptr) return not_adopted(where, command.serial);
  if (device->state == DeviceState::failed) {
    return refuse(ErrorCode::busy, where,
                  "device " + command.serial + " was given up: its leases are gone from it already; `terrace " +
                      "device undrain " + command.serial + "` puts it back into service");
  }
  Step step;
  if (device->state != DeviceState::draining) {
    device->state = DeviceState::draining;
    step.delta.devices[device->id] = *device;
  }
  step.reply = Reply{DeviceReply{*device}};
  return step;
}

Step StateMachine::on(const UndrainDevice& command) {
  DeviceRow* device = mutable_device(command.serial);
  if (device == nullptr) return not_adopted("UndrainDevice", command.serial);
  Step step;
  if (device->state != DeviceState::in_service) {
    const bool failed = device->state == DeviceState::failed;
    device->state = DeviceState::in_service;
    step.delta.devices[device->id] = *device;
    if (failed) {
      retry_quarantined(device->id, false,
                        "device " + device->serial + " was given up, and is in service again", step);
    }
    serve_all_waiting(step);
  }
  step.reply = Reply{DeviceReply{*device}};
  return step;
}

// --- lost, and back ---------------------------------------------------------------------------------

void StateMachine::fence_leases_on(DeviceId device, const std::string& reason, Step& step) {
  // Ids first: fencing a lease may take others out (what it was being moved to).
  std::vector<LeaseId> held;
  for (const auto& [id, lease] : leases_) {
    const bool has_holder = lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking ||
                            lease.phase == LeasePhase::transferring;
    const auto move = moves_.find(id);
    const bool carved_target = move != moves_.end() && move->second.carved;
    const auto growth = growths_.find(id);
    const bool there =
        lies_on(lease.extents, device) || (growth != growths_.end() && lies_on(growth->second.extents, device));
    if ((has_holder || carved_target) && there) held.push_back(id);
  }
  for (const LeaseId id : held) {
    const auto lease = leases_.find(id);
    if (lease == leases_.end() || lease->second.phase == LeasePhase::fencing) continue;  // went with another
    begin_fence(lease->second, LeaseCause::device_lost, reason, step);
  }
}

void StateMachine::retry_quarantined(DeviceId device, bool failed_too, const std::string& reason, Step& step) {
  for (auto& [id, lease] : leases_) {
    if (lease.phase != LeasePhase::quarantined || lease.cause != LeaseCause::device_lost) continue;
    if (!lies_on(lease.extents, device)) continue;
    const DeviceRow* missing = failed_too ? absent_device_of(lease.extents) : lost_device_of(lease.extents);
    if (missing == nullptr) begin_fence(lease, LeaseCause::device_lost, reason, step);
  }
}

void StateMachine::come_back(const DeviceRow& device, Step& step) {
  absent_.erase(device.id);
  retry_quarantined(device.id, true, "device " + device.serial + " vanished, and is back", step);
  serve_all_waiting(step);
}

Step StateMachine::on(const FailDevice& command) {
  DeviceRow* device = mutable_device(command.serial);
  if (device == nullptr) return not_adopted("FailDevice", command.serial);
  Step step;
  if (device->state != DeviceState::failed) {
    device->state = DeviceState::failed;
    step.delta.devices[device->id] = *device;
    fence_leases_on(device->id, "device " + device->serial + " was given up", step);
  }
  step.reply = Reply{DeviceReply{*device}};
  return step;
}

Step StateMachine::on(const DeviceLost& command) {
  Step step;
  const DeviceRow* device = find_device(command.serial);
  if (device == nullptr || !absent_.insert(device->id).second) return step;
  fence_leases_on(device->id, "device " + device->serial + " vanished", step);
  return step;
}

Step StateMachine::on(const DeviceBack& command) {
  Step step;
  const DeviceRow* device = find_device(command.serial);
  if (device == nullptr || !absent_.contains(device->id)) return step;
  absent_.erase(device->id);
  end_waits(command.objects, step);
  come_back(*device, step);
  return step;
}

std::vector<LeaseId> StateMachine::awaiting(DeviceId id) const {
  std::vector<LeaseId> waiting;
  for (const LeaseId lease : awaited_)
    if (lies_on(leases_.at(lease).extents, id)) waiting.push_back(lease);
  return waiting;
}

// Of the leases that waited, those all of whose devices are there again: with their objects they go on.
void StateMachine::end_waits(const std::vector<std::pair<std::string, uint64_t>>& objects, Step& step) {
  std::vector<LeaseId> arrived;
  for (const LeaseId id : awaited_)
    if (absent_device_of(leases_.at(id).extents) == nullptr) arrived.push_back(id);
  for (const LeaseId id : arrived) {
    awaited_.erase(id);
    LeaseRow& lease = leases_.at(id);
    if (lease.phase == LeasePhase::transferring) {
      step.effects.push_back(
          RebindObject{lease.id, lease.object, lease.next_object, lease.bytes, lease.extents});
      continue;
    }
    const bool whole = std::any_of(objects.begin(), objects.end(), [&](const auto& object) {
      return object.first == lease.object &&
             (object.second >= lease.bytes || (lease.target_bytes != 0 && object.second == lease.target_bytes));
    });
    if (!whole) {
      lose_object(lease, lease.object, "its device came back without its memory object", step);
    } else if (lease.target_bytes != 0) {  // it was being resized when the manager ended
      std::vector<Extent> kept = lease.extents;
      cut(kept, lease.target_bytes / pool_granule_bytes(lease.pool));
      step.effects.push_back(
          ResizeObject{lease.id, lease.object, lease.bytes, lease.target_bytes, std::move(kept)});
    }
  }
}

// --- removed ----------------------------------------------------------------------------------------

Status StateMachine::check_leaves(const DeviceRow& device, bool forget_quarantined) const {
  const bool gone = device.state == DeviceState::failed || absent_.contains(device.id);
  uint64_t blocking = 0;
  uint64_t quarantined = 0;
  std::string names;
  const auto blocks = [&](LeaseId id) {
    if (++blocking <= 3) names += (blocking == 1 ? "" : ", ") + std::to_string(id.value);
  };
  for (const auto& [id, lease] : leases_) {
    if (!lies_on(lease.extents, device.id)) continue;
    if (lease.phase == LeasePhase::quarantined) ++quarantined;
    if (lease.phase != LeasePhase::quarantined || !gone || !forget_quarantined) blocks(id);
  }
  for (const auto& [id, growth] : growths_)
    if (lies_on(growth.extents, device.id) && !lies_on(leases_.at(id).extents, device.id)) blocks(id);
  if (blocking == 0) return {};
  const std::string what = quarantined < blocking ? "drain it and wait, or release or revoke them"
                                                  : (gone ? "--forget-quarantined gives them up with it"
                                                          : "release them, or give the device up first");
  return Error{.code = ErrorCode::busy,
               .where = "RemoveDevice",
               .detail = "device " + device.serial + " still has " + std::to_string(blocking) +
                         (blocking == 1 ? " lease" : " leases") + " (" + names + (blocking > 3 ? ", ..." : "") +
                         "); " + what};
}

void StateMachine::forget_extents_on(DeviceId device, Step& step) {
  std::vector<LeaseId> touched;
  for (const auto& [id, lease] : leases_)
    if (lies_on(lease.extents, device)) touched.push_back(id);
  const DeviceRow& row = devices_.at(device);
  for (const LeaseId id : touched) {
    LeaseRow& lease = leases_.at(id);
    std::vector<Extent> kept, given_up;
    for (const Extent& extent : lease.extents) (extent.device == device ? given_up : kept).push_back(extent);
    if (kept.empty()) {
      step.delta.leases[id] = std::nullopt;
      forget_views(id, step.delta);
      forget(id);
      continue;
    }
    unindex_lease(lease);
    for (const Extent& extent : given_up) lease.bytes -= extent.granules * row.granule_bytes;
    lease.extents = std::move(kept);
    index_lease(lease);
    give_back(given_up);
    begin_fence(lease, LeaseCause::device_lost, "device " + row.serial + " was removed; the rest is erased",
                step);
  }
}

// What is forgotten has no row any more. If its memory object still exists, the next start finds it an orphan.
Step StateMachine::on(const RemoveDevice& command) {
  constexpr const char* where = "RemoveDevice";
  const DeviceRow* device = find_device(command.serial);
  if (device == nullptr) return not_adopted(where, command.serial);
  Step step;
  if (Status status = check_leaves(*device, command.forget_quarantined); !status.ok()) {
    step.reply = std::move(status).error();
    return step;
  }
  const DeviceId id = device->id;
  forget_extents_on(id, step);
  devices_.erase(id);
  free_.erase(id);
  account_.remove_device(id);
  absent_.erase(id);
  step.delta.devices[id] = std::nullopt;
  return step;
}

}  // namespace terrace::daemon
