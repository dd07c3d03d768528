// SPDX-License-Identifier: Apache-2.0
// Leases come and go: the addresses that they are mapped to, and when one goes back to the pool.
//
// A lease is given up when nothing of it is in use and it never was private to this process: then its range is
// one free run of its shared arena. The mapping goes, the supervisor finds that nobody maps it, and releases
// it. Where an engine moves granules it is the engine's thread that does so (lease_return.cc): other addresses'
// granules may lie in that lease.
//
// Threads   heap_lock is held; add_segment (start_up.cc) holds supply_lock as well.
#include <sys/mman.h>
#include <time.h>

#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {
namespace {

// Free leases that are kept in any case, and for how long after one was given up the next one counts as the
// same.
constexpr uint32_t kept_pages_min = (64u << 20) / page_bytes;
constexpr uint64_t regret_ns = 10'000'000'000;

// Raised each time that a lease is asked for again soon: a program that frees all it has in each round of its
// work keeps its leases from the second round on.
uint64_t kept_pages_max = kept_pages_min;
uint64_t given_up_ns = 0;

uint64_t now_ns() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

bool is_segment_free(uint32_t index) {
  const heap::PageSpan span = window.segments[index].span;
  if (span.pages == 0) return false;
  const heap::RunRecord& record = window.heap.run(span.first);
  return record.state == heap::RunState::free && record.arena == shared_arena(index) &&
         record.pages == span.pages;
}

bool unmap_segment(uint32_t index) {
  const heap::PageSpan span = window.segments[index].span;
  char* const at = window.address(span.first);
  if (::mmap(at, size_t{span.pages} * page_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != at)
    return false;
  // Marks of a fork that failed: the next lease here is shared from its first page to its last.
  note_shared(span);
  window.heap.set_dirty(span, false);
  window.heap.move(span, address_arena);
  window.segments[index].span = {};
  return true;
}

void note_given_up() {
  given_up_ns = now_ns();
}

namespace {

bool give_up(uint32_t index) {
  if (!unmap_segment(index)) return false;
  window.segments[index] = {};
  // Whatever was refused last may be granted now.
  std::atomic_ref<uint64_t>(window.segment_retry_ns).store(0, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(window.segment_retry_at_once_ns).store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace

uint32_t next_segment_index() {
  // acquire: pairs with forget_segment(), which the engine calls without supply_lock.
  const auto key = [](uint32_t at) {
    return std::atomic_ref<uint64_t>(window.segments[at].key).load(std::memory_order_acquire);
  };
  uint32_t index = 0;
  while (index < window.segment_count && key(index) != 0) ++index;
  return index;
}

heap::PageSpan take_addresses(uint32_t least, uint32_t most) {
  uint32_t pages = most;
  uint32_t first = window.heap.allocate(address_arena, pages, granule_pages, window.generation);
  if (first == heap::no_page) {
    // A part of the lease, then: as much as there are addresses for.
    const uint32_t longest = window.heap.longest_free_run(address_arena) / granule_pages * granule_pages;
    pages = longest < most ? longest : most;
    if (pages < least) pages = least;
    first = window.heap.allocate(address_arena, pages, granule_pages, window.generation);
  }
  return first == heap::no_page ? heap::PageSpan{} : heap::PageSpan{first, pages};
}

void return_addresses(heap::PageSpan span) {
  window.heap.free(span.first);
}

void note_new_slots(uint32_t index, uint64_t key) {
  window.segments[index].span = {};
  // release: pairs with fetch_segments(), which reads it without the lock, also of a slot that is used again.
  std::atomic_ref<uint64_t>(window.segments[index].key).store(key, std::memory_order_release);
  if (index == window.segment_count)
    // release: pairs with fetch_segments()
    std::atomic_ref<uint32_t>(window.segment_count).store(index + 1, std::memory_order_release);
}

void note_new_segment(uint32_t index, uint64_t key, heap::PageSpan span) {
  if (given_up_ns != 0 && now_ns() - given_up_ns < regret_ns) kept_pages_max += span.pages;
  note_new_slots(index, key);
  window.segments[index].span = span;
  window.heap.run(span.first).arena = shared_arena(index);
  window.heap.free(span.first);
  const uint32_t end = span.first + span.pages;
  if (end > window.mapped_pages) window.mapped_pages = end;
}

bool give_up_free_segments(bool* soon) {
  bool any = false;
  for (uint32_t i = 0; i < window.segment_count; ++i) {
    if (!is_segment_free(i)) continue;
    if (!window.tiered)
      any = give_up(i) || any;
    else if (engine_moves())
      *soon = true;
  }
  if (*soon) ask_for_leases_back(true);
  return any;
}

bool are_too_many_free() {
  uint64_t free_pages = 0;
  for (uint32_t i = 0; i < window.segment_count; ++i)
    if (is_segment_free(i)) free_pages += window.segments[i].span.pages;
  return free_pages > kept_pages_max;
}

void segment_freed(uint8_t arena, heap::PageSpan free_run) {
  const uint32_t index = segment_of(arena);
  if (free_run.pages != window.segments[index].span.pages || !are_too_many_free()) return;
  if (window.tiered)
    ask_for_leases_back(false);
  else if (give_up(index))
    note_given_up();
}

}  // namespace terrace::preload
