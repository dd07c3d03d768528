// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/libc/next_functions.h"

#include <dlfcn.h>

#include <atomic>

#include "allocator/preload/libc/message.h"

namespace terrace::preload {

Next next;
alignas(4096) char early_area[early_area_bytes];

namespace {

std::atomic<size_t> early_used{0};
std::atomic<bool> resolving{false};

constexpr size_t early_header_bytes = 16;  // holds the block's size; keeps 16-byte alignment

template <typename Function>
void look_up(Function*& into, const char* name) {
  into = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

bool resolve_next() {
  // acquire: no release partner, the flag stays true; the first allocation has one thread.
  if (resolving.exchange(true, std::memory_order_acquire)) return next.malloc != nullptr;
  Next found{};
  look_up(found.malloc, "malloc");
  look_up(found.calloc, "calloc");
  look_up(found.realloc, "realloc");
  look_up(found.free, "free");
  look_up(found.memalign, "memalign");
  look_up(found.aligned_alloc, "aligned_alloc");
  look_up(found.posix_memalign, "posix_memalign");
  look_up(found.valloc, "valloc");
  look_up(found.pvalloc, "pvalloc");
  look_up(found.malloc_usable_size, "malloc_usable_size");
  look_up(found.malloc_trim, "malloc_trim");
  look_up(found.fork, "fork");
  look_up(found.bare_fork, "_Fork");
  look_up(found.madvise, "madvise");
  look_up(found.mprotect, "mprotect");
  look_up(found.mmap, "mmap");
  look_up(found.munmap, "munmap");
  look_up(found.mremap, "mremap");
  look_up(found.dlopen, "dlopen");
  look_up(found.clone, "clone");
  look_up(found.mutex_init, "pthread_mutex_init");
  look_up(found.cond_init, "pthread_cond_init");  // the newest of its versions
  look_up(found.rwlock_init, "pthread_rwlock_init");
  look_up(found.barrier_init, "pthread_barrier_init");
  look_up(found.sem_init, "sem_init");
  look_up(found.attr_setstack, "pthread_attr_setstack");
  look_up(found.read, "read");
  look_up(found.write, "write");
  look_up(found.pread, "pread");
  look_up(found.pwrite, "pwrite");
  look_up(found.readv, "readv");
  look_up(found.writev, "writev");
  look_up(found.preadv, "preadv");
  look_up(found.pwritev, "pwritev");
  look_up(found.preadv2, "preadv2");
  look_up(found.pwritev2, "pwritev2");
  look_up(found.vmsplice, "vmsplice");
  look_up(found.send, "send");
  look_up(found.sendto, "sendto");
  look_up(found.sendmsg, "sendmsg");
  look_up(found.sendmmsg, "sendmmsg");
  // glibc has them all; an allocator that replaces it may lack valloc and pvalloc, then glibc's would hand out
  // memory of another heap: those two are made of memalign instead.
  if (!found.malloc || !found.calloc || !found.realloc || !found.free || !found.memalign ||
      !found.aligned_alloc || !found.posix_memalign || !found.malloc_usable_size || !found.fork ||
      !found.madvise || !found.mprotect || !found.read || !found.write || !found.pread || !found.pwrite ||
      !found.readv || !found.writev || !found.preadv || !found.pwritev || !found.preadv2 || !found.pwritev2 ||
      !found.mutex_init || !found.cond_init || !found.rwlock_init || !found.barrier_init || !found.sem_init ||
      !found.attr_setstack || !found.send || !found.sendto || !found.sendmsg || !found.sendmmsg)
    fatal("no complete malloc behind this library (static program, or not glibc)");
  auto* malloc_function = found.malloc;
  found.malloc = nullptr;
  next = found;
  // release: pairs with the plain look of ready(), in a process with one thread.
  std::atomic_thread_fence(std::memory_order_release);
  next.malloc = malloc_function;  // last: ready() looks at it
  return true;
}

void* early_allocate(size_t bytes, size_t alignment) {
  if (alignment < 16) alignment = 16;
  if (bytes > early_area_bytes || alignment > 4096) return nullptr;
  size_t needed = early_header_bytes + alignment + ((bytes + 15) & ~size_t{15});
  size_t at = early_used.fetch_add(needed, std::memory_order_relaxed);
  if (at + needed > early_area_bytes) return nullptr;
  uintptr_t start = reinterpret_cast<uintptr_t>(early_area) + at + early_header_bytes;
  uintptr_t aligned = (start + alignment - 1) & ~(alignment - 1);
  reinterpret_cast<size_t*>(aligned)[-1] = bytes;
  return reinterpret_cast<void*>(aligned);
}

size_t early_usable_size(const void* pointer) {
  return static_cast<const size_t*>(pointer)[-1];
}

}  // namespace terrace::preload
