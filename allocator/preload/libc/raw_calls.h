// SPDX-License-Identifier: Apache-2.0
// The kernel's own calls. They bypass this library's exported functions of the same names, which act on the
// program's memory of the window, and its syscall(), which calls those.
//
// Included by the compiler's command line before each source of tiering/ that goes into the preload library,
// and before the library's own but those that export the mappings' calls and use them: there the plain
// names are the kernel's.
#pragma once

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// As syscall(): -1 and errno.
inline long terrace_raw_call(long number, long first = 0, long second = 0, long third = 0, long fourth = 0,
                             long fifth = 0, long sixth = 0) {
  register long in_r10 __asm__("r10") = fourth;
  register long in_r8 __asm__("r8") = fifth;
  register long in_r9 __asm__("r9") = sixth;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(first), "S"(second), "d"(third), "r"(in_r10), "r"(in_r8), "r"(in_r9)
                   : "rcx", "r11", "memory");
  if (static_cast<unsigned long>(result) < -4095ul) return result;
  errno = static_cast<int>(-result);
  return -1;
}

template <typename... Arguments>
long terrace_raw_syscall(long number, Arguments... arguments) {
  return terrace_raw_call(number, (long)(arguments)...);
}

inline int terrace_raw_madvise(void* address, size_t bytes, int advice) {
  return static_cast<int>(
      terrace_raw_call(SYS_madvise, reinterpret_cast<long>(address), static_cast<long>(bytes), advice));
}

inline int terrace_raw_mprotect(void* address, size_t bytes, int protection) {
  return static_cast<int>(
      terrace_raw_call(SYS_mprotect, reinterpret_cast<long>(address), static_cast<long>(bytes), protection));
}

inline ssize_t terrace_raw_pread(int fd, void* buffer, size_t bytes, off_t offset) {
  return terrace_raw_call(SYS_pread64, fd, reinterpret_cast<long>(buffer), static_cast<long>(bytes), offset);
}

inline void* terrace_raw_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(terrace_raw_call(SYS_mmap, reinterpret_cast<long>(address),
                                                  static_cast<long>(bytes), protection, flags, fd, offset));
}

inline int terrace_raw_munmap(void* address, size_t bytes) {
  return static_cast<int>(
      terrace_raw_call(SYS_munmap, reinterpret_cast<long>(address), static_cast<long>(bytes)));
}

inline void* terrace_raw_mremap(void* address, size_t bytes, size_t new_bytes, int flags,
                                void* new_address = nullptr) {
  return reinterpret_cast<void*>(terrace_raw_call(SYS_mremap, reinterpret_cast<long>(address),
                                                  static_cast<long>(bytes), static_cast<long>(new_bytes), flags,
                                                  reinterpret_cast<long>(new_address)));
}

#define syscall terrace_raw_syscall
#ifdef TERRACE_RAW_ADVICE
#define madvise terrace_raw_madvise
#define pread terrace_raw_pread
#endif
#ifndef TERRACE_EXPORTS_MAPPINGS
#define mmap terrace_raw_mmap
#define munmap terrace_raw_munmap
#define mremap terrace_raw_mremap
#endif
