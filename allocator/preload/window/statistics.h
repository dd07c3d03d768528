// SPDX-License-Identifier: Apache-2.0
// This process's statistics of its memory (allocator/supply/process_statistics.h). Some are updated with
// each large block; the others are computed at the next slow step of a thread after the supervisor asked.
//
// Place     Called by large_requests.cc, start_up.cc, fold_after_fork.cc, engine_thread.cc and allocator/whole.
// Threads   heap_lock is held, except where noted. Nothing here calls back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/preload/window/window.h"

namespace terrace::tiering {
class TieredMemory;
}

namespace terrace::preload::statistics {

// Whose a run of pages in use is: kept in RunRecord::right.
enum class Owner : uint32_t { program = 0, small_allocator = 1, mapping = 2 };

// This process's page, in which it writes from attach() on; nullptr: it has none. Any thread.
extern std::atomic<supply::ProcessStatistics*> page;
// What the supervisor raises, or a word that never changes. Any thread.
extern std::atomic<const uint32_t*> asked;

inline uint32_t times_asked() {
  return __atomic_load_n(asked.load(std::memory_order_relaxed), __ATOMIC_RELAXED);
}

// window.slot is this process's now. Of the only thread, or with supply_lock held.
void attach();

// A run in use came, goes, or changed its length. In pages.
void note_came(uint32_t first, uint32_t pages, Owner owner);
void note_goes(uint32_t first, uint32_t pages);
void note_resized(uint32_t first, uint32_t before, uint32_t now);
// Runs of class i (process_statistics.h) were freed and taken again, so many times, without any of the above.
void note_taken_again(uint32_t of_class, uint32_t times);
// In a fork's child, in its own page: the runs that it has inherited.
void count_inherited();

// The window did not serve a request of `bytes`, for the program or at all.
void note_full(size_t bytes, bool fallback);

// How much room there is, and in what pieces, if that was asked for.
void answer_heap();
// The engine's thread, with the range's lock as well, while granules move: what lies where, if it was asked
// for.
void answer_tiers(const tiering::TieredMemory& memory);

// Without a lock, of the engine's thread: what it moved.
void note_moved(uint64_t promoted_bytes, uint64_t demoted_bytes);

}  // namespace terrace::preload::statistics
