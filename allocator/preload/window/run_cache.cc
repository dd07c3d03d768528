// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/run_cache.h"

#include <bit>

#include "allocator/preload/libc/message.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/statistics.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {
namespace {

constexpr uint32_t shelf_count = 64, shelf_runs = 8;
constexpr uint64_t shelf_bytes_max = 4u << 20;
constexpr uint64_t budget_share = 256;  // what part of the run's DDR budget one shelf may hold
constexpr uint32_t run_pages_max = 512;
constexpr uint32_t classes = 10;  // of powers of two of pages, up to run_pages_max
static_assert(std::bit_width(run_pages_max) == classes);

// A word: page + 1, and its pages; 0 is none.
constexpr uint64_t word_of(uint32_t page, uint32_t pages) {
  return (uint64_t{page} + 1) << 32 | pages;
}
constexpr uint32_t page_in(uint64_t word) {
  return static_cast<uint32_t>(word >> 32) - 1;
}
constexpr uint32_t pages_in(uint64_t word) {
  return static_cast<uint32_t>(word);
}

struct alignas(64) Shelf {
  std::atomic<uint64_t> runs[shelf_runs];
  std::atomic<uint32_t> taken[classes];  // since the last look, by class of pages
  std::atomic<uint32_t> turn;            // whose place the next run takes where none is empty
};
constinit Shelf shelves[shelf_count];
constinit std::atomic<uint32_t> emptied_for{0};
constinit std::atomic<bool> ending{false};

Shelf& my_shelf() {
  return shelves[thread_number() % shelf_count];
}

uint32_t shelf_pages_max() {
  static constinit std::atomic<uint32_t> most{UINT32_MAX};
  uint32_t pages = most.load(std::memory_order_relaxed);
  if (pages == UINT32_MAX) {
    const uint64_t share = window.control->ddr_budget / budget_share;
    pages = static_cast<uint32_t>((share < shelf_bytes_max ? share : shelf_bytes_max) / page_bytes);
    most.store(pages, std::memory_order_relaxed);
  }
  return pages;
}

// Of the DDR part, the program's own, and nothing special about its pages.
bool may_be_kept(const heap::RunRecord& run) {
  // A fork may be moving the run to another arena: that one is no reason to keep it either.
  return __atomic_load_n(&run.arena, __ATOMIC_RELAXED) == ddr_arena &&
         run.right == static_cast<uint32_t>(statistics::Owner::program) && run.pages <= run_pages_max &&
         !any_marks.load(std::memory_order_relaxed) && !ending.load(std::memory_order_relaxed);
}

}  // namespace

bool must_empty_shelves() {
  return statistics::times_asked() != emptied_for.load(std::memory_order_relaxed);
}

void note_shelves_emptied() {
  emptied_for.store(statistics::times_asked(), std::memory_order_relaxed);
}

void keep_no_runs() {
  ending.store(true, std::memory_order_relaxed);
}

void* take_kept_run(size_t bytes) {
  const size_t pages = (bytes + page_bytes - 1) / page_bytes;
  if (pages > run_pages_max || must_empty_shelves()) return nullptr;
  Shelf& shelf = my_shelf();
  for (std::atomic<uint64_t>& place : shelf.runs) {
    uint64_t word = place.load(std::memory_order_relaxed);
    // acquire pairs with keep_run()'s release: what its last owner did to the block is done.
    if (pages_in(word) != pages || word == 0 ||
        !place.compare_exchange_strong(word, 0, std::memory_order_acquire, std::memory_order_relaxed))
      continue;
    std::atomic<uint32_t>& taken = shelf.taken[std::bit_width(static_cast<uint32_t>(pages)) - 1];
    // Of threads that share a shelf one may miss the other's.
    taken.store(taken.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return window.address(page_in(word));
  }
  return nullptr;
}

uint32_t keep_run(uint32_t page) {
  const heap::RunRecord& run = window.heap.run(page);
  if (!may_be_kept(run) || must_empty_shelves()) return page;
  const uint32_t pages_max = shelf_pages_max();
  if (run.pages > pages_max) return page;
  Shelf& shelf = my_shelf();
  const uint64_t mine = word_of(page, run.pages);
  uint32_t kept = 0;
  std::atomic<uint64_t>* free_place = nullptr;
  for (std::atomic<uint64_t>& place : shelf.runs) {
    const uint64_t word = place.load(std::memory_order_relaxed);
    if (word == mine) fatal("free(): double free detected");
    if (word == 0) free_place = &place;
    kept += pages_in(word);
  }
  uint64_t none = 0;
  if (free_place != nullptr && kept + run.pages <= pages_max &&
      // release: pairs with take_kept_run(), take_any_kept_run()
      free_place->compare_exchange_strong(none, mine, std::memory_order_release, std::memory_order_relaxed))
    return heap::no_page;
  // In the place of another one, so that the shelf follows what the program asks for.
  const uint32_t turn = shelf.turn.load(std::memory_order_relaxed);
  shelf.turn.store((turn + 1) % shelf_runs, std::memory_order_relaxed);
  std::atomic<uint64_t>& place = shelf.runs[turn % shelf_runs];
  const uint32_t less = pages_in(place.load(std::memory_order_relaxed));
  if (less == 0 || kept - less + run.pages > 2 * pages_max) return page;
  // acq_rel: pairs with the takers, and with the keep_run() of the run that goes.
  const uint64_t word = place.exchange(mine, std::memory_order_acq_rel);
  return word == 0 ? heap::no_page : page_in(word);
}

uint32_t take_any_kept_run() {
  for (Shelf& shelf : shelves) {
    for (uint32_t i = 0; i < classes; ++i)
      if (shelf.taken[i].load(std::memory_order_relaxed) != 0)
        statistics::note_taken_again(i, shelf.taken[i].exchange(0, std::memory_order_relaxed));
    for (std::atomic<uint64_t>& place : shelf.runs)
      if (place.load(std::memory_order_relaxed) != 0)
        // acquire: pairs with keep_run()
        if (const uint64_t word = place.exchange(0, std::memory_order_acquire); word != 0) return page_in(word);
  }
  return heap::no_page;
}

}  // namespace terrace::preload
