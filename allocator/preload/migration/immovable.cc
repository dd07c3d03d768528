// SPDX-License-Identifier: Apache-2.0
// Memory that must not move: held for a time, or for good.
#include <sched.h>
#include <stdlib.h>

#include "allocator/preload/migration/fold_after_fork.h"
#include "allocator/preload/migration/migration_state.h"

namespace terrace::preload {

using namespace migration;

namespace {

// Granules of the window that [address, address + bytes) touches.
heap::PageSpan granules_of(const void* address, size_t bytes) {
  if (bytes == 0) return {};
  const uintptr_t base = reinterpret_cast<uintptr_t>(window.base);
  const uintptr_t end = base + size_t{window.total_pages} * page_bytes;
  const uintptr_t from = reinterpret_cast<uintptr_t>(address);
  const uintptr_t to = from + bytes < from ? UINTPTR_MAX : from + bytes;
  if (to <= base || from >= end) return {};
  const uint32_t count = window.total_pages / granule_pages;
  const auto first = static_cast<uint32_t>((from < base ? 0 : from - base) / granule_bytes);
  const auto last = static_cast<uint32_t>(((to > end ? end : to) - 1 - base) / granule_bytes);
  if (first >= count) return {};
  return {first, (last >= count ? count - 1 : last) - first + 1};
}

// Test seam: shows what is lost without the protection.
bool nothing_is_held() {
  static const bool nothing = secure_getenv("TERRACE_TEST_HOLD_NOTHING") != nullptr;
  return nothing;
}

bool may_move() {
  return !nothing_is_held() && is_armed() && window.tiered &&
         shared.state.load(std::memory_order_relaxed) != State::ended;
}

}  // namespace

bool holds_nothing() {
  return nothing_is_held();
}

Held begin_hold(const void* address, size_t bytes) {
  if (!may_move()) return Held::nothing;
  const heap::PageSpan granules = granules_of(address, bytes);
  if (granules.pages == 0) return Held::nothing;
  // seq_cst: these two pair with begin_moving(), which stores `opened` and then reads the count.
  shared.early_holds.fetch_add(1, std::memory_order_seq_cst);
  Migration* migration = shared.opened.load(std::memory_order_seq_cst);
  if (migration == nullptr) return Held::counted;
  shared.early_holds.fetch_sub(1, std::memory_order_seq_cst);  // pairs with begin_moving()
  migration->memory.hold(granules.first, granules.pages);
  return Held::engine;
}

void end_hold(const void* address, size_t bytes, Held held) {
  // pairs with begin_moving()
  if (held == Held::counted) shared.early_holds.fetch_sub(1, std::memory_order_seq_cst);
  if (held != Held::engine) return;
  Migration* migration = shared.opened.load(std::memory_order_relaxed);
  if (migration == nullptr) return;  // a fork's child: it has no engine
  const heap::PageSpan granules = granules_of(address, bytes);
  migration->memory.unhold(granules.first, granules.pages);
}

void hold_past_exit(const void* address, size_t bytes) {
  if (!may_move() && is_armed() && granules_of(address, bytes).pages > 0) note_lent_in_child();
  hold_for_good(address, bytes);
}

void hold_for_good(const void* address, size_t bytes) {
  if (!may_move()) return;
  const heap::PageSpan granules = granules_of(address, bytes);
  for (uint32_t granule = granules.first; granule < granules.first + granules.pages; ++granule) {
    // seq_cst: pairs with begin_moving(): the mark here, then `opened`; there the other way.
    if (std::atomic_ref<uint8_t>(window.held_for_good[granule]).exchange(1, std::memory_order_seq_cst) != 0)
      continue;
    // Before `opened` the thread finds the mark; twice is no harm.
    Migration* migration = shared.opened.load(std::memory_order_seq_cst);  // pairs with begin_moving()
    if (migration != nullptr) migration->memory.hold(granule, 1);
  }
}

bool hold_counted(const void* address, size_t bytes) {
  if (!may_move()) return false;
  const heap::PageSpan granules = granules_of(address, bytes);
  if (granules.pages == 0) return false;
  while (!window.heap_lock.enter()) ::sched_yield();  // a fork is under way
  for (uint32_t granule = granules.first; granule < granules.first + granules.pages; ++granule)
    // The engine's thread never waits for heap_lock while a granule moves.
    if (window.held_counts[granule]++ == 0 && shared.holds_applied) shared.self->memory.hold(granule, 1);
  window.heap_lock.leave();
  return true;
}

void unhold_counted(const void* address, size_t bytes) {
  if (!is_armed() || window.held_counts == nullptr) return;
  const heap::PageSpan granules = granules_of(address, bytes);
  if (granules.pages == 0) return;
  while (!window.heap_lock.enter()) ::sched_yield();
  for (uint32_t granule = granules.first; granule < granules.first + granules.pages; ++granule)
    if (window.held_counts[granule] > 0 && --window.held_counts[granule] == 0 && shared.holds_applied)
      shared.self->memory.unhold(granule, 1);
  window.heap_lock.leave();
}

}  // namespace terrace::preload
