// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/ddr_part.h"

#include <sys/mman.h>

#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/movement.h"

namespace terrace::preload {
namespace {

void set_charged(heap::PageSpan pages, uint8_t charged) {
  for (uint32_t granule = pages.first / granule_pages; granule < (pages.first + pages.pages) / granule_pages;
       ++granule)
    std::atomic_ref<uint8_t>(window.charged[granule]).store(charged, std::memory_order_relaxed);
}

void hand_over(heap::PageSpan pages, uint8_t arena) {
  window.heap.run(pages.first).arena = arena;
  window.heap.free(pages.first);
}

// Where no engine moves anything, now or ever again.
bool release_directly(uint32_t granule) {
  if (!front_granule_in_ddr(granule)) return false;
  // Fails where a part is private or locked: then it stays as it is.
  if (next.madvise(window.address(granule * granule_pages), granule_bytes, MADV_REMOVE) != 0) return false;
  uncharge_granules(1);
  return true;
}

}  // namespace

bool charge_granules(uint32_t granules) {
  if (!charge(granules * granule_bytes)) return false;
  std::atomic_ref<uint32_t>(window.charged_granules).fetch_add(granules, std::memory_order_relaxed);
  return true;
}

void charge_granules_anyway(uint32_t granules) {
  charge_anyway(granules * granule_bytes);
  std::atomic_ref<uint32_t>(window.charged_granules).fetch_add(granules, std::memory_order_relaxed);
}

void uncharge_granules(uint32_t granules) {
  std::atomic_ref<uint32_t>(window.charged_granules).fetch_sub(granules, std::memory_order_relaxed);
  uncharge(granules * granule_bytes);
}

heap::PageSpan take_reserve(uint32_t pages, uint32_t align_pages) {
  if (pages > window.ddr_pages) return {};
  const uint32_t whole = (pages + granule_pages - 1) / granule_pages * granule_pages;
  const uint32_t align = align_pages > granule_pages ? align_pages : granule_pages;
  const uint32_t first = window.heap.allocate(reserve_arena, whole, align, window.generation);
  return first == heap::no_page ? heap::PageSpan{} : heap::PageSpan{first, whole};
}

void open_front(heap::PageSpan granules) {
  set_charged(granules, 1);
  hand_over(granules, ddr_arena);
}

void return_reserve(heap::PageSpan granules) {
  hand_over(granules, reserve_arena);
}

bool charge_front(uint32_t pages, uint32_t align_pages) {
  heap::PageSpan granules = take_reserve(pages, align_pages);
  if (granules.pages == 0) return false;
  if (!charge_granules(granules.pages / granule_pages)) {
    return_reserve(granules);
    return false;
  }
  open_front(granules);
  return true;
}

uint32_t give_back_run(heap::PageSpan free_run, ReleaseGranule release) {
  uint32_t given = 0;
  uint32_t run = free_run.first;
  const uint32_t end = free_run.first + free_run.pages;
  for (uint32_t page = (run + granule_pages - 1) / granule_pages * granule_pages; page + granule_pages <= end;
       page += granule_pages) {
    if (!release(page / granule_pages)) continue;
    const heap::PageSpan granule{page, granule_pages};
    window.heap.set_dirty(granule, false);
    window.heap.move_part(run, granule, reserve_arena);
    set_charged(granule, 0);
    run = page + granule_pages;
    ++given;
  }
  return given;
}

uint32_t give_back_all(ReleaseGranule release) {
  uint32_t given = 0;
  for (uint32_t page = 0; page < window.ddr_pages;) {
    const heap::RunRecord record = window.heap.run(page);
    // The records of runs behind this one keep their lengths, whatever is joined with them.
    if (record.state == heap::RunState::free && record.arena == ddr_arena)
      given += give_back_run({page, record.pages}, release);
    page += record.pages;
  }
  return given;
}

void front_freed(heap::PageSpan free_run) {
  if (window.heap.free_pages(ddr_arena) <= kept_ddr_pages_max() || free_run.pages < granule_pages) return;
  if (engine_moves())
    ask_to_give_back();
  else
    give_back_run(free_run, release_directly);
}

bool trim_front(bool* soon) {
  if (window.heap.longest_free_run(ddr_arena) < granule_pages) return false;
  if (!engine_moves()) return give_back_all(release_directly) > 0;
  ask_to_give_back();
  *soon = true;
  return false;
}

}  // namespace terrace::preload
