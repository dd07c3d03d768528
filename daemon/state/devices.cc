// Devices: adopted, added to pools, drained, given up, lost and back, removed.
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

}  // namespace

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

}  // namespace terrace::daemon
