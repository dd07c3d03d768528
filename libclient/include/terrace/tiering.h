// Memory whose address never moves while its bytes do: granules that are used much rise to DDR, others sink to
// the leases of CXL memory, under running threads, without a signal handler and without a lost store.
//
//   auto tiering = Tiering::start({.session = session.get()});
//   TieredRangeOptions options{.bytes = 64ull << 30, .ddr_bytes_max = 16ull << 30, .name = "kv"};
//   auto range = (*tiering)->make_range(options, leases);
//   float* values = reinterpret_cast<float*>((*range)->bytes().data());
//
// Threads   A Tiering has one thread that looks, plans and moves, and one that the kernel needs. The memory is
//           the caller's to use from any thread; an access to a granule that is being moved waits for the copy
//           (about 0.2 ms for 2 MiB; readers of a sinking granule do not wait).
// fork      The range is not inherited: a child that touches it gets SIGSEGV, and neither side's bytes are ever
//           changed by the other; its copies of these objects say no_migration. vfork and posix_spawn are as
//           ever.
// Leases    A range whose lease is being taken back, is lost, was moved or resized is not migrated any more. A
//           lease that is fenced without notice while a granule of it is being copied stops the range as well:
//           that move is undone, and only the program's own accesses to what was in the lease are SIGBUS. For
//           that these copies are guarded, as those of tensor spaces: a handler of SIGBUS that the program has
//           gets every other SIGBUS.
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
  // Asked for /dev/userfaultfd where this process may not open it. May be nullptr. Used by start() only.
  Session* session = nullptr;
  uint64_t copy_bytes_per_s_max = 2ull << 30;  // copied by migration, both directions together; 0: no bound
  uint64_t batch_bytes_max = 2 << 20;          // moved at once: how long an access can wait
  uint64_t round_ns = 250'000'000;             // between two plans
  uint32_t copy_threads = 1;                   // for batches of 4 MiB and more
  uint64_t ddr_bytes_shared = 0;  // not 0: divided between the ranges by what they gain; each range's own
                                  // ddr_bytes_max is where it begins. Granules are 2 MiB then
  // Look also at the kernel's records of page faults and at memory samples of the processor, what of them this
  // process may: much used granules are told from each other better. Each page fault of the whole program takes
  // longer for it, and each start of a thread; status().reason says what is refused.
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
  // (CXL memory online as system RAM), which the kernel moves between them. No leases then, and no userfaultfd;
  // the kernel itself leaves pinned pages where they are, and futexes shared between processes work. What a
  // node has no room for comes from another one.
  int ddr_node = -1;
  int cxl_node = -1;
};

enum class TieringState : uint8_t {
  running,
  paused,
  no_migration,  // the memory works and stays where it was put; `reason` says why
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
  uint64_t stalled_ns = 0;        // during which accesses to what moved could have waited
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
  uint64_t freeze_ns = 0;       // how long freeze() took
  uint64_t waits_for_room = 0;  // stores that found the room full
  std::string reason;
};

// The bytes that parts of a range held at one moment. A granule is copied aside when the program stores to it
// the first time (the store waits for the copy, some 0.3 ms); what nobody stores to is never copied.
//
// Ownership  Releases everything when destroyed, before its TieredRange.
// Threads    view() and release() from one thread at a time.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  // Where the snapshot's bytes of `part`, of what was frozen and is not released, are at the moment. What was
  // read there is right if view(part) gives the same places afterwards; else it is to be read again: at most
  // once a granule. A place without an address: those bytes were lost with a lease.
  virtual std::vector<std::span<const std::byte>> view(std::span<const std::byte> part) const = 0;
  // Not needed any more; each byte once.
  virtual void release(std::span<const std::byte> part) = 0;
  virtual SnapshotStatus status() const = 0;
};

// Granules that stay where they are: for memory that a device or the kernel will write to behind our back.
//
// Ownership  Lets go when destroyed. Not longer than its TieredRange.
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

  // The part will be used in `in_ns` from now: what lies in CXL is brought to DDR in time, within the copy
  // budget. Never waits, and never fails: what is outside the range, or too much at once, is ignored.
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
  // Moves what it can of the part now, whatever the policy thinks, and says how many bytes of it are in `tier`
  // afterwards. The policy may move it back later.
  // Errors    unsupported  no migration here, or no more (status().reason)
  //           lease_expired, lease_revoked  no more, since a lease behind the range is gone or about to go
  //           capacity_exhausted  DDR up to its bound, or no lease has room; what moved, moved
  virtual Result<uint64_t> move_to(std::span<const std::byte> part, Tier tier) = 0;

  // What the parts hold now, kept while the program goes on storing to them. Nobody stores to them during the
  // call: what is stored then may be in the snapshot or not. Their granules do not move until they are
  // released.
  //
  // `room`: where granules are copied to before the program's first store to them; whole granules of it are
  // used. In this range it is not moved either. Less than the parts' granules: stores wait, once it is full,
  // for releases.
  // Errors    invalid_argument    a part or room that is not all inside, or in both
  //           busy                there is a snapshot of this range; lease_expired, lease_revoked
  //           capacity_exhausted  what cannot be write-protected (no userfaultfd, a dax device) is copied at
  //                               once, and the room is too small for it: says how much
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
  // Where the kernel gives no userfaultfd to this process all works, but nothing moves: can_migrate() and each
  // range's status say so.
  // Errors    out_of_memory, limit_exceeded (threads, descriptors)
  static Result<std::unique_ptr<Tiering>> start(const TieringOptions& options);
  virtual ~Tiering() = default;

  virtual bool can_migrate() const = 0;
  // Why not; and how to fix it.
  virtual std::string why_not() const = 0;
  // The first ddr_bytes_max are in DDR at first, the rest in the leases, in order. The contents are whatever
  // the leases hold there, and zeros in DDR; zeros only where the memory is that of two nodes.
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
