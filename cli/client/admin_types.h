// What a daemon reports and is asked, as plain structs for the verbs: no kj, no Cap'n Proto.
//
// Place     Filled by wire_read.cc; shown by describe*.cc.
// Units     Bytes, nanoseconds; `wall_ns` is CLOCK_REALTIME.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/litmus/report.h"
#include "terrace/session.h"

namespace terrace::cli {

struct ServerStatus {
  std::string version, boot_id, runtime_directory, state_file, object_directory;
  std::string huge_pages;  // what the object directory's mount allows, in words
  std::string recovered;   // what the last start found and did
  uint32_t pid = 0;
  uint64_t uptime_ns = 0;
  uint64_t store_commits = 0;
  uint64_t commands_applied = 0;
  uint32_t connections = 0;
  bool failpoints = false;
  uint64_t scrubbed_bytes = 0;  // since the start
  uint64_t scrub_queued_bytes = 0;
  uint64_t scrub_bytes_per_s = 0;  // the bound in the background; 0: none
  uint32_t waiting = 0;            // grants in queues
};

struct LeaseStatus : LeaseInfo {
  bool measured = false;  // whether object_bytes was asked for; 0 then means that the object is missing
};

struct StatusReply {
  ServerStatus server;
  std::vector<PoolInfo> pools;
  uint32_t leases = 0;
};

struct DeviceStatus {
  std::string serial, backend, pool, detail;
  std::string state;  // "in_service", "draining", "failed"
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t largest_free_bytes = 0;
  uint64_t used_bytes = 0;
  uint32_t leases = 0;  // with extents on it, whatever their phases
  bool adopted = false;
  bool present = false;
  TierFigures tier;
  std::string contents;  // what adopting it destroys, in words; empty: nothing
};

struct HostRecord {  // a further host
  std::string name, address, version, detail;
  std::string state;  // "connected", "registering", "away", "self-fenced"
  uint64_t last_contact_ns = 0;
  uint64_t ends_in_ns = 0;  // while away: until its leases count as fenced
  uint32_t leases = 0;
  uint64_t leased_bytes = 0;
  std::vector<std::string> devices;
};

struct MoveStatus {  // a lease that should leave its place
  LeaseId lease;
  std::string tenant, label, state;
  uint64_t bytes = 0;
  bool blocked = false;  // it will not go by itself; `state` says why
};

struct DrainProgress {
  DeviceStatus device;
  uint64_t left_bytes = 0;
  std::vector<MoveStatus> moves;
};

struct CompactionStatus {
  bool active = false;
  std::string device;  // empty: a run of that length is free already
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t left_bytes = 0;
  std::vector<MoveStatus> moves;
};

struct PoolOptions {
  std::string name;
  std::vector<std::string> devices;
  PoolPlacement placement = PoolPlacement::linear;
  uint64_t stripe_bytes = 0;
  MemoryCoherence coherence = MemoryCoherence::unknown;
};

struct RegionOptions {
  std::vector<std::string> memdevs;  // serials, in their order of interleaving
  uint64_t granularity_bytes = 0;    // 0: the most that all decoders can do
  uint64_t bytes = 0;                // 0: all there is
};

struct RevokeOptions {
  uint64_t grace_ns = 0;
  std::string reason;
};

struct GrantOptions {
  LeaseRequest request;
  std::string tenant;  // empty: the one that this uid maps to
};

struct QuotaStatus {
  std::string tenant;       // "*": those without one of their own
  uint64_t bytes_max = 0;   // 0: no bound
  uint64_t leases_max = 0;  // 0: no bound
  uint64_t bytes = 0, leases = 0;
};

struct ReservationStatus {
  uint64_t id = 0;
  std::string pool, tenant;
  uint64_t bytes = 0;
  uint64_t ttl_ns = 0;  // 0: until it is removed
  uint64_t expires_in_ns = 0;
  uint64_t used_bytes = 0;
};

struct AuditFilter {
  std::string tenant, verb, subject;  // empty matches all; `verb` is a prefix
  uint64_t since_ns = 0;              // CLOCK_REALTIME
};

struct AuditRecord {
  uint64_t sequence = 0;
  uint64_t wall_ns = 0;
  std::string actor, tenant, verb, subject, detail;
};

struct FindingStatus {
  std::string severity;  // "error", "warning", "note"
  std::string subject, what, repair;
};

struct LitmusStatus {
  std::string device;  // serial
  litmus::Report report;
  uint64_t age_ns = 0;  // how long ago it ended
};

}  // namespace terrace::cli
