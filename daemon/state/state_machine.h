// SPDX-License-Identifier: Apache-2.0
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
//   I6  A non-empty label is unique among a tenant's leases that are pending, waiting, active, revoking or
//       transferring.
//   I7  A persistent lease has no expiry, every other active lease has one; what is revoking, waiting or a
//       move's target has a deadline; the due indexes hold exactly these and the reservations' expiries.
//   I8  A pool's devices exist and belong to no other pool.
//   I9  The free index of a device equals the complement of its leases' extents and their growths'.
//   I10 The counters of use (by pool and phase, by tenant, by pool and tenant) equal what the rows add up to.
//   I11 A grant leaves free, or on its way to being free, what other tenants' reservations do not yet have.
//   I12 A waiting grant has no extents and is in its pool's queue once, as large as it is; where some wait it is
//       the turn of one, and the tick that ends its phase is due; a move's target is pending and unlabelled.
//       What is offered is its holder's still, and not the receiver's.
//   I13 Parts with owner rows belong to shared_coherent leases that are active, revoking or transferring; only
//       on this machine a part is owned, and a row without a process has nothing of an owner but the epoch. A
//       part's epoch grows with each owner.
//   I14 A lease's phase changes as the table in daemon/model/phases.h says, and no other way.
//   I15 A view belongs to a shared lease that was granted and neither moves nor changes its size; no two objects of a
//       lease are on one host but where one is being removed, and no two leases have an object of one name.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/limits.h"
#include "core/base/result.h"
#include "daemon/model/extent_map.h"
#include "daemon/model/granule_account.h"
#include "daemon/model/lease_index.h"
#include "daemon/model/rows.h"
#include "daemon/model/waiting_queue.h"
#include "daemon/state/command.h"

namespace terrace::daemon {

// What exists outside, as the backend listed it at start.
struct Observation {
  std::vector<std::pair<std::string, uint64_t>> objects;  // name, bytes a holder could map
  std::vector<std::string> device_serials;                // devices seen now
  // Backends whose objects are whole when a device comes back that is not seen: a lease there waits for it.
  std::set<std::string> lasting_backends = {};
  // Objects that are not to be destroyed if no lease has them, and why.
  std::map<std::string, std::string> kept = {};
  // The store is older than what there is, whether it says so (MetaRow::restored) or not: then what is `kept` is
  // quarantined. restored.cc
  bool older_copy = false;
  // Of objects whose kind knows: the serial of the device that one lies on.
  std::map<std::string, std::string> lies_on = {};
};

struct Recovery {
  Delta delta;                        // to make durable before serving
  std::vector<Effect> effects;        // fences and scrubs to do again
  std::vector<std::string> orphans;   // objects without a lease: scrub each before the first grant
  std::vector<std::string> findings;  // one sentence each, for the log and `terrace status`
};

struct PoolUse {
  uint64_t capacity_bytes = 0;
  uint64_t free_bytes = 0;    // on devices that are present
  uint64_t absent_bytes = 0;  // nobody's either, on devices that are not: with what leases have, the capacity
  uint64_t leased_bytes = 0;
  uint64_t scrubbing_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t largest_free_bytes = 0;
  uint64_t leases = 0;           // whatever their phase; waiting ones are counted apart
  uint64_t grantable_bytes = 0;  // free on devices that are present and in service
  uint64_t reserved_bytes = 0;   // of those, kept for tenants with reservations
  uint64_t waiting = 0;
  uint64_t waiting_bytes = 0;
};

// Leases that count against a tenant's quota: pending, active, revoking, transferring; no move's target.
struct TenantUse {
  uint64_t bytes = 0;
  uint64_t leases = 0;
};

// Bounds that no machine reaches and that keep every sum of bytes within 64 bits.
inline constexpr uint64_t device_granules_max = uint64_t{1} << 40;
inline constexpr uint64_t adopted_bytes_max = uint64_t{1} << 62;  // of all devices together

// Who may make a lease its own by accepting it, and where it then is.
struct Offer {
  std::string to_tenant;
  std::string to_host;  // empty: the same host
};

// A lease that should leave its place, for a drain or a compaction.
struct WantedMove {
  LeaseId lease;
  LeaseId target;        // of a move under way; invalid otherwise
  bool movable = false;  // and in a phase that can move
  bool for_drain = false;
};

class StateMachine {
 public:
  // `ttl_ns_max`: the manager's own bound on the term of a lease, whoever gives it: a grant, a renewal, a
  // transfer. One below limits::ttl_ns_max leaves no room for persistent leases.
  explicit StateMachine(uint64_t ttl_ns_max = limits::ttl_ns_max) : ttl_ns_max_(ttl_ns_max) {}
  // Not copied by accident: its indexes point into it.
  StateMachine copy() const;
  StateMachine(StateMachine&&) = default;
  StateMachine& operator=(StateMachine&&) = default;

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
  const std::map<std::string, QuotaRow>& quotas() const { return quotas_; }
  const std::map<ReservationId, ReservationRow>& reservations() const { return reservations_; }
  // From counters: O(devices), and growths and reservations under way. For all pools in one walk over the devices.
  PoolUse pool_use(PoolId id) const;
  std::map<PoolId, PoolUse> pool_uses() const;
  TenantUse tenant_use(const std::string& tenant) const;
  const std::map<std::string, TenantUse>& tenant_uses() const { return tenant_use_; }
  uint64_t tenant_bytes_in(PoolId pool, const std::string& tenant) const;
  // The bounds that hold for a tenant: its own row, else that of "*", else none.
  QuotaRow quota_of(const std::string& tenant) const;
  // Leases that wait for another tenant's acceptance.
  const std::map<LeaseId, Offer>& offers() const { return offers_; }
  // Who owns the part, or owned it last; null: nobody ever did.
  const OwnerRow* find_owner(LeaseId lease, uint64_t part) const;
  std::vector<OwnerRow> owners_of(LeaseId lease) const;  // by part
  // The memory objects of a lease on further hosts, by number.
  std::vector<ViewRow> views_of(LeaseId lease) const;
  const std::map<ViewId, ViewRow>& views() const { return views_; }
  // Whether that object is being made, and still wanted: of a lease that is being fenced none is.
  bool opening(ViewId id, const std::string& object) const;
  // The name of the lease's object on that host (empty: this machine), whole and to be attached; nullopt: it has none.
  std::optional<std::string> object_on(const LeaseRow& lease, const std::string& agent) const;
  // Whether what an owner of the part stored can be in no cache but such as the other host's processes read through.
  bool same_caches(const LeaseRow& lease, const OwnerRow& owner, const std::string& host) const;
  const ExtentMap& free_of(DeviceId id) const { return free_.at(id); }
  bool absent(DeviceId id) const { return absent_.contains(id); }
  // Leases that wait for a device that was not there at the start: they are their holders' still, and whether
  // their objects are whole is known when the device is back.
  std::vector<LeaseId> awaiting(DeviceId id) const;
  bool awaited(LeaseId id) const { return awaited_.contains(id); }
  // Whether new extents may be placed there: present and in service.
  bool placeable(const DeviceRow& device) const;
  // Whether grants wait for `pool`: then its scrubs are urgent.
  bool has_waiting(PoolId pool) const;
  const WaitingQueue* queue_of(PoolId pool) const;  // null: nobody waits
  // Why a request that waited for so long gets nothing: what whoever waits is told at the end of its time.
  Error waited_in_vain(const LeaseRow& lease, uint64_t waited_ns) const;
  // Leases that drains and compactions want elsewhere, movable or not, by id. O(leases).
  std::vector<WantedMove> moves_wanted() const;
  struct CompactionPlan {
    DeviceId device;
    GranuleRun window;
    uint64_t deadline_ns = 0;
  };
  const CompactionPlan* compaction_of(PoolId pool) const;
  uint64_t device_free_bytes(DeviceId id) const;
  // Leases with extents on a device, whatever their phases, and their bytes there. For all devices in one walk
  // over the leases; devices without any are left out.
  struct DeviceUse {
    uint64_t leases = 0;
    uint64_t bytes = 0;
  };
  std::map<DeviceId, DeviceUse> device_uses() const;
  uint64_t pool_granule_bytes(PoolId id) const;
  const std::string& pool_backend(PoolId id) const;  // the kind of its devices
  // The host whose agent has the lease's object; empty: this manager's machine.
  static std::string agent_of(const LeaseRow& lease) { return host_of(lease.object); }
  // Likewise of any object's name.
  static std::string host_of(const std::string& object);

  // Re-derives every invariant; one sentence for each breach, none when all hold.
  std::vector<std::string> check_all() const;

  // The rows as a store would hold them; pending leases are not durable and are left out.
  Image image() const;

 private:
  StateMachine(const StateMachine&) = default;  // copy()'s

  Step on(const AdoptDevice& command);
  Step on(const CreatePool& command);
  Step on(const DeletePool& command);
  Step on(const AddDevice& command);
  Step on(const DrainDevice& command);
  Step on(const UndrainDevice& command);
  Step on(const FailDevice& command);
  Step on(const DeviceLost& command);
  Step on(const DeviceBack& command);
  Step on(const RemoveDevice& command);
  Step on(const SetQuota& command);
  Step on(const CreateReservation& command);
  Step on(const RemoveReservation& command);
  Step on(const CompactPool& command);
  Step on(const Grant& command);
  Step on(const CancelGrant& command);
  Step on(const CarveFinished& command);
  Step on(const Renew& command);
  Step on(const RenewMany& command);
  Step on(const Release& command);
  Step on(const Revoke& command);
  Step on(const Resize& command);
  Step on(const ResizeFinished& command);
  Step on(const Transfer& command);
  Step on(const RebindFinished& command);
  Step on(const BeginMove& command);
  Step on(const FinishMove& command);
  Step on(const Tick& command);
  Step on(const FenceFinished& command);
  Step on(const ScrubFinished& command);
  Step on(const ScrubAdvanced& command);
  Step on(const SetPoolCoherence& command);
  Step on(const SetPoolTrust& command);
  Step on(const ClaimPart& command);
  Step on(const ReleasePart& command);
  Step on(const ResumeAfterGap& command);
  Step on(const OfferLease& command);
  Step on(const AcceptOffer& command);
  Step on(const CancelWaiting& command);
  Step on(const OpenView& command);
  Step on(const ViewOpened& command);
  Step on(const ViewClosed& command);
  Step on(const LoseObject& command);

  // A growth whose object is being made longer; its extents are taken and in the durable row, not in leases_
  // yet. Without extents: an object that recovery found too long is being cut back to its row.
  struct Growth {
    std::vector<Extent> extents;
    uint64_t bytes = 0;  // of the lease afterwards
  };

  // lifecycle.cc: the lease after that; what has to be durable is added to `delta`. Errors: Renew's.
  Result<const LeaseRow*> renew(LeaseId id, const std::string& tenant, uint64_t ttl_ns, uint64_t now_ns,
                                Delta& delta);

  // grant.cc: how long a lease may live without a renewal
  // Whether `ttl_ns` may be asked for; 0, a default or the lease's own, always may. Errors: invalid_argument.
  Status check_ttl(uint64_t ttl_ns, const char* where) const;
  Status check_persistent(const char* where) const;  // whether such a lease may be given. Errors: as above
  uint64_t within_term(uint64_t ttl_ns) const;       // 0 stays 0

  // grant.cc, placement.cc
  Status check_grant(const Grant& command, const PoolRow* pool) const;
  // Room for a new lease or a growth of `tenant`: nobody who waits is overtaken, reservations are kept.
  // Errors: capacity_exhausted, nothing taken.
  // `only`: the serial of the one device that it may lie on; empty: any of the pool.
  Result<std::vector<Extent>> take_room(PoolId pool, const std::string& tenant, uint64_t granules,
                                        const std::string& only = {});
  // Takes `granules` out of the free indexes as the pool's placement says, on placeable devices only, outside
  // the window of a compaction unless nothing else is left (what leaves a window must never come back to it).
  // Errors: capacity_exhausted, nothing taken.
  enum class Windows { if_needed, never };
  Result<std::vector<Extent>> place(PoolId pool, uint64_t granules, Windows windows = Windows::if_needed,
                                    const std::string& only = {});
  std::vector<Extent> hold_window(PoolId pool);  // takes what is free in the pool's window
  void give_back(const std::vector<Extent>& extents);

  // What the object of a lease is called. `lease-7`; `devdax:lease-7` where the kind of memory
  // is not the emulated one; `devdax:lease-7@hostb` where the agent of that host does the work. `id`: another
  // than the row's own; `tail`: what tells a second object of the lease from the first.
  std::string object_name(const LeaseRow& lease, const std::string& agent, LeaseId id = {},
                          const std::string& tail = {}) const;
  // devices.cc
  DeviceRow* mutable_device(const std::string& serial);
  // Of the devices below `extents` the first that is absent, or absent or failed; null when all are there.
  const DeviceRow* absent_device_of(const std::vector<Extent>& extents) const;
  const DeviceRow* lost_device_of(const std::vector<Extent>& extents) const;
  void fence_leases_on(DeviceId device, const std::string& reason, Step& step);
  // Fences again what was quarantined for the want of a device and has all of them now, so that it is scrubbed.
  void retry_quarantined(DeviceId device, bool failed_too, const std::string& reason, Step& step);
  void come_back(const DeviceRow& device, Step& step);
  Status check_leaves(const DeviceRow& device, bool forget_quarantined) const;
  void forget_extents_on(DeviceId device, Step& step);

  // compaction.cc
  struct CompactionSearch;
  bool can_move(const LeaseRow& lease) const;
  Step refuse_compaction(const CompactionSearch& search, const PoolRow& pool, uint64_t granule_bytes);
  void end_compactions(uint64_t now_ns);  // those that are done, due, or cannot be done any more

  // lease_index.cc: the two parts of a PoolUse
  void add_device_use(const DeviceRow& device, PoolUse& use) const;
  void add_lease_use(PoolId id, PoolUse& use) const;

  // quota.cc
  // Whether the tenant's quota allows that much more. Errors: limit_exceeded, names the bound and the use.
  Status check_quota(const std::string& tenant, uint64_t more_bytes, uint64_t more_leases) const;
  // The same for a grant that would wait, with what its tenant waits for already.
  Status check_waiting_quota(const LeaseRow& lease) const;
  // Whether a grant of `bytes` leaves other tenants' reservations their room. Errors: capacity_exhausted.
  Status check_reservations(PoolId pool, const std::string& tenant, uint64_t bytes) const;
  // What `tenant`'s reservations in `pool` keep free beyond what it has there.
  uint64_t unfilled_reservation(PoolId pool, const std::string& tenant) const;
  // The same, summed over all tenants but one; for one that had `less_bytes` less than it has, `lessened`.
  uint64_t unfilled_of_others(PoolId pool, const std::string& but, const std::string& lessened = {},
                              uint64_t less_bytes = 0) const;
  uint64_t grantable_bytes(PoolId pool) const;
  uint64_t filling_bytes(PoolId pool,
                         const std::string& tenant) const;  // tenant_bytes_in, and growths under way
  // Whether nobody has a claim on the pool's future room. Errors: busy, names reservations or waiting grants.
  Status check_unclaimed(const PoolRow& pool) const;
  void index_reservation(const ReservationRow& row, bool in);
  void remove_reservation(ReservationId id, Step& step);

  // queue.cc: the waiting grants of a pool, in turn by tenant (daemon/model/waiting_queue.h).
  // Serves those that fit now and may be served; called whenever something may have become free.
  void serve_waiting(PoolId pool, Step& step);
  void serve_all_waiting(Step& step);
  void serve_reserved(PoolId pool, Step& step);  // what a reservation covers, whosever turn it is
  void serve_turns(PoolId pool, Step& step);
  void serve_others(PoolId pool, Step& step);  // who fits, before the turn
  bool serve_one_of(PoolId pool, const std::string& tenant, uint64_t& bytes_max, Step& step);
  void next_phases(uint64_t now_ns, Step& step);
  // Errors: capacity_exhausted, room is kept for who waits and the tenant's reservation does not cover `bytes`.
  Status check_turn(PoolId pool, const std::string& tenant, uint64_t bytes) const;
  Status check_may_wait(const LeaseRow& lease) const;
  Step enqueue(LeaseRow lease, const Grant& command);
  Step join_waiting(LeaseRow& lease, const Grant& command);  // a request that waits, asked for again
  bool may_fit(const LeaseRow& lease) const;
  bool try_serve(LeaseRow& lease, Step& step);
  void leave_queue(const LeaseRow& lease, bool got_room = false);
  void refuse_waiting(LeaseId id, Error error, Step& step);

  // resize.cc, move.cc
  // Whether a resize, transfer or move may begin now. Errors: not_found, lease_expired, lease_revoked, busy.
  Status check_changeable(LeaseId id, const std::string& tenant, const char* where, uint64_t now_ns) const;
  // `extents` and `more` after it, merged where it continues the last one.
  static std::vector<Extent> joined(std::vector<Extent> extents, const std::vector<Extent>& more);
  // Cuts `extents` after `granules`.
  // Returns  the rest.
  static std::vector<Extent> cut(std::vector<Extent>& extents, uint64_t granules);
  // What the store has of a lease: while it grows, one that has its new size already and is being cut to the
  // old.
  LeaseRow durable_row(const LeaseRow& lease) const;
  void begin_growth(LeaseId id, std::vector<Extent> extents, uint64_t bytes);
  Growth end_growth(LeaseId id);
  Step grow(LeaseRow& lease, uint64_t granules);
  Step shrink(LeaseRow& lease, uint64_t granules);
  Step finish_growth(LeaseRow& lease, const Status& status);
  Step finish_shrink(LeaseRow& lease, const Status& status);
  // transfer.cc
  // Whether `to_tenant` may get the lease now. Errors: limit_exceeded, already_exists, capacity_exhausted.
  Status check_receiver(const LeaseRow& lease, const std::string& to_tenant, bool pins_outlast,
                        const char* where) const;
  // Whether the pool's memory may go to whoever asks, or on to another tenant.
  // Errors    permission_denied   only among tenants who trust each other, which no operator said of this pool's
  static Status check_trust(const PoolRow& pool, bool pins_outlast, const char* where);
  Step hand_over(LeaseRow& lease, const std::string& to_tenant, const std::string& to_host,
                 const std::optional<std::string>& to_agent);

  // The bytes of the second copies that moves asked for by `tenant` itself have.
  uint64_t moving_bytes(const std::string& tenant) const;
  // Whether a drain or a compaction of its pool wants the lease elsewhere.
  struct Reasons {
    bool drain = false;
    bool compaction = false;
  };
  Reasons reasons_to_move(const LeaseRow& lease) const;
  // The target of a move that will not be finished: destroyed now, or once its carve has ended.
  void give_up_move(LeaseId target, Step& step);
  void unlink_move(LeaseId target);  // not known as a move any more; its row is taken out of the indexes
  Step finish_target_carve(LeaseRow& target);

  // owners.cc
  void forget_owners(LeaseId id, Step& step);  // the lease has ended for its holders
  // Owners are shut out: all of them, or those of one host; the epochs stay. `settled`: no cache has what they stored, so
  // that any host's processes may own the parts next.
  void vacate_parts(LeaseId id, const std::optional<std::string>& host, bool settled, Delta& delta);
  bool coherent_between_hosts(const LeaseRow& lease) const;
  Status check_own_on(const LeaseRow& lease, const std::string& host, const std::string& part) const;
  Status load_owners(const Image& image);
  void check_owners(std::vector<std::string>& problems) const;  // I13

  // views.cc
  bool has_object_on(const LeaseRow& lease, const std::string& agent) const;  // being made or removed as well
  void close_view(ViewId id, const LeaseRow& lease, Step& step);
  // A view takes the place of the lease's own object, which is removed. false: there is none that could.
  bool replace_object(LeaseRow& lease, Step& step);
  void lose_object(LeaseRow& lease, const std::string& object, const std::string& reason, Step& step);
  void forget_views(LeaseId id, Delta& delta);
  FenceObject fence_of(const LeaseRow& lease) const;
  // Errors    busy   it is attached on further hosts: names them
  Status check_no_views(LeaseId id, const char* where) const;
  Status load_views(const Image& image);
  bool replace_lost(LeaseRow& lease, Recovery& recovery);  // replace_object(), at a start
  void recover_views(const LeaseRow& lease, const std::map<std::string, uint64_t>& objects, Recovery& recovery);
  void check_views(std::vector<std::string>& problems) const;  // I15

  LeaseRow* mutable_lease(LeaseId id, const std::string& tenant);
  // Moves a lease to `fencing`: from here it holds no label and no idempotency key.
  // A growth under way ends with it, a move's target is given up.
  void begin_fence(LeaseRow& lease, LeaseCause cause, std::string reason, Step& step);
  void fence_due(LeaseRow& lease, uint64_t now_ns, Step& step);           // its expiry or deadline has come
  void quarantine(LeaseRow& lease, const std::string& more, Step& step);  // `more` is added to its reason
  void forget(LeaseId id);                                                // extents become free

  // Every index (due, labels, keys, granules, counters of use) takes a row in and out as a whole: take it out,
  // change the row, take it in. lease_index.cc
  LeaseRow* put_row(LeaseRow lease);    // null: its id is another's
  LeaseRow& add_lease(LeaseRow lease);  // a new row, with its entries
  void index_lease(const LeaseRow& lease);
  void unindex_lease(const LeaseRow& lease);
  void settle_account();  // after a step: what leases have and what is free add up on each device that changed
  void count_lease(const LeaseRow& lease, bool in);
  bool is_move_target(LeaseId id) const { return moves_.contains(id); }

  std::vector<std::string> check_use() const;                   // I10, and where compactions are
  void check_claims(std::vector<std::string>& problems) const;  // I11, I12

  Status load_rows(Image image);
  Status load_claims(Image& image);  // quotas, reservations
  Status reserve_row_extents(const LeaseRow& lease);
  void recover_usable(LeaseRow& lease, uint64_t object_bytes, bool same_boot, uint64_t now_ns,
                      Recovery& recovery);
  void recover_times(LeaseRow& lease, bool same_boot, uint64_t now_ns, Recovery& recovery);
  // Whether the lease waits for a device instead of being lost.
  bool await(const LeaseRow& lease, const std::set<std::string>& lasting, Recovery& recovery);
  void end_waits(const std::vector<std::pair<std::string, uint64_t>>& objects, Step& step);
  struct Start {
    const Observation& observed;
    std::map<std::string, uint64_t> objects;  // observed ones, by name
    bool same_boot = false;
    bool older_copy = false;
    uint64_t now_ns = 0;
  };
  void recover_lease(LeaseRow& lease, const Start& start, Recovery& recovery);

  // restored.cc: the start from an older copy of the store
  // Ids and epochs go on where none can have been given. false: they would come near their end.
  bool skip_given_ids(const Observation& observed, Recovery& recovery);
  // Free granules of the pool, on that device if it is valid. nullopt, and nothing taken: there are not as many.
  std::optional<std::vector<Extent>> take_anywhere(PoolId pool, DeviceId only, uint64_t granules);
  // A quarantined lease for an object that no row knows; false: no pool has room, or its kind finds objects by place.
  bool quarantine_unknown(const std::string& object, uint64_t bytes, const Observation& observed,
                          Recovery& recovery);
  void quarantine_as_found(LeaseRow& lease, std::string reason, Recovery& recovery);
  // A lease of the copy whose object is there with bytes. true: it needs nothing more.
  bool recover_copied(LeaseRow& lease, uint64_t object_bytes, Recovery& recovery);

  struct PoolCounters {
    uint64_t leased_bytes = 0, scrubbing_bytes = 0, quarantined_bytes = 0, leases = 0;
    uint64_t waiting = 0, waiting_bytes = 0;
    bool operator==(const PoolCounters&) const = default;
  };
  struct MoveUnderWay {
    LeaseId lease;  // invalid: given up while the target was still being carved
    bool carved = false;
    bool asked_by_tenant = false;  // of its own accord: its target counts against the quota
  };

  uint64_t ttl_ns_max_;
  uint64_t now_ns_ = 0;  // the latest time that a command named: that of the step
  MetaRow meta_;
  std::map<DeviceId, DeviceRow> devices_;
  std::map<PoolId, PoolRow> pools_;
  std::map<LeaseId, LeaseRow> leases_;
  // The same rows, by id: among a million leases a look into the tree costs 2.3 us, most of a renewal.
  std::unordered_map<LeaseId, LeaseRow*> row_of_;
  std::unordered_map<DeviceId, ExtentMap> free_;
  LeaseIndex index_;
  GranuleAccount account_;
  std::set<DeviceId> absent_;  // adopted, but not seen: nothing is placed there
  std::set<LeaseId> awaited_;  // of them: leases that wait for a device since the start
  std::map<std::string, QuotaRow> quotas_;
  std::map<ReservationId, ReservationRow> reservations_;
  std::map<PartId, OwnerRow> owners_;
  std::map<ViewId, ViewRow> views_;
  std::map<LeaseId, Offer> offers_;
  std::set<std::pair<uint64_t, ReservationId>> due_reservations_;
  std::map<std::pair<PoolId, std::string>, uint64_t> reserved_bytes_;  // by pool and tenant; no entry when 0
  std::unordered_map<PoolId, PoolCounters> pool_counters_;
  std::map<std::string, TenantUse> tenant_use_;
  std::map<std::pair<PoolId, std::string>, uint64_t> tenant_bytes_;  // in a pool; no entry when 0
  std::unordered_map<LeaseId, Growth> growths_;
  std::map<LeaseId, MoveUnderWay> moves_;              // by target
  std::unordered_map<LeaseId, LeaseId> move_of_;       // lease -> target
  std::unordered_map<PoolId, WaitingQueue> queues_;    // no entry when nobody waits
  std::map<std::string, uint64_t> waiting_of_tenant_;  // grants in queues; no entry when 0
  std::map<PoolId, CompactionPlan> compactions_;
};

}  // namespace terrace::daemon
