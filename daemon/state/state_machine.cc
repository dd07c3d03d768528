#include "daemon/state/state_machine.h"

#include <algorithm>
#include <type_traits>

#include "core/base/limits.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

Step refuse(ErrorCode code, const char* where, std::string detail) {
  Step step;
  step.reply = Error{.code = code, .where = where, .detail = std::move(detail)};
  return step;
}

}  // namespace

Step StateMachine::apply(const Command& command) {
  return std::visit([this](const auto& c) { return on(c); }, command);
}

// --- devices and pools ------------------------------------------------------------------------------

Step StateMachine::on(const AdoptDevice& command) {
  constexpr const char* where = "AdoptDevice";
  if (!valid_name(command.serial))
    return refuse(ErrorCode::invalid_argument, where, "'" + command.serial + "' is no device serial");
  if (!is_power_of_two(command.granule_bytes) || command.granule_bytes < limits::granule_bytes ||
      command.granule_bytes > limits::granule_bytes_max || command.capacity_bytes < command.granule_bytes) {
    return refuse(ErrorCode::invalid_argument, where,
                  "device " + command.serial + " has " + format_size(command.capacity_bytes) +
                      " in granules of " + format_size(command.granule_bytes) +
                      "; it needs at least one granule of 2 MiB to 1 GiB");
  }
  if (const DeviceRow* known = find_device(command.serial)) {
    const uint64_t usable = command.capacity_bytes / command.granule_bytes * command.granule_bytes;
    if (known->capacity_bytes != usable || known->granule_bytes != command.granule_bytes) {
      return refuse(ErrorCode::already_exists, where,
                    "device " + command.serial + " was adopted with " + format_size(known->capacity_bytes) +
                        " and now shows " + format_size(usable) + "; restore its size");
    }
    absent_.erase(known->id);  // it was not seen at start, and is back
    Step step;
    step.reply = Reply{DeviceReply{*known}};
    return step;
  }
  if (devices_.size() >= limits::devices_max)
    return refuse(ErrorCode::limit_exceeded, where, "no more than 4096 devices can be adopted");

  DeviceRow row;
  row.id = DeviceId{meta_.next_device++};
  row.serial = command.serial;
  row.backend = command.backend;
  row.granule_bytes = command.granule_bytes;
  row.capacity_bytes = command.capacity_bytes / command.granule_bytes * command.granule_bytes;
  free_.emplace(row.id, ExtentMap(row.capacity_bytes / row.granule_bytes));
  devices_.emplace(row.id, row);
  Step step;
  step.delta.devices[row.id] = row;
  step.delta.meta = meta_;
  step.reply = Reply{DeviceReply{std::move(row)}};
  return step;
}

Step StateMachine::on(const CreatePool& command) {
  constexpr const char* where = "CreatePool";
  if (!valid_name(command.name)) {
    return refuse(ErrorCode::invalid_argument, where,
                  "'" + command.name + "' is no pool name; use letters, digits and -_.:@, at most 63");
  }
  if (find_pool(command.name) != nullptr)
    return refuse(ErrorCode::already_exists, where, "pool " + command.name + " exists already");
  if (pools_.size() >= limits::pools_max)
    return refuse(ErrorCode::limit_exceeded, where, "no more than 1024 pools can be made");
  if (command.device_serials.empty())
    return refuse(ErrorCode::invalid_argument, where, "a pool needs at least one device");

  std::vector<DeviceId> members;
  for (const std::string& serial : command.device_serials) {
    const DeviceRow* device = find_device(serial);
    if (device == nullptr) {
      return refuse(ErrorCode::not_found, where,
                    "device '" + serial +
                        "' is not adopted; see `terrace device list`, then `terrace device adopt " + serial +
                        "`");
    }
    if (device->pool.valid()) {
      return refuse(ErrorCode::busy, where,
                    "device " + serial + " belongs to pool " + find_pool(device->pool)->name);
    }
    const DeviceRow& first = *find_device(command.device_serials.front());
    if (device->granule_bytes != first.granule_bytes || device->backend != first.backend) {
      return refuse(ErrorCode::invalid_argument, where,
                    "devices of one pool need the same kind and granule; " + serial + " is " + device->backend +
                        " with " + format_size(device->granule_bytes) + ", " + first.serial + " is " +
                        first.backend + " with " + format_size(first.granule_bytes));
    }
    if (std::find(members.begin(), members.end(), device->id) != members.end())
      return refuse(ErrorCode::invalid_argument, where, "device " + serial + " is named twice");
    members.push_back(device->id);
  }

  PoolRow row{.id = PoolId{meta_.next_pool++}, .name = command.name};
  pools_.emplace(row.id, row);
  Step step;
  for (const DeviceId id : members) {
    devices_[id].pool = row.id;
    step.delta.devices[id] = devices_[id];
  }
  step.delta.pools[row.id] = row;
  step.delta.meta = meta_;
  step.reply = Reply{PoolReply{std::move(row)}};
  return step;
}

Step StateMachine::on(const DeletePool& command) {
  constexpr const char* where = "DeletePool";
  const PoolRow* pool = find_pool(command.name);
  if (pool == nullptr) return refuse(ErrorCode::not_found, where, "there is no pool '" + command.name + "'");
  const uint64_t count = pool_use(pool->id).leases;
  if (count > 0) {
    return refuse(ErrorCode::busy, where,
                  "pool " + command.name + " still has " + std::to_string(count) +
                      (count == 1 ? " lease" : " leases") +
                      "; release or revoke them first (`terrace lease list --pool " + command.name + "`)");
  }
  const PoolId id = pool->id;
  Step step;
  for (auto& [device_id, device] : devices_) {
    if (device.pool != id) continue;
    device.pool = PoolId{};
    step.delta.devices[device_id] = device;
  }
  pools_.erase(id);
  step.delta.pools[id] = std::nullopt;
  return step;
}

// --- queries ----------------------------------------------------------------------------------------

const LeaseRow* StateMachine::find_lease(LeaseId id) const {
  const auto at = leases_.find(id);
  return at == leases_.end() ? nullptr : &at->second;
}

const LeaseRow* StateMachine::find_lease_by_label(const std::string& tenant, const std::string& label) const {
  const auto at = by_label_.find({tenant, label});
  return at == by_label_.end() ? nullptr : find_lease(at->second);
}

const PoolRow* StateMachine::find_pool(const std::string& name) const {
  for (const auto& [id, pool] : pools_)
    if (pool.name == name) return &pool;
  return nullptr;
}

const PoolRow* StateMachine::find_pool(PoolId id) const {
  const auto at = pools_.find(id);
  return at == pools_.end() ? nullptr : &at->second;
}

const DeviceRow* StateMachine::find_device(DeviceId id) const {
  const auto at = devices_.find(id);
  return at == devices_.end() ? nullptr : &at->second;
}

const DeviceRow* StateMachine::find_device(const std::string& serial) const {
  for (const auto& [id, device] : devices_)
    if (device.serial == serial) return &device;
  return nullptr;
}

uint64_t StateMachine::device_free_bytes(DeviceId id) const {
  const DeviceRow* device = find_device(id);
  return device == nullptr ? 0 : free_.at(id).free_granules() * device->granule_bytes;
}

uint64_t StateMachine::pool_granule_bytes(PoolId id) const {
  for (const auto& [device_id, device] : devices_)
    if (device.pool == id) return device.granule_bytes;
  return limits::granule_bytes;
}

std::optional<uint64_t> StateMachine::next_due_ns() const {
  if (due_.empty()) return std::nullopt;
  return due_.begin()->at_ns;
}

Image StateMachine::image() const {
  Image image;
  image.meta = meta_;
  for (const auto& [id, row] : devices_) image.devices.push_back(row);
  for (const auto& [id, row] : pools_) image.pools.push_back(row);
  for (const auto& [id, row] : leases_)
    if (row.phase != LeasePhase::pending && row.phase != LeasePhase::waiting) image.leases.push_back(row);
  for (const auto& [tenant, row] : quotas_) image.quotas.push_back(row);
  for (const auto& [id, row] : reservations_) image.reservations.push_back(row);
  return image;
}

}  // namespace terrace::daemon
