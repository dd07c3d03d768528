// SPDX-License-Identifier: Apache-2.0
// The operator's calls about hardware, devices and pools.
#include <algorithm>

#include "cli/client/admin_impl.h"

namespace terrace::cli {

Result<std::vector<DeviceStatus>> AdminClient::devices() {
  return impl_->call(impl_->admin.devicesRequest(),
                     [](auto& reply) { return kept<rpc::DeviceInfo>(reply.getDevices()); });
}

Result<Hardware> AdminClient::inventory() {
  return impl_->call(impl_->admin.inventoryRequest(),
                     [](auto& reply) { return Hardware(reply.getInventory()); });
}

Status AdminClient::offline(const std::string& serial) {
  return impl_->call(with_serial(impl_->admin.offlineRequest(), serial));
}

Result<DeviceStatus> AdminClient::adopt(const std::string& serial) {
  return impl_->device(with_serial(impl_->admin.adoptRequest(), serial));
}

Result<DrainProgress> AdminClient::drain(const std::string& serial) {
  return impl_->progress(with_serial(impl_->admin.drainRequest(), serial));
}

Result<DrainProgress> AdminClient::progress(const std::string& serial) {
  return impl_->progress(with_serial(impl_->admin.progressRequest(), serial));
}

Result<DeviceStatus> AdminClient::undrain(const std::string& serial) {
  return impl_->device(with_serial(impl_->admin.undrainRequest(), serial));
}

Result<DeviceStatus> AdminClient::fail_device(const std::string& serial) {
  return impl_->device(with_serial(impl_->admin.failDeviceRequest(), serial));
}

Status AdminClient::remove_device(const std::string& serial, bool forget_quarantined) {
  auto request = with_serial(impl_->admin.removeDeviceRequest(), serial);
  request.setForgetQuarantined(forget_quarantined);
  return impl_->call(kj::mv(request));
}

Result<std::string> AdminClient::create_region(const RegionOptions& options) {
  auto request = impl_->admin.createRegionRequest();
  auto list = request.initMemdevs(static_cast<unsigned>(options.memdevs.size()));
  for (unsigned at = 0; at < list.size(); ++at) list.set(at, options.memdevs[at]);
  request.setGranularity(static_cast<uint32_t>(std::min<uint64_t>(options.granularity_bytes, UINT32_MAX)));
  request.setBytes(options.bytes);
  return impl_->call(kj::mv(request), [](auto& reply) { return str(reply.getSerial()); });
}

Status AdminClient::destroy_region(const std::string& serial) {
  return impl_->call(with_serial(impl_->admin.destroyRegionRequest(), serial));
}

Result<std::string> AdminClient::online(const std::string& serial) {
  return impl_->call(with_serial(impl_->admin.onlineRequest(), serial),
                     [](auto& reply) { return str(reply.getSerial()); });
}

Result<PoolStatus> AdminClient::create_pool(const PoolOptions& options) {
  auto request = impl_->admin.createPoolRequest();
  request.setName(options.name);
  auto list = request.initDevices(static_cast<unsigned>(options.devices.size()));
  for (unsigned at = 0; at < list.size(); ++at) list.set(at, options.devices[at]);
  request.setPlacement(options.placement);
  request.setStripeBytes(options.stripe_bytes);
  request.setCoherence(options.coherence);
  request.setTrust(options.trust);
  return impl_->pool(kj::mv(request));
}

Result<PoolStatus> AdminClient::set_pool_coherence(const std::string& name, rpc::Coherence coherence) {
  auto request = impl_->admin.setPoolCoherenceRequest();
  request.setName(name);
  request.setCoherence(coherence);
  return impl_->pool(kj::mv(request));
}

Result<PoolStatus> AdminClient::set_pool_trust(const std::string& name, rpc::Trust trust) {
  auto request = impl_->admin.setPoolTrustRequest();
  request.setName(name);
  request.setTrust(trust);
  return impl_->pool(kj::mv(request));
}

Result<PoolStatus> AdminClient::add_device(const std::string& pool, const std::string& serial) {
  auto request = with_serial(impl_->admin.addDeviceRequest(), serial);
  request.setPool(pool);
  return impl_->pool(kj::mv(request));
}

Result<std::vector<PoolStatus>> AdminClient::pools() {
  return impl_->call(impl_->admin.poolsRequest(),
                     [](auto& reply) { return kept<rpc::PoolInfo>(reply.getPools()); });
}

Status AdminClient::delete_pool(const std::string& name) {
  auto request = impl_->admin.deletePoolRequest();
  request.setName(name);
  return impl_->call(kj::mv(request));
}

Result<CompactionStatus> AdminClient::compact(const std::string& pool, uint64_t run_bytes,
                                              uint64_t timeout_ns) {
  auto request = impl_->admin.compactRequest();
  request.setPool(pool);
  request.setRunBytes(run_bytes);
  request.setTimeoutNs(timeout_ns);
  return impl_->call(kj::mv(request), [](auto& reply) { return CompactionStatus(reply.getCompaction()); });
}

Status AdminClient::end_compaction(const std::string& pool) {
  auto request = impl_->admin.endCompactionRequest();
  request.setPool(pool);
  return impl_->call(kj::mv(request));
}

}  // namespace terrace::cli
