// SPDX-License-Identifier: Apache-2.0
// Doctor: kernel version and the system calls that migration and I/O stand on.
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "core/base/time_slice.h"
#include "core/base/unique_fd.h"
#include "daemon/doctor/checks.h"

namespace terrace::doctor {
namespace {

std::string words(int os_errno) {
  return std::strerror(os_errno);
}

// A userfaultfd that also sees faults taken inside system calls, by either way; -1 with errno set.
int open_full_userfaultfd() {
  const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device.valid()) {
    const int fd = ioctl(device.get(), USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) return fd;
  }
  return static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
}

int open_user_mode_userfaultfd() {
  return static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
}

struct Mapping {
  void* address = MAP_FAILED;
  size_t bytes = 0;
  Mapping(size_t length, int fd)
      : address(mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)), bytes(length) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (valid()) munmap(address, bytes);
  }
  bool valid() const { return address != MAP_FAILED; }
};

// Protects one page of shared memory against writes, as demotion of a granule does. Returns "" or what failed.
std::string try_write_protect(int uffd, uint64_t features) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (ioctl(uffd, UFFDIO_API, &api) != 0) return "UFFDIO_API: " + words(errno);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const UniqueFd memory(memfd_create("terrace-doctor", MFD_CLOEXEC));
  if (!memory.valid() || ftruncate(memory.get(), static_cast<off_t>(page)) != 0)
    return "memfd: " + words(errno);
  const Mapping mapping(page, memory.get());
  if (!mapping.valid()) return "mmap: " + words(errno);
  *static_cast<volatile char*>(mapping.address) = 1;

  uffdio_register registration{};
  registration.range.start = reinterpret_cast<uint64_t>(mapping.address);
  registration.range.len = page;
  registration.mode = UFFDIO_REGISTER_MODE_WP;
  if (ioctl(uffd, UFFDIO_REGISTER, &registration) != 0) return "UFFDIO_REGISTER: " + words(errno);
  uffdio_writeprotect protect{};
  protect.range = registration.range;
  protect.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  if (ioctl(uffd, UFFDIO_WRITEPROTECT, &protect) != 0) return "UFFDIO_WRITEPROTECT: " + words(errno);
  return "";
}

// linux/fs.h of Debian 12 is older than PAGEMAP_SCAN (Linux 6.7); the layout is the kernel's, for ever.
struct PagemapScan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct PagemapRegion {
  uint64_t start, end, categories;
};
constexpr unsigned long pagemap_scan_ioctl = _IOWR('f', 16, PagemapScan);
constexpr uint64_t page_is_present = 1 << 3;

}  // namespace

Check check_kernel() {
  Check check{.name = "kernel", .essential = true};
  utsname name{};
  uname(&name);
  check.found = std::string(name.sysname) + " " + name.release + " on " + name.machine;
  unsigned major = 0;
  unsigned minor = 0;
  if (std::sscanf(name.release, "%u.%u", &major, &minor) != 2) major = 0;
  const unsigned version = major * 1000 + minor;
  if (std::strcmp(name.machine, "x86_64") != 0) {
    check.state = CheckState::limited;
    check.essential = false;
    check.meaning = "Terrace is tested on x86-64 only";
    check.fix = "use an x86-64 machine where it matters";
  } else if (version < 5'010) {
    check.state = CheckState::missing;
    check.meaning = "older than 5.10: the daemon needs newer system calls";
    check.fix = "install Linux 6.1 or newer (Debian 12 has it)";
  } else if (version < 6'007) {
    check.state = CheckState::limited;
    check.meaning = "pools, leases and tensors work; finding hot granules needs PAGEMAP_SCAN of Linux 6.7";
    check.fix = "install Linux 6.7 or newer (bookworm-backports) for automatic tiering";
  } else {
    check.meaning = "new enough for everything";
  }
  return check;
}

Check check_userfaultfd() {
  Check check{.name = "userfaultfd"};
  const std::string unprivileged = read_line("/proc/sys/vm/unprivileged_userfaultfd");
  const bool device_usable = access("/dev/userfaultfd", R_OK | W_OK) == 0;
  const bool device_there = access("/dev/userfaultfd", F_OK) == 0;
  check.found = std::string("/dev/userfaultfd ") +
                (device_usable  ? "usable"
                 : device_there ? "not for this user"
                                : "absent") +
                ", vm.unprivileged_userfaultfd=" + (unprivileged.empty() ? "absent" : unprivileged);
  const UniqueFd full(open_full_userfaultfd());
  if (full.valid()) {
    check.meaning = "granules can be moved under a running program, also while it is inside a system call";
    return check;
  }
  const int full_errno = errno;
  const UniqueFd user_mode(open_user_mode_userfaultfd());
  if (user_mode.valid()) {
    check.state = CheckState::limited;
    check.meaning =
        "this user sees user-mode faults only, so moving a granule could fail a program's system call with "
        "EFAULT; programs get a usable one from a daemon that runs as root, with clients.userfaultfd = \"all\" "
        "(userfaultfd_device)";
    check.fix =
        "run terraced as root, or let this user open /dev/userfaultfd, or set vm.unprivileged_userfaultfd=1";
  } else {
    check.state = CheckState::missing;
    check.found += ", the call fails: " + words(full_errno);
    check.meaning = "tensors move only while nobody holds them, and unmodified programs are not migrated";
    check.fix = full_errno == ENOSYS
                    ? "use a kernel with CONFIG_USERFAULTFD"
                    : "run as root, or set vm.unprivileged_userfaultfd=1; in a container allow the call in its "
                      "seccomp profile";
  }
  return check;
}

Check check_userfaultfd_shmem() {
  Check check{.name = "userfaultfd_shmem"};
  UniqueFd probe(open_full_userfaultfd());
  if (!probe.valid()) probe.reset(open_user_mode_userfaultfd());
  uffdio_api api{};
  api.api = UFFD_API;
  if (!probe.valid() || ioctl(probe.get(), UFFDIO_API, &api) != 0) {
    check.state = CheckState::missing;
    check.found = "no userfaultfd to ask";
    check.meaning = "live demotion is off";
    check.fix = "see userfaultfd";
    return check;
  }
  struct Feature {
    uint64_t bit;
    const char* name;
  };
  constexpr Feature features[] = {{UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "WP_HUGETLBFS_SHMEM"},
                                  {UFFD_FEATURE_MINOR_SHMEM, "MINOR_SHMEM"},
                                  {UFFD_FEATURE_MISSING_SHMEM, "MISSING_SHMEM"},
                                  {UFFD_FEATURE_EVENT_REMAP, "EVENT_REMAP"}};
  std::string absent;
  for (const Feature& feature : features) {
    if ((api.features & feature.bit) == 0) absent += (absent.empty() ? "" : ", ") + std::string(feature.name);
  }
  // The handshake is once per descriptor: a second one for the trial.
  UniqueFd trial(open_full_userfaultfd());
  if (!trial.valid()) trial.reset(open_user_mode_userfaultfd());
  const std::string failed =
      trial.valid()
          ? try_write_protect(trial.get(), UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_PAGEFAULT_FLAG_WP)
          : words(errno);
  if (!failed.empty()) {
    check.state = CheckState::missing;
    check.found = "write protection of shared memory fails: " + failed;
    check.meaning = "live demotion is off: granules move only while nobody uses them";
    check.fix = "use Linux 5.19 or newer with CONFIG_PTE_MARKER_UFFD_WP";
  } else if (!absent.empty()) {
    check.state = CheckState::limited;
    check.found = "write protection works; absent: " + absent;
    check.meaning = "demotion under running programs works, promotion falls back to slower ways";
    check.fix = "use a newer kernel";
  } else {
    check.found = "write protection of a shared page tried and works; minor, missing and remap events offered";
    check.meaning = "granules can be demoted and promoted under running programs";
  }
  return check;
}

Check check_pagemap_scan() {
  Check check{.name = "pagemap_scan"};
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const UniqueFd memory(memfd_create("terrace-doctor", MFD_CLOEXEC));
  const bool sized = memory.valid() && ftruncate(memory.get(), static_cast<off_t>(2 * page)) == 0;
  const Mapping mapping(2 * page, memory.get());
  if (!pagemap.valid() || !sized || !mapping.valid()) {
    check.state = CheckState::missing;
    check.found = "cannot be tried: " + words(errno);
    check.meaning = "hot granules cannot be told from cold ones";
    check.fix = "mount /proc, and let this process read /proc/self/pagemap";
    return check;
  }
  *static_cast<volatile char*>(mapping.address) = 1;  // the first page is present, the second is not
  PagemapRegion region{};
  PagemapScan scan{};
  scan.size = sizeof(scan);
  scan.start = reinterpret_cast<uint64_t>(mapping.address);
  scan.end = scan.start + 2 * page;
  scan.vec = reinterpret_cast<uint64_t>(&region);
  scan.vec_len = 1;
  scan.category_mask = page_is_present;
  scan.return_mask = page_is_present;
  const int regions = ioctl(pagemap.get(), pagemap_scan_ioctl, &scan);
  if (regions == 1 && region.start == scan.start && region.end == scan.start + page) {
    check.found = "PAGEMAP_SCAN tried and right";
    check.meaning = "hot granules are found by one system call a sweep";
  } else {
    check.state = CheckState::missing;
    check.found = regions < 0 ? "PAGEMAP_SCAN: " + words(errno) : "PAGEMAP_SCAN gives a wrong answer";
    check.meaning = "automatic tiering of unmodified programs is off; hints and guards still work";
    check.fix = "use Linux 6.7 or newer";
  }
  return check;
}

Check check_io_uring() {
  Check check{.name = "io_uring"};
  io_uring_params parameters{};
  const UniqueFd ring(static_cast<int>(syscall(SYS_io_uring_setup, 4, &parameters)));
  if (ring.valid()) {
    check.found = "io_uring_setup works";
    check.meaning = "tensor import and export use queued I/O";
    return check;
  }
  const int failed = errno;
  const std::string disabled = read_line("/proc/sys/kernel/io_uring_disabled");
  check.state = CheckState::limited;
  check.found =
      "io_uring_setup: " + words(failed) + (disabled.empty() ? "" : ", kernel.io_uring_disabled=" + disabled);
  check.meaning = "tensor files are read with ordinary system calls, slower";
  check.fix = failed == ENOSYS                      ? "use a kernel with CONFIG_IO_URING"
              : disabled.empty() || disabled == "0" ? "allow io_uring in the container's seccomp profile"
                                                    : "set kernel.io_uring_disabled=0";
  return check;
}

Check check_time_slice() {
  Check check{.name = "time_slice"};
  Result<uint64_t> slice = uint64_t{0};
  std::thread([&slice] { slice = take_short_slice(); }).join();  // this thread keeps its own
  if (slice.ok() && *slice != 0 && *slice <= short_slice_ns) {
    check.found = "threads that wait get a slice of " + format_duration(*slice);
    check.meaning = "commits and answers of the manager are soon noticed on a busy machine, too";
    return check;
  }
  check.state = CheckState::limited;
  check.found = slice.ok() ? "the kernel has one slice for all threads" : slice.error().to_string();
  check.meaning = "on a machine whose processors are busy a commit is noticed some 3 to 4 ms late";
  check.fix = slice.ok() ? "use Linux 6.12 or newer, or keep a processor free for terraced"
                         : "allow sched_setattr in the container's seccomp profile";
  return check;
}

}  // namespace terrace::doctor
