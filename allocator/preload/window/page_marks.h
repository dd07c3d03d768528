// SPDX-License-Identifier: Apache-2.0
// The program's own settings of pages of its heap (protection, locks, advice). The kernel keeps them with a
// mapping, and this library replaces mappings (a fork's switch). So marks record them, to apply them again.
//
// A page of the window is one of these:
//   shared-mapped   of a lease's file or the front's, MAP_SHARED: a fork switches it
//   private         a private mapping of such a file, or anonymous memory (window.private_bits)
//   the program's   a mapping that it has put there by MAP_FIXED, or a hole that it made (own_mapping; private
//   as well)
//
// Place     mappings.cc and advice.cc set marks; fork.cc applies them again, and leaves or replaces them in the
//           child; large_requests.cc clears those of freed pages.
// Threads   heap_lock is held, unless noted.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/preload/window/window.h"

namespace terrace::preload {

using Marks = uint16_t;
inline constexpr Marks not_inherited = 1;    // MADV_DONTFORK: a child finds nothing there
inline constexpr Marks wiped_on_fork = 2;    // MADV_WIPEONFORK: a child finds zeros there
inline constexpr Marks own_mapping = 4;      // above
inline constexpr Marks locked = 8;           // mlock
inline constexpr Marks locks_on_fault = 16;  // ... with MLOCK_ONFAULT
inline constexpr Marks not_dumped = 32;      // MADV_DONTDUMP
inline constexpr Marks stays_shared =
    128;  // registered with a ring: a fork does not make it private (registered.h)
inline constexpr Marks is_protected =
    64;  // not readable and writable with key 0, but as the bits below have it
inline constexpr Marks protection_marks(int protection, int key) {
  return static_cast<Marks>(is_protected | (protection & 7) << 8 | (key & 15) << 11);
}
inline constexpr Marks all_protection = 64 | 7 << 8 | 15 << 11;
inline constexpr Marks all_marks = 0xffff;
constexpr int protection_of(Marks marks) {
  return marks >> 8 & 7;
}
constexpr int key_of(Marks marks) {
  return marks >> 11 & 15;
}

// Any page has marks, or had some. Any thread.
extern std::atomic<bool> any_marks;
extern Marks* page_marks;  // one a page, once any_marks is true
inline Marks marks_of(uint32_t page) {
  return any_marks.load(std::memory_order_acquire) ? page_marks[page] : Marks{0};  // pairs with make_table()
}

// Pages of the window that [address, address + bytes) touches; pages 0: none. Any thread.
heap::PageSpan pages_of_range(const void* address, size_t bytes);

// heap_lock for the program's own calls, which a fork by another thread makes wait. False: it is this thread
// that forks, or a signal handler that has interrupted malloc.
bool enter_heap_patiently() TERRACE_TRY_ACQUIRE(true, window.heap_lock);
// It held for as long as this lives, where that is possible, which clang cannot follow: what the kernel does to pages and what their marks say
// change together, or a fork in between makes the old marks good.
class HeapHeld {
 public:
  HeapHeld() : held_(enter_heap_patiently()) {}
  ~HeapHeld() {
    if (held_) window.heap_lock.leave();
  }
  HeapHeld(const HeapHeld&) = delete;
  HeapHeld& operator=(const HeapHeld&) = delete;
  bool held() const { return held_; }

 private:
  bool held_;
};

// False: no memory for the marks.
bool change_marks(heap::PageSpan span, Marks cleared, Marks set);
// Takes heap_lock itself, and does what the range has of the window.
bool change_marks_of(const void* address, size_t bytes, Marks cleared, Marks set);
// Nothing has this mark any more.
void clear_everywhere(Marks cleared);

// Visits stretches of equal marks and of one kind: visit(PageSpan, Marks, bool shared_mapped).
template <typename Visit>
void for_each_marked(heap::PageSpan span, Visit visit);

// The same for all pages that have marks, or had some.
template <typename Visit>
void for_each_marked_page(Visit visit);

inline bool is_private(uint32_t page) {
  return (window.private_bits[page / 64] >> page % 64 & 1) != 0;
}
void note_private(heap::PageSpan span);
void note_shared(heap::PageSpan span);
bool is_shared_mapped(uint32_t page);

// Protection, locks and the like of a range that has got new mappings.
void reapply_marks(heap::PageSpan span);
// Applies marks to a mapping of the kernel: plain memory outside of the window, or a part of it with constant
// marks. Any thread, no lock.
void apply_marks(char* at, size_t bytes, Marks marks);
// After mlockall: whatever gets new mappings is locked there. Any thread.
void lock_switched(bool locks);
// For an access by this library: readable and writable for now; reapply_marks() ends it.
void lift_protection(heap::PageSpan span);
// The pages are freed: ordinary memory again, with any contents. False: the kernel does not replace a mapping
// of the program's (too many of them): the pages must stay in use.
bool clean_marks(heap::PageSpan span, bool detached);
// In a fork's child, which has one thread. `by_records`: the heap's records can be read.
void apply_marks_in_child(bool by_records);

// fork.cc. Pages that are shared-mapped become private, as for a fork. Takes the locks. False: no descriptor,
// or a fork is under way.
bool make_private(heap::PageSpan span);

template <typename Visit>
void for_each_marked(heap::PageSpan span, Visit visit) {
  const uint32_t end = span.first + span.pages;
  for (uint32_t page = span.first; page < end;) {
    const Marks marks = marks_of(page);
    const bool shared_mapped = is_shared_mapped(page);
    uint32_t next_page = page + 1;
    while (next_page < end && marks_of(next_page) == marks && is_shared_mapped(next_page) == shared_mapped)
      ++next_page;
    visit(heap::PageSpan{page, next_page - page}, marks, shared_mapped);
    page = next_page;
  }
}

extern uint32_t marked_first, marked_end;  // where they are: [first, end)

template <typename Visit>
void for_each_marked_page(Visit visit) {
  if (any_marks.load(std::memory_order_relaxed) && marked_first < marked_end)
    for_each_marked({marked_first, marked_end - marked_first}, visit);
}

}  // namespace terrace::preload
