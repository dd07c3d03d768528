// The names in a directory of /proc, where nothing may be allocated and no lock taken: in a fork, in a signal
// handler.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "allocator/preload/link.h"
#include "allocator/preload/raw_calls.h"

namespace terrace::preload {

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
