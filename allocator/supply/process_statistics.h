// SPDX-License-Identifier: Apache-2.0
// One process's statistics of its memory, beyond the counters of its slot (protocol.h): one page for each in
// the control page, written by the process, read by the supervisor. It stays when the process is killed.
//
// Coherence domain  One machine. Every word is accessed atomically (relaxed), `small_sequence` as below.
// Threads   Written by the process: `large` and what follows it under its heap lock, the tiers by its engine's
//           thread, `small` by one thread at a time.
// Fresh     `large`, the reasons and plain memory: always. The rest when it was asked for: the supervisor
//           raises ControlHeader::statistics_asked at each tick, and the process answers at its next slow step
//           (a large block, a miss of a thread's cache, a round of its engine). A process that takes no such
//           step has nothing new to say, but for frees into a thread's cache.
// Trust     As the control page: a statement of the program about itself.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::supply {

// Blocks that are runs of pages: class i has 2^i pages and more, below 2^(i+1).
struct LargeClass {
  uint64_t bytes;        // live
  uint64_t allocations;  // since the start; of a forked child since the fork
  uint64_t frees;        // less what a fork's child has inherited: allocations - frees are live
};
inline constexpr uint32_t large_classes_max = 32;

// Blocks of the embedded small allocator; only classes in which some are live. Blocks in the caches of threads
// count as live.
struct SmallClass {
  uint64_t block_bytes, blocks;
};
inline constexpr uint32_t small_classes_max = 112;

// Why the window did not serve a large request.
enum class FullReason : uint32_t {
  budgets = 0,        // the run's budgets, or the pool, are used up
  scattered = 1,      // there is as much free memory, but not in one piece
  manager_away = 2,   // no lease: the pool manager does not answer
  no_supervisor = 3,  // the supervisor cannot be reached any more
  too_large = 4,      // larger than the window
};
inline constexpr uint32_t full_reasons = 5;

struct alignas(4096) ProcessStatistics {
  LargeClass large[large_classes_max];
  uint64_t extent_bytes;  // of the small allocator in the window; not in `large`
  uint64_t plain_bytes;   // of the small allocator outside of the window
  uint64_t refused_by[full_reasons];
  uint64_t fallbacks_by[full_reasons];
  uint64_t fallback_bytes;  // asked for by requests that went elsewhere, all together

  uint64_t heap_ns;                         // CLOCK_MONOTONIC of the next two; 0: never
  uint64_t free_bytes, longest_free_bytes;  // of the window's parts: room for large blocks, the longest piece

  uint64_t tiers_ns;                  // of the next three; 0: never
  uint64_t live_in_ddr, live_in_cxl;  // handed out, by where it is
  uint64_t live_in_segment[64];

  uint64_t promoted_bytes, demoted_bytes;

  uint64_t small_sequence;  // odd: being written. Raised with release order before and after
  uint64_t small_ns;        // 0: never, or there is no small allocator
  uint64_t small_bytes;     // live, all classes
  uint64_t small_count;     // of `small`
  char program[16];         // its name, when it came
  SmallClass small[small_classes_max];

  uint64_t mapped_bytes;  // of the program's own mappings that the window serves; always. Not in `large`
};
static_assert(sizeof(ProcessStatistics) == 4096 && offsetof(ProcessStatistics, extent_bytes) == 768 &&
              offsetof(ProcessStatistics, small) == 1496 && offsetof(ProcessStatistics, mapped_bytes) == 3288);

}  // namespace terrace::supply
