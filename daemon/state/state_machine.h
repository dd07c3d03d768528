// The manager's decisions: command in, reply, row changes and effects out. No clock, socket, disk, lock or
// thread; everything that decides who may touch which granule is here.
//
// Place     daemon/event_loop owns the one instance; tests/model and tests/sim drive others.
// Threads   One.
//
// Invariants (check_all re-derives each from scratch; docs/invariants.md says which test attacks them):
//   I1  An extent lies within its device, and the device is in the lease's pool.
//   I2  No granule is in two leases, whatever their phases.
//   I3  free + leased + scrubbing + quarantined = capacity, per device.
//   I4  bytes of a lease = sum of its extents.
//   I5  LeaseEpoch and LeaseId are unique and below the meta row's next.
//   I6  A non-empty label is unique among a tenant's leases that are pending, active or revoking.
//   I7  A persistent lease has no expiry; every other active lease has one, and the due index holds it.
//   I8  A pool's devices exist and belong to no other pool.
//   I9  The free index of a device equals the complement of its leases' extents.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/base/result.h"
#include "daemon/pool/extent_map.h"
#include "daemon/state/command.h"
#include "daemon/state/rows.h"

namespace terrace::daemon {

// What exists outside, as the backend listed it at start.
struct Observation {
  std::vector<std::pair<std::string, uint64_t>> objects;  // name, bytes a holder could map
  std::vector<std::string> device_serials;                // devices seen now
};

struct Recovery {
  Delta delta;                        // to make durable before serving
  std::vector<Effect> effects;        // fences and scrubs to do again
  std::vector<std::string> orphans;   // objects without a lease: scrub each before the first grant
  std::vector<std::string> findings;  // one sentence each, for the log and `terrace status`
};

struct PoolUse {
  uint64_t capacity_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t leased_bytes = 0;
  uint64_t scrubbing_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t largest_free_bytes = 0;
  uint64_t leases = 0;
};

class StateMachine {
 public:
  StateMachine() = default;

  // Builds the state from what a store held, and compares it with what exists. Must be the first call.
  // Errors    corrupt   the image breaks an invariant; names the row. Nothing is served from such a store
  Result<Recovery> recover(Image image, const Observation& observed, const std::string& boot_id,
                           uint64_t now_ns);

  // Applies one command. A refused command changes nothing and has an empty Delta.
  Step apply(const Command& command);

  // When the next Tick has something to do; nullopt: nothing is due.
  std::optional<uint64_t> next_due_ns() const;

  // Queries. Pointers live until the next apply.
  const LeaseRow* find_lease(LeaseId id) const;
  const LeaseRow* find_lease_by_label(const std::string& tenant, const std::string& label) const;
  const PoolRow* find_pool(const std::string& name) const;
  const PoolRow* find_pool(PoolId id) const;
  const DeviceRow* find_device(DeviceId id) const;
  const DeviceRow* find_device(const std::string& serial) const;
  const std::map<LeaseId, LeaseRow>& leases() const { return leases_; }
  const std::map<PoolId, PoolRow>& pools() const { return pools_; }
  const std::map<DeviceId, DeviceRow>& devices() const { return devices_; }
  PoolUse pool_use(PoolId id) const;
  uint64_t device_free_bytes(DeviceId id) const;
  uint64_t pool_granule_bytes(PoolId id) const;

  // Re-derives every invariant; one sentence for each breach, none when all hold.
  std::vector<std::string> check_all() const;

  // The rows as a store would hold them; pending leases are not durable and are left out.
  Image image() const;

 private:
  Step on(const AdoptDevice& command);
  Step on(const CreatePool& command);
  Step on(const DeletePool& command);
  Step on(const Grant& command);
  Step on(const CarveFinished& command);
  Step on(const Renew& command);
  Step on(const Release& command);
  Step on(const Revoke& command);
  Step on(const Tick& command);
  Step on(const FenceFinished& command);
  Step on(const ScrubFinished& command);

  struct DueEntry {
    uint64_t at_ns;
    LeaseId lease;
    auto operator<=>(const DueEntry&) const = default;
  };

  Status check_grant(const Grant& command, const PoolRow* pool) const;
  Result<std::vector<Extent>> place(PoolId pool, uint64_t granules);
  LeaseRow* mutable_lease(LeaseId id, const std::string& tenant);
  void set_due(const LeaseRow& lease);
  void clear_due(const LeaseRow& lease);
  // Moves a lease to `fencing`: from here it holds no label and no idempotency key.
  void begin_fence(LeaseRow& lease, std::string reason, Step& step);
  void forget(LeaseId id);  // extents become free
  void index_lease(const LeaseRow& lease);
  void unindex_lease(const LeaseRow& lease);
  Status load_rows(Image image);
  Status reserve_row_extents(const LeaseRow& lease);
  void recover_lease(LeaseRow& lease, const std::map<std::string, uint64_t>& objects, bool same_boot,
                     uint64_t now_ns, Recovery& recovery);

  MetaRow meta_;
  std::map<DeviceId, DeviceRow> devices_;
  std::map<PoolId, PoolRow> pools_;
  std::map<LeaseId, LeaseRow> leases_;
  std::unordered_map<DeviceId, ExtentMap> free_;
  std::set<DueEntry> due_;
  std::set<DeviceId> absent_;  // adopted, but not seen at start: nothing is placed there
  std::map<std::pair<std::string, std::string>, LeaseId> by_label_;            // tenant, label
  std::map<std::tuple<std::string, uint64_t, uint64_t>, LeaseId> by_request_;  // tenant, key
};

}  // namespace terrace::daemon
