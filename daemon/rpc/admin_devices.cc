// The operator's interface: devices.
#include <algorithm>

#include "daemon/inventory/inventory.h"
#include "daemon/rpc/admin.h"
#include "daemon/rpc/moves.h"

namespace terrace::daemon {

kj::Promise<void> AdminServer::devices(DevicesContext context) {
  return query(context, [this](DevicesContext& c) { write_devices(c); });
}

kj::Promise<void> AdminServer::adopt(AdoptContext context) {
  const std::string serial = read_text(context.getParams().getSerial());
  for (const SeenDevice& seen : engine().backend().discover()) {
    if (seen.serial != serial) continue;
    return device_command(context,
                          AdoptDevice{seen.serial, seen.backend, seen.capacity_bytes, seen.granule_bytes});
  }
  refuse(context, unknown_device(serial));
  return kj::READY_NOW;
}

kj::Promise<void> AdminServer::drain(DrainContext context) {
  return command(
      context, DrainDevice{read_text(context.getParams().getSerial())}, [this](DrainContext& c, Reply& reply) {
        write_progress(c.getResults().initProgress(), std::get<DeviceReply>(reply).device, service());
      });
}

kj::Promise<void> AdminServer::progress(ProgressContext context) {
  return query(context, [this](ProgressContext& c) {
    const std::string serial = read_text(c.getParams().getSerial());
    if (const DeviceRow* device = state().find_device(serial)) {
      write_progress(c.getResults().initProgress(), *device, service());
    } else {
      refuse(c, unknown_device(serial));
    }
  });
}

kj::Promise<void> AdminServer::undrain(UndrainContext context) {
  return device_command(context, UndrainDevice{read_text(context.getParams().getSerial()), now_ns()});
}

kj::Promise<void> AdminServer::failDevice(FailDeviceContext context) {
  return device_command(context, FailDevice{read_text(context.getParams().getSerial()), now_ns()});
}

kj::Promise<void> AdminServer::removeDevice(RemoveDeviceContext context) {
  const auto params = context.getParams();
  return command(context, RemoveDevice{read_text(params.getSerial()), params.getForgetQuarantined()},
                 [](RemoveDeviceContext&, Reply&) {});
}

Error AdminServer::unknown_device(const std::string& serial) {
  for (const auto& hardware : inventory::describe_hardware(inventory::take_inventory())) {
    if (hardware.serial != serial) continue;
    return Error{.code = ErrorCode::unsupported,
                 .where = "adopt",
                 .detail = "device " + serial + " is seen, but this daemon has no backend for it (" +
                           hardware.detail + ")"};
  }
  return Error{.code = ErrorCode::not_found,
               .where = "adopt",
               .detail = "there is no device '" + shown(serial) + "'; `terrace device list` shows those seen"};
}

void AdminServer::write_devices(DevicesContext& c) {
  std::vector<SeenDevice> seen = engine().backend().discover();
  for (const auto& hardware : inventory::describe_hardware(inventory::take_inventory()))
    seen.push_back(
        {hardware.serial, hardware.backend, hardware.capacity_bytes, hardware.granule_bytes, hardware.detail});
  std::vector<const DeviceRow*> unseen;
  for (const auto& row : state().devices()) {
    const DeviceRow& device = row.second;
    const bool present = std::any_of(seen.begin(), seen.end(),
                                     [&](const SeenDevice& other) { return other.serial == device.serial; });
    if (!present) unseen.push_back(&device);
  }
  auto uses = device_uses(state());
  auto out = c.getResults().initDevices(static_cast<uint32_t>(seen.size() + unseen.size()));
  uint32_t i = 0;
  for (const SeenDevice& device : seen) {
    auto entry = out[i++];
    if (const DeviceRow* row = state().find_device(device.serial)) {
      write_device(entry, *row, uses[row->id], device.detail, state());
      continue;
    }
    entry.setSerial(device.serial);
    entry.setBackend(device.backend);
    entry.setCapacityBytes(device.capacity_bytes);
    entry.setGranuleBytes(device.granule_bytes);
    entry.setDetail(device.detail);
    entry.setPresent(true);
  }
  for (const DeviceRow* device : unseen) {
    auto entry = out[i++];
    write_device(entry, *device, uses[device->id], "adopted once, not seen now", state());
    entry.setPresent(false);
  }
}

}  // namespace terrace::daemon
