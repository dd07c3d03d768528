// SPDX-License-Identifier: Apache-2.0
// Reads /proc without an allocation and without a lock: for a fork, and for a signal handler.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "allocator/preload/libc/raw_calls.h"
#include "allocator/preload/window/supervisor_link.h"

namespace terrace::preload {

// The number behind `field` in the calling thread's status; `otherwise` when it is not there.
inline uint64_t status_number(const char* field, uint64_t otherwise) {
  char text[4096];
  const auto fd = static_cast<int>(
      terrace_raw_syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/status", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return otherwise;
  long length = 0;
  for (long got = 1; got > 0 && length < static_cast<long>(sizeof(text)) - 1;) {
    got = terrace_raw_syscall(SYS_read, fd, text + length, sizeof(text) - 1 - static_cast<size_t>(length));
    if (got > 0) length += got;
  }
  close_raw(fd);
  text[length] = 0;
  const char* at = strstr(text, field);
  return at == nullptr ? otherwise : strtoull(at + strlen(field), nullptr, 10);
}

// The names in a directory.
class Directory {
 public:
  explicit Directory(const char* path)
      : fd_(static_cast<int>(
            terrace_raw_syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC))) {}
  ~Directory() { close_raw(fd_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  int fd() const { return fd_; }  // -1: it could not be opened

  // Calls visit(const char*) for each name that does not begin with a point, until it says false. False: not all
  // of it could be read.
  template <typename Visit>
  bool for_each(Visit visit) const {
    if (fd_ < 0) return false;
    alignas(Entry) char entries[1024];
    long bytes = 0;
    while ((bytes = terrace_raw_syscall(SYS_getdents64, fd_, entries, sizeof(entries))) > 0)
      for (long at = 0; at < bytes;) {
        const auto* entry = reinterpret_cast<const Entry*>(entries + at);
        if (entry->name[0] != '.' && !visit(static_cast<const char*>(entry->name))) return true;
        at += entry->bytes;
      }
    return bytes == 0;
  }

 private:
  struct Entry {  // as the kernel writes them: getdents64(2); the name goes on behind it
    uint64_t inode;
    int64_t next_offset;
    uint16_t bytes;
    uint8_t type;
    char name[1];
  };

  int fd_;
};

}  // namespace terrace::preload
