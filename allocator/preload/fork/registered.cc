// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/fork/registered.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "allocator/preload/libc/message.h"
#include "allocator/preload/migration/fold_after_fork.h"
#include "allocator/preload/window/page_marks.h"
#include "allocator/preload/window/process_look.h"
#include "allocator/preload/window/remap.h"
#include "allocator/preload/window/supervisor_link.h"

namespace terrace::preload {

std::atomic<bool> has_ring{false};

namespace {

bool any_kept = false;  // or there was; heap_lock

// What the kernel tells of a ring: "UserBufs:" and their number, then a line each: "    0: 0x7f2122659000/8192".
class BufferLines {
 public:
  void add(char byte) {
    if (byte != '\n') {
      if (bytes_ < sizeof(line_) - 1) line_[bytes_++] = byte;
      return;
    }
    line_[bytes_] = 0;
    constexpr char head[] = "UserBufs:";
    const char* number = line_ + sizeof(head) - 1;
    if (strncmp(line_, head, sizeof(head) - 1) == 0) {
      seen_ = true;
      while (*number == ' ' || *number == '\t') ++number;
      for (; digit(*number) < 10; ++number) missing_ = missing_ * 10 + digit(*number);
    } else if (missing_ > 0 && strchr(line_, ':') != nullptr) {
      --missing_;
      take();
    }
    bytes_ = 0;
  }
  // Some kernels tell the number alone while another thread is in the ring.
  bool whole() const { return seen_ && missing_ == 0; }
  bool ok() const { return ok_; }

 private:
  void take() {
    const char* at = strstr(line_, ": 0x");
    if (at == nullptr) return;  // a place without a buffer
    uint64_t address = 0, bytes = 0;
    for (at += 4; digit(*at) < 16; ++at) address = address << 4 | digit(*at);
    if (*at != '/') return;
    for (++at; digit(*at) < 10; ++at) bytes = bytes * 10 + digit(*at);
    const heap::PageSpan span = pages_of_range(reinterpret_cast<const void*>(address), bytes);
    for (uint32_t page = span.first; ok_ && page < span.first + span.pages; ++page)
      if (is_shared_mapped(page)) ok_ = change_marks({page, 1}, 0, stays_shared);
    any_kept = any_kept || span.pages > 0;
  }
  static uint32_t digit(char byte) {
    if (byte >= '0' && byte <= '9') return static_cast<uint32_t>(byte - '0');
    return byte >= 'a' && byte <= 'f' ? static_cast<uint32_t>(byte - 'a') + 10 : 99;
  }

  char line_[64] = {};
  size_t bytes_ = 0;
  uint32_t missing_ = 0;
  bool seen_ = false, ok_ = true;
};

// A cheap first look: rings are, as other things without a name in any file system, of no type.
bool can_be_ring(int fd) {
  struct stat about {};
  return terrace_raw_syscall(SYS_fstat, fd, &about) == 0 && (about.st_mode & S_IFMT) == 0;
}

class Decimal {
 public:
  explicit Decimal(int number) {
    do *--at_ = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
  }
  const char* text() const { return at_; }

 private:
  char digits_[12] = {};
  char* at_ = digits_ + sizeof(digits_) - 1;
};

bool is_ring(int descriptors, const char* name) {
  constexpr char what[] = "anon_inode:[io_uring]";
  char target[sizeof(what)];
  const long bytes = ::syscall(SYS_readlinkat, descriptors, name, target, sizeof(target));
  return bytes == sizeof(what) - 1 && memcmp(target, what, sizeof(what) - 1) == 0;
}

// A ring that another thread is in at the moment tells nothing of its buffers.
bool mark_buffers_of(int infos, const char* name) {
  constexpr int patience_yields = 20'000;
  for (int tries = 0; tries < patience_yields; ++tries) {
    const int info = static_cast<int>(::syscall(SYS_openat, infos, name, O_RDONLY | O_CLOEXEC));
    if (info < 0) return false;
    BufferLines lines;
    char part[1024];
    for (long bytes; (bytes = ::syscall(SYS_read, info, part, sizeof(part))) > 0;)
      for (long i = 0; i < bytes; ++i) lines.add(part[i]);
    close_raw(info);
    if (lines.whole() || !lines.ok()) return lines.ok();
    ::sched_yield();
  }
  return false;
}

template <typename Visit>
void for_each_kept(Visit visit) {
  if (!any_kept) return;
  for_each_marked_page([&](heap::PageSpan part, Marks marks, bool shared_mapped) {
    if ((marks & stays_shared) != 0 && shared_mapped) visit(part);
  });
}

// Of the fork under way: one behind the other, as for_each_kept() visits.
char* copies = nullptr;
size_t copied_bytes = 0;

// The pages themselves are inherited just long enough that nothing else comes to lie there in the child.
void advise_kept(int advice) {
  for_each_kept([advice](heap::PageSpan part) {
    terrace_raw_madvise(window.address(part.first), size_t{part.pages} * page_bytes, advice);
  });
}

bool copy_part(char* to, heap::PageSpan part) {
  char* const from = window.address(part.first);
  const size_t bytes = size_t{part.pages} * page_bytes;
  if (copy_pages(to, from, bytes)) return true;
  lift_protection(part);
  const bool copied = copy_pages(to, from, bytes);
  reapply_marks(part);
  return copied;
}

}  // namespace

bool mark_registered() {
  if (part_count() == 0 || links_forbidden()) return true;  // after a filter nothing is looked at any more
  // A listing costs several times as much for each descriptor, but nothing for those that are not there.
  constexpr uint64_t tried_max = 65'536;
  const uint64_t table = status_number("\nFDSize:", tried_max + 1);
  const bool lists = table > tried_max;
  int fd = 0;
  while (!lists && fd < static_cast<int>(table) && !can_be_ring(fd)) ++fd;
  if (!lists && fd == static_cast<int>(table)) return true;
  const Directory descriptors("/proc/thread-self/fd"), infos("/proc/thread-self/fdinfo");
  bool ok = true;
  const auto look = [&](const char* name) {
    if (!is_ring(descriptors.fd(), name)) return true;
    has_ring.store(true, std::memory_order_relaxed);
    return ok = mark_buffers_of(infos.fd(), name);
  };
  bool read = descriptors.fd() >= 0;
  if (lists)
    read = descriptors.for_each([&](const char* name) { return !can_be_ring(atoi(name)) || look(name); });
  for (; !lists && ok && fd < static_cast<int>(table); ++fd)
    if (can_be_ring(fd)) look(Decimal(fd).text());
  return ok && (read || !has_ring.load(std::memory_order_relaxed));
}

void keep_registered(const void* address, size_t bytes) {
  if (!in_window(address) || !enter_heap_patiently()) return;
  any_kept = change_marks(pages_of_range(address, bytes), 0, stays_shared) || any_kept;
  window.heap_lock.leave();
}

bool copy_registered() {
  size_t bytes = 0;
  for_each_kept([&](heap::PageSpan part) { bytes += size_t{part.pages} * page_bytes; });
  if (bytes == 0) return true;
  void* const made =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return false;
  copies = static_cast<char*>(made);
  copied_bytes = bytes;
  bool ok = true;
  size_t done = 0;
  for_each_kept([&](heap::PageSpan part) {
    ok = ok && copy_part(copies + done, part);
    done += size_t{part.pages} * page_bytes;
  });
  advise_kept(MADV_DOFORK);
  if (!ok) drop_copies();
  return ok;
}

void take_copies_in_child() {
  if (copies == nullptr) return;
  size_t done = 0;
  // What is taken does not count any more: the next one is found as before.
  for_each_kept([&](heap::PageSpan part) {
    char* const at = window.address(part.first);
    const size_t bytes = size_t{part.pages} * page_bytes;
    if (::mremap(copies + done, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at)
      fatal("fork: the child cannot take its copy of registered buffers");
    done += bytes;
    note_private(part);
    change_marks(part, stays_shared | locked | locks_on_fault, 0);  // locks are not inherited
    reapply_marks(part);
  });
  copies = nullptr;
}

void drop_copies() {
  if (copies == nullptr) return;
  advise_kept(MADV_DONTFORK);
  ::munmap(copies, copied_bytes);
  copies = nullptr;
}

}  // namespace terrace::preload
