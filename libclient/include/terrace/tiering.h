// SPDX-License-Identifier: Apache-2.0
// Memory with a fixed address whose bytes move: much used granules move up to DDR, others down to the leases of
// CXL memory, under running threads, without a signal handler and without a lost store.
//
//   auto tiering = Tiering::start({.session = session.get()});
//   TieredRangeOptions options{.bytes = 64ull << 30, .ddr_bytes_max = 16ull << 30, .name = "kv"};
//   auto range = (*tiering)->make_range(options, leases);
//   float* values = reinterpret_cast<float*>((*range)->bytes().data());
//
// Threads   A Tiering has one thread that samples, plans and moves, and one that the kernel needs. The program
//           may use the memory from any thread. An access to a granule that is being moved waits for the copy
//           (about 0.2 ms for 2 MiB; readers of a granule that moves down do not wait).
// fork      The range is not inherited: an access in a child raises SIGSEGV, and neither process changes the
//           other's bytes. The child's copies of these objects say no_migration. vfork and posix_spawn work as
//           usual.
// Leases    A range whose lease is being taken back, is lost, was moved or resized is not migrated any more. A
//           fence without notice while a granule of the lease is being copied also stops the range. That move
//           is undone, and only the program's own accesses to bytes in the lease raise SIGBUS. The fault
//           handler for SIGBUS that protects these copies, as those of tensor spaces, passes every other SIGBUS
//           to the program's handler.
// Not allowed on the range: mmap, munmap, mremap, mprotect and madvise by the caller; futexes shared between
//           processes (PTHREAD_PROCESS_SHARED: a sleeper would not be found after a move); memory that a device
//           or the kernel writes to later (O_DIRECT, io_uring, vmsplice, RDMA) without a Hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "terrace/arena.h"
#include "terrace/session.h"

namespace terrace {

struct TieringOptions {
  // Gives /dev/userfaultfd if this process may not open it. May be nullptr. Used by start() only.
  Session* session = nullptr;
  uint64_t copy_bytes_per_s_max = 2ull << 30;  // copied by migration, both directions together; 0: no bound
  uint64_t batch_bytes_max = 2 << 20;          // moved at once; bounds the wait of an access
  uint64_t round_ns = 250'000'000;             // between two plans
  uint32_t copy_threads = 1;                   // for batches of 4 MiB and more
  uint64_t ddr_bytes_shared = 0;  // not 0: divided between the ranges by their gain; each range begins with its
                                  // own ddr_bytes_max. Granules are 2 MiB then
  // Also read the kernel's records of page faults and the processor's memory samples, as far as this process
  // may. They rank much used granules better. In return each page fault of the whole program, and each start of
  // a thread, takes longer. status().reason names refused sources.
  bool access_events = false;
};

struct TieredRangeOptions {
  uint64_t bytes = 0;                // rounded up to granules
  uint64_t ddr_bytes_max = 0;        // of them in DDR at most, rounded down to granules
  uint64_t granule_bytes = 2 << 20;  // 2 MiB or 64 KiB
  std::string name = {};             // shown by `terrace tier`; printable, at most 63 bytes
  std::string policy = {};           // empty: benefit-density; as listed by Tiering::policies()
  uint32_t weight = 1;               // of its fair part, where ranges share DDR
  // Both given: the range's memory is not a file and leases, but pages of two memory nodes of this machine
  // (CXL memory online as system RAM), which the kernel moves between them. No leases then, and no userfaultfd.
  // The kernel itself does not move pinned pages, and futexes shared between processes work. If a node is full,
  // pages come from another node.
  int ddr_node = -1;
  int cxl_node = -1;
};

enum class TieringState : uint8_t {
  running,
  paused,
  no_migration,  // the memory works and its bytes do not move; `reason` says why
};

struct TieredRangeStatus {
  TieringState state = TieringState::running;
  std::string reason, policy;
  uint64_t ddr_bytes = 0, cxl_bytes = 0, held_bytes = 0;
  uint64_t ddr_bytes_max = 0;
  uint64_t promotions = 0, demotions = 0;  // granules
  uint64_t promoted_bytes = 0, demoted_bytes = 0;
  uint64_t aborted = 0;           // moves that the kernel refused; nothing changed
  uint64_t skipped_held = 0;      // not begun: held
  uint64_t skipped_mappings = 0;  // not begun: the process would come near vm.max_map_count
  uint64_t stalled_ns = 0;        // time in which accesses to moving granules could have waited
  uint64_t copy_ns = 0;
  uint64_t announced = 0, prefetched = 0;
  uint32_t ddr_hit_permille = 0;  // of the accesses of late, as the sampler sees them
  uint32_t copy_mib_per_s = 0;
};

class TieredRange;

struct SnapshotStatus {
  uint64_t bytes = 0;                 // of granules
  uint64_t released_bytes = 0;        // of them
  uint64_t copied_bytes = 0;          // since the program stored to them
  uint64_t copied_at_once_bytes = 0;  // by freeze(): `reason` says why
  uint64_t room_bytes = 0;
  uint64_t freeze_ns = 0;       // the time that freeze() took
  uint64_t waits_for_room = 0;  // stores that found the room full
  std::string reason;
};

// The bytes of parts of a range at one moment. The program's first store to a granule copies it aside (the
// store waits for the copy, some 0.3 ms); a granule without a store is never copied.
//
// Ownership  Releases everything when destroyed, before its TieredRange.
// Threads    view() and release() from one thread at a time.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  // The present places of the snapshot's bytes of `part`, which must be frozen and not released. Bytes read
  // there are right if a second view(part) gives the same places; else read them again: at most once a granule.
  // A place without an address: those bytes were lost with a lease.
  virtual std::vector<std::span<const std::byte>> view(std::span<const std::byte> part) const = 0;
  // Ends the snapshot of these bytes; once for each byte.
  virtual void release(std::span<const std::byte> part) = 0;
  virtual SnapshotStatus status() const = 0;
};

// Granules that must not move: for memory that a device or the kernel writes to past the page tables.
//
// Ownership  Ends the hold when destroyed. Must not outlive its TieredRange.
// Threads    Made and destroyed on any thread.
class Hold {
 public:
  Hold() = default;
  Hold(Hold&& other) noexcept : range_(other.range_), first_(other.first_), count_(other.count_) {
    other.range_ = nullptr;
  }
  Hold& operator=(Hold&& other) noexcept;
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { release(); }
  void release();

 private:
  friend class TieredRange;
  Hold(TieredRange* range, uint32_t first, uint32_t count) : range_(range), first_(first), count_(count) {}
  TieredRange* range_ = nullptr;
  uint32_t first_ = 0, count_ = 0;
};

// Ownership  Owns the addresses and the DDR, and keeps the Leases. Destroy it before its Tiering.
// Threads    All methods from any thread.
class TieredRange {
 public:
  virtual ~TieredRange() = default;

  virtual std::span<std::byte> bytes() = 0;
  virtual uint64_t granule_bytes() const = 0;

  // Waits for a move that is under way (a copy's time). Counts nest.
  // Errors    invalid_argument  not inside the range
  virtual Result<Hold> hold(std::span<const std::byte> part) = 0;

  // The part will be used in `in_ns` from now: its granules in CXL are moved to DDR in time, within the copy
  // budget. Never waits, and never fails: bytes outside the range, or too many at once, are ignored.
  virtual void announce(std::span<const std::byte> part, uint64_t in_ns) = 0;
  // The part was used `times` times: exact counts beside the sampler's. Never waits.
  virtual void note_access(std::span<const std::byte> part, uint32_t times) = 0;

  virtual Tier tier_of(const void* address) const = 0;
  virtual TieredRangeStatus status() const = 0;
  virtual void pause() = 0;  // no more moves once it returns
  virtual void resume() = 0;
  // Errors    not_found  no such policy; names those there are
  virtual Status set_policy(const std::string& name) = 0;
  virtual void set_ddr_bytes_max(uint64_t bytes) = 0;
  // Moves as much of the part as possible now, without asking the policy. Returns how many of its bytes are in
  // `tier` afterwards. The policy may move it back later.
  // Errors    unsupported  no migration here, or no more (status().reason)
  //           lease_expired, lease_revoked  no more, since a lease behind the range is gone or about to go
  //           capacity_exhausted  DDR is at its bound, or no lease has room; granules moved before that stay
  virtual Result<uint64_t> move_to(std::span<const std::byte> part, Tier tier) = 0;

  // Keeps the present bytes of the parts, while the program goes on storing to them. No thread may store to
  // them during the call: such a store may or may not be in the snapshot. Their granules do not move until they
  // are released.
  //
  // `room`: memory for copies of granules, made before the program's first store to each; only whole granules
  // of it are used. If it lies in this range, it does not move either. If it is smaller than the parts'
  // granules, stores wait for releases once it is full.
  // Errors    invalid_argument    a part or room that is not all inside, or in both
  //           busy                there is a snapshot of this range; lease_expired, lease_revoked
  //           capacity_exhausted  granules that cannot be write-protected (no userfaultfd, a dax device) are
  //                               copied at once, and the room is too small: says how much
  virtual Result<std::unique_ptr<Snapshot>> freeze(std::span<const std::span<const std::byte>> parts,
                                                   std::span<const std::span<std::byte>> room) = 0;

 protected:
  friend class Hold;
  virtual void let_go(uint32_t first, uint32_t count) = 0;
  static Hold make_hold(TieredRange* range, uint32_t first, uint32_t count) {
    return Hold(range, first, count);
  }
};

class Tiering {
 public:
  // If the kernel gives this process no userfaultfd, all works, but nothing moves: can_migrate() and each
  // range's status say so.
  // Errors    out_of_memory, limit_exceeded (threads, descriptors)
  static Result<std::unique_ptr<Tiering>> start(const TieringOptions& options);
  virtual ~Tiering() = default;

  virtual bool can_migrate() const = 0;
  // The reason why can_migrate() is false, and how to fix it.
  virtual std::string why_not() const = 0;
  // The first ddr_bytes_max are in DDR at first, the rest in the leases, in order. The contents are the leases'
  // old bytes, and zeros in DDR; on two memory nodes all are zeros.
  //
  // Errors    invalid_argument    sizes, granule, name, a read-only lease; 64 KiB granules on a dax device;
  //                               leases beside nodes, one node twice
  //           already_exists      a lease that lies behind a range already
  //           not_found           policy; a node that is not online or has no memory
  //           permission_denied   nodes: this process may not choose them (a container's filter)
  //           capacity_exhausted  DDR bound and leases together are smaller than the range; says how much
  //           lease_expired, lease_revoked, out_of_memory, limit_exceeded (16 ranges a Tiering)
  virtual Result<std::unique_ptr<TieredRange>> make_range(const TieredRangeOptions& options,
                                                          std::vector<std::shared_ptr<Lease>> leases) = 0;
  virtual void set_copy_budget(uint64_t bytes_per_s) = 0;
  static std::vector<std::string> policies();
};

}  // namespace terrace
