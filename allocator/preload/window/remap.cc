// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/remap.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "allocator/preload/libc/message.h"
#include "allocator/preload/libc/raw_calls.h"
#include "allocator/preload/window/mapped_blocks.h"
#include "allocator/preload/window/page_marks.h"

namespace terrace::preload {

bool copy_pages(char* to, char* from, size_t bytes) {
  constexpr size_t step = 1u << 30;
  for (size_t done = 0; done < bytes;) {
    const size_t more = bytes - done < step ? bytes - done : step;
    const iovec into{to + done, more}, out_of{from + done, more};
    const long copied = terrace_raw_call(SYS_process_vm_readv, ::getpid(), reinterpret_cast<long>(&into), 1,
                                         reinterpret_cast<long>(&out_of), 1, 0);
    if (copied <= 0) {
      errno = EFAULT;
      return false;
    }
    done += static_cast<size_t>(copied);
  }
  return true;
}

namespace {

constexpr int dont_unmap = 4;        // MREMAP_DONTUNMAP
constexpr int dontneed_locked = 24;  // MADV_DONTNEED_LOCKED
constexpr int plain_protection = PROT_READ | PROT_WRITE, plain_flags = MAP_PRIVATE | MAP_ANONYMOUS;

Marks marks_at(const char* at) {
  return in_window(at) ? marks_of(window.page_of(at)) : Marks{0};
}

// Visits stretches of equal marks: visit(offset, bytes, Marks), until it says false.
template <typename Visit>
bool for_each_stretch_of_marks(const char* from, size_t bytes, Visit visit) {
  for (size_t done = 0; done < bytes;) {
    const Marks marks = marks_at(from + done);
    size_t more = page_bytes;
    while (done + more < bytes && marks_at(from + done + more) == marks) more += page_bytes;
    if (!visit(done, more, marks)) return false;
    done += more;
  }
  return true;
}

bool move_by_kernel(char* to, char* from, size_t bytes) {
  return terrace_raw_mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | dont_unmap, to) == to;
}

// A page at a time, since the kernel moves no two mappings as one, or stops between them. False: none has moved.
bool move_own_pages(char* to, char* from, size_t bytes) {
  for (size_t done = 0; done < bytes; done += page_bytes) {
    if (move_by_kernel(to + done, from + done, page_bytes)) continue;
    while (done > 0) {
      done -= page_bytes;
      if (!move_by_kernel(from + done, to + done, page_bytes))
        fatal("mremap: the kernel moves a page, and does not move it back");
    }
    return false;
  }
  return true;
}

bool marks_differ(const char* from, size_t bytes) {
  const Marks first = marks_at(from);
  return (first & own_mapping) != 0 ||
         !for_each_stretch_of_marks(from, bytes,
                                    [first](size_t, size_t, Marks marks) { return marks == first; });
}

// Of what copy_with_marks() did that cannot be left: own pages. errno is left alone.
void move_back(char* to, char* from, size_t bytes) {
  const int saved = errno;
  for_each_stretch_of_marks(from, bytes, [&](size_t at, size_t part, Marks marks) {
    if ((marks & own_mapping) != 0 && !move_own_pages(from + at, to + at, part))
      fatal("mremap: the kernel moves pages, and does not move them back");
    return true;
  });
  errno = saved;
}

// The old pages go with what the program has made of them. What cannot be read (guard pages, a key) is for the
// copy's time, to other threads as well. Only the kernel knows what the program's own mappings are.
bool copy_with_marks(char* to, char* from, size_t bytes) {
  size_t done = 0;
  const bool all = for_each_stretch_of_marks(from, bytes, [&](size_t at, size_t part, Marks marks) {
    done = at;
    if ((marks & own_mapping) != 0) return move_own_pages(to + at, from + at, part);
    const bool protects = (marks & is_protected) != 0;
    const bool hidden = protects && ((protection_of(marks) & plain_protection) == 0 || key_of(marks) != 0);
    if (hidden) apply_marks(from + at, part, protection_marks(PROT_READ, 0));
    const bool copied = copy_pages(to + at, from + at, part);
    const int saved = errno;
    if (hidden) apply_marks(from + at, part, static_cast<Marks>(marks & all_protection));
    if (copied) apply_marks(to + at, part, marks);
    errno = saved;
    return copied;
  });
  if (!all) move_back(to, from, done);
  return all;
}

// Pages of private anonymous memory go to their new place as they are, with what other threads store meanwhile;
// zeros are left. False: it has to be a copy.
bool move_pages_to(char* to, char* from, size_t bytes) {
  const heap::PageSpan span = pages_of_range(from, bytes);
  if (window.front_key != 0 || span.first + span.pages > window.front_pages) return false;
  // Several mappings, of which the kernel might move some only, are copied.
  if (marks_differ(from, bytes)) return false;
  const int saved = errno;
  const bool moved = move_by_kernel(to, from, bytes);
  errno = saved;
  return moved;
}

// What was moved and the zeros behind it become one mapping: the kernel's mremap takes no two.
void* lengthen(char* at, size_t bytes, size_t new_bytes, bool fixed, Marks marks) {
  if (new_bytes == bytes) return at;
  terrace_raw_munmap(at + bytes, new_bytes - bytes);
  void* const longer = terrace_raw_mremap(at, bytes, new_bytes, fixed ? 0 : MREMAP_MAYMOVE);
  if (longer != MAP_FAILED) return longer;
  // There are two kinds of pages: the last one's mapping, then.
  const size_t before = bytes - page_bytes;
  if (terrace_raw_mremap(at + before, page_bytes, new_bytes - before, 0) != MAP_FAILED) return at;
  // Another thread's mapping came in between, or the limit of mappings.
  if (terrace_raw_mmap(at + bytes, new_bytes - bytes, plain_protection, plain_flags | fixed_noreplace, -1, 0) !=
      at + bytes)
    return MAP_FAILED;
  apply_marks(at + bytes, new_bytes - bytes, marks);
  return at;
}

void* refuse(int number) {
  errno = number;
  return MAP_FAILED;
}

bool grow_in_place(char* end, size_t more) {
  const Marks marks = marks_at(end - page_bytes);
  if ((marks & own_mapping) != 0 || !grow_served(end, more)) return false;
  if ((marks & is_protected) != 0 && key_of(marks) == 0) mprotect(end, more, protection_of(marks));
  if (key_of(marks) != 0) pkey_mprotect(end, more, protection_of(marks), key_of(marks));
  return true;
}

bool has_invalid_arguments(const char* old_address, size_t old_bytes, size_t new_bytes, int flags,
                           const void* new_address) {
  const bool fixed = (flags & MREMAP_FIXED) != 0, keep = (flags & dont_unmap) != 0;
  return !is_aligned(old_address) || old_bytes == 0 || new_bytes == 0 ||
         (flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED | dont_unmap)) != 0 ||
         ((fixed || keep) && (flags & MREMAP_MAYMOVE) == 0) || (keep && old_bytes != new_bytes) ||
         (fixed && !is_aligned(new_address));
}

}  // namespace

void* remap(char* old_address, size_t old_bytes, size_t new_bytes, int flags, void* new_address) {
  const bool fixed = (flags & MREMAP_FIXED) != 0, keep = (flags & dont_unmap) != 0;
  if (has_invalid_arguments(old_address, old_bytes, new_bytes, flags, new_address)) return refuse(EINVAL);
  old_bytes = whole_pages(old_bytes);
  new_bytes = whole_pages(new_bytes);
  if (old_bytes == 0 || new_bytes == 0) return refuse(EINVAL);  // more than there are addresses
  if (!fixed && !keep && new_bytes <= old_bytes) {
    if (new_bytes < old_bytes && munmap(old_address + new_bytes, old_bytes - new_bytes) != 0) return MAP_FAILED;
    return old_address;
  }
  if (!fixed && !keep && grow_in_place(old_address + old_bytes, new_bytes - old_bytes)) return old_address;
  if ((flags & MREMAP_MAYMOVE) == 0) return refuse(ENOMEM);  // something lies behind it always
  char* const wanted = fixed ? static_cast<char*>(new_address) : nullptr;
  if (fixed && wanted < old_address + old_bytes && old_address < wanted + new_bytes) return refuse(EINVAL);
  // Plain memory, which the kernel moves from then on.
  void* made = fixed ? mmap(wanted, new_bytes, plain_protection, plain_flags | MAP_FIXED, -1, 0)
                     : terrace_raw_mmap(nullptr, new_bytes, plain_protection, plain_flags, -1, 0);
  if (made == MAP_FAILED) return MAP_FAILED;
  auto* const to = static_cast<char*>(made);
  const size_t kept_bytes = old_bytes < new_bytes ? old_bytes : new_bytes;
  const Marks last = marks_at(old_address + kept_bytes - page_bytes);
  const bool moved = move_pages_to(to, old_address, kept_bytes);
  if (!moved && !copy_with_marks(to, old_address, kept_bytes)) {
    const int saved = errno;
    munmap(made, new_bytes);
    return refuse(saved);
  }
  if (moved || (last & own_mapping) != 0)
    made = lengthen(to, kept_bytes, new_bytes, fixed, last);
  else if (new_bytes > kept_bytes)
    apply_marks(to + kept_bytes, new_bytes - kept_bytes, last);
  if (made == MAP_FAILED) {
    if (moved && !move_by_kernel(old_address, to, kept_bytes))
      fatal("mremap: the kernel moves pages, and does not move them back");
    if (!moved) move_back(to, old_address, kept_bytes);
    munmap(to, kept_bytes);
    return refuse(ENOMEM);
  }
  if (moved && keep) return made;
  const auto drops = [&](int advice) { return madvise(old_address, old_bytes, advice) == 0; };
  if (keep ? !drops(MADV_DONTNEED) && !drops(dontneed_locked) : munmap(old_address, old_bytes) != 0)
    return MAP_FAILED;
  return made;
}

}  // namespace terrace::preload
