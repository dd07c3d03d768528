// SPDX-License-Identifier: Apache-2.0
#include "core/os/userfaultfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iterator>

// Newer than the kernel headers that some distributions ship.
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

namespace terrace::os {
namespace {

constexpr const char* where = "open_userfaultfd";
constexpr int flags = O_CLOEXEC | O_NONBLOCK;

// By bit.
constexpr const char* feature_names[] = {
    "PAGEFAULT_FLAG_WP",
    "EVENT_FORK",
    "EVENT_REMAP",
    "EVENT_REMOVE",
    "MISSING_HUGETLBFS",
    "MISSING_SHMEM",
    "EVENT_UNMAP",
    "SIGBUS",
    "THREAD_ID",
    "MINOR_HUGETLBFS",
    "MINOR_SHMEM",
    "EXACT_ADDRESS",
    "WP_HUGETLBFS_SHMEM",
    "WP_UNPOPULATED",
    "POISON",
    "WP_ASYNC",
    "MOVE",
};

Error refused(int os_errno) {
  switch (os_errno) {
    case EPERM:
    case EACCES:
      return {.code = ErrorCode::permission_denied,
              .os_errno = os_errno,
              .where = where,
              .detail =
                  "this process gets no userfaultfd that sees faults inside system calls: it is not root "
                  "and has no CAP_SYS_PTRACE, and may not open /dev/userfaultfd. A manager (terraced) "
                  "gives its tenants the device; or `sysctl vm.unprivileged_userfaultfd=1`"};
    case ENOSYS:
    case ENOENT:
    case ENXIO:
    case ENODEV:
      return {.code = ErrorCode::unsupported,
              .os_errno = os_errno,
              .where = where,
              .detail = "this kernel has no userfaultfd (CONFIG_USERFAULTFD)"};
    case ENOTTY:
    case EINVAL:
      return {.code = ErrorCode::invalid_argument,
              .os_errno = os_errno,
              .where = where,
              .detail = "the descriptor is no /dev/userfaultfd"};
    default: return os_error(os_errno, where, "cannot make a userfaultfd");
  }
}

Result<UniqueFd> of_device(int device_fd) {
  UniqueFd made(::ioctl(device_fd, USERFAULTFD_IOC_NEW, flags));
  if (!made.valid()) return refused(errno);
  return made;
}

Result<UniqueFd> make(int device_fd) {
  if (device_fd >= 0) return of_device(device_fd);
  UniqueFd made(static_cast<int>(::syscall(SYS_userfaultfd, flags)));
  if (made.valid()) return made;
  if (errno != EPERM) return refused(errno);
  const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  return device.valid() ? of_device(device.get()) : refused(EPERM);
}

// `features` 0 asks for nothing: the answer names all there are.
Result<uint64_t> shake_hands(int fd, uint64_t features) {
  uffdio_api api{.api = UFFD_API, .features = features, .ioctls = 0};
  if (::ioctl(fd, UFFDIO_API, &api) == 0) return api.features;
  if (errno == EPERM) {
    return Error{.code = ErrorCode::permission_denied,
                 .os_errno = EPERM,
                 .where = where,
                 .detail = "UFFD_FEATURE_EVENT_FORK needs CAP_SYS_PTRACE, however the userfaultfd was got"};
  }
  return os_error(errno, where, "the kernel's userfaultfd refuses the handshake");
}

}  // namespace

Result<uint64_t> userfaultfd_features(int device_fd) {
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd probe, make(device_fd));
  return shake_hands(probe.get(), 0);
}

// Features that are not there fail the handshake without saying which: so they are asked for first, on another
// descriptor, as a handshake is final.
Result<UniqueFd> open_userfaultfd(int device_fd, uint64_t features) {
  TERRACE_ASSIGN_OR_RETURN(const uint64_t there, userfaultfd_features(device_fd));
  if (const uint64_t lacking = features & ~there; lacking != 0) {
    return Error{.code = ErrorCode::unsupported,
                 .where = where,
                 .detail = "this kernel's userfaultfd lacks " + userfaultfd_feature_names(lacking)};
  }
  TERRACE_ASSIGN_OR_RETURN(UniqueFd made, make(device_fd));
  if (auto agreed = shake_hands(made.get(), features); !agreed.ok()) return agreed.error();
  return made;
}

std::string userfaultfd_feature_names(uint64_t features) {
  std::string names;
  for (unsigned bit = 0; bit < 64; ++bit) {
    if ((features >> bit & 1) == 0) continue;
    if (!names.empty()) names += ", ";
    names += bit < std::size(feature_names) ? feature_names[bit] : "bit " + std::to_string(bit);
  }
  return names;
}

}  // namespace terrace::os
