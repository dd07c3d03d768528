// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/userfault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace terrace::tiering {
namespace {

constexpr uint64_t features_needed = UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_MINOR_SHMEM |
                                     UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_EVENT_REMAP;
constexpr size_t reader_stack_bytes = 256 * 1024;
constexpr uint64_t pagemap_write_protected = uint64_t{1} << 57;  // Documentation/admin-guide/mm/pagemap.rst
constexpr uint64_t pagemap_file = uint64_t{1} << 61;             // present, and a page of a file
constexpr size_t page_bytes = 4096;
constexpr int protect_attempts = 16;

uint64_t number(const char* at) {
  return reinterpret_cast<uintptr_t>(at);
}

int call(int fd, unsigned long request, void* argument) {
  while (::ioctl(fd, request, argument) != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

}  // namespace

int Userfault::open_descriptor(int device) {
  constexpr int flags = O_CLOEXEC | O_NONBLOCK;
  if (device >= 0) {
    int fd = ::ioctl(device, USERFAULTFD_IOC_NEW, flags);
    return fd >= 0 ? fd : -errno;
  }
  auto fd = static_cast<int>(::syscall(SYS_userfaultfd, flags));
  if (fd >= 0) return fd;
  const int refused = errno;
  int node = ::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (node < 0) return -refused;
  fd = ::ioctl(node, USERFAULTFD_IOC_NEW, flags);
  const int failed = errno;
  ::close(node);
  return fd >= 0 ? fd : -failed;
}

int Userfault::start(int device, FaultHandler on_fault, void* owner) {
  on_fault_ = on_fault;
  owner_ = owner;
  int fd = open_descriptor(device);
  if (fd < 0) return -fd;
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features_needed;
  if (int failed = call(fd, UFFDIO_API, &api); failed != 0) {
    ::close(fd);
    return failed;
  }
  fd_ = fd;
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_fd_ >= 0) pagemap_fd_ = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap_fd_ < 0) {
    int failed = errno;
    close_descriptors();
    return failed;
  }
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, reader_stack_bytes);
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGBUS);  // a handler's copy of memory that goes away meanwhile (core/os/fault_guard.h)
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = ::pthread_create(&reader_, &attributes, run, this);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (failed != 0) close_descriptors();
  return failed;
}

void Userfault::close_descriptors() {
  for (int* fd : {&fd_, &stop_fd_, &pagemap_fd_}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

void Userfault::stop() {
  if (fd_ < 0) return;
  uint64_t one = 1;
  while (::write(stop_fd_, &one, sizeof(one)) < 0 && errno == EINTR) continue;
  ::pthread_join(reader_, nullptr);
  close_descriptors();
}

void Userfault::abandon() {
  close_descriptors();
}

void* Userfault::run(void* self) {
  const auto* me = static_cast<Userfault*>(self);
  pollfd waits[2] = {{.fd = me->fd_, .events = POLLIN, .revents = 0},
                     {.fd = me->stop_fd_, .events = POLLIN, .revents = 0}};
  uffd_msg messages[16];
  for (;;) {
    waits[0].revents = waits[1].revents = 0;
    if (::poll(waits, 2, -1) < 0) continue;
    if (waits[1].revents != 0) return nullptr;
    // Without a handler nothing is done about a message: reading an event lets its cause go on, and a fault is
    // resolved by its move.
    for (;;) {
      const ssize_t got = ::read(me->fd_, messages, sizeof(messages));
      if (got <= 0) break;
      if (me->on_fault_ == nullptr) continue;
      for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(uffd_msg); ++i)
        if (messages[i].event == UFFD_EVENT_PAGEFAULT)
          me->on_fault_(me->owner_, messages[i].arg.pagefault.address);
    }
  }
}

int Userfault::register_write_protect(char* at, size_t bytes) {
  uffdio_register range{};
  range.range = {number(at), bytes};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  return call(fd_, UFFDIO_REGISTER, &range);
}

int Userfault::register_missing(char* at, size_t bytes) {
  uffdio_register range{};
  range.range = {number(at), bytes};
  range.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR;
  return call(fd_, UFFDIO_REGISTER, &range);
}

int Userfault::unregister(char* at, size_t bytes) {
  uffdio_range range{number(at), bytes};
  int failed = call(fd_, UFFDIO_UNREGISTER, &range);
  int unwoken = wake(at, bytes);
  return failed != 0 ? failed : unwoken;
}

int Userfault::write_protect(char* at, size_t bytes, bool on) {
  uffdio_writeprotect range{};
  range.range = {number(at), bytes};
  range.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
  for (int attempt = 0; attempt < protect_attempts; ++attempt) {
    if (int failed = call(fd_, UFFDIO_WRITEPROTECT, &range); failed != 0) return failed;
    if (!on || is_write_protected(at, bytes)) return 0;
  }
  return EAGAIN;
}

// Every page is mapped protected or bears a mark that it will be. From then on it stays so: what is mapped in
// small pages in a range registered for this is never joined again.
bool Userfault::is_write_protected(const char* at, size_t bytes) const {
  uint64_t entries[512];
  while (bytes > 0) {
    const size_t pages = bytes / page_bytes < 512 ? bytes / page_bytes : 512;
    const auto wanted = static_cast<ssize_t>(pages * sizeof(uint64_t));
    if (::pread(pagemap_fd_, entries, static_cast<size_t>(wanted),
                static_cast<off_t>(number(at) / page_bytes * sizeof(uint64_t))) != wanted)
      return false;
    uint64_t all = pagemap_write_protected;
    for (size_t page = 0; page < pages; ++page) all &= entries[page];
    if (all == 0) return false;
    at += pages * page_bytes;
    bytes -= pages * page_bytes;
  }
  return true;
}

bool Userfault::own_pages(const char* at, size_t pages, bool* own) const {
  uint64_t entries[512];
  const auto wanted = static_cast<ssize_t>(pages * sizeof(uint64_t));
  if (pages > 512 || ::pread(pagemap_fd_, entries, static_cast<size_t>(wanted),
                             static_cast<off_t>(number(at) / page_bytes * sizeof(uint64_t))) != wanted)
    return false;
  for (size_t page = 0; page < pages; ++page) own[page] = (entries[page] & pagemap_file) == 0;
  return true;
}

int Userfault::wake(char* at, size_t bytes) {
  uffdio_range range{number(at), bytes};
  return call(fd_, UFFDIO_WAKE, &range);
}

}  // namespace terrace::tiering
