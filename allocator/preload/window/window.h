// SPDX-License-Identifier: Apache-2.0
// The window: one reserved address range, a DDR part in front, then the leases (segments) that this process was
// granted, one behind the other as they come.
//
//   base      base + ddr_pages   base + front_pages        mapped_pages              total_pages
//    | DDR part | addresses, PROT_NONE | segment 0 | segment 1 | ... | reserved, PROT_NONE |
//
// If memory does not migrate, an empty segment may be given back (segments.cc); its addresses are reserved
// again, for the next segment.
//
// Without migration the DDR part is private anonymous memory, charged to the run's budget page by page. With
// migration (`tiered`) it is a memory file that the supervisor made, as long as the window, granule i at offset
// i, mapped shared. The budget is charged by granules, and the engine changes the memory behind a granule: the
// file at the granule's offset, or a granule of some lease. Addresses never change, so the heap does not
// notice: its arenas say where in the window a page is, not on which tier.
//
// Place     exports.cc → large_requests.cc (allocate, free, resize) → this; start_up.cc fills it; fork.cc
//           switches it; ddr_part.cc charges granules; tiering/engine moves them.
// Threads   All fields below `heap` belong to the holder of heap_lock, except where noted. Lock order:
//           supply_lock, heap_lock, the engine's lock of the range. A fork takes them all. The holder of the
//           range's lock never waits for the other two. Only a fork waits for the engine's thread while it
//           holds one of them; and the engine's thread never waits for a fork.
//
// Invariants
//   W1  A page of arena `shared(i)` is mapped MAP_SHARED from segment i's lease and not inherited by fork.
//   W2  A page of arena `detached(i)` is private memory of this process, or folded (fold_after_fork.h: O2). The
//       lease's own page below it is not written or punched while another process may read it there (O1). The
//       same holds for the front's file and pages of `detached_front_arena`.
//   W3  While a fork is under way neither the heap nor the mapping of the window changes but by the fork.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/heap/page_heap.h"
#include "allocator/preload/libc/lock.h"
#include "allocator/supply/protocol.h"

namespace terrace::preload {

using heap::page_bytes;

inline constexpr uint8_t ddr_arena = 0;
constexpr uint8_t shared_arena(uint32_t segment) {
  return static_cast<uint8_t>(1 + segment);
}
constexpr uint8_t detached_arena(uint32_t segment) {
  return static_cast<uint8_t>(1 + supply::segments_max + segment);
}
constexpr bool is_shared(uint8_t arena) {
  return arena >= 1 && arena <= supply::segments_max;
}
constexpr uint32_t segment_of(uint8_t arena) {
  return is_shared(arena) ? arena - 1u : arena - 1u - supply::segments_max;
}
// Tiered only: granules of the DDR part that are not charged (mapped to the file, but no page of it exists),
// and pages of that part that are private since a fork.
inline constexpr uint8_t reserve_arena = detached_arena(supply::segments_max);
inline constexpr uint8_t detached_front_arena = reserve_arena + 1;
// Addresses behind the DDR part that no lease is mapped to.
inline constexpr uint8_t address_arena = detached_front_arena + 1;
// Addresses of a lease that was taken back (lease_return.cc) that were free then: reserved, and nobody's until all of
// that lease's are free.
constexpr uint8_t left_arena(uint32_t segment) {
  return static_cast<uint8_t>(address_arena + 1 + segment);
}
static_assert(address_arena + supply::segments_max < heap::arenas_max);

inline constexpr uint32_t granule_pages = 512;
inline constexpr size_t granule_bytes = granule_pages * page_bytes;

struct Segment {
  uint64_t key;  // names the lease to the supervisor
  // In the window; no pages: the lease was given up. The next one may be number i once `key` is 0: until then
  // granules of other addresses are in it.
  heap::PageSpan span;
};

// In the first page of memory that was freed while a fork was under way, where it is no run of its own.
struct FreedSpan {
  FreedSpan* next;
  uint64_t pages;
};

struct Window {
  ForkLock supply_lock;  // arming and new segments: held over a conversation with the supervisor
  ForkLock heap_lock;

  heap::PageHeap heap;
  uint32_t ddr_pages = 0;    // grows, up to front_pages, where no free run is long enough (design/0010)
  uint32_t front_pages = 0;  // constant once armed
  uint32_t total_pages = 0;
  uint32_t mapped_pages = 0;   // the end of the last segment; written under both locks
  uint32_t segment_count = 0;  // written under both locks; the engine reads it without (atomic_ref)
  Segment segments[supply::segments_max] = {};
  uint16_t generation = 0;            // forks between this process and the one that armed: the tag of its runs
  uint64_t free_dirty_pages = 0;      // DDR pages that are free and still resident; not tiered
  uint64_t free_dirty_pages_max = 0;  // tiered: free pages of charged granules
  uint64_t* private_bits = nullptr;   // a bit a page: private since a fork that failed half way

  bool tiered = false;  // written while the process has one thread, or by a fork's child
  uint64_t front_key = 0;
  uint64_t token_key = 0;          // of the first token (fold_after_fork.h); 0: there is none
  uint32_t* token_page = nullptr;  // of the one that children inherit; written under heap_lock
  uint8_t* charged =
      nullptr;  // a byte a granule of the DDR part: 1 when it is not in reserve. Read by the engine
  uint8_t* held_for_good = nullptr;  // a byte a granule of the window: must not move, ever. atomic_ref
  uint16_t* held_counts = nullptr;   // terrace_hold's, a granule each
  uint16_t* used_pages = nullptr;    // tiered: pages in use, a granule of the window each
  uint32_t charged_granules = 0;     // in the budget, wherever in the window they are; atomic_ref

  supply::ControlHeader* control = nullptr;
  supply::Slot* slot = nullptr;  // nullptr in a child that found no free slot: no DDR budget then
  bool fallback = false;         // go to the next malloc when the window is full

  bool refusal_said = false;              // the first request that failed was said; under heap_lock
  bool too_long_said = false;             // and the first that no window of this run can hold
  std::atomic<bool> manager_away{false};  // the last request for a lease had that answer

  // Under supply_lock, but that whoever gives up a lease makes it 0 (atomic_ref).
  uint64_t segment_retry_ns = 0;          // no new request for a segment before this time
  uint64_t segment_retry_at_once_ns = 0;  // and none that does not wait

  std::atomic<uint32_t> deferred{0};  // freed while a fork was under way: page + 1, linked by RunRecord::left
  std::atomic<FreedSpan*> deferred_spans{nullptr};
  std::atomic<uint64_t> during_fork{0};  // allocations then
  // A fork in the middle of a change made pages private that the records call shared: nothing moves any more.
  bool private_for_good = false;
  // This process was forked in the middle of a change to what is above: what is in use stays usable, and
  // nothing here changes any more. Both locks refuse.
  bool abandoned = false;
  std::atomic<bool> supply_gone{false};  // the supervisor cannot be reached any more: plain malloc from here on

  char* address(uint32_t page) const { return base + size_t{page} * page_bytes; }
  uint32_t page_of(const void* pointer) const {
    return static_cast<uint32_t>((static_cast<const char*>(pointer) - base) / page_bytes);
  }
  char* base = nullptr;
};

extern Window window;

// What the exported functions test on every call. Set once the window is armed.
extern std::atomic<size_t> large_from;  // requests of at least this many bytes are large; SIZE_MAX: none are
// Each library's own: 0, or what large_from becomes whatever the environment says.
extern const size_t large_from_always;
extern std::atomic<size_t> window_span;  // bytes; 0 before
extern std::atomic<uintptr_t> window_base;

inline bool in_window(const void* pointer) {
  // The span is published after the base: who sees the span, sees the base (acquire pairs with arm()'s
  // release).
  size_t span = window_span.load(std::memory_order_acquire);
  return reinterpret_cast<uintptr_t>(pointer) - window_base.load(std::memory_order_relaxed) < span;
}

// start_up.cc
bool is_armed();
// First large request: asks the supervisor for the run's budgets and reserves the window. False: this process
// goes on with the next malloc. Takes supply_lock.
bool arm();
// Asks for a lease that holds `bytes` at `alignment` and maps it. supply_lock is held, heap_lock is not.
// `at_once`: without a wait for what others are about to give back.
bool add_segment(size_t bytes, size_t alignment, bool at_once);

// segments.cc; heap_lock is held.
// A run of a lease is free now: leases of which nothing is in use go back when there are many of them.
void segment_freed(uint8_t arena, heap::PageSpan free_run);
// Gives up all leases of which nothing is in use. True: there were some. `*soon`: where memory migrates the
// engine is asked to do it.
bool give_up_free_segments(bool* soon);
bool is_segment_free(uint32_t index);  // nothing of it is in use, and it never was private
// Its mapping and addresses. False: the kernel refused.
bool unmap_segment(uint32_t index);
bool are_too_many_free();
void note_given_up();  // a lease goes back
// A new lease, mapped at addresses of take_addresses().
void note_new_segment(uint32_t index, uint64_t key, heap::PageSpan span);
// A new lease of which no addresses are: the engine puts granules of others into it.
void note_new_slots(uint32_t index, uint64_t key);
// Addresses for a lease of at most `most` pages, at least `least`; pages 0: there are none.
heap::PageSpan take_addresses(uint32_t least, uint32_t most);
void return_addresses(heap::PageSpan span);
// The number of the next segment; segments_max: there are as many as can be.
uint32_t next_segment_index();
bool claim_slot(uint32_t parent_slot);

// Counters in the slot, which only the holder of heap_lock writes and the supervisor reads.
void count(uint64_t supply::Slot::*counter, uint64_t more = 1);
void count_live(uint8_t arena, int64_t bytes);

}  // namespace terrace::preload
