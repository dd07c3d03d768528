// SPDX-License-Identifier: Apache-2.0
// What fork does to the window.
//
// Leased pages are MAP_SHARED, and so is the DDR part of a window that migrates: after a plain fork each side
// would see the other's stores. So before the fork every such range in use is switched, in place, to a private
// mapping of what lies behind it. Each switch is one mmap: a store before it is in the file, a store after it
// in a private copy, and no thread sees anything else. Then fork's own copy-on-write does the rest. What was
// switched is private ("detached"): what the parent writes afterwards becomes anonymous memory and has left the
// tier, and nothing of the window migrates. Nobody in this process tree writes the files' pages below a
// detached range while one of the others may still read them; when none can, fold_after_fork.cc puts the
// parent's pages back.
//
// Ranges that are free stay shared in the parent; the child gets private memory in their place, before it can
// allocate from them. Between the parent's decision and the child's first step nothing is allocated from the
// window (lock.h), whatever other libraries' fork handlers do.
#include "allocator/preload/fork/fork_window.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>

#include "allocator/preload/fork/registered.h"
#include "allocator/preload/libc/message.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/migration/fold_after_fork.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/statistics.h"
#include "allocator/preload/window/supervisor_link.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {
namespace {

// Free stretches shorter than this between two used ones are switched with them: each range costs a kernel
// mapping, of which a process has some 65,000.
constexpr uint32_t gap_pages_max = 512;

// mmap and mremap to a fixed place may fail after they took away what was there.
bool still_mapped(char* at, size_t bytes) {
  return ::msync(at, bytes, MS_ASYNC) == 0;
}

// On failure the range is the lease's own memory, as it was.
bool map_private(char* at, size_t bytes, int fd, size_t offset) {
  if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd,
             static_cast<off_t>(offset)) == at)
    return true;
  if (!still_mapped(at, bytes) && (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                                          static_cast<off_t>(offset)) != at ||
                                   next.madvise(at, bytes, MADV_DONTFORK) != 0))
    fatal("fork: the kernel took leased memory away and does not give it back");
  return false;
}

bool map_fresh(char* at, size_t bytes) {
  return ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) == at;
}

// The next range to switch at or behind `from`: used runs, with short gaps between them.
heap::PageSpan next_used_range(const Part& part, uint32_t from) {
  uint32_t end = part.span.first + part.span.pages;
  heap::PageSpan range{end, 0};
  for (uint32_t page = from; page < end; page += window.heap.run(page).pages) {
    const heap::RunRecord& record = window.heap.run(page);
    if (record.arena != part.shared) {
      if (range.pages > 0) break;
    } else if (record.state == heap::RunState::used) {
      if (range.pages == 0) range.first = page;
      range.pages = page + record.pages - range.first;
    } else if (range.pages > 0 && record.pages > gap_pages_max) {
      break;
    }
  }
  return range;
}

bool has_shared_runs_in_use(const Part& part) {
  return next_used_range(part, part.span.first).pages > 0;
}

template <typename Visit>
bool for_each_used_range(const Part& part, Visit visit) {
  for (heap::PageSpan range = next_used_range(part, part.span.first); range.pages > 0;
       range = next_used_range(part, range.first + range.pages))
    if (!visit(range, window.address(range.first), size_t{range.pages} * page_bytes)) return false;
  return true;
}

// A fork leaves alone what is private already, since a fork that failed half way or by the program's doing, what
// the program lets no child have, and what a ring knows.
bool stays(uint32_t page) {
  return is_private(page) || (marks_of(page) & (not_inherited | stays_shared)) != 0;
}

// The pages from `page` on, before `end`, that lie one behind the other in one file, none of them private yet.
uint32_t stretch_at(uint32_t page, uint32_t end, const PageSource& source) {
  uint32_t next_page = page + 1;
  for (; next_page < end && !stays(next_page); ++next_page) {
    if (next_page % granule_pages != 0) continue;
    const PageSource there = source_of(next_page);
    if (there.source != source.source || there.offset != source.offset + size_t{next_page - page} * page_bytes)
      break;
  }
  return next_page - page;
}

template <typename Visit>
bool for_each_stretch(heap::PageSpan range, Visit visit) {
  const uint32_t end = range.first + range.pages;
  for (uint32_t page = range.first; page < end;) {
    if (stays(page)) {
      ++page;
      continue;
    }
    const PageSource source = source_of(page);
    const heap::PageSpan stretch{page, stretch_at(page, end, source)};
    if (!visit(stretch, source)) return false;
    page += stretch.pages;
  }
  return true;
}

// Descriptors by source, fetched once more from the supervisor.
class Descriptors {
 public:
  Descriptors() {
    for (int& fd : fds_) fd = -1;
  }
  ~Descriptors() {
    for (int fd : fds_) close_raw(fd);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  // False: the supervisor cannot be reached or refuses.
  bool fetch(uint32_t source) {
    if (fds_[source] >= 0) return true;
    if (!connected_) connected_ = link_.open();
    if (!connected_) return false;
    supply::Request request{};
    request.magic = supply::magic;
    request.version = supply::version;
    request.kind = static_cast<uint16_t>(supply::RequestKind::reopen);
    request.segment_key = source == front_source ? window.front_key : window.segments[source].key;
    supply::Reply reply{};
    return link_.ask(request, &reply, &fds_[source]) && fds_[source] >= 0;
  }
  const int* all() const { return fds_; }

 private:
  Link link_;
  bool connected_ = false;
  int fds_[sources_max];
};

// Puts `copy` in the place of a range. False: nothing changed.
bool move_into_place(char* copy, char* at, size_t bytes) {
  if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at) return true;
  if (still_mapped(at, bytes)) return false;
  if (!map_fresh(at, bytes)) fatal("fork: the kernel took leased memory away and does not give it back");
  memcpy(at, copy, bytes);
  return true;
}

// What cannot be copied: the program's own mappings, and what it lets no child have.
bool has_program_mappings(const Part& part) {
  if (!any_marks.load(std::memory_order_relaxed)) return false;
  return !for_each_used_range(part, [](heap::PageSpan range, char*, size_t) {
    for (uint32_t page = range.first; page < range.first + range.pages; ++page)
      if ((marks_of(page) & (own_mapping | not_inherited | stays_shared)) != 0) return false;
    return true;
  });
}

// Without a descriptor (chroot, change of uid, no descriptor left, supervisor gone): copies into spare memory
// and puts that in place. All memory is there and filled before the first range changes, and each range changes
// whole: a range is shared or detached, never half of each. Right only while no other thread can store
// meanwhile.
bool detach_by_copy(const Part& part, uint64_t* bytes_switched) {
  if (__libc_single_threaded == 0 || has_program_mappings(part)) return false;
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);  // a handler could store into what is being copied
  size_t total = 0;
  for_each_used_range(part, [&](heap::PageSpan, char*, size_t bytes) {
    total += bytes;
    return true;
  });
  void* spare =
      ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool ok = spare != MAP_FAILED;
  if (ok) {
    auto* const copies = static_cast<char*>(spare);
    size_t done = 0;
    for_each_used_range(part, [&](heap::PageSpan range, char* at, size_t bytes) {
      lift_protection(range);
      memcpy(copies + done, at, bytes);
      done += bytes;
      return true;
    });
    done = 0;
    ok = for_each_used_range(part, [&](heap::PageSpan range, char* at, size_t bytes) {
      if (!move_into_place(copies + done, at, bytes)) return false;
      reapply_marks(range);
      window.heap.move(range, part.detached);
      *bytes_switched += bytes;
      done += bytes;
      return true;
    });
    // What was moved is gone from here; what was copied a second time, or not used, is not.
    ::munmap(spare, total);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return ok;
}

// What was folded of runs that are detached still.
struct FoldedSwitch {
  const int* descriptors;
  uint64_t* bytes_switched;
};
bool detach_folded(const int* descriptors, uint64_t* bytes_switched) {
  FoldedSwitch to{descriptors, bytes_switched};
  const bool ok = for_each_folded_part(
      [](void* argument, heap::PageSpan span) {
        const auto* how = static_cast<FoldedSwitch*>(argument);
        return for_each_stretch(span, [&](heap::PageSpan stretch, const PageSource& source) {
          const int fd = how->descriptors[source.source];
          const size_t bytes = size_t{stretch.pages} * page_bytes;
          if (fd < 0 || !map_private(window.address(stretch.first), bytes, fd, source.offset)) return false;
          note_private(stretch);
          reapply_marks(stretch);
          *how->bytes_switched += bytes;
          return true;
        });
      },
      &to);
  if (ok) forget_folded();
  return ok;
}

bool has_folded() {
  return !for_each_folded_part([](void*, heap::PageSpan) { return false; }, nullptr);
}

// Private pages of a run that was free at an earlier fork had that one's advice (advise_shared_ranges).
void let_children_inherit_private(heap::PageSpan range) {
  const uint32_t end = range.first + range.pages;
  for (uint32_t page = range.first; page < end;) {
    uint32_t next_page = page;
    while (next_page < end && is_private(next_page) && (marks_of(next_page) & not_inherited) == 0) ++next_page;
    if (next_page > page)
      next.madvise(window.address(page), size_t{next_page - page} * page_bytes, MADV_DOFORK);
    page = next_page + 1;
  }
}

// All locks are held for the fork. On failure some pages may be private already: they are marked, and the next
// fork leaves them as they are.
bool detach_by_mapping(const int* descriptors, uint64_t* bytes_switched) {
  if (!detach_folded(descriptors, bytes_switched)) return false;
  for (uint32_t i = 0; i < part_count(); ++i) {
    const Part part = part_at(i);
    const bool ok = for_each_used_range(part, [&](heap::PageSpan range, char*, size_t bytes) {
      let_children_inherit_private(range);
      if (!for_each_stretch(range, [&](heap::PageSpan stretch, const PageSource& source) {
            const int fd = descriptors[source.source];
            if (fd < 0 || !map_private(window.address(stretch.first), size_t{stretch.pages} * page_bytes, fd,
                                       source.offset))
              return false;
            note_private(stretch);
            reapply_marks(stretch);
            return true;
          }))
        return false;
      window.heap.move(range, part.detached);
      *bytes_switched += bytes;
      return true;
    });
    if (!ok) return false;
  }
  return true;
}

bool fetch_descriptors(Descriptors* descriptors) {
  if (!for_each_folded_part(
          [](void* to, heap::PageSpan span) {
            return for_each_stretch(span, [&](heap::PageSpan, const PageSource& source) {
              return static_cast<Descriptors*>(to)->fetch(source.source);
            });
          },
          descriptors))
    return false;
  for (uint32_t i = 0; i < part_count(); ++i)
    if (!for_each_used_range(part_at(i), [&](heap::PageSpan range, char*, size_t) {
          return for_each_stretch(range, [&](heap::PageSpan, const PageSource& source) {
            return descriptors->fetch(source.source);
          });
        }))
      return false;
  return true;
}

// Makes every shared range in use private. False: it could not be done for all. lock_moves() was called, and is
// again when this returns.
bool detach_all() {
  bool any = has_folded();
  for (uint32_t i = 0; i < part_count(); ++i) any = any || has_shared_runs_in_use(part_at(i));
  if (!any) return true;
  give_up_for_fork();
  uint64_t bytes = 0;
  bool ok = false;
  bool done = false;
  {
    Descriptors descriptors;
    if (fetch_descriptors(&descriptors)) {
      ok = detach_by_mapping(descriptors.all(), &bytes);
      done = true;
    }
  }
  if (!done) {
    // Nothing moves any more: the lock is for the engine's thread, which has the descriptors still.
    unlock_moves();
    ok = switch_by_engine(
        [](void* switched, const int* descriptors) {
          return detach_by_mapping(descriptors, static_cast<uint64_t*>(switched));
        },
        &bytes);
    lock_moves();
    for (uint32_t i = 0; !ok && !has_folded() && i < part_count(); ++i)
      if (has_shared_runs_in_use(part_at(i)) && !detach_by_copy(part_at(i), &bytes)) break;
    for (uint32_t i = 0; !ok && !has_folded() && i < part_count() && !has_shared_runs_in_use(part_at(i)); ++i)
      ok = i + 1 == part_count();
  }
  if (!ok) never_fold();  // pages may be private in runs that are not detached
  if (bytes > 0) {
    recount_live();
    count(&supply::Slot::forks_switched);
    count(&supply::Slot::switched_bytes, bytes);
  }
  return ok;
}

// Free shared ranges: inherited by the child just long enough to be replaced there, so that nothing else is
// mapped in their place meanwhile.
template <typename Visit>
void for_each_free_shared_run(const Part& part, Visit visit) {
  const uint32_t end = part.span.first + part.span.pages;
  for (uint32_t page = part.span.first; page < end;) {
    const heap::RunRecord record = window.heap.run(page);
    if (record.arena == part.shared || record.arena == reserve_arena) visit(heap::PageSpan{page, record.pages});
    page += record.pages;
  }
}

void advise_shared_ranges(int advice) {
  for (uint32_t i = 0; i < part_count(); ++i)
    for_each_free_shared_run(part_at(i), [&](heap::PageSpan span) {
      next.madvise(window.address(span.first), size_t{span.pages} * page_bytes, advice);
    });
}

// All of each part, in use or not: what a signal handler's fork needs where it has interrupted a change of the
// heap's records.
template <typename Visit>
bool for_each_stretch_of_parts(Visit visit) {
  for (uint32_t i = 0; i < part_count(); ++i)
    if (!for_each_stretch(part_at(i).span, visit)) return false;
  return true;
}

bool switch_parts(const int* descriptors, uint64_t* bytes_switched) {
  return for_each_stretch_of_parts([&](heap::PageSpan stretch, const PageSource& source) {
    const int fd = descriptors[source.source];
    const size_t bytes = size_t{stretch.pages} * page_bytes;
    if (fd < 0 || !map_private(window.address(stretch.first), bytes, fd, source.offset)) return false;
    note_private(stretch);
    reapply_marks(stretch);
    *bytes_switched += bytes;
    return true;
  });
}

// DDR memory in use that is charged to the parent.
uint64_t inherited_ddr_bytes() {
  uint64_t bytes = window.slot->live_ddr;
  window.heap.for_each_run({0, window.ddr_pages}, [&](heap::PageSpan run, heap::RunRecord& record) {
    if (record.state == heap::RunState::used && record.arena == detached_front_arena)
      bytes += uint64_t{run.pages} * page_bytes;
  });
  return bytes;
}

}  // namespace

bool make_window_private() {
  return detach_all() && let_children_inherit_detached();
}

bool make_parts_private() {
  if (part_count() == 0) return true;
  window.private_for_good = true;  // an engine that is still starting sees it
  give_up_for_fork();
  never_fold();
  uint64_t bytes = 0;
  bool ok = false;
  bool fetched = false;
  {
    Descriptors descriptors;
    fetched = for_each_stretch_of_parts(
        [&](heap::PageSpan, const PageSource& source) { return descriptors.fetch(source.source); });
    if (fetched) ok = switch_parts(descriptors.all(), &bytes);
  }
  if (!fetched) {
    unlock_moves();
    ok = switch_by_engine(
        [](void* switched, const int* from) { return switch_parts(from, static_cast<uint64_t*>(switched)); },
        &bytes);
    lock_moves();
  }
  if (!ok) return false;
  forget_folded();
  for (uint32_t i = 0; i < part_count(); ++i) let_children_inherit_private(part_at(i).span);
  count(&supply::Slot::forks_switched);
  count(&supply::Slot::switched_bytes, bytes);
  return true;
}

void set_free_ranges_inherited(bool inherit) {
  advise_shared_ranges(inherit ? MADV_DOFORK : MADV_DONTFORK);
}

void start_child() {
  unlock_moves_in_child();
  take_copies_in_child();
  forget_folds_in_child();
  window.deferred.store(0, std::memory_order_relaxed);  // other threads' blocks: they stay in use in the child
  window.deferred_spans.store(nullptr, std::memory_order_relaxed);
  window.during_fork.store(0, std::memory_order_relaxed);
  ++window.generation;
  uint32_t parent_slot = window.slot == nullptr
                             ? supply::no_slot
                             : static_cast<uint32_t>(window.slot - supply::slots_of(window.control));
  // Move first, then map: joined runs are one mapping each. All of these runs are free.
  for (uint32_t i = 0; i < part_count(); ++i) {
    const Part part = part_at(i);
    for_each_free_shared_run(part, [&](heap::PageSpan span) {
      // Memory that cannot be replaced must not be used: it is the parent's.
      if (!map_fresh(window.address(span.first), size_t{span.pages} * page_bytes))
        fatal("fork: the child cannot replace its parent's memory");
      note_private(span);
      window.heap.set_dirty(span, false);
      // The free front is plain memory here, charged page by page.
      const uint8_t arena = part.shared == ddr_arena ? ddr_arena : part.detached;
      if (window.heap.run(span.first).arena != arena) window.heap.move(span, arena);
    });
  }
  apply_marks_in_child(true);
  if (window.tiered) {
    window.tiered = false;
    window.free_dirty_pages = 0;
    window.charged_granules = 0;
  }
  if (claim_slot(parent_slot)) {
    recount_live();
    statistics::count_inherited();
    window.slot->inherited_bytes = inherited_ddr_bytes();
    window.slot->peak_live = window.slot->live_ddr + window.slot->live_cxl + window.slot->live_detached;
  }
}

void start_abandoned_child() {
  unlock_moves_in_child();
  take_copies_in_child();
  forget_folds_in_child();
  window.deferred.store(0, std::memory_order_relaxed);
  window.deferred_spans.store(nullptr, std::memory_order_relaxed);
  // The interrupted code goes on where the handler returns, and may hand out what was free: whatever is not
  // there becomes fresh memory.
  const auto fill = [](uint32_t from, uint32_t end) {
    for (uint32_t page = from; page < end;) {
      uint32_t next_page = page;
      while (next_page < end && !is_private(next_page) && (marks_of(next_page) & not_inherited) == 0)
        ++next_page;
      if (next_page > page && !map_fresh(window.address(page), size_t{next_page - page} * page_bytes))
        fatal("fork: the child cannot replace its parent's memory");
      page = next_page + 1;
    }
  };
  if (window.tiered) fill(0, window.ddr_pages);
  fill(window.front_pages, window.mapped_pages);
  if (window.total_pages > window.mapped_pages)
    map_fresh(window.address(window.mapped_pages),
              size_t{window.total_pages - window.mapped_pages} * page_bytes);
  apply_marks_in_child(false);
  // The parent's numbers are the parent's.
  static supply::Slot nobodys;
  window.slot = &nobodys;
  statistics::page.store(nullptr, std::memory_order_relaxed);
}

namespace {

// Until it is written a page of a private mapping is the file's. Nothing that another thread stores is lost.
void own_page(uint32_t page) {
  __atomic_fetch_or(window.address(page), char{0}, __ATOMIC_RELAXED);
}

}  // namespace

bool make_private(heap::PageSpan span) {
  constexpr int patience_yields = 100'000;
  int tries = 0;
  while (!window.supply_lock.enter()) {  // a fork is under way, by another thread or by this one
    if (++tries == patience_yields) return false;
    ::sched_yield();
  }
  bool ok = false;
  if (window.heap_lock.enter()) {
    lock_moves();
    Descriptors descriptors;
    ok = true;
    const uint32_t end = span.first + span.pages;
    for (uint32_t page = span.first; ok && page < end;) {
      if (!is_shared_mapped(page)) {
        ++page;
        continue;
      }
      const PageSource source = source_of(page);
      const heap::PageSpan stretch{page, stretch_at(page, end, source)};
      ok = descriptors.fetch(source.source) &&
           map_private(window.address(page), size_t{stretch.pages} * page_bytes,
                       descriptors.all()[source.source], source.offset);
      if (!ok) break;
      for (; page < stretch.first + stretch.pages; ++page) own_page(page);
      note_private(stretch);
      reapply_marks(stretch);
    }
    unlock_moves();
    window.heap_lock.leave();
  }
  window.supply_lock.leave();
  return ok;
}

}  // namespace terrace::preload
