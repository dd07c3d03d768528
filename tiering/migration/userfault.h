// SPDX-License-Identifier: Apache-2.0
// One userfaultfd of this process, and the thread that reads its events.
//
// The kernel delays every mremap of a registered range until a thread has read its event; and the reader must
// not wait for a lock or memory that a blocked access could hold. So the reader is a separate thread that
// touches no memory but its stack. It reads and drops page-fault messages: the move wakes waiting threads. A
// snapshot (tiering/range/frozen_memory.h) has a userfaultfd of its own, whose reader resolves the faults.
//
// Threads   The calls are one thread's (the one that moves). The reader runs between start() and stop(),
//           signals blocked.
// Memory    libc only.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace terrace::tiering {

class Userfault {
 public:
  Userfault() = default;
  ~Userfault() { stop(); }
  Userfault(const Userfault&) = delete;
  Userfault& operator=(const Userfault&) = delete;

  // `device`: /dev/userfaultfd as the pool manager hands it out, or -1: the system call, then the device of
  // this machine. Returns 0 or an errno: EPERM (kernel faults are not allowed to this process), ENOSYS, EINVAL
  // (a kernel without what is needed: write-protection of shared memory, minor faults there, remap events),
  // or what opening /proc/self/pagemap gave.
  // `on_fault`: what the reader does for an access that waits at that address, instead of nothing. It must not
  // wait for anything that a waiting access could hold.
  using FaultHandler = void (*)(void* owner, uint64_t address);
  int start(int device, FaultHandler on_fault = nullptr, void* owner = nullptr);
  void stop();
  // In a child of fork: closes the descriptors, and leaves the parent's reader alone.
  void abandon();
  bool started() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  // All return 0 or an errno; ranges are of whole pages.
  int register_write_protect(char* at, size_t bytes);
  int register_missing(char* at, size_t bytes);  // missing and minor faults
  // Wakes those who wait as well: an access that enters while the range is being unregistered would else sleep
  // for ever (the kernel's own wake-up comes too early for it).
  int unregister(char* at, size_t bytes);
  // On: looks whether the kernel did it, and asks again, since the kernel (seen with 6.18) answers 0 and leaves
  // a huge page unprotected whose mapping another thread's faults make (a load) and split (a store) at the same
  // time. EAGAIN: it never did; parts may be protected.
  int write_protect(char* at, size_t bytes, bool on);
  int wake(char* at, size_t bytes);
  // Of a range that is write-protected: pages that are this process's own copies (or may be), not the file's
  // that is mapped there. `pages` at most 512. False: the kernel does not say.
  bool own_pages(const char* at, size_t pages, bool* own) const;

 private:
  static void* run(void* self);
  int open_descriptor(int device);
  void close_descriptors();
  bool is_write_protected(const char* at, size_t bytes) const;

  int fd_ = -1;
  int stop_fd_ = -1;
  int pagemap_fd_ = -1;
  FaultHandler on_fault_ = nullptr;
  void* owner_ = nullptr;
  pthread_t reader_ = {};
};

}  // namespace terrace::tiering
