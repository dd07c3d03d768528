// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/pins.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

namespace terrace::tiering {
namespace {

constexpr size_t huge_bytes = 2u << 20, page_bytes = 4096;
constexpr int madv_collapse = 25;  // Linux 6.1; newer than Debian 12's headers

// linux/fs.h of Debian 12 is older than PAGEMAP_SCAN (Linux 6.7); the layout is the kernel's, for ever.
struct PageRegion {
  uint64_t start, end, categories;
};
struct ScanArgument {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask,
      category_anyof_mask, return_mask;
};
constexpr unsigned long pagemap_scan = _IOWR('f', 16, ScanArgument);
constexpr uint64_t page_is_huge = 1u << 6;

constexpr int trials = 8;  // the kernel may be busy with a page for a moment
constexpr timespec trial_pause{.tv_sec = 0, .tv_nsec = 2'000'000};

void touch(const char* at) {
  [[maybe_unused]] const char byte = *static_cast<const volatile char*>(at);
}

}  // namespace

int PinQuestion::start() {
  pagemap_fd_ = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap_fd_ < 0) return errno;
  const int failed = try_it();
  if (failed != 0) stop();
  return failed;
}

void PinQuestion::stop() {
  if (pagemap_fd_ >= 0) ::close(pagemap_fd_);
  pagemap_fd_ = -1;
}

// Mapped here by one huge entry: so it is one huge page.
bool PinQuestion::is_huge(const char* at) const {
  PageRegion region{};
  ScanArgument scan{};
  scan.size = sizeof(scan);
  scan.start = reinterpret_cast<uintptr_t>(at);
  scan.end = scan.start + huge_bytes;
  scan.vec = reinterpret_cast<uintptr_t>(&region);
  scan.vec_len = 1;
  scan.category_mask = scan.return_mask = page_is_huge;
  return ::ioctl(pagemap_fd_, pagemap_scan, &scan) == 1 && region.start == scan.start && region.end == scan.end;
}

Pins PinQuestion::prepare(char* alias, size_t bytes, bool* joined) {
  *joined = false;
  if (bytes % huge_bytes != 0 || reinterpret_cast<uintptr_t>(alias) % huge_bytes != 0) return Pins::unknown;
  for (size_t done = 0; done < bytes; done += huge_bytes) {
    touch(alias + done);
    if (is_huge(alias + done)) continue;
    *joined = true;
    if (::madvise(alias + done, huge_bytes, madv_collapse) != 0)
      return errno == EAGAIN || errno == EBUSY ? Pins::some : Pins::unknown;
    touch(alias + done);
    if (!is_huge(alias + done)) return Pins::some;  // split meanwhile
  }
  return Pins::none;
}

Pins PinQuestion::ask_one(char* at) {
  touch(at);
  if (!is_huge(at)) return Pins::some;  // split since prepare(), by others: nothing can be said
  if (::madvise(at + page_bytes, page_bytes, MADV_COLD) != 0) return Pins::unknown;
  touch(at);
  if (is_huge(at)) return Pins::some;
  // A process that must not map huge pages (any more) would see small ones, split or not.
  return ::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0 ? Pins::none : Pins::unknown;
}

Pins PinQuestion::ask(char* alias, size_t bytes) {
  for (size_t done = 0; done < bytes; done += huge_bytes)
    if (const Pins pins = ask_one(alias + done); pins != Pins::none) return pins;
  return Pins::none;
}

int PinQuestion::try_it() {
  const int fd = ::memfd_create("terrace-pins", MFD_CLOEXEC);
  if (fd < 0) return errno;
  int ends[2] = {-1, -1};
  void* place = MAP_FAILED;
  char* at = nullptr;
  int failed = 0;
  if (::pipe2(ends, O_CLOEXEC) != 0 || ::ftruncate(fd, huge_bytes) != 0) failed = errno;
  if (failed == 0) {
    place = ::mmap(nullptr, 2 * huge_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) failed = errno;
  }
  if (failed == 0) {
    at = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(place) + huge_bytes - 1) & ~(huge_bytes - 1));
    if (::mmap(at, huge_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != at ||
        ::madvise(at, huge_bytes, MADV_DONTFORK) != 0 || ::madvise(at, huge_bytes, MADV_HUGEPAGE) != 0 ||
        ::madvise(at, huge_bytes, MADV_POPULATE_WRITE) != 0)
      failed = errno;
  }
  bool joined = false;
  Pins is_free = Pins::unknown, is_pinned = Pins::unknown;
  for (int i = 0; failed == 0 && i < trials && is_free != Pins::none; ++i) {
    if (i > 0) ::nanosleep(&trial_pause, nullptr);
    is_free = prepare(at, huge_bytes, &joined);
    if (is_free == Pins::none) is_free = ask(at, huge_bytes);
    if (is_free == Pins::unknown) break;
  }
  for (int i = 0; is_free == Pins::none && i < trials; ++i)
    if (prepare(at, huge_bytes, &joined) == Pins::none) {
      const iovec page{at + 7 * page_bytes, page_bytes};
      if (::syscall(SYS_vmsplice, ends[1], &page, 1, 0) == static_cast<long>(page_bytes))
        is_pinned = ask(at, huge_bytes);
      break;
    }
  if (failed == 0 && (is_free != Pins::none || is_pinned != Pins::some)) failed = EOPNOTSUPP;
  if (place != MAP_FAILED) ::munmap(place, 2 * huge_bytes);
  for (const int end : ends)
    if (end >= 0) ::close(end);
  ::close(fd);
  return failed;
}

}  // namespace terrace::tiering
