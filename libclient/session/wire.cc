#include "libclient/session/wire.h"

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

LeaseMode mode_from_wire(rpc::LeaseMode wire) {
  switch (wire) {
    case rpc::LeaseMode::EXCLUSIVE: return LeaseMode::exclusive;
    case rpc::LeaseMode::SHARED_READ_ONLY: return LeaseMode::shared_read_only;
    case rpc::LeaseMode::SHARED_COHERENT: return LeaseMode::shared_coherent;
  }
  return LeaseMode::exclusive;  // a newer peer's mode: assume the least
}

rpc::LeaseMode mode_to_wire(LeaseMode mode) {
  switch (mode) {
    case LeaseMode::exclusive: return rpc::LeaseMode::EXCLUSIVE;
    case LeaseMode::shared_read_only: return rpc::LeaseMode::SHARED_READ_ONLY;
    case LeaseMode::shared_coherent: return rpc::LeaseMode::SHARED_COHERENT;
  }
  return rpc::LeaseMode::EXCLUSIVE;
}

rpc::Access access_to_wire(LeaseAccess access) {
  return access == LeaseAccess::read_write ? rpc::Access::READ_WRITE : rpc::Access::READ_ONLY;
}

const char* phase_from_wire(rpc::LeasePhase wire) {
  switch (wire) {
    case rpc::LeasePhase::PENDING: return "pending";
    case rpc::LeasePhase::ACTIVE: return "active";
    case rpc::LeasePhase::REVOKING: return "revoking";
    case rpc::LeasePhase::FENCING: return "fencing";
    case rpc::LeasePhase::SCRUBBING: return "scrubbing";
    case rpc::LeasePhase::QUARANTINED: return "quarantined";
    case rpc::LeasePhase::TRANSFERRING: return "transferring";
    case rpc::LeasePhase::WAITING: return "waiting";
  }
  return "unknown";
}

LeaseCause cause_from_wire(rpc::LeaseCause wire) {
  switch (wire) {
    case rpc::LeaseCause::NONE: return LeaseCause::none;
    case rpc::LeaseCause::RELEASED: return LeaseCause::released;
    case rpc::LeaseCause::EXPIRED: return LeaseCause::expired;
    case rpc::LeaseCause::REVOKED: return LeaseCause::revoked;
    case rpc::LeaseCause::OBJECT_LOST: return LeaseCause::object_lost;
    case rpc::LeaseCause::DEVICE_LOST: return LeaseCause::device_lost;
    case rpc::LeaseCause::MOVED: return LeaseCause::moved;
  }
  return LeaseCause::revoked;  // a newer peer's cause: it was taken, and nothing says that it lapsed
}

MemoryCoherence coherence_from_wire(rpc::Coherence wire) {
  switch (wire) {
    case rpc::Coherence::COHERENT: return MemoryCoherence::coherent;
    case rpc::Coherence::NONCOHERENT: return MemoryCoherence::noncoherent;
    case rpc::Coherence::UNKNOWN: break;
  }
  return MemoryCoherence::unknown;
}

rpc::Coherence coherence_to_wire(MemoryCoherence coherence) {
  switch (coherence) {
    case MemoryCoherence::coherent: return rpc::Coherence::COHERENT;
    case MemoryCoherence::noncoherent: return rpc::Coherence::NONCOHERENT;
    case MemoryCoherence::unknown: break;
  }
  return rpc::Coherence::UNKNOWN;
}

PoolPlacement placement_from_wire(rpc::Placement wire) {
  switch (wire) {
    case rpc::Placement::LINEAR: return PoolPlacement::linear;
    case rpc::Placement::STRIPED: return PoolPlacement::striped;
    case rpc::Placement::SPREAD: return PoolPlacement::spread;
  }
  return PoolPlacement::linear;
}

rpc::Placement placement_to_wire(PoolPlacement placement) {
  switch (placement) {
    case PoolPlacement::linear: return rpc::Placement::LINEAR;
    case PoolPlacement::striped: return rpc::Placement::STRIPED;
    case PoolPlacement::spread: return rpc::Placement::SPREAD;
  }
  return rpc::Placement::LINEAR;
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

LeaseInfo lease_info_from_wire(rpc::LeaseInfo::Reader wire) {
  LeaseInfo info;
  info.id = LeaseId{wire.getId()};
  info.epoch = LeaseEpoch{wire.getEpoch()};
  info.pool = text_from_wire(wire.getPool());
  info.tenant = text_from_wire(wire.getTenant());
  info.host = text_from_wire(wire.getHost());
  info.label = text_from_wire(wire.getLabel());
  info.object = text_from_wire(wire.getObject());
  info.reason = text_from_wire(wire.getReason());
  info.phase = phase_from_wire(wire.getPhase());
  info.tier = text_from_wire(wire.getTier());
  info.isolation = text_from_wire(wire.getIsolation());
  info.bytes = wire.getBytes();
  info.ttl_ns = wire.getTtlNs();
  info.expires_in_ns = wire.getExpiresInNs();
  info.granule_bytes = wire.getGranuleBytes();
  info.object_bytes = wire.getObjectBytes();
  info.huge_pages = wire.getHugePages();
  info.mode = mode_from_wire(wire.getMode());
  for (const rpc::Extent::Reader extent : wire.getExtents())
    info.extents.push_back({text_from_wire(extent.getDevice()), extent.getOffset(), extent.getLength()});
  const rpc::Usage::Reader usage = wire.getUsage();
  info.usage = {.ddr_bytes = usage.getDdrBytes(),
                .cxl_bytes = usage.getCxlBytes(),
                .live_bytes = usage.getLiveBytes(),
                .holder = text_from_wire(usage.getHolder())};
  info.usage_age_ns = usage.getAgeNs();  // by the manager's clock, which may be another machine's
  info.cause = cause_from_wire(wire.getCause());
  info.movable = wire.getMovable();
  info.holders = wire.getHolders();
  info.figures = figures_from_wire(wire.getAttributes());
  info.coherence = coherence_from_wire(wire.getCoherence());
  for (const rpc::PartOwner::Reader owner : wire.getOwners())
    info.owners.push_back({.part = owner.getPart(),
                           .epoch = owner.getEpoch(),
                           .owned = owner.getOwned(),
                           .ended = owner.getEnded(),
                           .pid = owner.getPid(),
                           .holder = text_from_wire(owner.getHolder())});
  return info;
}

std::vector<LeaseInfo> lease_infos_from_wire(capnp::List<rpc::LeaseInfo>::Reader wire) {
  std::vector<LeaseInfo> infos;
  infos.reserve(wire.size());
  for (const rpc::LeaseInfo::Reader lease : wire) infos.push_back(lease_info_from_wire(lease));
  return infos;
}

PoolInfo pool_info_from_wire(rpc::PoolInfo::Reader wire) {
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
  info.placement = placement_from_wire(wire.getPlacement());
  info.stripe_bytes = wire.getStripeBytes();
  for (const rpc::FreeClass::Reader runs : wire.getFreeClasses())
    info.free_runs.push_back(
        {.run_bytes_min = runs.getRunBytesMin(), .runs = runs.getRuns(), .bytes = runs.getBytes()});
  info.reserved_bytes = wire.getReservedBytes();
  info.grantable_bytes = wire.getGrantableBytes();
  info.waiting = wire.getWaiting();
  info.waiting_bytes = wire.getWaitingBytes();
  info.figures = figures_from_wire(wire.getAttributes());
  info.coherence = coherence_from_wire(wire.getCoherence());
  return info;
}

std::vector<PoolInfo> pool_infos_from_wire(capnp::List<rpc::PoolInfo>::Reader wire) {
  std::vector<PoolInfo> infos;
  infos.reserve(wire.size());
  for (const rpc::PoolInfo::Reader pool : wire) infos.push_back(pool_info_from_wire(pool));
  return infos;
}

void usage_to_wire(const UsageReport& usage, rpc::Usage::Builder wire) {
  wire.setDdrBytes(usage.ddr_bytes);
  wire.setCxlBytes(usage.cxl_bytes);
  wire.setLiveBytes(usage.live_bytes);
  wire.setHolder(usage.holder);
}

bool ends_with_holders(const LeaseRequest& request) {
  return !request.detached && !request.persistent;
}

void grant_to_wire(const LeaseRequest& request, rpc::GrantRequest::Builder wire) {
  wire.setPool(request.pool);
  wire.setBytes(request.bytes);
  wire.setMode(mode_to_wire(request.mode));
  wire.setTtlNs(request.ttl_ns);
  wire.setPersistent(request.persistent);
  wire.setLabel(request.label);
  wire.setMovable(request.movable);
  wire.setWaitNs(request.wait_ns);
  wire.setEndsWithHolders(ends_with_holders(request));
}

}  // namespace terrace::client
