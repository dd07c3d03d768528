// What fork does to the window.
//
// Leased pages are MAP_SHARED: after a plain fork each side would see the other's stores. So before the fork
// every leased range in use is switched, in place, to a private mapping of the same file. Each switch is one
// mmap: a store before it is in the file, a store after it in a private copy, and no thread sees anything else.
// Then fork's own copy-on-write does the rest. What was switched stays private ("detached"): what the parent
// writes afterwards becomes anonymous memory and has left the tier. Nobody in this process tree writes the
// lease's pages below a detached range again, since one of the others may still read them.
//
// Ranges that are free stay leased in the parent; the child gets private memory in their place, before it can
// allocate from them. Between the parent's decision and the child's first step nothing is allocated from the
// window (lock.h), whatever other libraries' fork handlers do.
#include "allocator/preload/fork.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>

#include "allocator/preload/link.h"
#include "allocator/preload/message.h"
#include "allocator/preload/next.h"
#include "allocator/preload/tiers.h"
#include "allocator/preload/window.h"

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

// The next range to switch at or behind `from`, in segment `i`: used runs, with short gaps between them.
heap::PageSpan next_used_range(uint32_t i, uint32_t from) {
  const Segment& segment = window.segments[i];
  uint32_t end = segment.span.first + segment.span.pages;
  heap::PageSpan range{end, 0};
  for (uint32_t page = from; page < end; page += window.heap.run(page).pages) {
    const heap::RunRecord& record = window.heap.run(page);
    if (record.arena != shared_arena(i)) {
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

bool has_shared_runs_in_use(uint32_t i) {
  return next_used_range(i, window.segments[i].span.first).pages > 0;
}

// The descriptor of a segment's lease, once more; -1 when the supervisor cannot be reached or refuses.
int reopen(uint32_t i) {
  supply::Request request{};
  request.magic = supply::magic;
  request.version = supply::version;
  request.kind = static_cast<uint16_t>(supply::RequestKind::reopen);
  request.segment_key = window.segments[i].key;
  supply::Reply reply{};
  int fd = -1;
  Link link;
  if (!link.open() || !link.ask(request, &reply, &fd)) return -1;
  return fd;
}

template <typename Visit>
bool for_each_used_range(uint32_t i, Visit visit) {
  const Segment& segment = window.segments[i];
  for (heap::PageSpan range = next_used_range(i, segment.span.first); range.pages > 0;
       range = next_used_range(i, range.first + range.pages))
    if (!visit(range, window.address(range.first), size_t{range.pages} * page_bytes)) return false;
  return true;
}

// Puts `copy` in the place of a range. False: nothing changed.
bool move_into_place(char* copy, char* at, size_t bytes) {
  if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at) return true;
  if (still_mapped(at, bytes)) return false;
  if (!map_fresh(at, bytes)) fatal("fork: the kernel took leased memory away and does not give it back");
  memcpy(at, copy, bytes);
  return true;
}

// Without a descriptor (chroot, change of uid, no descriptor left, supervisor gone): copies into spare memory
// and puts that in place. All memory is there and filled before the first range changes, and each range changes
// whole: a range is shared or detached, never half of each. Right only while no other thread can store
// meanwhile.
bool detach_by_copy(uint32_t i, uint64_t* bytes_switched) {
  if (__libc_single_threaded == 0) return false;
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);  // a handler could store into what is being copied
  size_t total = 0;
  for_each_used_range(i, [&](heap::PageSpan, char*, size_t bytes) {
    total += bytes;
    return true;
  });
  void* spare =
      ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool ok = spare != MAP_FAILED;
  if (ok) {
    auto* const copies = static_cast<char*>(spare);
    size_t done = 0;
    for_each_used_range(i, [&](heap::PageSpan, char* at, size_t bytes) {
      memcpy(copies + done, at, bytes);
      done += bytes;
      return true;
    });
    done = 0;
    ok = for_each_used_range(i, [&](heap::PageSpan range, char* at, size_t bytes) {
      if (!move_into_place(copies + done, at, bytes)) return false;
      window.heap.move(range, detached_arena(i));
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

// Both locks are held for the fork. On failure some ranges may be private already, and are "detached" then.
bool detach_segment(uint32_t i, uint64_t* bytes_switched) {
  int fd = reopen(i);
  if (fd < 0) return detach_by_copy(i, bytes_switched);
  uint32_t first = window.segments[i].span.first;
  bool ok = for_each_used_range(i, [&](heap::PageSpan range, char* at, size_t bytes) {
    if (!map_private(at, bytes, fd, size_t{range.first - first} * page_bytes)) return false;
    window.heap.move(range, detached_arena(i));
    *bytes_switched += bytes;
    return true;
  });
  close_raw(fd);
  return ok;
}

void recount_live() {
  if (window.slot == nullptr) return;
  window.slot->live_ddr = window.slot->live_cxl = window.slot->live_detached = 0;
  memset(window.slot->segment_live, 0, sizeof(window.slot->segment_live));
  window.heap.for_each_run({0, window.ddr_pages}, [](heap::PageSpan run, heap::RunRecord& record) {
    if (record.state == heap::RunState::used) count_live(ddr_arena, int64_t{run.pages} * int64_t{page_bytes});
  });
  for (uint32_t i = 0; i < window.segment_count; ++i)
    window.heap.for_each_run(window.segments[i].span, [](heap::PageSpan run, heap::RunRecord& record) {
      if (record.state == heap::RunState::used)
        count_live(record.arena, int64_t{run.pages} * int64_t{page_bytes});
    });
}

// Makes every leased range in use private. False: it could not be done for all.
bool detach_all() {
  uint64_t bytes = 0;
  bool ok = true;
  for (uint32_t i = 0; ok && i < window.segment_count; ++i)
    if (has_shared_runs_in_use(i)) ok = detach_segment(i, &bytes);
  if (bytes > 0) {
    recount_live();
    count(&supply::Slot::forks_switched);
    count(&supply::Slot::switched_bytes, bytes);
  }
  return ok;
}

// Free leased ranges: inherited by the child just long enough to be replaced there, so that nothing else is
// mapped in their place meanwhile.
template <typename Visit>
void for_each_shared_range(Visit visit) {
  for (uint32_t i = 0; i < window.segment_count; ++i) {
    if (window.heap.free_pages(shared_arena(i)) == 0) continue;
    const Segment segment = window.segments[i];
    uint32_t end = segment.span.first + segment.span.pages;
    for (uint32_t page = segment.span.first; page < end;) {
      uint32_t pages = window.heap.run(page).pages;
      if (window.heap.run(page).arena == shared_arena(i)) visit(i, heap::PageSpan{page, pages});
      page += pages;
    }
  }
}

void advise_shared_ranges(int advice) {
  for_each_shared_range([&](uint32_t, heap::PageSpan span) {
    next.madvise(window.address(span.first), size_t{span.pages} * page_bytes, advice);
  });
}

void start_child() {
  window.deferred.store(0, std::memory_order_relaxed);  // other threads' blocks: they stay in use in the child
  window.during_fork.store(0, std::memory_order_relaxed);
  ++window.generation;
  uint32_t parent_slot = window.slot == nullptr
                             ? supply::no_slot
                             : static_cast<uint32_t>(window.slot - supply::slots_of(window.control));
  // Move first, then map: joined runs are one mapping each. All of these runs are free.
  for (uint32_t i = 0; i < window.segment_count; ++i) {
    const Segment segment = window.segments[i];
    uint32_t end = segment.span.first + segment.span.pages;
    for (uint32_t page = segment.span.first; page < end;) {
      heap::PageSpan span{page, window.heap.run(page).pages};
      if (window.heap.run(page).arena == shared_arena(i)) {
        char* at = window.address(page);
        size_t bytes = size_t{span.pages} * page_bytes;
        // Memory that cannot be replaced must not be used: it is the parent's.
        if (!map_fresh(at, bytes)) fatal("fork: the child cannot replace its parent's leased memory");
        window.heap.set_dirty(span, false);
        window.heap.move(span, detached_arena(i));
      }
      page = span.first + span.pages;
    }
  }
  if (claim_slot(parent_slot)) {
    recount_live();
    window.slot->inherited_bytes = window.slot->live_ddr;
    window.slot->peak_live = window.slot->live_ddr + window.slot->live_cxl + window.slot->live_detached;
  }
}

}  // namespace

pid_t fork_safely(pid_t (*real)()) {
  if (large_from.load(std::memory_order_relaxed) == SIZE_MAX && !is_armed()) return real();
  if (!window.supply_lock.begin_fork()) {
    say("fork from a signal handler that interrupted malloc: refused (EAGAIN)");
    errno = EAGAIN;
    return -1;
  }
  if (!window.heap_lock.begin_fork()) {
    window.supply_lock.end_fork();
    say("fork from a signal handler that interrupted malloc: refused (EAGAIN)");
    errno = EAGAIN;
    return -1;
  }
  int saved = errno;
  bool safe = !is_armed() || detach_all();
  pid_t pid = -1;
  if (safe) {
    if (is_armed()) advise_shared_ranges(MADV_DOFORK);
    errno = saved;
    pid = real();
    saved = errno;
    if (pid == 0) {
      if (is_armed()) start_child();
      window.heap_lock.reset_in_child();
      window.supply_lock.reset_in_child();
      errno = saved;
      return 0;
    }
    if (is_armed()) advise_shared_ranges(MADV_DONTFORK);
  } else {
    count(&supply::Slot::forks_failed);
    say("fork refused (EAGAIN): leased memory cannot be made private (supervisor gone, no memory for a copy, "
        "or too many mappings)");
    saved = EAGAIN;
  }
  if (is_armed()) free_deferred();
  window.heap_lock.end_fork();
  window.supply_lock.end_fork();
  errno = saved;
  return pid;
}

}  // namespace terrace::preload
