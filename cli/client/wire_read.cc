#include "cli/client/wire_read.h"

#include <algorithm>

#include "core/base/prng.h"

namespace terrace::cli {
namespace {

using client::text_from_wire;

const char* device_state_text(rpc::DeviceState state) {
  switch (state) {
    case rpc::DeviceState::IN_SERVICE: return "in_service";
    case rpc::DeviceState::DRAINING: return "draining";
    case rpc::DeviceState::FAILED: return "failed";
  }
  return "unknown";
}

std::vector<MoveStatus> read_moves(capnp::List<rpc::Move>::Reader reader) {
  std::vector<MoveStatus> moves;
  moves.reserve(reader.size());
  for (const rpc::Move::Reader move : reader) {
    moves.push_back({.lease = LeaseId{move.getLease()},
                     .tenant = text_from_wire(move.getTenant()),
                     .label = text_from_wire(move.getLabel()),
                     .state = text_from_wire(move.getState()),
                     .bytes = move.getBytes(),
                     .blocked = move.getBlocked()});
  }
  return moves;
}

}  // namespace

ServerStatus read_server(rpc::ServerInfo::Reader reader) {
  ServerStatus server;
  server.version = text_from_wire(reader.getVersion());
  server.boot_id = text_from_wire(reader.getBootId());
  server.runtime_directory = text_from_wire(reader.getRuntimeDirectory());
  server.state_file = text_from_wire(reader.getStateFile());
  server.object_directory = text_from_wire(reader.getObjectDirectory());
  server.huge_pages = text_from_wire(reader.getHugePages());
  server.recovered = text_from_wire(reader.getRecovered());
  server.pid = reader.getPid();
  server.uptime_ns = reader.getUptimeNs();
  server.store_commits = reader.getStoreCommits();
  server.commands_applied = reader.getCommandsApplied();
  server.connections = reader.getConnections();
  server.failpoints = reader.getFailpoints();
  server.scrubbed_bytes = reader.getScrubbedBytes();
  server.scrub_queued_bytes = reader.getScrubQueuedBytes();
  server.scrub_bytes_per_s = reader.getScrubBytesPerS();
  server.waiting = reader.getWaiting();
  return server;
}

DeviceStatus read_device(rpc::DeviceInfo::Reader reader) {
  DeviceStatus device;
  device.serial = text_from_wire(reader.getSerial());
  device.backend = text_from_wire(reader.getBackend());
  device.pool = text_from_wire(reader.getPool());
  device.detail = text_from_wire(reader.getDetail());
  device.state = device_state_text(reader.getState());
  device.capacity_bytes = reader.getCapacityBytes();
  device.granule_bytes = reader.getGranuleBytes();
  device.free_bytes = reader.getFreeBytes();
  device.largest_free_bytes = reader.getLargestFreeBytes();
  device.used_bytes = reader.getUsedBytes();
  device.leases = reader.getLeases();
  device.adopted = reader.getAdopted();
  device.present = reader.getPresent();
  device.contents = text_from_wire(reader.getContents());
  device.tier = client::figures_from_wire(reader.getAttributes());
  return device;
}

LeaseStatus read_lease(rpc::LeaseInfo::Reader reader, bool measured) {
  LeaseStatus lease;
  static_cast<LeaseInfo&>(lease) = client::lease_info_from_wire(reader);
  lease.measured = measured;
  return lease;
}

std::vector<LeaseStatus> read_leases(capnp::List<rpc::LeaseInfo>::Reader reader) {
  std::vector<LeaseStatus> leases;
  leases.reserve(reader.size());
  for (const rpc::LeaseInfo::Reader lease : reader) leases.push_back(read_lease(lease, false));
  return leases;
}

DrainProgress read_progress(rpc::DeviceProgress::Reader reader) {
  return {.device = read_device(reader.getDevice()),
          .left_bytes = reader.getLeftBytes(),
          .moves = read_moves(reader.getMoves())};
}

CompactionStatus read_compaction(rpc::Compaction::Reader reader) {
  return {.active = reader.getActive(),
          .device = text_from_wire(reader.getDevice()),
          .offset_bytes = reader.getOffset(),
          .length_bytes = reader.getLength(),
          .left_bytes = reader.getLeftBytes(),
          .moves = read_moves(reader.getMoves())};
}

ReservationStatus read_reservation(rpc::Reservation::Reader reader) {
  return {.id = reader.getId(),
          .pool = text_from_wire(reader.getPool()),
          .tenant = text_from_wire(reader.getTenant()),
          .bytes = reader.getBytes(),
          .ttl_ns = reader.getTtlNs(),
          .expires_in_ns = reader.getExpiresInNs(),
          .used_bytes = reader.getUsedBytes()};
}

namespace {

// The grants in the queue of the pool that `options` mean.
uint32_t waiting_in(const PoolsCall& pools, const GrantOptions& options) {
  const Result<std::vector<PoolInfo>> all = pools();
  if (!all.ok()) return 0;
  for (const PoolInfo& pool : *all) {
    if (pool.name == options.request.pool || all->size() == 1) return pool.waiting;
  }
  return 0;
}

}  // namespace

Result<LeaseStatus> grant_in_session(Connection& connection, rpc::TenantSession::Client session,
                                     const GrantOptions& options, const PoolsCall& pools,
                                     const WaitReport& report) {
  auto grant = session.grantRequest();
  auto wire = grant.initRequest();
  client::grant_to_wire(options.request, wire);
  wire.setRequestHigh(secure_random_u64());
  wire.setRequestLow(secure_random_u64());
  const auto read = [](auto& reply) { return read_lease(reply.getInfo(), false); };
  if (options.request.wait_ns == 0) return connection.call(kj::mv(grant), "TenantSession.grant", read);
  // Who waits now is before it; the queue is served in order, so that number only sinks.
  uint32_t before = waiting_in(pools, options);
  const auto waiting = [&]() {
    const uint32_t in_queue = waiting_in(pools, options);
    if (in_queue == 0) return;  // served already, or about to be
    before = std::min(before, in_queue - 1);
    report(before, in_queue);
  };
  return connection.call_reporting(
      kj::mv(grant), "TenantSession.grant",
      {.timeout_ns = connection.call_timeout_ns + options.request.wait_ns, .waiting = waiting}, read);
}

}  // namespace terrace::cli
