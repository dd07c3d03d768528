// SPDX-License-Identifier: Apache-2.0
// madvise by the program on memory of the window: what it means on anonymous memory, although shared mappings
// of files lie below.
//
//   zeros      MADV_DONTNEED drops nothing that is the file's: zeros are written. A lease keeps its pages
//              (large_requests.cc)
//   children   MADV_DONTFORK and MADV_WIPEONFORK are kept as marks, which a fork looks at: the
//              kernel's flags are this library's own here (W1), or not for files
//   refused    what anonymous memory refuses (MADV_REMOVE), and what nobody could tell from it (guard pages)
//
// All else goes to the kernel.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/page_marks.h"

namespace terrace::preload {
namespace {

constexpr int dontneed_locked = 24;  // MADV_DONTNEED_LOCKED, Linux 5.18
constexpr int guard_install = 102;   // MADV_GUARD_INSTALL, Linux 6.13
constexpr int guard_remove = 103;

int failed(int number) {
  errno = number;
  return -1;
}

int by_kernel(heap::PageSpan span, int advice) {
  return next.madvise(window.address(span.first), size_t{span.pages} * page_bytes, advice);
}

bool any_locked(heap::PageSpan span) {
  if (!any_marks.load(std::memory_order_acquire)) return false;  // acquire: pairs with make_table()
  for (uint32_t page = span.first; page < span.first + span.pages; ++page)
    if ((page_marks[page] & locked) != 0) return true;
  return false;
}

// Anonymous memory that the kernel knows how to drop: the DDR part where it is no file and never was.
bool is_plain(uint32_t page) {
  return page < window.front_pages && window.front_key == 0;
}

int drop(heap::PageSpan span, int advice) {
  // Mappings side by side, of which the kernel can drop the first.
  if (is_plain(span.first)) {
    const uint32_t plain_pages = window.front_pages - span.first;
    const int result = by_kernel({span.first, plain_pages}, advice);
    return drop({window.front_pages, span.pages - plain_pages}, advice) | result;
  }
  if (advice != dontneed_locked && any_locked(span)) return failed(EINVAL);
  if (!any_marks.load(std::memory_order_acquire)) {  // acquire: pairs with make_table()
    // The lease's own pages stay, and a private page of a file would show the file's bytes again.
    if (advice != MADV_FREE) memset(window.address(span.first), 0, size_t{span.pages} * page_bytes);
    return 0;
  }
  int result = 0;
  const HeapHeld heap;  // a fork would protect again what is being cleared
  for_each_marked(span, [&](heap::PageSpan part, Marks marks, bool) {
    if ((marks & own_mapping) != 0) {
      result |= by_kernel(part, advice);
    } else if (advice != MADV_FREE) {
      lift_protection(part);
      memset(window.address(part.first), 0, size_t{part.pages} * page_bytes);
      reapply_marks(part);
    }
  });
  return result;
}

int keep_from_children(heap::PageSpan span) {
  hold_for_good(window.address(span.first), size_t{span.pages} * page_bytes);
  if (!enter_heap_patiently()) return failed(EAGAIN);
  int result = change_marks(span, 0, not_inherited) ? 0 : failed(ENOMEM);
  for_each_marked(span, [&](heap::PageSpan part, Marks, bool shared_mapped) {
    if (result == 0 && !shared_mapped) result = by_kernel(part, MADV_DONTFORK);  // W1: shared ones are
  });
  window.heap_lock.leave();
  return result;
}

// A page that no fork since has switched, for this mark, would be shared with the next child.
int let_children_inherit(heap::PageSpan span) {
  if (!any_marks.load(std::memory_order_acquire)) return 0;  // acquire: pairs with make_table()
  int result = 0;
  for_each_marked(span, [&](heap::PageSpan part, Marks marks, bool shared_mapped) {
    if (result != 0 || (marks & not_inherited) == 0) return;
    if (shared_mapped && !make_private(part)) result = failed(EAGAIN);
    if (result == 0) result = by_kernel(part, MADV_DOFORK);
    if (result == 0 &&
        !change_marks_of(window.address(part.first), size_t{part.pages} * page_bytes, not_inherited, 0))
      result = failed(EAGAIN);
  });
  return result;
}

int wipe(heap::PageSpan span, bool wiped) {
  if (!enter_heap_patiently()) return failed(EAGAIN);
  int result = 0;
  for_each_marked(span, [&](heap::PageSpan part, Marks marks, bool) {
    if (result == 0 && (is_plain(part.first) || (marks & own_mapping) != 0))
      result = by_kernel(part, wiped ? MADV_WIPEONFORK : MADV_KEEPONFORK);
  });
  if (result == 0 && !change_marks(span, wiped_on_fork, wiped ? wiped_on_fork : Marks{0}))
    result = failed(ENOMEM);
  window.heap_lock.leave();
  return result;
}

int leave_out_of_dumps(heap::PageSpan span, int advice) {
  void* const at = window.address(span.first);
  const size_t bytes = size_t{span.pages} * page_bytes;
  if (advice == MADV_DONTDUMP) hold_for_good(at, bytes);
  if (by_kernel(span, advice) != 0) return -1;
  change_marks_of(at, bytes, not_dumped, advice == MADV_DONTDUMP ? not_dumped : Marks{0});
  return 0;
}

}  // namespace

bool advise_window(void* address, size_t bytes, int advice, int* result) {
  if (!in_window(address) || bytes == 0 || bytes > size_t{window.total_pages} * page_bytes ||
      reinterpret_cast<uintptr_t>(address) % page_bytes != 0)
    return false;
  const heap::PageSpan span = pages_of_range(address, bytes);
  const uint32_t mapped = std::atomic_ref<uint32_t>(window.mapped_pages).load(std::memory_order_relaxed);
  if (span.first + span.pages > mapped || size_t{span.pages} * page_bytes < bytes) return false;
  switch (advice) {
    case MADV_DONTNEED:
    case dontneed_locked:
    case MADV_FREE:
      if (is_plain(span.first) && is_plain(span.first + span.pages - 1)) return false;
      *result = drop(span, advice);
      return true;
    case MADV_REMOVE:
    case guard_install:
    case guard_remove:
      if (is_plain(span.first) || (marks_of(span.first) & own_mapping) != 0) return false;
      *result = failed(EINVAL);
      return true;
    case MADV_DONTFORK: *result = keep_from_children(span); return true;
    case MADV_DOFORK: *result = let_children_inherit(span); return true;
    case MADV_WIPEONFORK: *result = wipe(span, true); return true;
    case MADV_KEEPONFORK: *result = wipe(span, false); return true;
    case MADV_DONTDUMP:
    case MADV_DODUMP: *result = leave_out_of_dumps(span, advice); return true;
    default: return false;
  }
}

}  // namespace terrace::preload
