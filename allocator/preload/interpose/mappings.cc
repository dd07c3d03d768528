// SPDX-License-Identifier: Apache-2.0
// The calls by which a program changes its own mappings, where they touch the window: what they do to anonymous
// memory they do to the window's, which consists of shared mappings that a fork and the engine replace.
//
// mprotect, mlock      the granules are held for good (a moved one is mapped readable, writable, unlocked), and
//                      marked, so that a fork's switch makes it good (page_marks.h)
// mmap                 large private anonymous memory is served from the window (mapped_blocks.h)
// mmap to a fixed      the program's own from there on: held, never switched, never sampled
// place, munmap        what was served goes back to the window; of a block of malloc a hole stays, reserved:
//                      nobody else's mapping may come to lie in the window
// mremap               remap.h
//
// Threads   Any. Before ready() these are the kernel's.
#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/libc/raw_calls.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/mapped_blocks.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/remap.h"

namespace terrace::preload {
namespace {

constexpr unsigned lock_on_fault = 1;  // MLOCK_ONFAULT
constexpr int lock_current = 1;        // MCL_CURRENT
constexpr int lock_future = 2;         // MCL_FUTURE

// The range's pages of the window are no memory of this library's any more. False: errno says why.
bool give_pages_to_program(const void* address, size_t bytes) {
  const heap::PageSpan span = pages_of_range(address, bytes);
  if (span.pages == 0) return true;
  hold_for_good(window.address(span.first), size_t{span.pages} * page_bytes);
  if (!enter_heap_patiently()) {
    errno = EAGAIN;
    return false;
  }
  // The sampler has seen that it is held, before there is anything of the program's.
  lock_moves();
  unlock_moves();
  // What is free comes into use: the program had it, gave it back, and puts something there.
  const bool ok = claim_free_pages(span) && change_marks(span, all_marks, own_mapping);
  if (ok) note_private(span);
  window.heap_lock.leave();
  if (!ok) errno = ENOMEM;
  return ok;
}

// The next pages in use in `span`; pages 0: there are none. False: the heap cannot be looked at.
bool find_used(heap::PageSpan span, heap::PageSpan* found) {
  if (!enter_heap_patiently()) return false;
  const uint32_t end = span.first + span.pages;
  *found = {};
  for (uint32_t page = span.first; page < end && found->pages == 0; ++page) {
    const uint32_t run = window.heap.used_run_with(page);
    if (run == heap::no_page) continue;
    const uint32_t run_end = run + window.heap.run(run).pages;
    *found = {page, (run_end < end ? run_end : end) - page};
  }
  window.heap_lock.leave();
  return true;
}

int reserve_hole(heap::PageSpan span) {
  char* const at = window.address(span.first);
  if (!give_pages_to_program(at, size_t{span.pages} * page_bytes)) return -1;
  return terrace_raw_mmap(at, size_t{span.pages} * page_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at
             ? 0
             : -1;
}

// Of a range that has mappings as well as blocks of malloc only the former were the program's to unmap: where
// it unmapped a part before, a block may lie now. Free pages are nobody's.
int unmap_window(heap::PageSpan span) {
  if (any_served(span)) {
    unmap_served(span);
    return 0;
  }
  const uint32_t end = span.first + span.pages;
  for (uint32_t page = span.first; page < end;) {
    heap::PageSpan used;
    if (!find_used({page, end - page}, &used)) {
      errno = EAGAIN;
      return -1;
    }
    if (used.pages == 0) break;
    if (reserve_hole(used) != 0) return -1;
    page = used.first + used.pages;
  }
  return 0;
}

Marks marks_for(int protection, int key) {
  constexpr int plain = PROT_READ | PROT_WRITE;
  return protection == plain && key <= 0 ? Marks{0} : protection_marks(protection, key < 0 ? 0 : key);
}

// Files of a tmpfs that is mounted noexec cannot be made executable: what the program makes so becomes
// anonymous memory of its own. Stores by other threads meanwhile may be lost.
bool make_executable_kind(char* address, size_t bytes) {
  const heap::PageSpan span = pages_of_range(address, bytes);
  char* const at = window.address(span.first);
  const size_t span_bytes = size_t{span.pages} * page_bytes;
  constexpr int plain = PROT_READ | PROT_WRITE;
  void* const made = terrace_raw_mmap(nullptr, span_bytes, plain, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return false;
  if (copy_pages(static_cast<char*>(made), at, span_bytes) && give_pages_to_program(at, span_bytes) &&
      terrace_raw_mremap(made, span_bytes, span_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at)
    return true;
  terrace_raw_munmap(made, span_bytes);
  return false;
}

// `key`: -1 for mprotect.
int protect(void* address, size_t bytes, int protection, int key) {
  const auto by_kernel = [&] {
    if (key < 0)
      return next.mprotect != nullptr ? next.mprotect(address, bytes, protection)
                                      : terrace_raw_mprotect(address, bytes, protection);
    return static_cast<int>(terrace_raw_call(SYS_pkey_mprotect, reinterpret_cast<long>(address),
                                             static_cast<long>(bytes), protection, key));
  };
  const bool ours = pages_of_range(address, bytes).pages > 0;
  if (!ours) return by_kernel();
  hold_for_good(address, bytes);
  const Marks marks = marks_for(protection, key < 0 ? 0 : key);
  int result = 0, saved = 0;
  {
    const HeapHeld heap;
    result = by_kernel();
    saved = errno;
    if (result == 0 && heap.held()) change_marks(pages_of_range(address, bytes), all_protection, marks);
    if (result == 0 && heap.held()) return errno = saved, 0;
  }
  if (result != 0 && saved == EACCES && (protection & PROT_EXEC) != 0 &&
      make_executable_kind(static_cast<char*>(address), bytes))
    result = by_kernel();
  if (result == 0)
    change_marks_of(address, bytes, all_protection, marks);
  else
    errno = saved;
  return result;
}

int lock(const void* address, size_t bytes, unsigned flags) {
  const auto by_kernel = [&] {
    return static_cast<int>(
        flags == 0
            ? terrace_raw_call(SYS_mlock, reinterpret_cast<long>(address), static_cast<long>(bytes))
            : terrace_raw_call(SYS_mlock2, reinterpret_cast<long>(address), static_cast<long>(bytes), flags));
  };
  const heap::PageSpan span = pages_of_range(address, bytes);
  if (span.pages == 0) return by_kernel();
  hold_for_good(address, bytes);
  const HeapHeld heap;
  const int result = by_kernel();
  if (result == 0 && heap.held())
    change_marks(span, locked | locks_on_fault,
                 (flags & lock_on_fault) != 0 ? static_cast<Marks>(locked | locks_on_fault) : locked);
  return result;
}

}  // namespace
}  // namespace terrace::preload

using namespace terrace::preload;

// ---- mappings

TERRACE_EXPORT void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (is_servable(address, bytes, protection, flags, offset) && ready()) [[unlikely]] {
    void* const served = serve_mapping(bytes);
    // The start of a thread allocates. Whoever maps may be the next malloc, with its locks; here there is none.
    if (large_from_always != 0 && engine_start_due.load(std::memory_order_relaxed)) start_engine_if_due();
    if (served != nullptr) return served;
  }
  const bool replaces = (flags & MAP_FIXED) != 0 && (flags & fixed_noreplace) != fixed_noreplace;
  if (replaces && is_aligned(address) && bytes > 0 && pages_of_range(address, bytes).pages > 0 &&
      !give_pages_to_program(address, bytes))
    return MAP_FAILED;
  if (next.mmap != nullptr) return next.mmap(address, bytes, protection, flags, fd, offset);
  return terrace_raw_mmap(address, bytes, protection, flags, fd, offset);
}

TERRACE_EXPORT void* mmap64(void* address, size_t bytes, int protection, int flags, int fd, off64_t offset) {
  return mmap(address, bytes, protection, flags, fd, offset);
}

TERRACE_EXPORT int munmap(void* address, size_t bytes) {
  const auto pass = [](char* from, char* to) {
    if (from >= to) return 0;
    const auto length = static_cast<size_t>(to - from);
    return next.munmap != nullptr ? next.munmap(from, length) : terrace_raw_munmap(from, length);
  };
  char* const from = static_cast<char*>(address);
  const terrace::heap::PageSpan span =
      is_aligned(address) ? pages_of_range(address, bytes) : terrace::heap::PageSpan{};
  if (span.pages == 0)
    return next.munmap != nullptr ? next.munmap(address, bytes) : terrace_raw_munmap(address, bytes);
  if (from + bytes < from) {
    errno = EINVAL;
    return -1;
  }
  if (unmap_window(span) != 0 || pass(from, window.address(span.first)) != 0) return -1;
  return pass(window.address(span.first + span.pages), from + whole_pages(bytes));
}

TERRACE_EXPORT void* mremap(void* address, size_t bytes, size_t new_bytes, int flags, ...) noexcept {
  va_list list;
  va_start(list, flags);
  void* const new_address = va_arg(list, void*);
  va_end(list);
  if (in_window(address)) return remap(static_cast<char*>(address), bytes, new_bytes, flags, new_address);
  if ((flags & MREMAP_FIXED) != 0 && is_aligned(new_address) && new_bytes > 0 &&
      pages_of_range(new_address, new_bytes).pages > 0 && !give_pages_to_program(new_address, new_bytes))
    return MAP_FAILED;
  if (next.mremap != nullptr) return next.mremap(address, bytes, new_bytes, flags, new_address);
  return terrace_raw_mremap(address, bytes, new_bytes, flags, new_address);
}

TERRACE_EXPORT int remap_file_pages(void* address, size_t bytes, int protection, size_t page,
                                    int flags) noexcept {
  if (pages_of_range(address, bytes).pages > 0) {
    errno = EINVAL;  // as for memory that is no file's
    return -1;
  }
  return static_cast<int>(terrace_raw_call(SYS_remap_file_pages, reinterpret_cast<long>(address),
                                           static_cast<long>(bytes), protection, static_cast<long>(page),
                                           flags));
}

// ---- protections

TERRACE_EXPORT int mprotect(void* address, size_t bytes, int protection) noexcept {
  return protect(address, bytes, protection, -1);
}

TERRACE_EXPORT int pkey_mprotect(void* address, size_t bytes, int protection, int key) noexcept {
  return protect(address, bytes, protection, key);
}

// ---- locks

TERRACE_EXPORT int mlock(const void* address, size_t bytes) noexcept {
  return lock(address, bytes, 0);
}

TERRACE_EXPORT int mlock2(const void* address, size_t bytes, unsigned flags) noexcept {
  return lock(address, bytes, flags);
}

TERRACE_EXPORT int munlock(const void* address, size_t bytes) noexcept {
  const terrace::heap::PageSpan span = pages_of_range(address, bytes);
  if (span.pages == 0)
    return static_cast<int>(
        terrace_raw_call(SYS_munlock, reinterpret_cast<long>(address), static_cast<long>(bytes)));
  const HeapHeld heap;
  const auto result = static_cast<int>(
      terrace_raw_call(SYS_munlock, reinterpret_cast<long>(address), static_cast<long>(bytes)));
  if (result == 0 && heap.held()) change_marks(span, locked | locks_on_fault, 0);
  return result;
}

TERRACE_EXPORT int mlockall(int flags) noexcept {
  end_migration(terrace::supply::EndReason::locks);
  if ((flags & lock_future) != 0) stop_serving_mappings();
  const auto result = static_cast<int>(terrace_raw_call(SYS_mlockall, flags));
  if (result == 0 && (flags & lock_current) != 0) lock_switched(true);
  return result;
}

TERRACE_EXPORT int munlockall() noexcept {
  const auto result = static_cast<int>(terrace_raw_call(SYS_munlockall));
  if (result == 0) {
    lock_switched(false);
    clear_everywhere(locked | locks_on_fault);
  }
  return result;
}
