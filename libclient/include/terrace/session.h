// SPDX-License-Identifier: Apache-2.0
// The entry point: a Session is one tenant's connection to a pool manager, and a Lease its right to memory.
//
// A Session owns one background thread. It renews every lease that this process holds (at a third of its
// TTL), reconnects with back-off when the manager restarts, re-attaches leases by id, and passes on
// revocations before the fence. Mapped memory does not depend on the connection: without a manager it stays
// usable until the lease's expiry. The one exception is a move under way: see LeaseMove.
//
// A Session may be a static object: exit() destroys it as any other. In the child of a fork only its
// destruction is allowed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace {

enum class LeaseMode : uint8_t { exclusive, shared_read_only, shared_coherent };
enum class LeaseAccess : uint8_t { read_only, read_write };

// What becomes of the processes that hold a lease when its memory is taken from them.
// keep  they go on; what touches the memory then gets SIGBUS, and pages that they pinned keep it from everybody else
// kill  each of them is ended first, and agrees to that by the grant or attach that says so. Pinning is welcome:
//       the memory comes back at once, since what they pinned is let go with them (docs/design/0047-kill-then-fence.md)
enum class OnFence : uint8_t { keep, kill };

// live      usable
// revoking  an operator wants it back: stop using it and release() before the grace ends
// lost      fenced, expired or released: touching its mapping gives SIGBUS
enum class LeaseState : uint8_t { live, revoking, lost };

// The reason for the loss of a lease, past or under way. `none`: no loss, or the manager gives no reason.
enum class LeaseCause : uint8_t {
  none,
  released,     // given back by a holder
  expired,      // not renewed in time
  revoked,      // an operator wanted it
  object_lost,  // its kernel object vanished
  device_lost,  // the device it lay on failed or vanished
  moved,        // its bytes are elsewhere now
};
std::string_view lease_cause_name(LeaseCause cause);  // "expired", "device_lost", ...; empty for none

// The operator's statement about a pool: does the hardware keep the caches of all hosts that map it coherent?
enum class MemoryCoherence : uint8_t { unknown, coherent, noncoherent };
std::string_view memory_coherence_name(MemoryCoherence coherence);  // "coherent", ...

enum class PoolPlacement : uint8_t { linear, striped, spread };

struct SessionOptions {
  std::string socket_path;                      // empty: default_socket_path()
  std::string tenant;                           // empty: the one that this uid maps to
  std::string host;                             // empty: this machine's host name
  std::string client_name;                      // shown to operators; empty: the program's name
  uint64_t connect_timeout_ns = 5'000'000'000;  // for connect() itself
  uint64_t call_timeout_ns = 30'000'000'000;    // for one call, waiting for a reconnect included; a grant
                                                // that may wait in a queue has its wait_ns in addition
  // Which trace the session's calls belong to, as W3C's traceparent; empty: the environment's TRACEPARENT, if there is one.
  // What is none is ignored. The manager's events, its audit log and its spans name it.
  std::string traceparent = {};
};

struct LeaseRequest {
  std::string pool;    // empty: the only pool there is
  uint64_t bytes = 0;  // rounded up to granules
  LeaseMode mode = LeaseMode::exclusive;
  uint64_t ttl_ns = 0;      // 0: the manager's default
  bool persistent = false;  // no expiry; stays until released or revoked
  std::string label;        // unique within the tenant when not empty
  // The manager may ask for a move (LeaseNotice::move_requested). It may move the lease by itself while no
  // session has it attached; older mappings are dead then. So a holder with a mapping must stay connected.
  bool movable = false;
  // The time to wait for room in a full pool; 0: do not wait. Tenants take turns.
  uint64_t wait_ns = 0;
  // true: the lease outlives its holders until its expiry, and another process can attach it later. false: the
  // manager takes it back when all processes of its machine that had it attached have ended, and no other one
  // has its memory mapped or open. Persistent leases stay in any case.
  bool detached = false;
  // kill: this process agrees to be ended before the memory is taken, by a revoke, an expiry or whatever else. Only its
  // own release() leaves it alone. Not with `movable`.
  OnFence on_fence = OnFence::keep;
};

struct ExtentInfo {
  std::string device;  // serial
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// Speed, durability and isolation of a lease's or pool's memory; 0: not known. For several devices, latency and
// distance are the worst device's. Bandwidth is the slowest device's. In a striped pool it is all bytes over
// the time of the device that takes longest: n equal devices are n times as fast, emulated ones as fast as one.
// If one device lacks a figure, it is not known.
struct TierFigures {
  uint32_t latency_ns = 0;             // of a load that misses the caches, as seen from the nearest CPU
  uint64_t bandwidth_bytes_per_s = 0;  // of reading; where `source` is "measured": by one thread on each device
  int node = -1;                       // NUMA node; -1: none is said, or more than one
  uint32_t distance = 0;               // of that node, as in the SLIT (10: local)
  bool persistent = false;             // keeps its bytes without power
  // Source of the first two: "hmat" (the firmware's table), "cdat" (the devices' own), "measured" (by the
  // manager, once); empty: they are not known.
  std::string source = {};
  // The isolation of the memory. In every case the kernel fences, and no lease sees another lease's bytes.
  // "device", "namespace": a kernel device for this lease alone, which only its descriptor maps. "node": a
  // private file in pages of a memory node, which the kernel and other processes may use, too. "file": a
  // private file in ordinary memory. Empty: not known from this manager.
  std::string isolation = {};

  bool operator==(const TierFigures&) const = default;
};

struct UsageReport {
  uint64_t ddr_bytes = 0;   // resident in local DDR under the same arena
  uint64_t cxl_bytes = 0;   // resident in this lease's memory
  uint64_t live_bytes = 0;  // occupied by the holder's allocations in this lease
  std::string holder;       // "redis-server[1234]"
};

// Of a run, since its start.
struct RunCounters {
  uint64_t promotions = 0, demotions = 0;  // granules that rose to DDR, and sank
  uint64_t promoted_bytes = 0, demoted_bytes = 0;
  uint64_t stalled_ns = 0;  // in which an access could have waited for a move
  uint64_t refused = 0;     // large requests without room that failed
  uint64_t fallbacks = 0;   // large requests without room that plain memory served

  bool operator==(const RunCounters&) const = default;
};

// A part of a program's heap, as RunFigures has it.
struct RunBand {
  uint8_t heat = 0;         // accesses a second of a granule, on average: 0 none, else 1 + 8 × log2 of them
  uint8_t ddr_percent = 0;  // of the band, what lies in DDR,
  uint8_t cxl_percent = 0;  // and in leased memory; the rest has no memory

  bool operator==(const RunBand&) const = default;
};

// What a program's memory does, as Session::report_run() tells it to the manager.
struct RunFigures {
  std::string program;       // its name: printable, at most 127 bytes
  uint32_t processes = 1;    // 0: all have ended, and this is the run's last report, which is sent at once
  uint64_t live_bytes = 0;   // the program's blocks
  uint64_t ddr_bytes = 0;    // charged to its DDR budget
  uint64_t cxl_bytes = 0;    // in use of what it leases
  uint64_t plain_bytes = 0;  // of its allocator, outside of both
  uint64_t ddr_bytes_max = 0, leased_bytes = 0;
  uint64_t sampled_bytes = 0;     // of memory whose accesses are looked at; 0: nobody looks
  uint32_t ddr_hit_permille = 0;  // of its accesses, those that DDR served: an estimate
  RunCounters counters;
  // Where accesses go, from the start of the largest heap whose accesses are looked at; empty: not known. At most 64.
  std::vector<RunBand> bands;
  uint64_t band_bytes = 0;  // of each
};

// The present or last owner of a part of a shared_coherent lease.
struct PartOwner {
  uint32_t part = 0;
  uint64_t epoch = 0;
  bool owned = false;  // false: given back, or shut out
  bool ended = false;  // its process, on the manager's own host, has ended: the part goes to the next claim
  uint32_t pid = 0;
  std::string holder;  // "python3[1234]"
  std::string host;    // of its process; empty: the manager's own, or nobody's
};

struct LeaseInfo {
  LeaseId id;
  LeaseEpoch epoch;
  std::string pool, tenant, host, label, object, reason;
  std::string phase;  // active, revoking, fencing, scrubbing, quarantined, transferring, waiting
  std::string tier, isolation;
  uint64_t bytes = 0;
  uint64_t ttl_ns = 0;         // 0: persistent
  uint64_t expires_in_ns = 0;  // when the reply was made
  uint64_t granule_bytes = 0;
  uint64_t object_bytes = 0;
  bool huge_pages = false;
  LeaseMode mode = LeaseMode::exclusive;
  std::vector<ExtentInfo> extents;
  UsageReport usage;
  uint64_t usage_age_ns = 0;  // 0 with usage.holder empty: never reported
  LeaseCause cause = LeaseCause::none;
  bool movable = false;
  uint32_t holders = 0;  // sessions that have it attached; 0 from a manager that does not say
  TierFigures figures;
  MemoryCoherence coherence = MemoryCoherence::unknown;  // of its pool; see space_coherence() in tensor_space.h
  std::vector<PartOwner> owners;                         // by part, those that ever had one; not in lists
  std::string offered_to;                                // the tenant that may accept it; empty: none
  OnFence on_fence = OnFence::keep;
  std::vector<std::string>
      further_hosts;  // that have it attached too (docs/operations/agents.md, "One lease on several hosts")
};

// Free runs of one class of lengths: at least run_bytes_min and less than twice that.
struct FreeRuns {
  uint64_t run_bytes_min = 0;
  uint64_t runs = 0;
  uint64_t bytes = 0;
};

struct PoolInfo {
  std::string name;
  std::vector<std::string> devices;
  uint64_t capacity_bytes = 0, free_bytes = 0, leased_bytes = 0, scrubbing_bytes = 0, quarantined_bytes = 0;
  uint64_t largest_free_bytes = 0, granule_bytes = 0;
  uint32_t leases = 0;
  PoolPlacement placement = PoolPlacement::linear;
  uint64_t stripe_bytes = 0;
  std::vector<FreeRuns> free_runs;  // ascending, empty classes left out
  uint64_t reserved_bytes = 0;      // of the free ones, kept for tenants with reservations
  uint64_t grantable_bytes = 0;     // free on devices that are present and in service
  uint32_t waiting = 0;             // grants in the queue
  uint64_t waiting_bytes = 0;
  TierFigures figures;  // as of a lease on all its devices
  MemoryCoherence coherence = MemoryCoherence::unknown;
};

// A change of a lease, as reported by the manager.
struct LeaseNotice {
  LeaseId lease;
  LeaseState state = LeaseState::live;
  uint64_t grace_ns = 0;  // time left before the fence, for `revoking`
  std::string reason;
  LeaseCause cause = LeaseCause::none;  // for `lost`
  // With state `live`: the manager asks the holder to move the lease (a drain, a compaction), and repeats that
  // now and then. Lease::begin_move() or Mapping::move() moves it. A holder that does not move it loses
  // nothing; operators see its name.
  bool move_requested = false;
};
using LeaseNoticeHandler = std::function<void(const LeaseNotice&)>;

// open       nothing is decided: copy, then commit() or abandon()
// committed  the lease is the new memory
// ended      the lease is what it was; the new memory is dead
// unknown    the commit was sent and is not answered yet
enum class LeaseMoveState : uint8_t { open, committed, ended, unknown };

// A move under way: new memory of the lease's size for the bytes of the old one. Stop writing, copy, map the
// new memory where the old one was, commit. Mapping::move() does all of it.
//
// The manager cancels a move when the connection breaks, when it restarts, and after ten minutes. Then it
// fences the new memory, at any moment from begin_move() to commit(): stores to a mapping of it give SIGBUS.
// Copy with calls that return EFAULT instead, such as pread() of the old descriptor into the new mapping.
//
// Ownership  The caller's. Destroying an open move abandons it without waiting. The Session settles an unknown
//            one when it has a manager again, also after the destruction of this object.
// Threads    All methods from any thread.
class LeaseMove {
 public:
  virtual ~LeaseMove() = default;

  virtual int fd() const = 0;  // of the new memory; owned by this object, in every state
  virtual uint64_t bytes() const = 0;
  virtual LeaseMoveState state() const = 0;

  // Makes the new memory the lease's: on return Lease::fd() leads to it, and Lease::epoch() is greater. The old
  // memory is fenced about the same time, maybe before the answer arrives. So map the new memory over the old
  // one *before* this call, and map the old one back when the call fails with state `ended`.
  //
  // Waits over a reconnect. The manager's object of the lease, old or new, then decides the result. Repeating
  // the call is safe and gives the same answer.
  // Errors    cancelled      with state `ended`: the manager cancelled the move; begin again. With another
  //                          state: the Session was closed; with `unknown` the result cannot be found out
  //           unavailable    state `unknown`: the call timeout passed without the manager. When it is back it
  //                          fences one of both memories: write to neither, call commit() again
  //           lease_expired, lease_revoked  state `ended`: the lease is lost, with both memories
  //           others         of the manager; state `ended`
  virtual Status commit() = 0;
  // Errors    invalid_argument after a commit() that succeeded or is open; none when the move has ended
  virtual Status abandon() = 0;
};

// One lease held by this process.
//
// Ownership  The caller's; the Session renews it while a handle exists. Destroying the last handle does not
//            release the lease: call release(). Without it the lease lives until its expiry, or until the
//            process ends (LeaseRequest::detached). A handle that outlives its Session keeps its descriptor;
//            its calls fail with `unavailable`. In the child of a fork so do the calls of a Session and its
//            Leases.
// Threads    All methods from any thread.
class Lease {
 public:
  virtual ~Lease() = default;

  virtual LeaseId id() const = 0;
  virtual LeaseEpoch epoch() const = 0;  // steps with a move
  virtual uint64_t bytes() const = 0;    // changes with a resize
  virtual LeaseAccess access() const = 0;
  virtual LeaseState state() const = 0;
  // What this process agreed to.
  virtual OnFence on_fence() const { return OnFence::keep; }
  // The memory's descriptor, owned by the Lease; dup() it to keep it longer. Never a path to more. The number
  // stays the same for the Lease's life: a resize or a move puts the new memory behind it in one step (dup3).
  // Mappings made before keep what they mapped.
  virtual int fd() const = 0;

  // Fresh from the manager. Errors: lease_expired, lease_revoked, unavailable.
  virtual Result<LeaseInfo> info() = 0;
  virtual Status renew(uint64_t ttl_ns = 0) = 0;
  // Gives the memory back: it is fenced, so unmap it first. Errors: unavailable; the lease then expires.
  virtual Status release() = 0;
  virtual Status report_usage(const UsageReport& usage) = 0;

  // Grows or shrinks the lease at its end to `bytes`, rounded up to granules. Kept bytes stay, new ones are
  // zeros. Stop using the end before shrinking. Safe to repeat; the call repeats itself over a reconnect.
  // Mapping::resize() brings a mapping up to the new size.
  // Errors    capacity_exhausted, limit_exceeded (quota)  nothing changed
  //           busy  another change of this lease is under way
  //           lease_expired, lease_revoked, permission_denied (read-only access), unavailable
  virtual Result<LeaseInfo> resize(uint64_t bytes) = 0;
  // Offers the lease with its bytes to another tenant; an empty host means the same host. The lease stays this
  // tenant's, and usable, until the other one accepts it (Session::accept_offer); then every holder is fenced and
  // gets the notice `lost`. To the own tenant on another host, and for an administrator, it is done at once: unmap
  // first; afterwards this Lease is lost without a notice. If the connection broke before the answer, and this
  // tenant has the lease no more, the call counts as done.
  // Errors    not_found (also: no such tenant), permission_denied, busy  nothing changed
  //           limit_exceeded (the other's quota; only where it is done at once)
  //           lease_expired, lease_revoked, unavailable
  virtual Status transfer(const std::string& tenant, const std::string& host = "") = 0;
  // Takes the offer back, if there is one. An offer ends with the lease, too, and with a restart of the manager.
  // Errors    version_mismatch  the manager is older than this call; lease_expired, lease_revoked, unavailable
  virtual Status withdraw_offer() {
    return Error{ErrorCode::unsupported, 0, "Lease", "this lease cannot be offered"};
  }
  // Lets a user open the memory by a path on this machine, for programs that take no descriptor: this process's own
  // user, or for an administrator (on a further host: root) any other. Read-only or writable as this Lease is. Whoever
  // opens it is no holder, but has a revoke's grace: meanwhile the file's modification time is its end. The path and
  // the right end with the lease, with a transfer, and where the memory is a device, with a resize.
  // Errors    unsupported        a movable lease; a connection without memory; a file system without access lists
  //           permission_denied  another user, and this one is no administrator; a folder on the way is closed
  //           version_mismatch   the manager is older than this call; lease_expired, lease_revoked, unavailable
  virtual Result<std::string> open_path(std::optional<uint32_t> user = {}) {
    (void)user;
    return Error{ErrorCode::unsupported, 0, "Lease", "this lease has no path"};
  }
  // Asks for a new place. At most one move of a lease at a time, by its only holder.
  // Errors    busy                another move or a resize is under way, or others hold the lease too
  //           capacity_exhausted  no room for the new memory; the lease is unchanged
  //           limit_exceeded      the new memory is beyond the quota, unless the manager asked for the move
  //           unsupported         the lease is not movable
  //           lease_expired, lease_revoked, permission_denied (read-only access), unavailable
  virtual Result<std::unique_ptr<LeaseMove>> begin_move() = 0;

  // --- parts 0 to 63 of a shared_coherent lease, for ownership_by_manager() in tensor_space.h ---

  // Makes this process the owner of a part, under an epoch greater than `last_epoch` and all earlier ones.
  // Repeat a claim with the same `key` (random, not 0); the call does so itself over a reconnect.
  // Errors    busy              another living process owns it, says which; or it is another host's, and the pool is not
  //                             known to be coherent between hosts
  //           unsupported       the lease has another mode, or is movable and this is a further host; or host or
  //                             manager cannot see this process' end
  //           version_mismatch  the manager is older than this call
  //           invalid_argument, permission_denied (read-only access), lease_expired, lease_revoked, unavailable
  virtual Result<uint64_t> claim_part(uint32_t part, uint64_t last_epoch, uint64_t key) {
    (void)part, (void)last_epoch, (void)key;
    return parts_unsupported();
  }
  // Gives the part back: this process stores nothing there any more. Waits two seconds at most for the manager;
  // if the manager does not hear of it, the ownership ends with the process.
  virtual Status release_part(uint32_t part, uint64_t epoch) {
    (void)part, (void)epoch;
    return parts_unsupported();
  }
  // true: the owner under `epoch` can store nothing any more. Waits as release_part() does.
  virtual Result<bool> part_is_dead(uint32_t part, uint64_t epoch) {
    (void)part, (void)epoch;
    return parts_unsupported();
  }

 private:
  static Error parts_unsupported() {
    return {ErrorCode::unsupported, 0, "Lease", "the parts of this lease have no owners by a manager"};
  }
};

class Session {
 public:
  // Errors    unavailable        nobody listens at the socket; names it and how to start a manager
  //           permission_denied  this uid has no tenant there
  //           version_mismatch   no common protocol version
  static Result<std::unique_ptr<Session>> connect(SessionOptions options = {});
  virtual ~Session() = default;

  // Blocks until the grant is durable. Retries over a reconnect with the same key, so that a lost reply never
  // costs a second lease.
  // A waiting grant loses its place in the queue when the manager restarts. The call then asks again, with the
  // same key and the rest of wait_ns. Closing the Session ends the wait with `cancelled`.
  // Errors    capacity_exhausted (says what is free, or that wait_ns passed), limit_exceeded, already_exists
  //           (label), not_found (pool), unavailable (the call timeout passed), cancelled (by an operator).
  virtual Result<std::shared_ptr<Lease>> grant(const LeaseRequest& request) = 0;
  // By id, or by label when the id is 0. A read-only one cannot be mapped writable.
  // Errors    invalid_argument  its holders are ended at a fence: attach it with OnFence::kill
  virtual Result<std::shared_ptr<Lease>> attach(LeaseId id, const std::string& label, LeaseAccess access) = 0;
  // The same; with `kill` this process agrees to be ended before the memory is taken, if the lease is of that kind.
  // Errors    permission_denied  this session was connected by another process (before a fork, say)
  //           unsupported        the manager cannot see this process: it is in a pid namespace beside or above its own
  virtual Result<std::shared_ptr<Lease>> attach(LeaseId id, const std::string& label, LeaseAccess access,
                                                OnFence on_fence) {
    if (on_fence == OnFence::keep) return attach(id, label, access);
    return Error{ErrorCode::unsupported, 0, "Session", "this session ends no holders at a fence"};
  }
  virtual Result<std::vector<LeaseInfo>> leases() = 0;
  virtual Result<std::vector<PoolInfo>> pools() = 0;
  // Leases of other tenants that are offered to this one.
  virtual Result<std::vector<LeaseInfo>> offers() { return offers_unsupported(); }
  // Makes an offered lease this tenant's: it counts against its quota and has its label. attach() it then.
  // Repeated after a lost answer it says not_found, and the lease is in leases().
  // Errors    not_found          it is not offered to this tenant, or no more
  //           limit_exceeded     (quota), already_exists (label), capacity_exhausted (reservations): the offer stays
  //           busy, lease_expired, lease_revoked, unavailable
  //           version_mismatch   the manager is older than this call; so for offers()
  virtual Result<LeaseInfo> accept_offer(LeaseId id) {
    (void)id;
    return offers_unsupported();
  }
  // This machine's /dev/userfaultfd, open (O_CLOEXEC). ioctl(fd, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK)
  // gives a userfaultfd of the calling process that also sees faults inside system calls. Migration needs that,
  // and the kernel refuses it to unprivileged programs otherwise. The descriptor does not depend on this
  // Session or the manager, and other processes of this user may use it, too.
  // Errors    permission_denied  the manager's configuration (clients.userfaultfd) does not give it to this
  //                              user, or the manager may not open the device itself
  //           unsupported        the machine has no such device
  //           version_mismatch   the manager is older than this call
  //           unavailable        the call timeout passed
  virtual Result<UniqueFd> userfaultfd_device() = 0;
  virtual std::string tenant() const = 0;
  virtual bool connected() const = 0;

  // --- notices: of all leases of this Session, in the order in which they happened ---
  //
  // They wait for a handler or for next_notice(), 4,096 at most; then the oldest is dropped. At most one move
  // request of a lease waits. Lease::state() is up to date also before its notice was read.

  // Calls `handler` with each notice, also with waiting ones; an empty handler ends that.
  //
  // The handler runs on a thread of its own, one call at a time. It may take long: renewals go on and leases
  // stay; only further notices of this Session wait. It may call into the Session and its Leases, replace or
  // remove itself, destroy the Session, and end the process with exit(). It must not throw.
  //
  // When this returns, no earlier handler runs any more, and the data that the handler used may be freed. So do
  // not hold a lock during this call that the handler takes. Called by the handler itself, it returns at once;
  // the running call is then that handler's last one. ~Session waits for a running handler in the same way.
  virtual void on_notice(LeaseNoticeHandler handler) = 0;
  // The oldest waiting notice, if any; nothing while a handler is set. Never blocks.
  virtual std::optional<LeaseNotice> next_notice() { return std::nullopt; }
  // A descriptor for poll(): readable while next_notice() has something. The Session's; do not read or close
  // it.
  virtual int notice_fd() const { return -1; }

  // Tells the manager what this program's memory does, for its metrics and for `terrace top`. Returns at once and
  // never fails: the newest figures are sent when the manager is there, at most one report in four seconds, and only
  // while this Session holds leases (and one when the last of them has gone). Nothing is sent to a manager that is
  // older than this call. Counters that are smaller than before are taken as they were.
  virtual void report_run(const RunFigures& figures) { (void)figures; }

 private:
  static Error offers_unsupported() {
    return {ErrorCode::unsupported, 0, "Session", "this session has no offers"};
  }
};

// $TERRACE_SOCKET; else /run/terrace/terraced.sock when it exists or the caller is root; else
// $XDG_RUNTIME_DIR/terrace/terraced.sock, and without that variable /tmp/terrace-UID/terrace/terraced.sock.
std::string default_socket_path();

}  // namespace terrace
