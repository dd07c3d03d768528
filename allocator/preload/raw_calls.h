// Included before each source of tiering/ that goes into the preload library: there the plain names are this
// library's own exported functions, which mean what they mean on anonymous memory. The engine means the
// kernel's.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

inline int terrace_raw_madvise(void* address, size_t bytes, int advice) {
  return static_cast<int>(::syscall(SYS_madvise, address, bytes, advice));
}

#define madvise terrace_raw_madvise
