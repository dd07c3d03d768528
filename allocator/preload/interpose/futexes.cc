// SPDX-License-Identifier: Apache-2.0
// Shared futexes in the window.
//
// A thread that waits on a futex without FUTEX_PRIVATE_FLAG is queued under the page that the word is in. For
// anonymous memory that is the process and the address; for a mapping of a file it is the file and the offset,
// which change when a granule moves and when a fork switches it: whoever wakes later looks in another queue,
// and the waiter sleeps for ever. So pages with such futexes become private memory of the process before
// anybody can wait there, which is what they are without this library, and their granules are held for good.
//
// Which futexes those are: what is made process-shared (in malloc's memory no other process can reach it, but
// programs do it), robust mutexes (the kernel wakes when their owner dies, with a shared futex), the end of a
// thread whose stack is malloc's (pthread_join), and syscall(SYS_futex).
//
// Not seen: inline system calls; an end of thread asked for by clone's own flags or set_tid_address.
//
// Threads   Any.
#include "allocator/preload/interpose/futexes.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>

#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/page_marks.h"

namespace terrace::preload {
namespace {

// A thread's own record lies at the top of its stack, below the alignment of its thread-local variables; the
// kernel writes there when it ends.
constexpr size_t thread_record_bytes = 64 * 1024;

struct Waiter {  // struct futex_waitv, Linux 5.16
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

bool needs_pin(heap::PageSpan span) {
  for (uint32_t page = span.first; page < span.first + span.pages; ++page)
    if (is_shared_mapped(page)) return true;
  return false;
}

}  // namespace

void pin_futex(const void* address, size_t bytes) {
  if (!in_window(address) || holds_nothing()) return;
  const heap::PageSpan span = pages_of_range(address, bytes);
  // A look without locks: what is private stays so while its granule is held.
  if (!needs_pin(span)) return;
  const int saved = errno;
  hold_for_good(address, bytes);
  make_private(span);
  errno = saved;
}

void pin_waiters(const void* waiters, size_t count) {
  if (window_span.load(std::memory_order_relaxed) == 0 || waiters == nullptr || count > 128) return;
  const auto* each = static_cast<const Waiter*>(waiters);
  for (size_t i = 0; i < count; ++i)
    if ((each[i].flags & FUTEX_PRIVATE_FLAG) == 0)
      pin_futex(reinterpret_cast<const void*>(each[i].address), sizeof(uint32_t));
}

}  // namespace terrace::preload

using namespace terrace::preload;

// Before ready() it is an allocator that starts (no window is there, and no look-up possible): the plain kinds
// are what their initialisers are.

TERRACE_EXPORT int pthread_mutex_init(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes) noexcept {
  int shared = 0, robust = 0, type = 0;
  if (attributes != nullptr) {
    ::pthread_mutexattr_getpshared(attributes, &shared);
    ::pthread_mutexattr_getrobust(attributes, &robust);
    ::pthread_mutexattr_gettype(attributes, &type);
  }
  if (next.mutex_init == nullptr) {
    *mutex = PTHREAD_MUTEX_INITIALIZER;
    mutex->__data.__kind = type;
    return 0;
  }
  if (shared == PTHREAD_PROCESS_SHARED || robust == PTHREAD_MUTEX_ROBUST) pin_futex(mutex, sizeof(*mutex));
  return next.mutex_init(mutex, attributes);
}

TERRACE_EXPORT int pthread_cond_init(pthread_cond_t* condition, const pthread_condattr_t* attributes) noexcept {
  if (next.cond_init == nullptr) {
    *condition = PTHREAD_COND_INITIALIZER;
    return 0;
  }
  int shared = 0;
  if (attributes != nullptr && ::pthread_condattr_getpshared(attributes, &shared) == 0 &&
      shared == PTHREAD_PROCESS_SHARED)
    pin_futex(condition, sizeof(*condition));
  return next.cond_init(condition, attributes);
}

TERRACE_EXPORT int pthread_rwlock_init(pthread_rwlock_t* lock,
                                       const pthread_rwlockattr_t* attributes) noexcept {
  if (next.rwlock_init == nullptr) {
    *lock = PTHREAD_RWLOCK_INITIALIZER;
    return 0;
  }
  int shared = 0;
  if (attributes != nullptr && ::pthread_rwlockattr_getpshared(attributes, &shared) == 0 &&
      shared == PTHREAD_PROCESS_SHARED)
    pin_futex(lock, sizeof(*lock));
  return next.rwlock_init(lock, attributes);
}

TERRACE_EXPORT int pthread_barrier_init(pthread_barrier_t* barrier, const pthread_barrierattr_t* attributes,
                                        unsigned count) noexcept {
  if (!ready()) return EAGAIN;
  int shared = 0;
  if (attributes != nullptr && ::pthread_barrierattr_getpshared(attributes, &shared) == 0 &&
      shared == PTHREAD_PROCESS_SHARED)
    pin_futex(barrier, sizeof(*barrier));
  return next.barrier_init(barrier, attributes, count);
}

TERRACE_EXPORT int sem_init(sem_t* semaphore, int shared, unsigned value) noexcept {
  if (!ready()) {
    errno = ENOSYS;
    return -1;
  }
  if (shared != 0) pin_futex(semaphore, sizeof(*semaphore));
  return next.sem_init(semaphore, shared, value);
}

TERRACE_EXPORT int pthread_attr_setstack(pthread_attr_t* attributes, void* stack, size_t bytes) noexcept {
  if (!ready()) return EINVAL;
  const size_t top = bytes < thread_record_bytes ? bytes : thread_record_bytes;
  pin_futex(static_cast<char*>(stack) + (bytes - top), top);
  return next.attr_setstack(attributes, stack, bytes);
}
