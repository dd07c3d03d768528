// SPDX-License-Identifier: Apache-2.0
// Threads that copy parts of one large block together.
//
// They exist from start() on: a copy runs while accesses wait, and to make a thread then could need memory or a
// lock of a waiting thread.
//
// Threads   start, stop and copy are one thread's.
// Memory    libc only.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tiering/migration/copy.h"

namespace terrace::tiering {

class CopyTeam {
 public:
  static constexpr uint32_t threads_max = 8;
  CopyTeam() = default;
  ~CopyTeam() { stop(); }
  CopyTeam(const CopyTeam&) = delete;
  CopyTeam& operator=(const CopyTeam&) = delete;

  // `threads` with the calling one. 0, or the errno of the first that could not be made.
  int start(uint32_t threads);
  void stop();
  void abandon() { helpers_ = 0; }  // in a child of fork
  uint32_t threads() const { return helpers_ + 1; }
  // From now on each thread copies its part so.
  void set_copy(CopyBlock by) { copy_ = by; }
  // False: memory of some part went away meanwhile.
  bool copy(char* to, const char* from, size_t bytes);

 private:
  struct Helper {
    CopyTeam* team = nullptr;
    uint32_t index = 0;
    pthread_t thread = {};
  };
  static void* run(void* argument);
  void copy_part(uint32_t index);

  Helper made_[threads_max - 1];
  uint32_t helpers_ = 0;
  CopyBlock copy_ = nullptr;
  char* to_ = nullptr;
  const char* from_ = nullptr;
  size_t bytes_ = 0;
  // Raised for each block (release: its place is written), waited for by the helpers (acquire).
  std::atomic<uint32_t> block_{0};
  std::atomic<uint32_t> working_{0};
  std::atomic<bool> lost_{false};  // of this block; ordered by working_
  std::atomic<bool> stopping_{false};
};

}  // namespace terrace::tiering
