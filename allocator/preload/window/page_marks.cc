// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/page_marks.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <utility>

#include "allocator/preload/libc/message.h"

namespace terrace::preload {

std::atomic<bool> any_marks{false};
Marks* page_marks = nullptr;
uint32_t marked_first = UINT32_MAX, marked_end = 0;

namespace {

std::atomic<bool> locks_all{false};

constexpr unsigned lock_on_fault = 1;  // MLOCK_ONFAULT

long address_of(heap::PageSpan span) {
  return reinterpret_cast<long>(window.address(span.first));
}

long bytes_of(heap::PageSpan span) {
  return static_cast<long>(size_t{span.pages} * page_bytes);
}

void protect(long address, long bytes, int protection, int key) {
  // mprotect leaves the key as it is; where there are no keys, or this one was given back, there is only that.
  if (terrace_raw_call(SYS_pkey_mprotect, address, bytes, protection, key) != 0)
    terrace_raw_call(SYS_mprotect, address, bytes, protection);
}

void make_plain(heap::PageSpan span) {
  protect(address_of(span), bytes_of(span), PROT_READ | PROT_WRITE, 0);
}

bool map_plain(heap::PageSpan span, int protection) {
  char* const at = window.address(span.first);
  return ::mmap(at, size_t{span.pages} * page_bytes, protection,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at;
}

bool make_table() {
  if (page_marks != nullptr) return true;
  void* made = ::mmap(nullptr, window.total_pages * sizeof(Marks), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return false;
  page_marks = static_cast<Marks*>(made);
  any_marks.store(true, std::memory_order_release);  // pairs with marks_of()
  return true;
}

template <typename Visit>
void for_each_used_run(heap::PageSpan part, Visit visit) {
  window.heap.for_each_run(part, [&](heap::PageSpan run, heap::RunRecord& record) {
    if (record.state == heap::RunState::used) visit(run);
  });
}

}  // namespace

heap::PageSpan pages_of_range(const void* address, size_t bytes) {
  const size_t span_bytes = window_span.load(std::memory_order_acquire);  // acquire: pairs with arm_locked()
  if (span_bytes == 0 || bytes == 0) return {};
  const uintptr_t base = window_base.load(std::memory_order_relaxed);
  const uintptr_t from = reinterpret_cast<uintptr_t>(address);
  const uintptr_t to = from + bytes < from ? UINTPTR_MAX : from + bytes;
  if (to <= base || from >= base + span_bytes) return {};
  const auto first = static_cast<uint32_t>((from < base ? 0 : from - base) / page_bytes);
  const uintptr_t end = to > base + span_bytes ? base + span_bytes : to;
  return {first, static_cast<uint32_t>((end - base + page_bytes - 1) / page_bytes) - first};
}

// Not analysed: a loop that ends with the lock or without it.
bool enter_heap_patiently() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  // By time: a fork of much memory on a busy machine outlasts any number of yields, and what is not noted here a
  // later fork undoes (a protection comes back, or is gone).
  constexpr int looks_max = 100'000, yields = 1'000;
  constexpr timespec pause{.tv_sec = 0, .tv_nsec = 100'000};
  for (int i = 0; i < looks_max && !window.abandoned; ++i) {
    if (window.heap_lock.enter()) return true;
    if (window.heap_lock.is_mine()) return false;
    if (i < yields)
      ::sched_yield();
    else
      ::nanosleep(&pause, nullptr);
  }
  return false;
}

bool change_marks(heap::PageSpan span, Marks cleared, Marks set) {
  if (set == 0 && page_marks == nullptr) return true;
  if (!make_table()) return false;
  if (set != 0 && span.first < marked_first) marked_first = span.first;
  if (set != 0 && span.first + span.pages > marked_end) marked_end = span.first + span.pages;
  for (uint32_t page = span.first; page < span.first + span.pages; ++page) {
    const auto now = static_cast<Marks>((page_marks[page] & ~cleared) | set);
    if (page_marks[page] != now) page_marks[page] = now;
  }
  return true;
}

bool change_marks_of(const void* address, size_t bytes, Marks cleared, Marks set) {
  const heap::PageSpan span = pages_of_range(address, bytes);
  if (span.pages == 0 || (set == 0 && !any_marks.load(std::memory_order_relaxed))) return true;
  const int saved = errno;
  if (!enter_heap_patiently()) return false;
  const bool ok = change_marks(span, cleared, set);
  window.heap_lock.leave();
  errno = saved;
  return ok;
}

void clear_everywhere(Marks cleared) {
  if (!any_marks.load(std::memory_order_relaxed)) return;
  const int saved = errno;
  if (enter_heap_patiently()) {
    if (marked_first < marked_end) change_marks({marked_first, marked_end - marked_first}, cleared, 0);
    window.heap_lock.leave();
  }
  errno = saved;
}

void note_private(heap::PageSpan span) {
  for (uint32_t page = span.first; page < span.first + span.pages; ++page)
    window.private_bits[page / 64] |= uint64_t{1} << page % 64;
}

void note_shared(heap::PageSpan span) {
  for (uint32_t page = span.first; page < span.first + span.pages; ++page)
    window.private_bits[page / 64] &= ~(uint64_t{1} << page % 64);
}

bool is_shared_mapped(uint32_t page) {
  if (is_private(page)) return false;
  if (page < window.ddr_pages) return window.tiered;
  for (uint32_t i = 0; i < window.segment_count; ++i)
    if (page - window.segments[i].span.first < window.segments[i].span.pages) return true;
  return false;
}

void lock_switched(bool locks) {
  locks_all.store(locks, std::memory_order_relaxed);
}

void reapply_marks(heap::PageSpan span) {
  if (locks_all.load(std::memory_order_relaxed)) terrace_raw_call(SYS_mlock, address_of(span), bytes_of(span));
  if (!any_marks.load(std::memory_order_relaxed)) return;
  constexpr Marks of_mapping = all_protection | locked | locks_on_fault | not_dumped;
  for_each_marked(span, [](heap::PageSpan part, Marks marks, bool) {
    if ((marks & own_mapping) == 0)
      apply_marks(window.address(part.first), size_t{part.pages} * page_bytes,
                  static_cast<Marks>(marks & of_mapping));
  });
}

void apply_marks(char* at, size_t bytes, Marks marks) {
  const auto address = reinterpret_cast<long>(at), length = static_cast<long>(bytes);
  if ((marks & is_protected) != 0) protect(address, length, protection_of(marks), key_of(marks));
  if ((marks & locked) != 0)
    terrace_raw_call(SYS_mlock2, address, length, (marks & locks_on_fault) != 0 ? lock_on_fault : 0);
  for (const auto& [mark, advice] :
       {std::pair{not_dumped, MADV_DONTDUMP}, std::pair{not_inherited, MADV_DONTFORK},
        std::pair{wiped_on_fork, MADV_WIPEONFORK}})
    if ((marks & mark) != 0) terrace_raw_call(SYS_madvise, address, length, advice);
}

void lift_protection(heap::PageSpan span) {
  if (!any_marks.load(std::memory_order_relaxed)) return;
  for_each_marked(span, [](heap::PageSpan part, Marks marks, bool) {
    if ((marks & is_protected) != 0 && (marks & own_mapping) == 0) make_plain(part);
  });
}

bool clean_marks(heap::PageSpan span, bool detached) {
  bool ok = true;
  for_each_marked(span, [detached, &ok](heap::PageSpan part, Marks marks, bool shared_mapped) {
    if (marks == 0) return;
    const bool replaces = (marks & (not_inherited | stays_shared)) != 0 && detached && shared_mapped;
    if ((marks & own_mapping) != 0 || replaces) {
      if (!map_plain(part, PROT_READ | PROT_WRITE)) {
        ok = false;
        return;
      }
      note_private(part);
    } else {
      if ((marks & is_protected) != 0) make_plain(part);
      if ((marks & locked) != 0) terrace_raw_call(SYS_munlock, address_of(part), bytes_of(part));
      if ((marks & not_dumped) != 0)
        terrace_raw_call(SYS_madvise, address_of(part), bytes_of(part), MADV_DODUMP);
      if ((marks & not_inherited) != 0 && !shared_mapped)
        terrace_raw_call(SYS_madvise, address_of(part), bytes_of(part), MADV_DOFORK);
      if ((marks & wiped_on_fork) != 0)
        terrace_raw_call(SYS_madvise, address_of(part), bytes_of(part), MADV_KEEPONFORK);
    }
    change_marks(part, all_marks, 0);
  });
  return ok;
}

void apply_marks_in_child(bool by_records) {
  if (!any_marks.load(std::memory_order_relaxed) || marked_first >= marked_end) return;
  const auto apply = [](heap::PageSpan run) {
    const uint32_t first = run.first > marked_first ? run.first : marked_first;
    const uint32_t end = run.first + run.pages < marked_end ? run.first + run.pages : marked_end;
    if (first >= end) return;
    for_each_marked({first, end - first}, [](heap::PageSpan part, Marks marks, bool) {
      if ((marks & not_inherited) != 0) {
        // Nobody else's mapping may come to lie there.
        if (!map_plain(part, PROT_NONE)) fatal("fork: the child cannot reserve what it does not inherit");
        note_private(part);
        change_marks(part, all_marks, own_mapping);
      } else if ((marks & wiped_on_fork) != 0 && (marks & own_mapping) == 0) {
        if (!map_plain(part, PROT_READ | PROT_WRITE)) fatal("fork: the child cannot wipe memory");
        note_private(part);
        terrace_raw_call(SYS_madvise, address_of(part), bytes_of(part), MADV_WIPEONFORK);
        change_marks(part, locked | locks_on_fault, 0);  // locks are not inherited
        reapply_marks(part);
      }
    });
  };
  // Free pages have no marks.
  const auto apply_to_part = [&](heap::PageSpan part) {
    if (by_records)
      for_each_used_run(part, apply);
    else
      apply(part);
  };
  apply_to_part({0, window.ddr_pages});
  for (uint32_t i = 0; i < window.segment_count; ++i) apply_to_part(window.segments[i].span);
  change_marks({marked_first, marked_end - marked_first}, locked | locks_on_fault, 0);
}

}  // namespace terrace::preload
