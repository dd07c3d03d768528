// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/mover.h"

#include <errno.h>
#include <sys/mman.h>
#include <time.h>

#include "core/base/check.h"
#include "tiering/migration/copy.h"

namespace terrace::tiering {
namespace {

constexpr size_t parallel_from_bytes = 4u << 20;

bool map_at(char* at, size_t bytes, const Backing& backing) {
  return ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, backing.fd,
                static_cast<off_t>(backing.offset)) == at;
}

// The same for every mapping of a range, or neighbours would not join: a fork does not inherit it (a child's
// stores would be its parent's), and pages that are first touched here may be huge.
bool set_attributes(char* at, size_t bytes, bool huge) {
  if (huge) ::madvise(at, bytes, MADV_HUGEPAGE);  // a wish
  return ::madvise(at, bytes, MADV_DONTFORK) == 0;
}

// Of a move that is undone. A device that was fenced meanwhile maps nothing any more, but what is mapped of it
// already stays, and can be mapped a second time: an access is a signal there, as before the move.
bool map_source_again(char* at, size_t bytes, const Backing& from) {
  if (map_backing(at, bytes, from)) return true;
  if (::mremap(from.alias, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at) return false;
  return set_attributes(at, bytes, from.huge);
}

bool is_mapped(char* at, size_t bytes) {
  return ::msync(at, bytes, MS_ASYNC) == 0;
}

}  // namespace

bool map_backing(char* at, size_t bytes, const Backing& backing) {
  return map_at(at, bytes, backing) && set_attributes(at, bytes, backing.huge);
}

uint64_t monotonic_ns() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

int Mover::start(int userfault_device, size_t scratch_bytes) {
  void* scratch = ::mmap(nullptr, scratch_bytes + (2u << 20), PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (scratch == MAP_FAILED) return errno;
  const uintptr_t start = reinterpret_cast<uintptr_t>(scratch);
  const uintptr_t aligned = (start + (2u << 20) - 1) & ~uintptr_t{(2u << 20) - 1};
  if (aligned > start) ::munmap(scratch, aligned - start);
  if (const size_t tail = start + (2u << 20) - aligned; tail > 0)
    ::munmap(reinterpret_cast<void*>(aligned + scratch_bytes), tail);
  scratch_ = reinterpret_cast<char*>(aligned);
  scratch_bytes_ = scratch_bytes;
  const int failed = userfault_.start(userfault_device);
  if (failed != 0) {
    ::munmap(scratch_, scratch_bytes_);
    scratch_ = nullptr;
  }
  return failed;
}

void Mover::abandon() {
  team_.abandon();
  userfault_.abandon();
  pins_.stop();
  scratch_ = nullptr;
  scratch_bytes_ = 0;
}

void Mover::stop() {
  team_.stop();
  userfault_.stop();
  pins_.stop();
  if (scratch_ != nullptr) ::munmap(scratch_, scratch_bytes_);
  scratch_ = nullptr;
  scratch_bytes_ = 0;
}

int Mover::set_copy_threads(uint32_t threads) {
  return team_.start(threads);
}

void Mover::set_copy(CopyBlock by) {
  copy_ = by;
  team_.set_copy(by);
}

bool Mover::copy(char* to, const char* from, size_t bytes, MoveTimes* times) {
  const uint64_t begin_ns = monotonic_ns();
  times->lost =
      !(bytes < parallel_from_bytes ? copy_block(copy_, to, from, bytes) : team_.copy(to, from, bytes));
  if (!times->lost) times->copy_ns = monotonic_ns() - begin_ns;
  return !times->lost;
}

bool Mover::map_aside(size_t bytes, const Backing& backing) {
  if (bytes > scratch_bytes_) {
    errno = EINVAL;
    return false;
  }
  return map_at(scratch_, bytes, backing) && set_attributes(scratch_, bytes, backing.huge);
}

bool Mover::put_in_place(char* at, size_t bytes, const Backing& backing) {
  if (::mremap(scratch_, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, at) == at) return true;
  // Not every kernel and file can; what was there may be gone.
  if (!map_at(at, bytes, backing)) return false;
  set_attributes(at, bytes, backing.huge);
  return true;
}

void Mover::clear_scratch(size_t bytes) {
  ::mmap(scratch_, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

int Mover::demote(char* at, size_t bytes, const Backing& from, const Backing& to, MoveTimes* times) {
  // Readers must wait as well: a page that is pinned for reading after the question would be left.
  if (proves()) return promote(at, bytes, from, to, times);
  if (!map_aside(bytes, to)) return errno;
  int failed = userfault_.register_write_protect(at, bytes);
  if (failed != 0) return failed;
  const uint64_t begin_ns = monotonic_ns();
  failed = userfault_.write_protect(at, bytes, true);
  if (failed == 0) {
    if (!copy(to.alias, from.alias, bytes, times))
      failed = EFAULT;
    else if (!put_in_place(at, bytes, to))
      failed = errno;
  }
  if (failed == 0) {
    // The new mapping is not registered; those who slept on the old one look again.
    failed = userfault_.wake(at, bytes);
    times->stall_ns = monotonic_ns() - begin_ns;
    TERRACE_CHECK(failed == 0, "sleepers of a finished move cannot be woken");
    clear_scratch(bytes);
    return 0;
  }
  // A failed mmap leaves what was there, or nothing.
  if (!is_mapped(at, bytes) && !map_source_again(at, bytes, from))
    check_failed("map_source_again", __FILE__, __LINE__,
                 "the kernel took a granule's mapping away and does not give it back");
  userfault_.write_protect(at, bytes, false);
  userfault_.unregister(at, bytes);
  times->stall_ns = monotonic_ns() - begin_ns;
  return failed;
}

bool Mover::copy_own_pages(char* to, const char* from, size_t bytes) {
  constexpr size_t page_bytes = 4096, chunk = 512;
  bool own[chunk];
  for (size_t done = 0; done < bytes; done += chunk * page_bytes) {
    const size_t left = (bytes - done) / page_bytes, pages = left < chunk ? left : chunk;
    if (!userfault_.own_pages(from + done, pages, own)) return false;
    for (size_t page = 0; page < pages;) {
      size_t end = page + 1;
      while (end < pages && own[end] == own[page]) ++end;
      if (own[page])
        copy_streamed(to + done + page * page_bytes, from + done + page * page_bytes,
                      (end - page) * page_bytes);
      page = end;
    }
  }
  return true;
}

int Mover::fold(char* at, size_t bytes, const Backing& file, MoveTimes* times) {
  // Pages that nobody stored into are the file's own and need no copy; without a translation they could not be
  // told from others.
  if (!map_aside(bytes, file) || ::madvise(at, bytes, MADV_POPULATE_READ) != 0) return errno;
  int failed = userfault_.register_write_protect(at, bytes);
  if (failed != 0) return failed;
  const uint64_t begin_ns = monotonic_ns();
  failed = userfault_.write_protect(at, bytes, true);
  if (failed == 0) {
    const uint64_t copy_begin_ns = monotonic_ns();
    if (!copy_own_pages(file.alias, at, bytes)) failed = EIO;
    times->copy_ns = monotonic_ns() - copy_begin_ns;
    if (failed == 0 && !put_in_place(at, bytes, file)) {
      failed = errno;
      // The file has all of it by now.
      if (!is_mapped(at, bytes)) {
        if (!map_at(at, bytes, file))
          check_failed("map_at", __FILE__, __LINE__,
                       "the kernel took a granule's mapping away and does not give it back");
        failed = 0;
      }
    }
  }
  if (failed == 0) {
    failed = userfault_.wake(at, bytes);
    times->stall_ns = monotonic_ns() - begin_ns;
    TERRACE_CHECK(failed == 0, "sleepers of a folded run cannot be woken");
    clear_scratch(bytes);
    return 0;
  }
  userfault_.write_protect(at, bytes, false);
  userfault_.unregister(at, bytes);
  times->stall_ns = monotonic_ns() - begin_ns;
  return failed;
}

// Nobody got past the registered target, so the source is as the program left it.
int Mover::put_back(char* at, size_t bytes, const Backing& from) {
  if (!map_aside(bytes, from) || !put_in_place(at, bytes, from)) {
    if (!map_source_again(at, bytes, from))
      check_failed("map_source_again", __FILE__, __LINE__,
                   "the kernel does not give back the mapping of a granule whose move is undone");
  }
  const int failed = userfault_.wake(at, bytes);
  clear_scratch(bytes);
  return failed;
}

int Mover::promote(char* at, size_t bytes, const Backing& from, const Backing& to, MoveTimes* times) {
  if (!map_aside(bytes, to)) return errno;
  int failed = userfault_.register_missing(scratch_, bytes);
  // With mlockall(MCL_FUTURE) the new mapping has its pages at once, and accesses to them would not wait.
  // Advice to drop them is refused while they are locked.
  if (failed == 0 && (::munlock(scratch_, bytes) != 0 || ::madvise(scratch_, bytes, MADV_DONTNEED) != 0))
    failed = errno;
  // Refused where the program has a userfaultfd of its own there, whose registration the switch would end. Only
  // shared memory can be registered so, and only that is proved.
  if (failed == 0 && proves()) failed = userfault_.register_write_protect(at, bytes);
  if (failed != 0) {
    userfault_.unregister(scratch_, bytes);
    return failed;
  }
  const uint64_t begin_ns = monotonic_ns();
  // The scratch range stays mapped (DONTUNMAP): a hole there could be taken by another thread's mmap.
  if (::mremap(scratch_, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, at) != at) {
    failed = errno;
    // The kernel may have taken the old mapping away before it failed.
    if (!map_source_again(at, bytes, from))
      check_failed("map_source_again", __FILE__, __LINE__,
                   "the kernel took a granule's mapping away and does not give it back");
    userfault_.unregister(scratch_, bytes);
    return failed;
  }
  if (proves()) times->pins = pins_.ask(from.alias, bytes);
  if (times->pins != Pins::none || !copy(to.alias, from.alias, bytes, times)) {
    failed = put_back(at, bytes, from);
    times->stall_ns = monotonic_ns() - begin_ns;
    TERRACE_CHECK(failed == 0, "sleepers of a move that was undone cannot be woken");
    return times->lost ? EFAULT : EBUSY;
  }
  failed = userfault_.unregister(at, bytes);
  times->stall_ns = monotonic_ns() - begin_ns;
  // The scratch place is no mapping of the file any more, and not registered: whoever looks there must not
  // wait. It is never a hole either.
  clear_scratch(bytes);
  TERRACE_CHECK(failed == 0, "a promoted run stays registered: accesses would wait for ever");
  return 0;
}

}  // namespace terrace::tiering
