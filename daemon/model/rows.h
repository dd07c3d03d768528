// SPDX-License-Identifier: Apache-2.0
// The manager's durable state: the rows of the store, and a Delta of rows between two states. The state
// machine produces Deltas, the store makes them durable, recovery reads an Image back.
//
// Place     daemon/model; pure values, no SQL, no schema. docs/formats/store.md describes the columns.
#pragma once

#include <cstdint>
#include <iterator>
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
  transferring = 6,  // belongs to its new tenant already; the old holder is being shut out, the bytes stay
  waiting = 7,       // lives in memory only: a grant in the queue of a full pool, without extents
};

// Why a lease was or is being taken from its holder. What programs decide by; `reason` is for people.
enum class LeaseCause : uint8_t {
  none = 0,
  released = 1,
  expired = 2,
  revoked = 3,      // by an operator
  object_lost = 4,  // its memory object was gone, or changed behind the manager's back
  device_lost = 5,  // a device below it failed or vanished
  moved = 6,        // what a lease occupied before it was moved
};

// draining: nothing new is placed there, movable leases are asked to leave. failed: an operator or the kernel
// gave it up; like an absent device, and stays so until it is put back into service.
enum class DeviceState : uint8_t { in_service = 0, draining = 1, failed = 2 };

// linear: one run on one device where any has room, the shortest that fits, so that long runs stay whole.
// striped: pieces of PoolRow::stripe_bytes over all devices in turn. spread: one device a lease, the emptiest.
enum class Placement : uint8_t { linear = 0, striped = 1, spread = 2 };

// Whether the hardware keeps the caches of all hosts that map the memory coherent, on the operator's word. What
// was not said is to be treated as noncoherent, which is right everywhere.
enum class PoolCoherence : uint8_t { unknown = 0, coherent = 1, noncoherent = 2 };

// What an operator says of a pool's tenants. On memory of which a fenced holder may keep pages that it has pinned
// (daemon/memory/tier_attributes.h, Fence) nothing is granted to tenants who do not trust each other.
enum class TenantTrust : uint8_t { none = 0, mutual = 1 };

// What becomes of the processes that hold a lease when its memory is taken. kill: each has agreed to be ended first.
enum class OnFence : uint8_t { keep = 0, kill = 1 };

struct DeviceRow {
  DeviceId id;
  std::string serial;   // identity across boots
  std::string backend;  // "emulated", ...
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
  PoolId pool;  // 0: in no pool
  DeviceState state = DeviceState::in_service;

  bool operator==(const DeviceRow&) const = default;
};

struct PoolRow {
  PoolId id;
  std::string name;
  Placement placement = Placement::linear;
  uint64_t stripe_bytes = 0;  // a multiple of the granule when striped; 0 otherwise
  PoolCoherence coherence = PoolCoherence::unknown;
  TenantTrust trust = TenantTrust::none;

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
  LeaseCause cause = LeaseCause::none;
  bool movable = false;       // its holder agreed to be asked to move, and to be moved while nobody holds it
  uint64_t target_bytes = 0;  // what the object is being cut to, by a shrink or to undo a growth; 0 otherwise
  std::string next_object;    // while transferring: the object that takes the bytes over; empty otherwise
  OnFence on_fence = OnFence::keep;  // kill: not movable

  bool operator==(const LeaseRow&) const = default;
};

// What a tenant may have over all pools; 0 is no bound. The row of tenant "*" holds for those without one.
struct QuotaRow {
  std::string tenant;
  uint64_t bytes_max = 0;
  uint64_t leases_max = 0;

  bool operator==(const QuotaRow&) const = default;
};

// Room in a pool that only one tenant can take. A tenant's leases there count as use of its reservations: what
// they do not cover stays free for it.
struct ReservationRow {
  ReservationId id;
  PoolId pool;
  std::string tenant;
  uint64_t bytes = 0;
  uint64_t ttl_ns = 0;     // 0: until it is removed
  uint64_t expiry_ns = 0;  // as a lease's

  bool operator==(const ReservationRow&) const = default;
};

// A process as its own machine knows it. Two processes of one number differ in when they were started; a number means
// nothing in another pid namespace, or after another boot.
struct ProcessId {
  uint64_t pid = 0;      // 0: none
  uint64_t started = 0;  // /proc/PID/stat, field 22
  uint64_t space = 0;    // the namespaces that both belong to (daemon/event_loop/processes.h)

  bool operator==(const ProcessId&) const = default;
};

// Who may write to one part of a shared_coherent lease, and under which epoch. The row outlives its owner, so
// that the epoch grows as long as the lease lives.
struct OwnerRow {
  PartId id;
  uint64_t epoch = 0;       // of the owner, or of the last one
  uint64_t request = 0;     // the claim's idempotency key
  ProcessId process = {};   // pid 0: nobody owns the part
  std::string holder = {};  // for people: "python3[1234]"; empty when nobody does
  // The host of that process, as an agent is called, or of the last owner's; empty: the manager's own. Where caches of hosts are
  // not coherent, the part stays that host's until it has nothing of the lease any more.
  std::string host = {};

  bool operator==(const OwnerRow&) const = default;
};
inline constexpr const char* any_host = "*";  // in OwnerRow::host: no cache of a host has anything of the part
inline constexpr uint64_t lease_parts_max = 64;
constexpr PartId part_id(LeaseId lease, uint64_t part) {
  return PartId{lease.value * lease_parts_max + part};
}
constexpr LeaseId lease_of(PartId id) {
  return LeaseId{id.value / lease_parts_max};
}
constexpr uint64_t part_of(PartId id) {
  return id.value % lease_parts_max;
}

// A second memory object of a shared lease, on another host, over the same extents: `devdax:lease-7-12@hostb`. In the store
// from before it is made until it is certainly no more; then and not before may the extents be another's.
using ViewId = StrongId<struct ViewIdTag>;  // lease * 64 + a number
struct ViewRow {
  ViewId id;
  std::string object;
  bool opening = false;  // being made: nobody attaches it yet
  bool closing = false;  // being shut out and removed: nobody attaches it any more

  bool operator==(const ViewRow&) const = default;
};
inline constexpr uint64_t lease_views_max = 64;
constexpr ViewId view_id(LeaseId lease, uint64_t number) {
  return ViewId{lease.value * lease_views_max + number};
}
constexpr LeaseId lease_of(ViewId id) {
  return LeaseId{id.value / lease_views_max};
}

// One line of the audit log. Not part of the state: the store keeps the newest limits::audit_rows_max.
struct AuditRow {
  uint64_t sequence = 0;  // given by the store, in the order of commits
  uint64_t wall_ns = 0;   // CLOCK_REALTIME
  std::string actor;      // "uid 0 (terrace[1234])", "manager"
  std::string tenant;     // whom it concerns; empty: nobody in particular
  std::string verb;       // "grant", "revoke", "device drain", "expire", ...
  std::string subject;    // "lease 7", "device emu:a", "pool p"
  std::string detail;     // one printable line

  bool operator==(const AuditRow&) const = default;
};

struct MetaRow {
  uint64_t next_device = 1;
  uint64_t next_pool = 1;
  uint64_t next_lease = 1;
  uint64_t next_epoch = 1;
  uint64_t next_reservation = 1;
  std::string boot_id;  // the boot that expiry_ns and deadline_ns belong to
  // The store is a copy of an earlier state (a backup), and no manager has started from it yet: memory that it does
  // not know may be a tenant's, and ids and epochs beyond its own may have been given.
  bool restored = false;

  bool operator==(const MetaRow&) const = default;
};

// Everything that a store holds, as loaded at start. Untrusted until StateMachine::recover checked it.
struct Image {
  MetaRow meta;
  std::vector<DeviceRow> devices;
  std::vector<PoolRow> pools;
  std::vector<LeaseRow> leases;
  std::vector<QuotaRow> quotas;
  std::vector<ReservationRow> reservations;
  std::vector<OwnerRow> owners = {};
  std::vector<ViewRow> views = {};
};

// Row changes that must become durable together; nullopt deletes. The last change of a row wins, so that
// commands that arrived together merge into one transaction.
struct Delta {
  std::map<DeviceId, std::optional<DeviceRow>> devices;
  std::map<PoolId, std::optional<PoolRow>> pools;
  std::map<LeaseId, std::optional<LeaseRow>> leases;
  std::map<std::string, std::optional<QuotaRow>> quotas;  // by tenant
  std::map<ReservationId, std::optional<ReservationRow>> reservations;
  std::map<PartId, std::optional<OwnerRow>> owners;
  std::map<ViewId, std::optional<ViewRow>> views;
  std::optional<MetaRow> meta;
  std::vector<AuditRow> audit;  // appended in this order; their sequence is still 0

  bool empty() const {
    return devices.empty() && pools.empty() && leases.empty() && quotas.empty() && reservations.empty() &&
           owners.empty() && views.empty() && !meta.has_value() && audit.empty();
  }
  // `later` happened after this one.
  void merge(Delta&& later) {
    for (auto& [id, row] : later.devices) devices[id] = std::move(row);
    for (auto& [id, row] : later.pools) pools[id] = std::move(row);
    for (auto& [id, row] : later.leases) leases[id] = std::move(row);
    for (auto& [tenant, row] : later.quotas) quotas[tenant] = std::move(row);
    for (auto& [id, row] : later.reservations) reservations[id] = std::move(row);
    for (auto& [id, row] : later.owners) owners[id] = std::move(row);
    for (auto& [id, row] : later.views) views[id] = std::move(row);
    audit.insert(audit.end(), std::make_move_iterator(later.audit.begin()),
                 std::make_move_iterator(later.audit.end()));
    if (later.meta.has_value()) meta = std::move(later.meta);
  }
};

}  // namespace terrace::daemon
