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

int Userfault::start(int device) {
  int fd = open_descriptor(device);
  if (fd < 0) return -fd;
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features_needed;
  if (int failed = call(fd, UFFDIO_API, &api); failed != 0) {
    ::close(fd);
    return failed;
  }
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_fd_ < 0) {
    int failed = errno;
    ::close(fd);
    return failed;
  }
  fd_ = fd;
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, reader_stack_bytes);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = ::pthread_create(&reader_, &attributes, run, this);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (failed == 0) return 0;
  ::close(fd_);
  ::close(stop_fd_);
  fd_ = stop_fd_ = -1;
  return failed;
}

void Userfault::stop() {
  if (fd_ < 0) return;
  uint64_t one = 1;
  while (::write(stop_fd_, &one, sizeof(one)) < 0 && errno == EINTR) continue;
  ::pthread_join(reader_, nullptr);
  ::close(fd_);
  ::close(stop_fd_);
  fd_ = stop_fd_ = -1;
}

void Userfault::abandon() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::close(stop_fd_);
  }
  fd_ = stop_fd_ = -1;
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
    // Nothing is done about a message: reading an event lets its cause go on, and a fault is resolved by its
    // move.
    while (::read(me->fd_, messages, sizeof(messages)) > 0) continue;
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
  return call(fd_, UFFDIO_WRITEPROTECT, &range);
}

int Userfault::wake(char* at, size_t bytes) {
  uffdio_range range{number(at), bytes};
  return call(fd_, UFFDIO_WAKE, &range);
}

}  // namespace terrace::tiering
