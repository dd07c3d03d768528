// Whose the threads of this process are: the program's, or the engine's. A fork needs to know: what a lone
// thread's signal handler has interrupted, no other thread will ever finish.
//
// Threads   Any, in signal handlers too: no allocation, no lock, nothing of stdio.
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "allocator/preload/link.h"
#include "allocator/preload/migration_state.h"

namespace terrace::preload::migration {

namespace {

struct DirectoryEntry {  // as the kernel writes them: getdents64(2); the name goes on behind it
  uint64_t inode;
  int64_t next_offset;
  uint16_t bytes;
  uint8_t type;
  char name[1];
};

// A thread that ends meanwhile has no name, and is not counted.
bool is_programs(int tasks, const char* id) {
  char path[32];
  const size_t id_bytes = strnlen(id, sizeof(path) - sizeof("/comm"));
  memcpy(path, id, id_bytes);
  memcpy(path + id_bytes, "/comm", sizeof("/comm"));
  const int fd = static_cast<int>(::syscall(SYS_openat, tasks, path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return false;
  char name[32];
  const long bytes = ::syscall(SYS_read, fd, name, sizeof(name));
  close_raw(fd);
  constexpr size_t engines_bytes = sizeof(engine_thread_name);  // a line's end in the place of the zero
  return bytes > 0 && (bytes != static_cast<long>(engines_bytes) ||
                       memcmp(name, engine_thread_name, engines_bytes - 1) != 0);
}

// The kernel ends a listing early where it meets a thread that has just ended, and the threads behind that one
// are missing. Its own count of threads is two less than the directory's links.
bool has_more_threads_than(int tasks, uint64_t listed) {
  struct stat about;
  return ::fstat(tasks, &about) != 0 || about.st_nlink > listed + 2;
}

}  // namespace

bool engine_is_opening() {
  return shared.state.load(std::memory_order_acquire) == State::starting &&
         shared.opened.load(std::memory_order_acquire) == nullptr;
}

bool has_one_thread_but_the_engines() {
  const int tasks =
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (tasks < 0) return false;
  alignas(DirectoryEntry) char entries[1024];
  int programs = 0;
  uint64_t listed = 0;
  long bytes = 0;
  while (programs < 2 && (bytes = ::syscall(SYS_getdents64, tasks, entries, sizeof(entries))) > 0)
    for (long at = 0; at < bytes && programs < 2;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(entries + at);
      if (entry->name[0] != '.') {
        ++listed;
        if (is_programs(tasks, entry->name)) ++programs;
      }
      at += entry->bytes;
    }
  const bool one = bytes >= 0 && programs == 1 && !has_more_threads_than(tasks, listed);
  close_raw(tasks);
  return one;
}

}  // namespace terrace::preload::migration
