// SPDX-License-Identifier: Apache-2.0
// A stable range of addresses whose granules lie in DDR or in CXL memory, and the tables to move them.
//
//   base  [ g0 | g1 | g2 | ... ]   each granule is mapped from one of
//   DDR   one memory file as long as the range: granule i at offset i (so neighbours join into one mapping)
//   CXL   segments (leases), cut into slots of a granule; slot_[i] says which one granule i has
// or, with two memory nodes, the one file for all granules, whose pages the kernel moves (node_moves.h): no
// segments, no slots, one mapping, no Mover, no userfaultfd.
//
// Place     An owner (libterrace's TieredRange, the preload library) makes the range and says what is mapped
//           where; tiering/engine moves granules; anyone holds granules that must not move.
// Threads   hold/unhold and residency() from any thread. All else: one thread at a time, the holder of
//           `lock()`.
// Memory    libc only; tables are mapped, not allocated.
//
// Invariants
//   T1  A granule has a CXL slot exactly if its residency is cxl (none with two nodes); no slot has two
//       granules.
//   T2  A granule that is held does not move; one that moves cannot be held until the move is over.
//   T3  No move brings the range beyond its mappings_max kernel mappings, or all ranges of the process beyond a
//       quarter of vm.max_map_count.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/sync/thread_safety.h"
#include "tiering/migration/mover.h"
#include "tiering/migration/node_moves.h"
#include "tiering/policy/policy.h"

namespace terrace::tiering {

inline constexpr uint32_t slot_none = UINT32_MAX;
inline constexpr uint32_t tier_segments_max = 64;

// A mutex that needs no libc state and may be taken in a fork's prepare step.
class TERRACE_CAPABILITY("move lock") MoveLock {
 public:
  void enter() TERRACE_ACQUIRE();
  bool try_enter() TERRACE_TRY_ACQUIRE(true);
  void leave() TERRACE_RELEASE();
  void reset_in_child() { state_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> state_{0};  // 0 free, 1 held, 2 held and waited for
};

enum class MoveResult : uint8_t {
  done,
  held,         // by somebody; try later
  pinned,       // the kernel or a device knows its pages beyond page tables; try later
  unproven,     // nobody can say whether somebody does: it stays
  no_mappings,  // it would need more kernel mappings than the bound
  no_slot,      // no free CXL slot
  no_memory,    // no DDR page, or the kernel had no memory; nothing changed
  lost,         // memory of either side went away during the copy, as a lease that is fenced
  refused,      // the kernel said something else: see MoveReport::os_errno
  nothing,      // is there already, or has no bytes
};

struct MoveReport {
  MoveResult result = MoveResult::nothing;
  int os_errno = 0;
  uint32_t granules = 0;  // moved: a run of neighbours may end early at one that is held
  MoveTimes times;
};

struct TieredMemoryOptions {
  char* base = nullptr;  // aligned to a granule; the owner's reservation
  uint64_t bytes = 0;    // a multiple of granule_bytes
  uint64_t granule_bytes = 2u << 20;
  int ddr_fd = -1;  // a memory file of `bytes`; stays the caller's, open as long as this object lives
  // The memory file's pages come small: those of a granule are joined to a huge page before it rises.
  bool join_pages = false;
  uint32_t mappings_max = 0;  // 0: as all ranges of the process together, a quarter of vm.max_map_count
  // Both given: ddr_fd is the file behind all granules, whose pages lie on one of two memory nodes.
  int ddr_node = -1, cxl_node = -1;
  const NodeCalls* node_calls = &kernel_node_calls;
};

class TieredMemory {
 public:
  TieredMemory() = default;
  ~TieredMemory() { close(); }
  TieredMemory(const TieredMemory&) = delete;
  TieredMemory& operator=(const TieredMemory&) = delete;

  // 0 or an errno. All granules are `none` afterwards; nothing in the range is mapped or touched.
  int open(const TieredMemoryOptions& options);
  // Unmaps tables and aliases; the range itself stays as it is.
  void close();

  // Adds CXL memory of `bytes` behind `fd` (the caller's, open as long as the segment is there), as segment
  // number `index`, which is not in use; segment_next: the one behind the last. 0 or an errno.
  static constexpr uint32_t segment_next = UINT32_MAX;
  int add_segment(int fd, uint64_t bytes, uint32_t index = segment_next);
  // A segment on its way out: none of its slots is given to a granule any more. Granules that have one leave it
  // by rising, by change_slot(), or when they are forgotten; when there is none left it may be dropped.
  void close_segment(uint32_t index);
  void drop_segment(uint32_t index);
  // Granules in slots of the segment; the first one at or behind `from`, granule_count() when there is none.
  uint32_t segment_granules(uint32_t index) const;
  uint32_t segment_granule(uint32_t index, uint32_t from) const;
  // Moves a granule from its CXL slot to a free one.
  MoveReport change_slot(Mover& mover, uint32_t granule);
  // Where the granule's slot lies; residency cxl, not with two nodes.
  struct Place {
    uint32_t segment;
    uint64_t offset;  // bytes
  };
  Place place(uint32_t granule) const;
  // Where this process's engine maps the granule's bytes for itself, without the range's protections; constant
  // while it is held. nullptr: nowhere (two nodes; residency none).
  char* alias(uint32_t granule) const;
  // Says that the owner has mapped these granules so already. cxl: to consecutive slots of the segment, from
  // `segment_slot` on.
  void adopt(uint32_t first, uint32_t count, Residency residency, uint32_t segment = 0,
             uint32_t segment_slot = 0);
  // Maps granules that are `none`: DDR at once, CXL to free slots. 0 or an errno (ENOSPC: no slot).
  int map(uint32_t first, uint32_t count, Residency residency);
  // The owner has taken these granules' memory away (unmapped, or private since a fork): they are `none`. Their
  // slots become free and DDR pages are given back, unless `keep_slots`: then somebody may read either still.
  void forget(uint32_t first, uint32_t count, bool keep_slots);

  // Moves the run as far as its granules can be moved together. cxl: into neighbouring free slots, or fewer.
  // With two nodes the mover is not used, and `held` may also mean that the kernel has pages pinned.
  MoveReport move(Mover& mover, uint32_t first, uint32_t count, Residency to);
  // Makes the DDR pages of these granules exist, outside any stall; those in DDR already are left alone.
  // Returns how many it could from the first on: only they may rise. Whoever does not let them rise gives the
  // pages back.
  uint32_t prepare_ddr(uint32_t first, uint32_t count);
  void give_prepared_back(uint32_t first, uint32_t count);
  // The granule is mapped private from where it lies, in part or whole (the owner's doing, for a fork): puts
  // what is private into the file again, as Mover::fold says. `done` where all of it is shared now.
  MoveReport fold(Mover& mover, uint32_t granule);
  // In a child of fork: forgets mappings that it does not have.
  void abandon();

  // Busy granules. hold() waits for a move that is under way (a copy's time at most); counts nest. Any thread.
  void hold(uint32_t first, uint32_t count);
  void unhold(uint32_t first, uint32_t count);
  bool is_held(uint32_t granule) const {
    return (holds_[granule].load(std::memory_order_relaxed) & ~moving) != 0;
  }
  // Its last move met a pin, or no proof, lately: no use in planning one. Longer each time. Holder of lock().
  bool is_put_off(uint32_t granule, uint64_t now_ns) const {
    return put_offs_[granule].tries != 0 && now_ns / 1'000'000 < put_offs_[granule].until_ms;
  }

  MoveLock& lock() TERRACE_RETURN_CAPABILITY(lock_) { return lock_; }
  bool on_nodes() const { return ddr_node_ >= 0; }
  char* base() const { return base_; }
  uint64_t granule_bytes() const { return granule_bytes_; }
  uint32_t granule_count() const { return count_; }
  uint64_t bytes() const { return uint64_t{count_} * granule_bytes_; }
  std::span<Granule> granules() { return {granules_, count_}; }
  std::span<uint32_t> scratch() { return {scratch_, count_}; }  // for a plan
  Residency residency(uint32_t granule) const {
    return static_cast<Residency>(
        __atomic_load_n(reinterpret_cast<const uint8_t*>(&granules_[granule].residency), __ATOMIC_RELAXED));
  }
  uint32_t slot(uint32_t granule) const { return slots_[granule]; }
  uint32_t ddr_granules() const { return ddr_granules_; }
  uint32_t cxl_granules() const { return cxl_granules_; }
  // With two nodes: as many as may sink.
  uint32_t free_slots() const { return on_nodes() ? count_ - cxl_granules_ : slot_count_ - slots_used_; }
  uint32_t mappings() const { return mappings_; }
  uint32_t mappings_max() const { return mappings_max_; }
  // Re-derives T1 and the counts; nullptr or which is broken. Tests.
  const char* check_all() const;

 private:
  static constexpr uint32_t moving = 1u << 31;
  struct Segment {
    int fd = -1;
    char* alias = nullptr;
    uint32_t first_slot = 0, slots = 0;
    uint32_t numbers = 0;  // slot numbers from first_slot on that are this index's, in use or not
    bool closing = false;
    bool can_be_asked = false;  // for pins: a file of shared memory
  };
  struct PutOff {
    uint64_t until_ms = 0 /* of monotonic_ns() */, tries = 0;
  };

  bool begin_move(uint32_t granule);
  void end_move(uint32_t granule);
  Backing ddr_backing(uint32_t granule) const;
  Backing slot_backing(uint32_t slot) const;
  bool slot_used(uint32_t slot) const { return (slot_bits_[slot / 64] >> slot % 64 & 1) != 0; }
  void set_slot(uint32_t slot, bool used);
  uint32_t segment_of(uint32_t slot) const;
  uint32_t segment_end(uint32_t slot) const;
  uint32_t free_run_at(uint32_t slot, uint32_t count) const;
  uint32_t find_slots(uint32_t first, uint32_t count, uint32_t* got);
  bool joined(uint32_t left) const;  // granules left and left+1 are one kernel mapping
  uint32_t count_mappings(uint32_t first, uint32_t count) const;
  void punch(uint32_t first, uint32_t count);
  int mappings_more(uint32_t first, uint32_t count, Residency to, uint32_t slot) const;
  void set_residency(uint32_t granule, Residency residency, uint32_t slot);
  void note_mappings(uint32_t first, uint32_t count, uint32_t before);
  NodePart node_part(uint32_t first, uint32_t count) const;
  int node_of(Residency residency) const { return residency == Residency::cxl ? cxl_node_ : ddr_node_; }
  MoveReport move_between_nodes(uint32_t first, uint32_t count, Residency to);
  bool can_be_asked(uint32_t first, Residency to, uint32_t slot) const;
  MoveReport not_proved(uint32_t first, uint32_t count, Pins pins);
  void empty_slots(uint32_t slot, uint32_t count);
  MoveReport move_run(Mover& mover, uint32_t first, uint32_t count, Residency to, uint32_t slot);

  char* base_ = nullptr;
  uint64_t granule_bytes_ = 0;
  uint32_t count_ = 0;
  int ddr_fd_ = -1;
  int ddr_node_ = -1, cxl_node_ = -1;
  const NodeCalls* node_calls_ = nullptr;
  bool join_pages_ = false;
  char* ddr_alias_ = nullptr;
  Granule* granules_ = nullptr;
  std::atomic<uint32_t>* holds_ = nullptr;
  uint32_t* slots_ = nullptr;
  uint32_t* scratch_ = nullptr;
  PutOff* put_offs_ = nullptr;
  size_t table_bytes_ = 0;
  Segment segments_[tier_segments_max];
  uint32_t segment_count_ = 0, closing_ = 0;
  uint32_t slot_count_ = 0, slots_used_ = 0, next_slot_ = 0;
  uint64_t* slot_bits_ = nullptr;
  size_t slot_bits_bytes_ = 0;
  uint32_t ddr_granules_ = 0, cxl_granules_ = 0;
  uint32_t mappings_ = 0, mappings_max_ = 0, process_mappings_max_ = 0;
  MoveLock lock_;
};

}  // namespace terrace::tiering
