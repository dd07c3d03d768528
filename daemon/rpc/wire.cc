#include "daemon/rpc/wire.h"

namespace terrace::daemon {

void write_error(rpc::Error::Builder out, const Error& error) {
  out.setCode(static_cast<uint16_t>(error.code));
  out.setOsErrno(error.os_errno);
  out.setWhere(error.where == nullptr ? "" : error.where);
  out.setDetail(error.detail);
}

LeaseMode read_mode(rpc::LeaseMode mode) {
  switch (mode) {
    case rpc::LeaseMode::SHARED_READ_ONLY: return LeaseMode::shared_read_only;
    case rpc::LeaseMode::SHARED_COHERENT: return LeaseMode::shared_coherent;
    case rpc::LeaseMode::EXCLUSIVE: break;
  }
  return LeaseMode::exclusive;
}

namespace {

uint64_t from_now(uint64_t at_ns, uint64_t now_ns) {
  return at_ns > now_ns ? at_ns - now_ns : 0;
}

void write_extents(capnp::List<rpc::Extent>::Builder out, const LeaseRow& lease, const StateMachine& state) {
  for (uint32_t i = 0; i < lease.extents.size(); ++i) {
    const Extent& extent = lease.extents[i];
    const DeviceRow* device = state.find_device(extent.device);
    if (device == nullptr) continue;
    out[i].setDevice(device->serial);
    out[i].setOffset(extent.first_granule * device->granule_bytes);
    out[i].setLength(extent.granules * device->granule_bytes);
  }
}

}  // namespace

void write_lease(rpc::LeaseInfo::Builder out, const LeaseRow& lease, Service& service, bool with_object) {
  const StateMachine& state = service.engine().state();
  const uint64_t now_ns = service.engine().now_ns();
  const PoolRow* pool = state.find_pool(lease.pool);
  out.setId(lease.id.value);
  out.setPool(pool == nullptr ? "" : pool->name);
  out.setTenant(lease.tenant);
  out.setHost(lease.host);
  out.setLabel(lease.label);
  out.setBytes(lease.bytes);
  out.setEpoch(lease.epoch.value);
  out.setMode(static_cast<rpc::LeaseMode>(lease.mode));
  out.setPhase(static_cast<rpc::LeasePhase>(lease.phase));
  out.setTtlNs(lease.ttl_ns);
  out.setExpiresInNs(from_now(lease.expiry_ns, now_ns));
  out.setObject(lease.object);
  out.setReason(lease.reason);
  out.setGranuleBytes(state.pool_granule_bytes(lease.pool));
  out.setTier("cxl");
  out.setIsolation("kernel");
  out.setHugePages(service.engine().backend().huge_pages());
  write_extents(out.initExtents(static_cast<uint32_t>(lease.extents.size())), lease, state);
  if (const ReportedUsage* usage = service.usage_of(lease.id)) {
    auto report = out.initUsage();
    report.setDdrBytes(usage->ddr_bytes);
    report.setCxlBytes(usage->cxl_bytes);
    report.setLiveBytes(usage->live_bytes);
    report.setReportedNs(usage->reported_ns);
    report.setAgeNs(now_ns - usage->reported_ns);
    report.setHolder(usage->holder);
  }
  if (with_object) {
    const auto object = service.engine().backend().usage(lease.object);
    if (object.ok()) out.setObjectBytes(object->allocated);
  }
}

void write_pool(rpc::PoolInfo::Builder out, const PoolRow& pool, const StateMachine& state) {
  const PoolUse use = state.pool_use(pool.id);
  out.setName(pool.name);
  out.setCapacityBytes(use.capacity_bytes);
  out.setFreeBytes(use.free_bytes);
  out.setLeasedBytes(use.leased_bytes);
  out.setScrubbingBytes(use.scrubbing_bytes);
  out.setQuarantinedBytes(use.quarantined_bytes);
  out.setLargestFreeBytes(use.largest_free_bytes);
  out.setGranuleBytes(state.pool_granule_bytes(pool.id));
  out.setLeases(static_cast<uint32_t>(use.leases));
  std::vector<const DeviceRow*> members;
  for (const auto& [id, device] : state.devices())
    if (device.pool == pool.id) members.push_back(&device);
  auto devices = out.initDevices(static_cast<uint32_t>(members.size()));
  for (uint32_t i = 0; i < members.size(); ++i) devices.set(i, members[i]->serial);
}

}  // namespace terrace::daemon
