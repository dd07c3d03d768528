// Leases of a window that migrates, on their way back to the pool.
//
// A lease of whose addresses nothing is in use is given up in three steps, between rounds of the engine:
//   1. its addresses are reserved again, and what lay behind them is forgotten: their slots, in whatever lease,
//   and
//      the granules of them that were in DDR. From here on the lease is closing: none of its slots is given
//      out.
//   2. granules of other addresses that lie in its slots move, one by one: to free slots of other leases, or to
//   DDR where
//      it has room.
//   3. when there is none left its last mapping and its descriptor go: the supervisor finds that nobody maps
//   it.
// It begins only where the others have room for those granules. Memory that is held (a device may know its
// pages) keeps its lease. A fork in between finds each granule where it is (place()), and the steps go on when
// memory moves again.
//
// Threads   The engine's.
#include "allocator/preload/front.h"
#include "allocator/preload/link.h"
#include "allocator/preload/migration_state.h"

namespace terrace::preload::migration {

using tiering::Residency;

namespace {

// A fork and `terrace tier` wait for the range's lock: a granule is let go of in between.
constexpr uint64_t slice_ns = 20'000'000;

uint64_t closing = 0;  // a bit a segment
static_assert(supply::segments_max <= 64);

bool may_go(uint32_t index) {
  const Migration& my = *shared.self;
  if (my.segment_slots[index] == 0 || !is_segment_free(index)) return false;
  const heap::PageSpan span = window.segments[index].span;
  const uint32_t first = span.first / granule_pages, count = span.pages / granule_pages;
  uint32_t inside = 0, elsewhere = 0, in_ddr = 0;  // what becomes free with the addresses
  for (uint32_t granule = first; granule < first + count; ++granule) {
    if (my.memory.is_held(granule)) return false;
    if (my.memory.residency(granule) == Residency::ddr) ++in_ddr;
    if (my.memory.residency(granule) != Residency::cxl) continue;
    ++(my.memory.place(granule).segment == index ? inside : elsewhere);
  }
  const uint32_t used = my.memory.segment_granules(index);
  const uint32_t unused = my.segment_slots[index] - used;
  const uint64_t resident = my.memory.ddr_granules();
  const uint64_t room = my.memory.free_slots() - unused + elsewhere + in_ddr +
                        (my.ddr_set > resident ? my.ddr_set - resident : 0);
  return room >= used - inside;
}

// True: the granule has left its slot. The range's lock is held.
bool move_out(uint32_t granule) {
  Migration& my = *shared.self;
  const tiering::MoveReport report = my.memory.change_slot(my.engine.mover(), granule);
  if (report.result != tiering::MoveResult::no_slot) return report.result == tiering::MoveResult::done;
  if (!charge_granules(1)) return false;
  if (my.memory.prepare_ddr(granule, 1) == 1) {
    if (my.memory.move(my.engine.mover(), granule, 1, Residency::ddr).result == tiering::MoveResult::done)
      return true;
    my.memory.give_prepared_back(granule, 1);
  }
  uncharge_granules(1);
  return false;
}

void begin(uint32_t index) {
  const heap::PageSpan span = window.segments[index].span;
  if (!unmap_segment(index)) return;
  shared.self->memory.forget(span.first / granule_pages, span.pages / granule_pages, false);
  shared.self->memory.close_segment(index);
  closing |= uint64_t{1} << index;
}

void end(uint32_t index) {
  Migration& my = *shared.self;
  my.memory.drop_segment(index);
  close_raw(my.descriptors[index]);
  my.descriptors[index] = -1;
  my.segment_slots[index] = 0;
  std::atomic_ref<uint64_t>(window.segments[index].key).store(0, std::memory_order_release);
  closing &= ~(uint64_t{1} << index);
  std::atomic_ref<uint64_t>(window.segment_retry_ns).store(0, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(window.segment_retry_at_once_ns).store(0, std::memory_order_relaxed);
  shared.given_back.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void return_leases() {
  for (uint32_t i = 0; i < supply::segments_max; ++i)
    if ((closing >> i & 1) != 0 && shared.self->memory.segment_granules(i) == 0) end(i);
  if (!shared.leases_asked.load(std::memory_order_relaxed)) return;
  const bool all = shared.all_leases_asked.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < window.segment_count && (all || are_too_many_free()); ++i) {
    if (!may_go(i)) continue;
    begin(i);
    if (!all) note_given_up();
    if (shared.self->memory.segment_granules(i) == 0) end(i);
  }
  if (closing != 0) return;
  shared.all_leases_asked.store(false, std::memory_order_relaxed);
  shared.leases_asked.store(false, std::memory_order_release);  // pairs with wait_for_trim()
}

void empty_leases() {
  if (closing == 0) return;
  Migration& my = *shared.self;
  const uint64_t end_ns = tiering::monotonic_ns() + slice_ns;
  bool any = false;
  for (uint32_t i = 0; i < supply::segments_max; ++i) {
    if ((closing >> i & 1) == 0) continue;
    for (uint32_t granule = 0;; ++granule) {
      if (tiering::monotonic_ns() > end_ns || window.heap_lock.forking()) return my.engine.wake();
      my.memory.lock().enter();
      granule = engine_moves() ? my.memory.segment_granule(i, granule) : my.memory.granule_count();
      const bool one = granule < my.memory.granule_count();
      any = (one && move_out(granule)) || any;
      my.memory.lock().leave();
      if (!one) break;
    }
  }
  if (any) my.engine.wake();  // the last step is the next round's
}

}  // namespace terrace::preload::migration
