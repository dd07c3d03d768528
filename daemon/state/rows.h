// What the manager remembers: the rows of the store, and a Delta of rows between two states. The state
// machine produces Deltas, the store makes them durable, recovery reads an Image back.
//
// Place     daemon/state; pure values, no SQL, no schema. docs/formats/store.md describes the columns.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/ids.h"

namespace terrace::daemon {

// Contiguous granules of one device. Granule numbers count from the device's start.
struct Extent {
  DeviceId device;
  uint64_t first_granule = 0;
  uint64_t granules = 0;

  uint64_t end() const { return first_granule + granules; }
  auto operator<=>(const Extent&) const = default;
};

enum class LeaseMode : uint8_t { exclusive = 0, shared_read_only = 1, shared_coherent = 2 };

// `pending` lives in memory only: a crash before the grant is durable leaves at most an orphan object.
enum class LeasePhase : uint8_t {
  pending = 0,
  active = 1,
  revoking = 2,
  fencing = 3,
  scrubbing = 4,
  quarantined = 5,
};

struct DeviceRow {
  DeviceId id;
  std::string serial;   // identity across boots
  std::string backend;  // "emulated", ...
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
  PoolId pool;  // 0: in no pool

  bool operator==(const DeviceRow&) const = default;
};

struct PoolRow {
  PoolId id;
  std::string name;

  bool operator==(const PoolRow&) const = default;
};

struct LeaseRow {
  LeaseId id;
  PoolId pool;
  std::string tenant;
  std::string host;
  std::string label;
  std::string object;  // the backing object's name within its backend
  std::string reason;  // why it is being taken back; empty while it is not
  std::vector<Extent> extents;
  LeaseEpoch epoch;
  LeaseMode mode = LeaseMode::exclusive;
  LeasePhase phase = LeasePhase::pending;
  uint64_t bytes = 0;
  uint64_t ttl_ns = 0;        // 0: persistent
  uint64_t expiry_ns = 0;     // CLOCK_BOOTTIME under Meta::boot_id; 0 when persistent
  uint64_t deadline_ns = 0;   // of a revocation; 0 otherwise
  uint64_t request_high = 0;  // the grant's idempotency key
  uint64_t request_low = 0;

  bool operator==(const LeaseRow&) const = default;
};

struct MetaRow {
  uint64_t next_device = 1;
  uint64_t next_pool = 1;
  uint64_t next_lease = 1;
  uint64_t next_epoch = 1;
  std::string boot_id;  // the boot that expiry_ns and deadline_ns belong to

  bool operator==(const MetaRow&) const = default;
};

// Everything that a store holds, as loaded at start. Untrusted until StateMachine::recover checked it.
struct Image {
  MetaRow meta;
  std::vector<DeviceRow> devices;
  std::vector<PoolRow> pools;
  std::vector<LeaseRow> leases;
};

// Row changes that must become durable together; nullopt deletes. The last change of a row wins, so that
// commands that arrived together merge into one transaction.
struct Delta {
  std::map<DeviceId, std::optional<DeviceRow>> devices;
  std::map<PoolId, std::optional<PoolRow>> pools;
  std::map<LeaseId, std::optional<LeaseRow>> leases;
  std::optional<MetaRow> meta;

  bool empty() const { return devices.empty() && pools.empty() && leases.empty() && !meta.has_value(); }
  // `later` happened after this one.
  void merge(Delta&& later) {
    for (auto& [id, row] : later.devices) devices[id] = std::move(row);
    for (auto& [id, row] : later.pools) pools[id] = std::move(row);
    for (auto& [id, row] : later.leases) leases[id] = std::move(row);
    if (later.meta.has_value()) meta = std::move(later.meta);
  }
};

}  // namespace terrace::daemon
