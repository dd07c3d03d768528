// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/statistics.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include <bit>

#include "tiering/migration/tiered_memory.h"

namespace terrace::preload::statistics {

using supply::FullReason;
using supply::ProcessStatistics;

namespace {

constexpr uint32_t never_asked = 0;
uint32_t heap_answered = 0, tiers_answered = 0;

uint64_t now_ns() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void put(uint64_t& cell, uint64_t value) {
  std::atomic_ref<uint64_t>(cell).store(value, std::memory_order_relaxed);
}

// Of cells that one thread at a time writes.
void add(uint64_t& cell, uint64_t more) {
  std::atomic_ref<uint64_t> to(cell);
  to.store(to.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

Owner owner_of(uint32_t first) {
  return static_cast<Owner>(window.heap.run(first).right);
}

uint32_t class_of(uint32_t pages) {
  return static_cast<uint32_t>(std::bit_width(pages)) - 1;
}

// Pages of a window that migrates come or go.
void count_pages(uint32_t first, uint32_t pages, bool comes) {
  const uint32_t end = first + pages;
  for (uint32_t at = first; at < end;) {
    const uint32_t granule = at / granule_pages;
    const uint32_t stop = (granule + 1) * granule_pages < end ? (granule + 1) * granule_pages : end;
    const auto part = static_cast<uint16_t>(stop - at);
    uint16_t& used = window.used_pages[granule];
    used = static_cast<uint16_t>(comes ? used + part : used - part);
    at = stop;
  }
}

// What is no block: counted by its bytes alone.
void count_extent(ProcessStatistics& to, Owner owner, uint64_t more_pages) {
  add(owner == Owner::mapping ? to.mapped_bytes : to.extent_bytes, more_pages * page_bytes);
}

uint64_t free_bytes(uint8_t arena) {
  return window.heap.free_pages(arena) * page_bytes;
}

uint64_t free_bytes_of_segments() {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < window.segment_count; ++i) bytes += free_bytes(shared_arena(i));
  return bytes;
}

FullReason reason_for(size_t bytes) {
  if (bytes > size_t{window.total_pages} * page_bytes) return FullReason::too_large;
  const uint64_t used = std::atomic_ref<uint64_t>(window.control->ddr_used).load(std::memory_order_relaxed);
  const uint64_t left = used < window.control->ddr_budget ? window.control->ddr_budget - used : 0;
  // Without migration each page is charged when it is handed out, else when its granule leaves the reserve.
  const uint64_t uncharged = free_bytes(window.tiered ? reserve_arena : ddr_arena);
  const uint64_t room = free_bytes_of_segments() + (window.tiered ? free_bytes(ddr_arena) : 0) +
                        (uncharged < left ? uncharged : left);
  if (room >= bytes) return FullReason::scattered;
  if (window.supply_gone.load(std::memory_order_relaxed)) return FullReason::no_supervisor;
  if (window.manager_away.load(std::memory_order_relaxed)) return FullReason::manager_away;
  return FullReason::budgets;
}

}  // namespace

constinit std::atomic<ProcessStatistics*> page{nullptr};
constinit std::atomic<const uint32_t*> asked{&never_asked};

void attach() {
  ProcessStatistics* mine = nullptr;
  if (window.slot != nullptr)
    mine = supply::statistics_of(window.control) + (window.slot - supply::slots_of(window.control));
  if (mine != nullptr && program_invocation_short_name != nullptr)
    strncpy(mine->program, program_invocation_short_name, sizeof(mine->program) - 1);
  page.store(mine, std::memory_order_relaxed);
  // release: no acquire partner; times_asked() follows the pointer, which orders it.
  asked.store(mine != nullptr ? &window.control->statistics_asked : &never_asked, std::memory_order_release);
}

void note_came(uint32_t first, uint32_t pages, Owner owner) {
  if (window.tiered) count_pages(first, pages, true);
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (mine == nullptr) return;
  if (owner == Owner::program) [[likely]] {
    supply::LargeClass& one = mine->large[class_of(pages)];
    add(one.bytes, uint64_t{pages} * page_bytes);
    add(one.allocations, 1);
  } else {
    count_extent(*mine, owner, pages);
  }
  if (times_asked() != heap_answered) [[unlikely]]
    answer_heap();
}

void note_goes(uint32_t first, uint32_t pages) {
  if (window.tiered) count_pages(first, pages, false);
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (mine == nullptr) return;
  if (owner_of(first) == Owner::program) [[likely]] {
    supply::LargeClass& one = mine->large[class_of(pages)];
    add(one.bytes, 0 - uint64_t{pages} * page_bytes);
    add(one.frees, 1);
  } else {
    count_extent(*mine, owner_of(first), 0 - uint64_t{pages});
  }
}

void note_resized(uint32_t first, uint32_t before, uint32_t now) {
  if (now > before && window.tiered) count_pages(first + before, now - before, true);
  if (now < before && window.tiered) count_pages(first + now, before - now, false);
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (mine == nullptr) return;
  if (owner_of(first) != Owner::program) return count_extent(*mine, owner_of(first), uint64_t{now} - before);
  supply::LargeClass& was = mine->large[class_of(before)];
  supply::LargeClass& is = mine->large[class_of(now)];
  add(was.bytes, 0 - uint64_t{before} * page_bytes);
  add(is.bytes, uint64_t{now} * page_bytes);
  // Not an allocation, but live in another class.
  if (&was == &is) return;
  add(was.frees, 1);
  add(is.frees, ~uint64_t{0});
}

void note_taken_again(uint32_t of_class, uint32_t times) {
  count(&supply::Slot::allocations_ddr, times);
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (mine == nullptr) return;
  add(mine->large[of_class].allocations, times);
  add(mine->large[of_class].frees, times);
}

void count_inherited() {
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (mine == nullptr) return;
  const auto inherit = [&](heap::PageSpan run, heap::RunRecord& record) {
    if (record.state != heap::RunState::used) return;
    if (owner_of(run.first) != Owner::program) return count_extent(*mine, owner_of(run.first), run.pages);
    supply::LargeClass& one = mine->large[class_of(run.pages)];
    add(one.bytes, uint64_t{run.pages} * page_bytes);
    add(one.frees, ~uint64_t{0});
  };
  window.heap.for_each_run({0, window.ddr_pages}, inherit);
  for (uint32_t i = 0; i < window.segment_count; ++i)
    window.heap.for_each_run(window.segments[i].span, inherit);
}

void note_full(size_t bytes, bool fallback) {
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (mine == nullptr) return;
  const auto reason = static_cast<uint32_t>(reason_for(bytes));
  add(fallback ? mine->fallbacks_by[reason] : mine->refused_by[reason], 1);
  if (fallback) add(mine->fallback_bytes, bytes);
}

void answer_heap() {
  const uint32_t times = times_asked();
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (times == heap_answered || mine == nullptr) return;
  heap_answered = times;
  uint64_t bytes = free_bytes(ddr_arena) + free_bytes(reserve_arena) + free_bytes_of_segments();
  uint32_t longest = window.heap.longest_free_run(ddr_arena);
  const auto look = [&](uint8_t arena) {
    const uint32_t pages = window.heap.free_pages(arena) > longest ? window.heap.longest_free_run(arena) : 0;
    if (pages > longest) longest = pages;
  };
  look(reserve_arena);
  for (uint32_t i = 0; i < window.segment_count; ++i) look(shared_arena(i));
  put(mine->free_bytes, bytes);
  put(mine->longest_free_bytes, uint64_t{longest} * page_bytes);
  put(mine->heap_ns, now_ns());
}

void answer_tiers(const tiering::TieredMemory& memory) {
  answer_heap();
  const uint32_t times = times_asked();
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (times == tiers_answered || mine == nullptr) return;
  tiers_answered = times;
  uint64_t in_ddr = 0, in_cxl = 0, in_segment[supply::segments_max] = {};
  for (uint32_t granule = 0; granule < memory.granule_count(); ++granule) {
    const uint64_t bytes = uint64_t{window.used_pages[granule]} * page_bytes;
    const tiering::Residency residency = memory.residency(granule);
    if (bytes == 0 || residency == tiering::Residency::none) continue;
    if (residency == tiering::Residency::ddr) {
      in_ddr += bytes;
      continue;
    }
    in_cxl += bytes;
    in_segment[memory.place(granule).segment] += bytes;
  }
  put(mine->live_in_ddr, in_ddr);
  put(mine->live_in_cxl, in_cxl);
  for (uint32_t i = 0; i < supply::segments_max; ++i) put(mine->live_in_segment[i], in_segment[i]);
  put(mine->tiers_ns, now_ns());
}

void note_moved(uint64_t promoted_bytes, uint64_t demoted_bytes) {
  ProcessStatistics* const mine = page.load(std::memory_order_relaxed);
  if (mine == nullptr) return;
  put(mine->promoted_bytes, promoted_bytes);
  put(mine->demoted_bytes, demoted_bytes);
}

}  // namespace terrace::preload::statistics
