// SPDX-License-Identifier: Apache-2.0
// A part of this program as a process of its own: for work that may hang, take long, take much memory or die, none of
// which a manager may. It starts from nothing (no copy of the manager's memory, none of its descriptors), and is killed
// when it takes more than it was given, when nobody wants its answer any more, and with the thread that waits for it.
//
// Place     daemon/rpc/machine_doctor.h and daemon/web/planner.h -> run_helper() on a worker thread -> this program
//           again, whose main() sees `helper_flag` -> daemon/helper/jobs.
// Wire      The helper writes its answer to standard output: '+' and the result, or '-', an error code in decimals, a
//           zero, and the sentence. Words about how far it is go to descriptor 3, a line each; the last one counts.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/sync/mutex.h"

namespace terrace::daemon {

inline constexpr const char* helper_flag = "--helper";
inline constexpr int helper_progress_fd = 3;

struct HelperBounds {
  uint64_t time_ns = 0;       // from its start to the end of its answer
  uint64_t memory_bytes = 0;  // resident; looked at ten times a second
  uint64_t answer_bytes = 0;
  int nice = 0;
};

// What others do with a helper while it runs, or before it begins.
class HelperWatch {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void set_progress(std::string words) {
    const MutexLock lock(mutex_);
    progress_ = std::move(words);
  }
  std::string progress() const {  // "": nothing said yet
    const MutexLock lock(mutex_);
    return progress_;
  }

 private:
  std::atomic<bool> cancelled_ = false;
  mutable Mutex mutex_;
  std::string progress_ TERRACE_GUARDED_BY(mutex_);
};

// Runs `words` (the job and what it is told) with the descriptor `input` as standard input; -1: nothing to read.
// Blocks until it has ended.
//
// Errors    cancelled           watch.cancel()
//           limit_exceeded      it took too long, too much memory, or answers too much
//           io_error            it could not be started, or ended without an answer; says how
//           ...                 what it answered
// Threads   Any but the event loop's; the helper dies with the calling thread.
Result<std::string> run_helper(const std::vector<std::string>& words, int input, const HelperBounds& bounds,
                               HelperWatch& watch);

// --- in the helper ---

// To be called first: ends this process with its parent, and lets the kernel take it before any other.
void begin_helper();
// Writes the answer; the exit status.
int answer_helper(const Result<std::string>& answer);
void tell_progress(std::string_view words);

}  // namespace terrace::daemon
