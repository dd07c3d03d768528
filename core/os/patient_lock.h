// SPDX-License-Identifier: Apache-2.0
// The lock of a file or directory that one process has for as long as it lives (flock).
//
// A process that was killed may have it for a moment longer than it is seen to be alive: while somebody who reads its
// /proc/PID/maps keeps its memory, in which a locked file is mapped, or until a child of its has ended. So who starts in
// its place waits for a second before the lock counts as somebody's.
//
// Threads   Any.
#pragma once

#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace terrace {

// `operation`: LOCK_EX or LOCK_SH. Returns 0, or the errno of the last try: EWOULDBLOCK if another has it.
inline int lock_patiently(int fd, int operation) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (::flock(fd, operation | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= until) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return 0;
}

}  // namespace terrace
