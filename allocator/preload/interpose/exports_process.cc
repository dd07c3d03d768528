// SPDX-License-Identifier: Apache-2.0
// Functions of the C library that a heap in shared memory has to take part in: madvise, and fork with all that
// calls it inside glibc, where it cannot be interposed (daemon, forkpty).
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utmp.h>

#include "allocator/preload/fork/fork.h"
#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/next_functions.h"
#include "allocator/preload/window/large_requests.h"

using namespace terrace::preload;

TERRACE_EXPORT int madvise(void* address, size_t bytes, int advice) {
  int result = 0;
  if (advise_window(address, bytes, advice, &result)) return result;
  if (ready()) return next.madvise(address, bytes, advice);
  errno = EAGAIN;
  return -1;
}

TERRACE_EXPORT pid_t fork() {
  const auto bare = [](void*) { return next.bare_fork != nullptr ? next.bare_fork() : next.fork(); };
  if (ready()) return fork_safely([](void*) { return next.fork(); }, nullptr, bare);
  errno = EAGAIN;
  return -1;
}

TERRACE_EXPORT pid_t __fork() {
  return fork();
}

TERRACE_EXPORT pid_t _Fork() {
  if (ready() && next.bare_fork != nullptr) return fork_safely([](void*) { return next.bare_fork(); }, nullptr);
  errno = EAGAIN;
  return -1;
}

TERRACE_EXPORT int daemon(int keep_directory, int keep_descriptors) {
  pid_t pid = fork();
  if (pid < 0) return -1;
  if (pid > 0) _exit(0);
  if (setsid() == -1) return -1;
  if (keep_directory == 0 && chdir("/") != 0) return -1;
  if (keep_descriptors == 0) {
    int null = open("/dev/null", O_RDWR);
    if (null < 0) return -1;
    for (int fd = 0; fd <= STDERR_FILENO; ++fd)
      if (dup2(null, fd) < 0) return -1;
    if (null > STDERR_FILENO) close(null);
  }
  return 0;
}

TERRACE_EXPORT int forkpty(int* controller, char* name, const struct termios* settings,
                           const struct winsize* size) {
  int terminal = -1;
  if (openpty(controller, &terminal, name, settings, size) == -1) return -1;
  pid_t pid = fork();
  if (pid == 0) {
    close(*controller);
    if (login_tty(terminal) != 0) _exit(1);
    return 0;
  }
  int saved = errno;
  close(terminal);
  if (pid < 0) close(*controller);
  errno = saved;
  return pid;
}
