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

inline ssize_t terrace_raw_pread(int fd, void* buffer, size_t bytes, off_t offset) {
  return static_cast<ssize_t>(::syscall(SYS_pread64, fd, buffer, bytes, offset));
}

#define madvise terrace_raw_madvise
#define pread terrace_raw_pread
