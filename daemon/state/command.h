// SPDX-License-Identifier: Apache-2.0
// The commands and effects of the state machine (its replies: reply.h). Time and randomness are fields: the
// machine itself reaches no clock, socket or disk, so that a simulation can drive the same object.
//
// Place     daemon/rpc makes commands from requests, daemon/event_loop applies them and performs effects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"
#include "daemon/state/reply.h"

namespace terrace::daemon {

// --- commands -------------------------------------------------------------------------------------
// Answer: what whoever asks is answered with in the end (for a grant: once it is carved). void: nobody asks, the
// shell reports or decides; what comes of a report goes to the client that waits for it.

struct AdoptDevice {
  using Answer = DeviceReply;
  std::string serial;
  std::string backend;
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
  uint64_t now_ns = 0;
};
struct CreatePool {
  using Answer = PoolReply;
  std::string name;
  std::vector<std::string> device_serials;
  Placement placement = Placement::linear;
  uint64_t stripe_bytes = 0;  // striped: 0 means one granule
  PoolCoherence coherence = PoolCoherence::unknown;
  TenantTrust trust = TenantTrust::none;
};
// What an operator says of the pool's memory from now on. Spaces that were made before stay as they are.
struct SetPoolCoherence {
  using Answer = PoolReply;
  std::string pool;
  PoolCoherence coherence = PoolCoherence::unknown;
};
// What an operator says of the pool's tenants. Taken back, it keeps from grants; leases stay.
struct SetPoolTrust {
  using Answer = PoolReply;
  std::string pool;
  TenantTrust trust = TenantTrust::none;
};
struct DeletePool {
  using Answer = Done;
  std::string name;
};
// Adds an adopted device that is in no pool to a live pool of the same kind and granule.
struct AddDevice {
  using Answer = PoolReply;
  std::string pool;
  std::string serial;
  uint64_t now_ns = 0;
};
// From now on nothing is placed on the device; moves_wanted() names the leases that may leave it.
struct DrainDevice {
  using Answer = DeviceReply;
  std::string serial;
};
// Ends a drain, or puts a failed device back into service.
struct UndrainDevice {
  using Answer = DeviceReply;
  std::string serial;
  uint64_t now_ns = 0;
};
// Gives a device up on an operator's word: its leases are fenced, nothing is placed there.
struct FailDevice {
  using Answer = DeviceReply;
  std::string serial;
  uint64_t now_ns = 0;
};
// The device vanished, or is there again (what discovery saw). Neither is durable: each start looks anew.
struct DeviceLost {
  using Answer = void;
  std::string serial;
  uint64_t now_ns = 0;
};
struct DeviceBack {
  using Answer = void;
  std::string serial;
  uint64_t now_ns = 0;
  // As Observation::objects, where leases wait for the device.
  std::vector<std::pair<std::string, uint64_t>> objects = {};
};
// Forgets a device that no lease is on, and takes it from its pool. `forget_quarantined`: also one that is
// absent or failed and still has quarantined extents, which are given up with it.
struct RemoveDevice {
  using Answer = Done;
  std::string serial;
  bool forget_quarantined = false;
};
struct SetQuota {
  using Answer = Done;
  QuotaRow quota;  // both bounds 0: removes the row
  uint64_t now_ns = 0;
};
struct CreateReservation {
  using Answer = ReservationReply;
  std::string pool;
  std::string tenant;
  uint64_t bytes = 0;
  uint64_t ttl_ns = 0;  // 0: until it is removed
  uint64_t now_ns = 0;
};
struct RemoveReservation {
  using Answer = Done;
  ReservationId reservation;
  uint64_t now_ns = 0;
};
// Plans which movable leases must leave which window so that a free run of `run_bytes` comes about; the window
// is kept clear until then or `deadline_ns`. 0 bytes ends the pool's compaction.
struct CompactPool {
  using Answer = CompactionReply;
  std::string pool;
  uint64_t run_bytes = 0;
  uint64_t deadline_ns = 0;
  uint64_t now_ns = 0;
};
struct Grant {
  using Answer = LeaseReply;
  std::string pool;
  std::string tenant;
  std::string host;
  std::string label;
  uint64_t bytes = 0;
  LeaseMode mode = LeaseMode::exclusive;
  bool persistent = false;
  uint64_t ttl_ns = 0;  // 0: limits::ttl_ns_default
  uint64_t request_high = 0;
  uint64_t request_low = 0;
  uint64_t now_ns = 0;
  bool movable = false;
  uint64_t wait_ns = 0;     // how long to queue for a full pool; 0: not at all
  std::string agent;        // the host whose agent carves, fences and erases it; empty: this manager's machine
  std::string device = {};  // serial of the only device that it may lie on; empty: as the pool's placement says
  // Pages that somebody pinned in the pool's memory may outlast a fence.
  bool pins_outlast = false;
  OnFence on_fence = OnFence::keep;
};
// Nobody waits for this grant any more: a waiting one leaves the queue, others are left alone.
struct CancelGrant {
  using Answer = Done;
  LeaseId lease;
  uint64_t now_ns = 0;
};
// An administrator takes a grant out of the queue; whoever waits for it gets `cancelled`. Answered with the row
// that it had.
struct CancelWaiting {
  using Answer = LeaseReply;
  LeaseId lease;
  std::string reason;
  std::string by;  // in words, for those who wait
  uint64_t now_ns = 0;
};
struct CarveFinished {
  using Answer = void;
  LeaseId lease;
  Status status;
  uint64_t now_ns = 0;
};
// `tenant` empty: an administrator acts; otherwise another tenant's lease is not_found.
struct Renew {
  using Answer = LeaseReply;
  LeaseId lease;
  std::string tenant;
  uint64_t ttl_ns = 0;  // 0: the lease's own
  uint64_t now_ns = 0;
};
// The same for each of `leases`: those that cannot be renewed are in the answer, and hinder the others in nothing.
struct RenewMany {
  using Answer = RenewalsReply;
  std::vector<LeaseId> leases;
  std::string tenant;
  uint64_t ttl_ns = 0;
  uint64_t now_ns = 0;
};
struct Release {
  using Answer = Done;
  LeaseId lease;
  std::string tenant;
  uint64_t now_ns = 0;
};
struct Revoke {
  using Answer = LeaseReply;
  LeaseId lease;
  std::string reason;
  uint64_t grace_ns = 0;
  uint64_t now_ns = 0;
};
// Grows or shrinks a lease at its end, in granules. A shrink's holder must not use the tail any more.
struct Resize {
  using Answer = LeaseReply;
  LeaseId lease;
  std::string tenant;
  uint64_t bytes = 0;
  uint64_t now_ns = 0;
};
struct ResizeFinished {
  using Answer = void;
  LeaseId lease;
  Status status;
  uint64_t now_ns = 0;
};
// Gives a lease, its bytes kept, to another tenant or host under a new LeaseEpoch. Whoever holds it is fenced. The
// new tenant is not asked: for administrators, and for a tenant that stays the same.
struct Transfer {
  using Answer = LeaseReply;
  LeaseId lease;
  std::string tenant;  // who asks, as in Renew
  std::string to_tenant;
  std::string to_host;  // empty: the same host
  uint64_t now_ns = 0;
  std::optional<std::string> to_agent = {};  // where the object goes; as Grant::agent. nullopt: it stays
  bool pins_outlast = false;                 // as in Grant
};
// Offers a lease to another tenant. Until that one accepts it, nothing of the lease changes. An offer lives in
// memory: it ends with the lease, with a hand-over, and with the manager's process.
struct OfferLease {
  using Answer = LeaseReply;
  LeaseId lease;
  std::string tenant;
  std::string to_tenant;  // empty: an earlier offer is withdrawn
  std::string to_host;    // as in Transfer
  uint64_t now_ns = 0;
};
// Makes what was offered the accepting tenant's, as Transfer does.
struct AcceptOffer {
  using Answer = LeaseReply;
  LeaseId lease;
  std::string tenant;  // who accepts
  uint64_t now_ns = 0;
  std::optional<std::string> to_agent = {};  // as in Transfer
  bool pins_outlast = false;
};
struct RebindFinished {
  using Answer = void;
  LeaseId lease;
  Status status;
  uint64_t now_ns = 0;
  bool lines_may_remain = false;  // as in ViewClosed, on the host that the lease was on
};
// Moving, by the holder or by the manager for a lease that nobody holds: BeginMove places and carves a target
// (a pending lease of its own id, answered with MoveReady once carved), the bytes are copied, FinishMove swaps
// objects, extents and LeaseEpoch in one step and leaves the old ones to be fenced under the target's id.
struct BeginMove {
  using Answer = MoveReady;
  LeaseId lease;
  std::string tenant;
  uint64_t now_ns = 0;
};
struct FinishMove {
  using Answer = LeaseReply;
  LeaseId lease;
  LeaseId target;
  std::string tenant;
  bool commit = true;  // false: the move is given up, the target is destroyed
  uint64_t now_ns = 0;
};
// Makes `process` the owner of a part of a shared_coherent lease, under an epoch greater than any before. The
// process that asked under the same key has it already: answered the same.
struct ClaimPart {
  using Answer = OwnerReply;
  LeaseId lease;
  std::string tenant;
  uint64_t part = 0;
  uint64_t last_epoch = 0;  // the newest that the claimant saw in the part itself
  uint64_t request = 0;
  ProcessId process = {};
  std::string host = {};  // of the process: an agent's name; empty: the manager's own
  std::string holder = {};
  uint64_t dead_epoch = 0;  // whose owner was seen to have ended; 0: nobody's
  uint64_t now_ns = 0;
};
// The owner of `epoch` stores nothing to the part any more. Repeated it is no error.
struct ReleasePart {
  using Answer = Done;
  LeaseId lease;
  std::string tenant;
  uint64_t part = 0;
  uint64_t epoch = 0;
  ProcessId process = {};
  std::string host = {};
};
// Gives a shared lease a memory object on a further host, over the same extents (a view), so that programs there attach it
// as well. One that is there already is answered as it is.
struct OpenView {
  using Answer = ViewReply;
  LeaseId lease;
  std::string tenant;  // as in Renew
  std::string agent;   // as in Grant
  uint64_t now_ns = 0;
};
// What came of ShowObject. `object` tells the view from a later one of the same number.
struct ViewOpened {
  using Answer = void;
  ViewId view;
  std::string object;
  Status status;
  uint64_t now_ns = 0;
};
// HideObject is done: the host has nothing of it any more. `lines_may_remain`: but in its caches, as it could not be told to
// write them back.
struct ViewClosed {
  using Answer = void;
  ViewId view;
  std::string object;
  bool lines_may_remain = false;
  uint64_t now_ns = 0;
};
// A memory object of a lease is gone, or its host has fenced it by itself. A view leaves. Where it is the lease's own, a view
// takes its place if there is one; otherwise the lease ends.
struct LoseObject {
  using Answer = Done;
  LeaseId lease;
  std::string object;
  std::string reason;
  uint64_t now_ns = 0;
};
// Applies everything that is due at `now_ns`: expiries, and revocations whose grace is over.
struct Tick {
  using Answer = void;
  uint64_t now_ns = 0;
};
// The manager did not run for the last `gap_ns`: it was stopped, starved, or its machine slept. Nobody could
// renew meanwhile, so the gap does not count against leases that have less than half of their TTL left.
struct ResumeAfterGap {
  using Answer = void;
  uint64_t gap_ns = 0;
  uint64_t now_ns = 0;
};
struct FenceFinished {
  using Answer = void;
  LeaseId lease;
  Status status;
  uint64_t now_ns = 0;
};
struct ScrubFinished {
  using Answer = void;
  LeaseId lease;
  Status status;
  uint64_t now_ns = 0;
};
// The last `granules` granules of a lease that is being scrubbed are erased; they become free now, before
// the rest.
struct ScrubAdvanced {
  using Answer = void;
  LeaseId lease;
  uint64_t granules = 0;
  uint64_t now_ns = 0;
};

using Command = std::variant<AdoptDevice, CreatePool, DeletePool, AddDevice, DrainDevice, UndrainDevice,
                             FailDevice, DeviceLost, DeviceBack, RemoveDevice, SetQuota, CreateReservation,
                             RemoveReservation, CompactPool, Grant, CancelGrant, CarveFinished, Renew, Release,
                             Revoke, Resize, ResizeFinished, Transfer, RebindFinished, BeginMove, FinishMove,
                             Tick, FenceFinished, ScrubFinished, ScrubAdvanced, SetPoolCoherence, ClaimPart,
                             ReleasePart, ResumeAfterGap, OfferLease, AcceptOffer, CancelWaiting, SetPoolTrust,
                             RenewMany, OpenView, ViewOpened, ViewClosed, LoseObject>;

template <typename C>
using ReplyOf = typename C::Answer;
template <typename C>
concept Asked = !std::is_void_v<ReplyOf<C>>;

// A command that does not say its Answer, or names what is no reply, does not compile.
template <typename Answer, typename... Kinds>
constexpr bool is_one_of(const std::variant<Kinds...>*) {
  return std::is_void_v<Answer> || (std::is_same_v<Answer, Kinds> || ...);
}
template <typename... C>
constexpr bool all_answered(const std::variant<C...>*) {
  return (is_one_of<ReplyOf<C>>(static_cast<const Reply*>(nullptr)) && ...);
}
static_assert(all_answered(static_cast<const Command*>(nullptr)));

constexpr const char* trust_name(TenantTrust trust) {
  return trust == TenantTrust::mutual ? "mutual" : "none";
}
constexpr const char* coherence_name(PoolCoherence coherence) {
  switch (coherence) {
    case PoolCoherence::coherent: return "coherent";
    case PoolCoherence::noncoherent: return "noncoherent";
    case PoolCoherence::unknown: break;
  }
  return "unknown";
}

// --- effects: what the shell does once the step's Delta is durable ---------------------------------
// CarveObject and RefuseGrant are the exceptions: they run at once. What a carve builds is made durable by the
// step that hears of its end, and a crash before that leaves only what recovery undoes.

struct CarveObject {
  LeaseId lease;
  std::string object;
  uint64_t bytes = 0;
  std::vector<Extent> extents;
};
struct FenceObject {
  LeaseId lease;
  std::string object;
  std::vector<std::string> views = {};  // on further hosts: shut out, and removed, before the fence is done
  std::vector<Extent> extents = {};     // of the views
};
struct ScrubObject {
  LeaseId lease;
  std::string object;
  uint64_t bytes = 0;
  std::vector<Extent> extents;
  PoolId pool;
};
// A waiting grant that will not be served: its clients get `error`.
struct RefuseGrant {
  LeaseId lease;
  Error error;
};
// Makes the object `to_bytes` long if it is `from_bytes` now; extents are those of the new size.
struct ResizeObject {
  LeaseId lease;
  std::string object;
  uint64_t from_bytes = 0;
  uint64_t to_bytes = 0;
  std::vector<Extent> extents;
};
// Fences `from` and gives its bytes, unchanged and on the same extents, to the new object `to`. Done again
// after a crash it goes on.
struct RebindObject {
  LeaseId lease;
  std::string from;
  std::string to;
  uint64_t bytes = 0;
  std::vector<Extent> extents;
};
// Makes the object `view` over the extents of `object`, whose holders stay, and erases nothing.
struct ShowObject {
  LeaseId lease;
  ViewId id;
  std::string object;
  std::string view;
  uint64_t bytes = 0;
  std::vector<Extent> extents;
};
// Shuts the holders of a view out, leaves nothing of it in its host's caches, and removes it. Until it is done.
struct HideObject {
  ViewId id;
  std::string view;
  std::vector<Extent> extents;
};
// Tell the holders: sent when a revocation begins. `fenced` notices follow a finished fence.
struct NotifyHolders {
  LeaseId lease;
  std::string reason;
  uint64_t grace_ns = 0;
  bool fenced = false;
  LeaseCause cause = LeaseCause::none;
};

using Effect = std::variant<CarveObject, FenceObject, ScrubObject, RefuseGrant, ResizeObject, RebindObject,
                            NotifyHolders, ShowObject, HideObject>;

// --- what apply() gives ----------------------------------------------------------------------------

struct Step {
  Result<Reply> reply = Reply{Done{}};
  Delta delta;  // empty when the command was refused or changed nothing
  std::vector<Effect> effects;
};

}  // namespace terrace::daemon
