// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/wire.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/event_loop/processes.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

// Enums are cast: their numbers are the schema's, and one that the schema does not know was refused (answers.h).
template <auto Wire, auto Row>
constexpr bool same = static_cast<unsigned>(Wire) == static_cast<unsigned>(Row);
static_assert(same<rpc::LeaseMode::SHARED_COHERENT, LeaseMode::shared_coherent>);
static_assert(same<rpc::LeasePhase::WAITING, LeasePhase::waiting>);
static_assert(same<rpc::LeaseCause::MOVED, LeaseCause::moved>);
static_assert(same<rpc::DeviceState::FAILED, DeviceState::failed>);
static_assert(same<rpc::Placement::SPREAD, Placement::spread>);
static_assert(same<rpc::Coherence::NONCOHERENT, PoolCoherence::noncoherent>);

// Far more than any text of ours has. A name may be as long as a message.
constexpr size_t detail_bytes_max = 2048;
constexpr size_t detail_head_bytes = 512, detail_tail_bytes = 256;

// Printable, as one line, whatever a peer put into a name.
std::string escaped(std::string_view text) {
  static constexpr const char* hex = "0123456789abcdef";
  const bool utf8 = valid_utf8(text);
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f && (byte < 0x80 || utf8)) {
      line += c;
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line += {'\\', 'x', hex[byte >> 4], hex[byte & 15]};
    }
  }
  return line;
}

// What an error says: the name in the middle of it is cut, and the advice behind the name kept.
std::string bounded(const std::string& detail) {
  if (detail.size() <= detail_bytes_max) return escaped(detail);
  size_t head = detail_head_bytes, tail = detail.size() - detail_tail_bytes;
  const auto continues = [&detail](size_t at) {
    return (static_cast<unsigned char>(detail[at]) & 0xc0) == 0x80;
  };
  while (head > detail_head_bytes - 4 && continues(head)) --head;
  while (tail < detail.size() - detail_tail_bytes + 4 && continues(tail)) ++tail;
  const std::string_view all = detail;
  return escaped(all.substr(0, head)) + "\u2026 (" + std::to_string(detail.size()) + " bytes) \u2026" +
         escaped(all.substr(tail));
}

}  // namespace

void write_error(rpc::Error::Builder out, const Error& error) {
  out.setCode(static_cast<uint16_t>(error.code));
  out.setOsErrno(error.os_errno);
  out.setWhere(error.where == nullptr ? "" : error.where);
  out.setDetail(bounded(error.detail));
}

uint32_t page_size(uint32_t asked) {
  return asked == 0 ? limits::leases_per_page_max : std::min(asked, limits::leases_per_page_max);
}

std::string shown(const std::string& text) {
  if (valid_text(text, limits::label_bytes_max)) return text;
  return "(" + std::to_string(text.size()) + " bytes, not a name)";
}

namespace {

// Extents of one page of leases: 24 bytes each and a serial, some megabytes.
constexpr uint64_t extents_per_page_max = 100'000;

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

TierAttributes attributes_of(const LeaseRow& lease, const PoolRow* pool, Service& service) {
  const StateMachine& state = service.engine().state();
  std::map<DeviceId, uint64_t> bytes;
  for (const Extent& extent : lease.extents)
    if (const DeviceRow* device = state.find_device(extent.device))
      bytes[extent.device] += extent.granules * device->granule_bytes;
  std::vector<TierPart> parts;
  for (const auto& [id, on_it] : bytes)
    parts.push_back({service.engine().backend().attributes(state.find_device(id)->serial), on_it});
  return combined(parts, pool != nullptr && pool->placement == Placement::striped);
}

void write_all_but_extents(rpc::LeaseInfo::Builder out, const LeaseRow& lease, Service& service) {
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
  out.setPersistent(lease.ttl_ns == 0);
  out.setExpiresInNs(from_now(lease.expiry_ns, now_ns));
  out.setObject(lease.object);
  out.setReason(lease.reason);
  out.setCause(static_cast<rpc::LeaseCause>(lease.cause));
  out.setMovable(lease.movable);
  out.setOnFence(static_cast<rpc::OnFence>(lease.on_fence));
  out.setHolders(static_cast<uint32_t>(service.holders(lease.id)));
  out.setGranuleBytes(state.pool_granule_bytes(lease.pool));
  out.setTier("cxl");
  out.setIsolation("kernel");
  out.setAgent(StateMachine::agent_of(lease));
  const std::vector<ViewRow> views = state.views_of(lease.id);
  auto hosts = out.initFurtherHosts(static_cast<uint32_t>(views.size()));
  for (uint32_t i = 0; i < hosts.size(); ++i) {
    const std::string host = StateMachine::host_of(views[i].object);
    hosts.set(i, host.empty() ? service.options().host : host);
  }
  if (const auto offer = state.offers().find(lease.id); offer != state.offers().end())
    out.setOfferedTo(offer->second.to_tenant);
  if (pool != nullptr) out.setCoherence(static_cast<rpc::Coherence>(pool->coherence));
  write_attributes(out.initAttributes(), attributes_of(lease, pool, service));
  out.setHugePages(service.engine().backend().huge_pages(lease.object));
  if (const ReportedUsage* usage = service.usage_of(lease.id)) {
    auto report = out.initUsage();
    report.setDdrBytes(usage->ddr_bytes);
    report.setCxlBytes(usage->cxl_bytes);
    report.setLiveBytes(usage->live_bytes);
    report.setReportedNs(usage->reported_ns);
    report.setAgeNs(now_ns - usage->reported_ns);
    report.setHolder(usage->holder);
  }
}

// Each process is looked at once, however many parts it has.
void write_owners(rpc::LeaseInfo::Builder lease, const std::vector<OwnerRow>& owners) {
  std::vector<std::pair<ProcessId, bool>> seen;
  const auto ended = [&seen](const OwnerRow& owner) {
    if (!owner.host.empty()) return false;
    for (const auto& [known, has_ended] : seen)
      if (known == owner.process) return has_ended;
    seen.emplace_back(owner.process, owner.process.pid != 0 && owner_has_ended(owner));
    return seen.back().second;
  };
  auto out = lease.initOwners(static_cast<uint32_t>(owners.size()));
  for (uint32_t i = 0; i < out.size(); ++i) {
    const OwnerRow& owner = owners[i];
    out[i].setPart(static_cast<uint32_t>(part_of(owner.id)));
    out[i].setEpoch(owner.epoch);
    out[i].setOwned(owner.process.pid != 0);
    out[i].setEnded(ended(owner));
    out[i].setPid(static_cast<uint32_t>(owner.process.pid));
    out[i].setHolder(owner.holder);
    if (owner.process.pid != 0) out[i].setHost(owner.host);
  }
}

}  // namespace

void write_lease(rpc::LeaseInfo::Builder out, const LeaseRow& lease, Service& service, bool with_object) {
  write_all_but_extents(out, lease, service);
  out.setMeasured(with_object);
  // Who asks about this lease; not what changes of it are answered with.
  if (with_object) write_owners(out, service.engine().state().owners_of(lease.id));
  write_extents(out.initExtents(static_cast<uint32_t>(lease.extents.size())), lease, service.engine().state());
  if (with_object && !lease.object.empty()) {
    const auto object = service.engine().backend().usage(lease.object);
    if (object.ok()) out.setObjectBytes(object->allocated);
  }
}

void write_leases(capnp::List<rpc::LeaseInfo>::Builder out, const std::vector<const LeaseRow*>& leases,
                  Service& service) {
  uint64_t extents = 0;
  for (uint32_t i = 0; i < leases.size(); ++i) {
    write_all_but_extents(out[i], *leases[i], service);
    extents += leases[i]->extents.size();
    if (extents > extents_per_page_max) continue;
    write_extents(out[i].initExtents(static_cast<uint32_t>(leases[i]->extents.size())), *leases[i],
                  service.engine().state());
  }
}

void write_pool(rpc::PoolInfo::Builder out, const PoolRow& pool, Service& service) {
  const StateMachine& state = service.engine().state();
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
  out.setPlacement(static_cast<rpc::Placement>(pool.placement));
  out.setStripeBytes(pool.stripe_bytes);
  out.setCoherence(static_cast<rpc::Coherence>(pool.coherence));
  out.setReservedBytes(use.reserved_bytes);
  out.setWaiting(static_cast<uint32_t>(use.waiting));
  out.setWaitingBytes(use.waiting_bytes);
  out.setGrantableBytes(use.grantable_bytes);
  out.setAbsentBytes(use.absent_bytes);
  const std::vector<FreeClass>& free_classes = service.free_classes(pool.id);
  auto classes = out.initFreeClasses(static_cast<uint32_t>(free_classes.size()));
  for (uint32_t i = 0; i < free_classes.size(); ++i) {
    classes[i].setRunBytesMin(free_classes[i].run_bytes_min);
    classes[i].setRuns(free_classes[i].runs);
    classes[i].setBytes(free_classes[i].bytes);
  }
  std::vector<const DeviceRow*> members, absent;
  for (const auto& [id, device] : state.devices()) {
    if (device.pool != pool.id) continue;
    members.push_back(&device);
    if (state.absent(id)) absent.push_back(&device);
  }
  auto absences = out.initAbsentDevices(static_cast<uint32_t>(absent.size()));
  for (uint32_t i = 0; i < absent.size(); ++i) absences.set(i, absent[i]->serial);
  auto devices = out.initDevices(static_cast<uint32_t>(members.size()));
  std::vector<TierPart> parts;
  for (uint32_t i = 0; i < members.size(); ++i) {
    devices.set(i, members[i]->serial);
    parts.push_back({service.engine().backend().attributes(members[i]->serial), members[i]->capacity_bytes});
  }
  const TierAttributes attributes = combined(parts, pool.placement == Placement::striped);
  write_attributes(out.initAttributes(), attributes);
  out.setIsolation(isolation_of(attributes));
  out.setTrust(static_cast<rpc::Trust>(pool.trust));
}

void write_pools(capnp::List<rpc::PoolInfo>::Builder out, Service& service) {
  uint32_t i = 0;
  for (const auto& [id, pool] : service.engine().state().pools()) write_pool(out[i++], pool, service);
}

std::unordered_map<DeviceId, DeviceUse> device_uses(const StateMachine& state) {
  std::unordered_map<DeviceId, DeviceUse> uses;
  std::vector<DeviceId> counted;
  for (const auto& [id, lease] : state.leases()) {
    counted.clear();
    for (const Extent& extent : lease.extents) {
      const DeviceRow* device = state.find_device(extent.device);
      if (device == nullptr) continue;
      DeviceUse& use = uses[extent.device];
      use.bytes += extent.granules * device->granule_bytes;
      if (std::find(counted.begin(), counted.end(), extent.device) != counted.end()) continue;
      counted.push_back(extent.device);
      ++use.leases;
    }
  }
  return uses;
}

DeviceUse device_use(const StateMachine& state, const DeviceRow& device) {
  return device_uses(state)[device.id];
}

void write_attributes(rpc::TierAttributes::Builder out, const TierAttributes& attributes) {
  out.setLatencyNs(attributes.latency_ns);
  out.setBandwidthBytesPerS(attributes.bandwidth_bytes_per_s);
  out.setNumaNode(attributes.node);
  out.setNumaDistance(attributes.distance);
  out.setPersistent(attributes.persistent);
  out.setSource(source_name(attributes.source));
  out.setIsolation(isolation_name(attributes.isolation));
}

rpc::Isolation isolation_of(const TierAttributes& attributes) {
  return attributes.fence == Fence::verified ? rpc::Isolation::VERIFIED : rpc::Isolation::TRUSTING;
}

void write_device(rpc::DeviceInfo::Builder out, const DeviceRow& device, const DeviceUse& use,
                  const std::string& detail, Engine& engine) {
  const StateMachine& state = engine.state();
  const TierAttributes attributes = engine.backend().attributes(device.serial);
  write_attributes(out.initAttributes(), attributes);
  out.setIsolation(isolation_of(attributes));
  out.setSerial(device.serial);
  out.setBackend(device.backend);
  out.setCapacityBytes(device.capacity_bytes);
  out.setGranuleBytes(device.granule_bytes);
  out.setAdopted(true);
  const PoolRow* pool = state.find_pool(device.pool);
  out.setPool(pool == nullptr ? "" : pool->name);
  out.setPresent(!state.absent(device.id));
  out.setFreeBytes(state.device_free_bytes(device.id));
  out.setLargestFreeBytes(state.free_of(device.id).largest_run() * device.granule_bytes);
  out.setState(static_cast<rpc::DeviceState>(device.state));
  out.setLeases(static_cast<uint32_t>(use.leases));
  out.setUsedBytes(use.bytes);
  out.setDetail(detail);
}

}  // namespace terrace::daemon
