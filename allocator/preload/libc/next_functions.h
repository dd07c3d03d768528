// SPDX-License-Identifier: Apache-2.0
// The next malloc: the allocator that the program would have without this library (glibc's, or one that it
// links). Small requests go there.
//
// Threads   ready() is called by the first allocation, when the process has one thread; after that all
//           pointers are constant.
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

struct iovec;
struct mmsghdr;
struct msghdr;
struct sockaddr;
struct termios;
struct winsize;

namespace terrace::preload {

struct Next {
  void* (*malloc)(size_t);
  void* (*calloc)(size_t, size_t);
  void* (*realloc)(void*, size_t);
  void (*free)(void*);
  void* (*memalign)(size_t, size_t);
  void* (*aligned_alloc)(size_t, size_t);
  int (*posix_memalign)(void**, size_t, size_t);
  void* (*valloc)(size_t);
  void* (*pvalloc)(size_t);
  size_t (*malloc_usable_size)(void*);
  int (*malloc_trim)(size_t);
  pid_t (*fork)();
  pid_t (*bare_fork)();  // _Fork
  int (*madvise)(void*, size_t, int);
  int (*mprotect)(void*, size_t, int);
  void* (*mmap)(void*, size_t, int, int, int, off_t);
  int (*munmap)(void*, size_t);
  void* (*mremap)(void*, size_t, size_t, int, ...);
  void* (*dlopen)(const char*, int);
  int (*clone)(int (*)(void*), void*, int, void*, ...);
  int (*mutex_init)(pthread_mutex_t*, const pthread_mutexattr_t*);
  int (*cond_init)(pthread_cond_t*, const pthread_condattr_t*);
  int (*rwlock_init)(pthread_rwlock_t*, const pthread_rwlockattr_t*);
  int (*barrier_init)(pthread_barrier_t*, const pthread_barrierattr_t*, unsigned);
  int (*sem_init)(sem_t*, int, unsigned);
  int (*attr_setstack)(pthread_attr_t*, void*, size_t);
  ssize_t (*read)(int, void*, size_t);
  ssize_t (*write)(int, const void*, size_t);
  ssize_t (*pread)(int, void*, size_t, off_t);
  ssize_t (*pwrite)(int, const void*, size_t, off_t);
  ssize_t (*readv)(int, const iovec*, int);
  ssize_t (*writev)(int, const iovec*, int);
  ssize_t (*preadv)(int, const iovec*, int, off_t);
  ssize_t (*pwritev)(int, const iovec*, int, off_t);
  ssize_t (*preadv2)(int, const iovec*, int, off_t, int);
  ssize_t (*pwritev2)(int, const iovec*, int, off_t, int);
  ssize_t (*vmsplice)(int, const iovec*, size_t, unsigned);
  ssize_t (*send)(int, const void*, size_t, int);
  ssize_t (*sendto)(int, const void*, size_t, int, const sockaddr*, unsigned);
  ssize_t (*sendmsg)(int, const msghdr*, int);
  int (*sendmmsg)(int, mmsghdr*, unsigned, int);
};

extern Next next;

// True once `next` can be used. False while it is being looked up by this thread: dlsym allocates; such
// requests are served by early_allocate.
bool resolve_next();
inline bool ready() {
  return next.malloc != nullptr || resolve_next();
}

// A small static area for requests made while dlsym runs. Never given back.
void* early_allocate(size_t bytes, size_t alignment);
extern char early_area[];
inline constexpr size_t early_area_bytes = 64 * 1024;
inline bool is_early(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(early_area) < early_area_bytes;
}
size_t early_usable_size(const void* pointer);

}  // namespace terrace::preload
