// The operator's calls about devices and pools.
#include <algorithm>

#include "cli/client/admin_impl.h"

namespace terrace::cli {

Result<std::vector<DeviceStatus>> AdminClient::devices() {
  return impl_->call(impl_->admin.devicesRequest(), "Admin.devices", [](auto& reply) {
    std::vector<DeviceStatus> devices;
    for (const auto device : reply.getDevices()) devices.push_back(read_device(device));
    return devices;
  });
}

Result<DeviceStatus> AdminClient::adopt(const std::string& serial) {
  auto request = impl_->admin.adoptRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.adopt",
                     [](auto& reply) { return read_device(reply.getDevice()); });
}

Result<DrainProgress> AdminClient::drain(const std::string& serial) {
  auto request = impl_->admin.drainRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.drain",
                     [](auto& reply) { return read_progress(reply.getProgress()); });
}

Result<DrainProgress> AdminClient::progress(const std::string& serial) {
  auto request = impl_->admin.progressRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.progress",
                     [](auto& reply) { return read_progress(reply.getProgress()); });
}

Result<DeviceStatus> AdminClient::undrain(const std::string& serial) {
  auto request = impl_->admin.undrainRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.undrain",
                     [](auto& reply) { return read_device(reply.getDevice()); });
}

Result<DeviceStatus> AdminClient::fail_device(const std::string& serial) {
  auto request = impl_->admin.failDeviceRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.failDevice",
                     [](auto& reply) { return read_device(reply.getDevice()); });
}

Status AdminClient::remove_device(const std::string& serial, bool forget_quarantined) {
  auto request = impl_->admin.removeDeviceRequest();
  request.setSerial(serial);
  request.setForgetQuarantined(forget_quarantined);
  return impl_->call(kj::mv(request), "Admin.removeDevice");
}

Result<std::string> AdminClient::create_region(const RegionOptions& options) {
  auto request = impl_->admin.createRegionRequest();
  auto list = request.initMemdevs(static_cast<unsigned>(options.memdevs.size()));
  for (unsigned at = 0; at < list.size(); ++at) list.set(at, options.memdevs[at]);
  request.setGranularity(static_cast<uint32_t>(std::min<uint64_t>(options.granularity_bytes, UINT32_MAX)));
  request.setBytes(options.bytes);
  return impl_->call(kj::mv(request), "Admin.createRegion",
                     [](auto& reply) { return std::string(reply.getSerial().cStr()); });
}

Status AdminClient::destroy_region(const std::string& serial) {
  auto request = impl_->admin.destroyRegionRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.destroyRegion");
}

Result<std::string> AdminClient::online(const std::string& serial) {
  auto request = impl_->admin.onlineRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.online",
                     [](auto& reply) { return client::text_from_wire(reply.getSerial()); });
}

Result<PoolInfo> AdminClient::create_pool(const PoolOptions& options) {
  auto request = impl_->admin.createPoolRequest();
  request.setName(options.name);
  auto list = request.initDevices(static_cast<unsigned>(options.devices.size()));
  for (unsigned at = 0; at < list.size(); ++at) list.set(at, options.devices[at]);
  request.setPlacement(client::placement_to_wire(options.placement));
  request.setStripeBytes(options.stripe_bytes);
  request.setCoherence(client::coherence_to_wire(options.coherence));
  return impl_->call(kj::mv(request), "Admin.createPool",
                     [](auto& reply) { return client::pool_info_from_wire(reply.getPool()); });
}

Result<PoolInfo> AdminClient::set_pool_coherence(const std::string& name, MemoryCoherence coherence) {
  auto request = impl_->admin.setPoolCoherenceRequest();
  request.setName(name);
  request.setCoherence(client::coherence_to_wire(coherence));
  return impl_->call(kj::mv(request), "Admin.setPoolCoherence",
                     [](auto& reply) { return client::pool_info_from_wire(reply.getPool()); });
}

Result<PoolInfo> AdminClient::add_device(const std::string& pool, const std::string& serial) {
  auto request = impl_->admin.addDeviceRequest();
  request.setPool(pool);
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.addDevice",
                     [](auto& reply) { return client::pool_info_from_wire(reply.getPool()); });
}

Result<std::vector<PoolInfo>> AdminClient::pools() {
  return impl_->call(impl_->admin.poolsRequest(), "Admin.pools",
                     [](auto& reply) { return client::pool_infos_from_wire(reply.getPools()); });
}

Status AdminClient::delete_pool(const std::string& name) {
  auto request = impl_->admin.deletePoolRequest();
  request.setName(name);
  return impl_->call(kj::mv(request), "Admin.deletePool");
}

Result<CompactionStatus> AdminClient::compact(const std::string& pool, uint64_t run_bytes,
                                              uint64_t timeout_ns) {
  auto request = impl_->admin.compactRequest();
  request.setPool(pool);
  request.setRunBytes(run_bytes);
  request.setTimeoutNs(timeout_ns);
  return impl_->call(kj::mv(request), "Admin.compact",
                     [](auto& reply) { return read_compaction(reply.getCompaction()); });
}

Status AdminClient::end_compaction(const std::string& pool) {
  auto request = impl_->admin.endCompactionRequest();
  request.setPool(pool);
  return impl_->call(kj::mv(request), "Admin.endCompaction");
}

}  // namespace terrace::cli
