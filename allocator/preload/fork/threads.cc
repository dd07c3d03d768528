// SPDX-License-Identifier: Apache-2.0
// Whose the threads of this process are: the program's, or the engine's. A fork needs to know: what a lone
// thread's signal handler has interrupted, no other thread will ever finish.
//
// Threads   Any, in signal handlers too: no allocation, no lock, nothing of stdio.
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "allocator/preload/migration/migration_state.h"
#include "allocator/preload/window/process_look.h"
#include "allocator/preload/window/supervisor_link.h"

namespace terrace::preload::migration {

namespace {

// A thread that ends meanwhile has no name, and is not counted.
bool is_program_thread(int tasks, const char* id) {
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
  // acquire: both pair with the stores of begin_moving().
  return shared.state.load(std::memory_order_acquire) == State::starting &&
         shared.opened.load(std::memory_order_acquire) == nullptr;
}

bool proc_shows_one_program_thread() {
  const Directory tasks("/proc/self/task");
  int programs = 0;
  uint64_t listed = 0;
  const bool read = tasks.for_each([&](const char* id) {
    ++listed;
    if (is_program_thread(tasks.fd(), id)) ++programs;
    return programs < 2;
  });
  return read && programs == 1 && !has_more_threads_than(tasks.fd(), listed);
}

}  // namespace terrace::preload::migration
