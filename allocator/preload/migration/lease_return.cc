// SPDX-License-Identifier: Apache-2.0
// Leases of a window that migrates, on their way back to the pool.
//
// A lease of whose addresses nothing is in use is given up in three steps, between rounds of the engine:
//   1. its addresses are reserved again, and what lay behind them is forgotten: their slots, in whatever lease,
//      and the granules of them that were in DDR. From here on the lease is closing: none of its slots is given
//      out.
//   2. granules of other addresses that lie in its slots move, one by one: to free slots of other leases, or to
//      DDR where it has room.
//   3. when there is none left its last mapping and its descriptor go: the supervisor finds that nobody maps
//   it.
// It begins only where the others have room for those granules. Memory that is held (a device may know its
// pages) keeps its lease. A fork in between finds each granule where it is (place()), and the steps go on when
// memory moves again.
//
// A lease that the manager takes back (a revoke with grace, Slot::leaving) goes through steps 2 and 3 while its
// addresses are in use: they stay, and are backed by DDR or other leases from then on. What is free of them is
// given up first, so that only what is in use has to move. Where the DDR budget is used up the supervisor says
// how much more may be used: better than a program's death. Where that is used up as well a further lease is
// asked for, of slots alone, which goes back when nothing is in it. The number of a lease that was taken back is
// not used again before all of its addresses are free; then they go at once.
//
// Threads   The engine's.
#include <sys/mman.h>

#include "allocator/preload/migration/migration_state.h"
#include "allocator/preload/window/ddr_part.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/supervisor_link.h"

namespace terrace::preload::migration {

using tiering::Residency;

namespace {

// A fork and `terrace tier` wait for the range's lock: a granule is let go of in between. Where the end of a
// lease is near a round of the engine, which looks at all granules and may not get a processor soon, is rare.
constexpr uint64_t slice_ns = 20'000'000, revoked_slice_ns = 500'000'000;

uint64_t closing = 0;        // a bit a segment
uint64_t revoked = 0;        // of those that are closing: their addresses stay in use
uint64_t left = 0;           // they are empty, and their addresses stay in use
bool room_is_short = false;  // for those that are revoked now
uint64_t room_asked_ns = 0;  // for a further lease, last
constexpr uint64_t ask_again_ns = 1'000'000'000;
static_assert(supply::segments_max <= 64);

// Of a lease that was taken back: none of its addresses is in use or held.
bool is_left_free(uint32_t index) {
  const heap::PageSpan span = window.segments[index].span;
  for (uint32_t page = 0; page < span.pages; page += granule_pages)
    if (shared.self->memory.is_held((span.first + page) / granule_pages)) return false;
  bool free = span.pages > 0;
  window.heap.for_each_run(span, [&](heap::PageSpan, heap::RunRecord& record) {
    free = free && record.state == heap::RunState::free &&
           (record.arena == shared_arena(index) || record.arena == left_arena(index));
  });
  return free;
}

bool can_return_lease(uint32_t index) {
  const Migration& my = *shared.self;
  if ((closing >> index & 1) != 0) return false;
  if (has_left(index)) return is_left_free(index);
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

// Beyond the budget, for a lease that is taken back. Only the engine's thread takes from the room.
bool charge_beyond() {
  if (window.slot == nullptr) return false;
  std::atomic_ref<uint64_t> room(window.slot->leave_room);
  const uint64_t now = room.load(std::memory_order_relaxed);
  if (now < granule_bytes) return false;
  room.store(now - granule_bytes, std::memory_order_relaxed);
  charge_granules_anyway(1);
  return true;
}

// True: the granule has left its slot. The range's lock is held.
bool move_out(uint32_t granule, bool may_go_beyond) {
  Migration& my = *shared.self;
  const tiering::MoveReport report = my.memory.change_slot(my.engine.mover(), granule);
  if (report.result != tiering::MoveResult::no_slot) return report.result == tiering::MoveResult::done;
  const bool within = charge_granules(1);
  if (!within && !(may_go_beyond && charge_beyond())) {
    room_is_short = room_is_short || may_go_beyond;
    return false;
  }
  if (my.memory.prepare_ddr(granule, 1) == 1) {
    if (my.memory.move(my.engine.mover(), granule, 1, Residency::ddr).result == tiering::MoveResult::done)
      return true;
    my.memory.give_prepared_back(granule, 1);
  }
  uncharge_granules(1);
  if (!within)
    std::atomic_ref<uint64_t>(window.slot->leave_room).fetch_add(granule_bytes, std::memory_order_relaxed);
  return false;
}

// Its number can be used again.
void forget_segment(uint32_t index) {
  // release: pairs with next_segment_index()
  std::atomic_ref<uint64_t>(window.segments[index].key).store(0, std::memory_order_release);
  std::atomic_ref<uint64_t>(window.segment_retry_ns).store(0, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(window.segment_retry_at_once_ns).store(0, std::memory_order_relaxed);
  shared.given_back.fetch_add(1, std::memory_order_relaxed);
}

void begin(uint32_t index) {
  const heap::PageSpan span = window.segments[index].span;
  if (!unmap_segment(index)) return;
  shared.self->memory.forget(span.first / granule_pages, span.pages / granule_pages, false);
  const uint64_t bit = uint64_t{1} << index;
  if (has_left(index)) {  // nothing but addresses
    left &= ~bit;
    forget_segment(index);
    return;
  }
  shared.self->memory.close_segment(index);
  closing |= bit;
}

// Granules of the lease's addresses from `page` on, before `end`, that lie in the lease and may be given up.
uint32_t stretch_to_leave(uint32_t index, uint32_t page, uint32_t end) {
  const tiering::TieredMemory& memory = shared.self->memory;
  uint32_t pages = 0;
  for (; page + pages + granule_pages <= end; pages += granule_pages) {
    const uint32_t granule = (page + pages) / granule_pages;
    if (memory.residency(granule) != Residency::cxl || memory.place(granule).segment != index ||
        memory.is_held(granule))
      break;
  }
  return pages;
}

void leave_free_behind(uint32_t index, heap::PageSpan free_run) {
  const uint32_t end = free_run.first + free_run.pages;
  uint32_t run = free_run.first;
  for (uint32_t page = (run + granule_pages - 1) / granule_pages * granule_pages;
       page + granule_pages <= end;) {
    const heap::PageSpan part{page, stretch_to_leave(index, page, end)};
    page += part.pages > 0 ? part.pages : granule_pages;
    if (part.pages == 0) continue;
    char* const at = window.address(part.first);
    if (::mmap(at, size_t{part.pages} * page_bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != at)
      continue;
    const uint32_t start = run;
    shared.self->memory.forget(part.first / granule_pages, part.pages / granule_pages, false);
    window.heap.set_dirty(part, false);
    run = part.first + part.pages;
    heap::PageSpan& addresses = window.segments[index].span;
    if (run == addresses.first + addresses.pages) {  // free for the next lease
      addresses.pages -= part.pages;
      note_shared(part);
      window.heap.move_part(start, part, address_arena);
    } else {
      note_private(part);
      window.heap.move_part(start, part, left_arena(index));
    }
  }
}

// The records of runs behind the one that is taken apart keep their lengths.
void leave_free_behind(uint32_t index) {
  const heap::PageSpan span = window.segments[index].span;
  for (uint32_t page = span.first; page < span.first + span.pages;) {
    const heap::RunRecord record = window.heap.run(page);
    if (record.state == heap::RunState::free && record.arena == shared_arena(index))
      leave_free_behind(index, {page, record.pages});
    page += record.pages;
  }
}

// Takes what the supervisor says of leases that are taken back.
void begin_leaving() {
  if (window.slot == nullptr) return;
  std::atomic_ref<uint64_t> asked(window.slot->leaving);
  if (asked.load(std::memory_order_relaxed) == 0) return;
  const uint64_t bits =
      asked.exchange(0, std::memory_order_acquire);  // pairs with the supervisor: leave_room is there
  for (uint32_t i = 0; i < supply::segments_max; ++i) {
    const uint64_t bit = uint64_t{1} << i;
    if ((bits & bit) == 0 || has_left(i)) continue;
    if ((closing & bit) != 0) {
      revoked |= bit;
      continue;
    }
    if (shared.self->segment_slots[i] == 0) {  // the next round knows it
      if (window.segments[i].key != 0) asked.fetch_or(bit, std::memory_order_relaxed);
      continue;
    }
    leave_free_behind(i);
    std::atomic_ref<uint64_t> bytes(window.slot->left_bytes);
    bytes.store(bytes.load(std::memory_order_relaxed) + shared.self->memory.segment_granules(i) * granule_bytes,
                std::memory_order_relaxed);
    shared.self->memory.close_segment(i);
    closing |= bit;
    revoked |= bit;
  }
}

// Memory of the lease behind `fd`, but no addresses. False: the kernel refuses, or a fork is under way.
bool add_slots(uint32_t index, uint64_t key, int fd, uint64_t bytes) {
  Migration& my = *shared.self;
  if (!window.heap_lock.enter()) return false;
  my.memory.lock().enter();
  const auto slots = static_cast<uint32_t>(bytes / granule_bytes);
  const bool added = my.memory.add_segment(fd, slots * granule_bytes, index) == 0;
  if (added) {
    my.descriptors[index] = fd;
    my.segment_slots[index] = slots;
    note_new_slots(index, key);
  }
  my.memory.lock().leave();
  window.heap_lock.leave();
  return added;
}

uint64_t revoked_bytes() {
  Migration& my = *shared.self;
  my.memory.lock().enter();
  uint64_t granules = 0;
  for (uint32_t i = 0; i < supply::segments_max; ++i)
    if ((revoked >> i & 1) != 0) granules += my.memory.segment_granules(i);
  my.memory.lock().leave();
  return granules * granule_bytes;
}

// The number of a lease of slots alone that nothing is in, and nothing is to go to.
bool is_unused(uint32_t index) {
  const Migration& my = *shared.self;
  return revoked == 0 && (closing >> index & 1) == 0 && my.segment_slots[index] != 0 &&
         window.segments[index].span.pages == 0 && my.memory.segment_granules(index) == 0;
}

void end(uint32_t index) {
  Migration& my = *shared.self;
  my.memory.drop_segment(index);
  close_raw(my.descriptors[index]);
  my.descriptors[index] = -1;
  my.segment_slots[index] = 0;
  const uint64_t bit = uint64_t{1} << index;
  closing &= ~bit;
  if ((revoked & bit) != 0) {
    revoked &= ~bit;
    std::atomic_ref<uint64_t> leases(window.slot->leases_left);
    leases.store(leases.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (window.segments[index].span.pages > 0) left |= bit;
    if (has_left(index)) return;
  }
  forget_segment(index);
}

}  // namespace

bool has_left(uint32_t index) {
  return (left >> index & 1) != 0;
}

void ask_for_room() {
  const uint64_t now_ns = tiering::monotonic_ns();
  if (!room_is_short || now_ns - room_asked_ns < ask_again_ns ||
      shared.ending.load(std::memory_order_relaxed) || !window.supply_lock.is_free_soon() ||
      !window.supply_lock.enter())
    return;
  room_is_short = false;
  room_asked_ns = now_ns;
  const uint64_t bytes = revoked_bytes();
  const uint32_t index = next_segment_index();
  Link link;
  if (bytes > 0 && index < supply::segments_max && link.open()) {
    supply::Request request{};
    request.magic = supply::magic;
    request.version = supply::version;
    request.kind = static_cast<uint16_t>(supply::RequestKind::segment);
    request.segment_index = index;
    request.at_once = 1;
    request.bytes = bytes;
    supply::Reply reply{};
    int fd = -1;
    const bool granted = link.ask(request, &reply, &fd) && fd >= 0;
    if (!granted || reply.bytes < bytes || !add_slots(index, reply.segment_key, fd, reply.bytes)) close_raw(fd);
  }
  window.supply_lock.leave();
}

void return_leases() {
  begin_leaving();
  for (uint32_t i = 0; i < supply::segments_max; ++i)
    if ((closing >> i & 1) != 0 && shared.self->memory.segment_granules(i) == 0) end(i);
  for (uint32_t i = 0; left != 0 && i < window.segment_count; ++i)
    if (has_left(i) && is_left_free(i)) begin(i);
  for (uint32_t i = 0; i < window.segment_count; ++i) {
    if (!is_unused(i)) continue;
    shared.self->memory.close_segment(i);
    closing |= uint64_t{1} << i;
  }
  if (!shared.leases_asked.load(std::memory_order_relaxed)) return;
  const bool all = shared.all_leases_asked.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < window.segment_count && (all || are_too_many_free()); ++i) {
    if (!can_return_lease(i)) continue;
    begin(i);
    if (!all) note_given_up();
    if ((closing >> i & 1) != 0 && shared.self->memory.segment_granules(i) == 0) end(i);
  }
  if (closing != 0) return;
  shared.all_leases_asked.store(false, std::memory_order_relaxed);
  shared.leases_asked.store(false, std::memory_order_release);  // pairs with wait_for_trim()
}

void empty_leases() {
  if (closing == 0) return;
  Migration& my = *shared.self;
  const uint64_t end_ns = tiering::monotonic_ns() + (revoked != 0 ? revoked_slice_ns : slice_ns);
  bool any = false;
  for (uint32_t i = 0; i < supply::segments_max; ++i) {
    if ((closing >> i & 1) == 0) continue;
    for (uint32_t granule = 0;; ++granule) {
      if (tiering::monotonic_ns() > end_ns || window.heap_lock.forking()) return my.engine.wake();
      my.memory.lock().enter();
      // seq_cst: pairs with end_migration()
      const bool moves = engine_moves() && !shared.ending.load(std::memory_order_seq_cst);
      granule = moves ? my.memory.segment_granule(i, granule) : my.memory.granule_count();
      const bool one = granule < my.memory.granule_count();
      any = (one && move_out(granule, (revoked >> i & 1) != 0)) || any;
      my.memory.lock().leave();
      if (!one) break;
    }
  }
  if (any) my.engine.wake();  // the last step is the next round's
}

}  // namespace terrace::preload::migration
