// SPDX-License-Identifier: Apache-2.0
#include "libclient/session/wire.h"

#include "core/schema/words.h"

namespace terrace::client {

std::string text_from_wire(capnp::Text::Reader text) {
  return {text.begin(), text.size()};
}

Error error_from_wire(rpc::Error::Reader wire, const char* where) {
  Error error{error_code_from_wire(wire.getCode()), wire.getOsErrno(), where, text_from_wire(wire.getDetail())};
  if (error.code != ErrorCode::ok && wire.getWhere().size() != 0)
    error.detail += " (terraced, " + text_from_wire(wire.getWhere()) + ")";
  return error;
}

Status status_from_wire(rpc::Error::Reader wire, const char* where) {
  Error error = error_from_wire(wire, where);
  if (error.code == ErrorCode::ok) return {};
  return error;
}

Error unknown_enumerant_error(const std::string& unknown, const char* where) {
  return {ErrorCode::version_mismatch, 0, where,
          "the manager answers with a word that this program is too old to know (" + unknown +
              "); upgrade the program"};
}

Error error_from_kj(const kj::Exception& exception, const char* where) {
  const kj::StringPtr text = exception.getDescription();
  const std::string description(text.begin(), text.size());
  switch (exception.getType()) {
    case kj::Exception::Type::UNIMPLEMENTED:
      return {ErrorCode::version_mismatch, 0, where, "the manager does not know this call: " + description};
    case kj::Exception::Type::DISCONNECTED:
      return {ErrorCode::unavailable, 0, where, "the connection to the manager broke: " + description};
    case kj::Exception::Type::OVERLOADED:
      return {ErrorCode::unavailable, 0, where, "the manager is overloaded: " + description};
    case kj::Exception::Type::FAILED: break;
  }
  return {ErrorCode::unavailable, 0, where, "the manager could not answer: " + description};
}

// Enums are cast: their numbers are the schema's, and one that the schema does not know is refused.
namespace {

template <auto Wire, auto Own>
constexpr bool same = static_cast<unsigned>(Wire) == static_cast<unsigned>(Own);
static_assert(same<rpc::LeaseMode::SHARED_COHERENT, LeaseMode::shared_coherent>);
static_assert(same<rpc::LeaseCause::MOVED, LeaseCause::moved>);
static_assert(same<rpc::Placement::SPREAD, PoolPlacement::spread>);
static_assert(same<rpc::Coherence::NONCOHERENT, MemoryCoherence::noncoherent>);
static_assert(same<rpc::Access::READ_WRITE, LeaseAccess::read_write>);

template <typename Struct>
Status all_known(typename Struct::Reader wire, const char* where) {
  if (const std::string unknown = schema::unknown_enumerant_in<Struct>(wire); !unknown.empty())
    return unknown_enumerant_error(unknown, where);
  return {};
}

template <typename Own, typename List, typename Read>
Result<std::vector<Own>> list_from_wire(List wire, const char* where, Read read) {
  std::vector<Own> all;
  all.reserve(wire.size());
  for (const auto one : wire) {
    TERRACE_ASSIGN_OR_RETURN(Own own, read(one, where));
    all.push_back(std::move(own));
  }
  return all;
}

}  // namespace

LeaseCause cause_from_wire(rpc::LeaseCause wire) {
  return schema::enum_words<rpc::LeaseCause>().size() > static_cast<size_t>(wire)
             ? static_cast<LeaseCause>(wire)
             : LeaseCause::revoked;
}

TierFigures figures_from_wire(rpc::TierAttributes::Reader wire) {
  return {.latency_ns = wire.getLatencyNs(),
          .bandwidth_bytes_per_s = wire.getBandwidthBytesPerS(),
          .node = wire.getNumaNode(),
          .distance = wire.getNumaDistance(),
          .persistent = wire.getPersistent(),
          .source = text_from_wire(wire.getSource()),
          .isolation = text_from_wire(wire.getIsolation())};
}

Result<LeaseInfo> lease_info_from_wire(rpc::LeaseInfo::Reader wire, const char* where) {
  TERRACE_RETURN_IF_ERROR(all_known<rpc::LeaseInfo>(wire, where));
  LeaseInfo info;
  info.id = LeaseId{wire.getId()};
  info.epoch = LeaseEpoch{wire.getEpoch()};
  info.pool = text_from_wire(wire.getPool());
  info.tenant = text_from_wire(wire.getTenant());
  info.host = text_from_wire(wire.getHost());
  info.label = text_from_wire(wire.getLabel());
  info.object = text_from_wire(wire.getObject());
  info.reason = text_from_wire(wire.getReason());
  info.phase = schema::enum_word(wire.getPhase());
  info.tier = text_from_wire(wire.getTier());
  info.isolation = text_from_wire(wire.getIsolation());
  info.bytes = wire.getBytes();
  info.ttl_ns = wire.getTtlNs();
  info.expires_in_ns = wire.getExpiresInNs();
  info.granule_bytes = wire.getGranuleBytes();
  info.object_bytes = wire.getObjectBytes();
  info.huge_pages = wire.getHugePages();
  info.mode = static_cast<LeaseMode>(wire.getMode());
  for (const rpc::Extent::Reader extent : wire.getExtents())
    info.extents.push_back({text_from_wire(extent.getDevice()), extent.getOffset(), extent.getLength()});
  const rpc::Usage::Reader usage = wire.getUsage();
  info.usage = {.ddr_bytes = usage.getDdrBytes(),
                .cxl_bytes = usage.getCxlBytes(),
                .live_bytes = usage.getLiveBytes(),
                .holder = text_from_wire(usage.getHolder())};
  info.usage_age_ns = usage.getAgeNs();  // by the manager's clock, which may be another machine's
  info.cause = static_cast<LeaseCause>(wire.getCause());
  info.movable = wire.getMovable();
  info.holders = wire.getHolders();
  info.figures = figures_from_wire(wire.getAttributes());
  info.coherence = static_cast<MemoryCoherence>(wire.getCoherence());
  for (const rpc::PartOwner::Reader owner : wire.getOwners())
    info.owners.push_back({.part = owner.getPart(),
                           .epoch = owner.getEpoch(),
                           .owned = owner.getOwned(),
                           .ended = owner.getEnded(),
                           .pid = owner.getPid(),
                           .holder = text_from_wire(owner.getHolder()),
                           .host = text_from_wire(owner.getHost())});
  info.offered_to = text_from_wire(wire.getOfferedTo());
  info.on_fence = static_cast<OnFence>(wire.getOnFence());
  for (const capnp::Text::Reader host : wire.getFurtherHosts())
    info.further_hosts.push_back(text_from_wire(host));
  return info;
}

Result<std::vector<LeaseInfo>> lease_infos_from_wire(capnp::List<rpc::LeaseInfo>::Reader wire,
                                                     const char* where) {
  return list_from_wire<LeaseInfo>(wire, where, lease_info_from_wire);
}

Result<PoolInfo> pool_info_from_wire(rpc::PoolInfo::Reader wire, const char* where) {
  TERRACE_RETURN_IF_ERROR(all_known<rpc::PoolInfo>(wire, where));
  PoolInfo info;
  info.name = text_from_wire(wire.getName());
  for (const capnp::Text::Reader device : wire.getDevices()) info.devices.push_back(text_from_wire(device));
  info.capacity_bytes = wire.getCapacityBytes();
  info.free_bytes = wire.getFreeBytes();
  info.leased_bytes = wire.getLeasedBytes();
  info.scrubbing_bytes = wire.getScrubbingBytes();
  info.quarantined_bytes = wire.getQuarantinedBytes();
  info.largest_free_bytes = wire.getLargestFreeBytes();
  info.granule_bytes = wire.getGranuleBytes();
  info.leases = wire.getLeases();
  info.placement = static_cast<PoolPlacement>(wire.getPlacement());
  info.stripe_bytes = wire.getStripeBytes();
  for (const rpc::FreeClass::Reader runs : wire.getFreeClasses())
    info.free_runs.push_back(
        {.run_bytes_min = runs.getRunBytesMin(), .runs = runs.getRuns(), .bytes = runs.getBytes()});
  info.reserved_bytes = wire.getReservedBytes();
  info.grantable_bytes = wire.getGrantableBytes();
  info.waiting = wire.getWaiting();
  info.waiting_bytes = wire.getWaitingBytes();
  info.figures = figures_from_wire(wire.getAttributes());
  info.coherence = static_cast<MemoryCoherence>(wire.getCoherence());
  return info;
}

Result<std::vector<PoolInfo>> pool_infos_from_wire(capnp::List<rpc::PoolInfo>::Reader wire, const char* where) {
  return list_from_wire<PoolInfo>(wire, where, pool_info_from_wire);
}

void usage_to_wire(const UsageReport& usage, rpc::Usage::Builder wire) {
  wire.setDdrBytes(usage.ddr_bytes);
  wire.setCxlBytes(usage.cxl_bytes);
  wire.setLiveBytes(usage.live_bytes);
  wire.setHolder(usage.holder);
}

namespace {

void counters_to_wire(const RunCounters& counters, rpc::RunCounters::Builder wire) {
  wire.setPromotions(counters.promotions);
  wire.setDemotions(counters.demotions);
  wire.setPromotedBytes(counters.promoted_bytes);
  wire.setDemotedBytes(counters.demoted_bytes);
  wire.setStalledNs(counters.stalled_ns);
  wire.setRefused(counters.refused);
  wire.setFallbacks(counters.fallbacks);
}

void bands_to_wire(const RunFigures& figures, rpc::RunHeat::Builder wire) {
  const auto count = static_cast<uint32_t>(figures.bands.size());
  wire.setBandBytes(figures.band_bytes);
  auto heat = wire.initHeat(count), ddr = wire.initDdrPercent(count), cxl = wire.initCxlPercent(count);
  for (uint32_t i = 0; i < count; ++i) {
    heat.set(i, figures.bands[i].heat);
    ddr.set(i, figures.bands[i].ddr_percent);
    cxl.set(i, figures.bands[i].cxl_percent);
  }
}

}  // namespace

void run_to_wire(const RunFigures& figures, const RunCounters& told_before, rpc::RunFigures::Builder wire) {
  wire.setProgram(figures.program);
  wire.setProcesses(figures.processes);
  wire.setLiveBytes(figures.live_bytes);
  wire.setDdrBytes(figures.ddr_bytes);
  wire.setCxlBytes(figures.cxl_bytes);
  wire.setPlainBytes(figures.plain_bytes);
  wire.setDdrBytesMax(figures.ddr_bytes_max);
  wire.setLeasedBytes(figures.leased_bytes);
  wire.setSampledBytes(figures.sampled_bytes);
  wire.setDdrHitPermille(figures.ddr_hit_permille);
  counters_to_wire(figures.counters, wire.initCounters());
  counters_to_wire(told_before, wire.initToldBefore());
  if (!figures.bands.empty()) bands_to_wire(figures, wire.initHeat());
}

bool ends_with_holders(const LeaseRequest& request) {
  return !request.detached && !request.persistent;
}

void grant_to_wire(const LeaseRequest& request, rpc::GrantRequest::Builder wire) {
  wire.setPool(request.pool);
  wire.setBytes(request.bytes);
  wire.setMode(static_cast<rpc::LeaseMode>(request.mode));
  wire.setTtlNs(request.ttl_ns);
  wire.setPersistent(request.persistent);
  wire.setLabel(request.label);
  wire.setMovable(request.movable);
  wire.setWaitNs(request.wait_ns);
  wire.setEndsWithHolders(ends_with_holders(request));
  agree_on_wire(request.on_fence, wire);
}

}  // namespace terrace::client
