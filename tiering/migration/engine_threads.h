// SPDX-License-Identifier: Apache-2.0
// Which threads of this process are migration's own, and how much CPU time they took: what is left is the
// program's (hotness/run_time.h).
//
// Of every engine that this copy of the code runs. A process can hold two copies, the preload library's and
// libterrace's: each takes the other's threads for the program's, about a hundredth of a processor.
//
// Threads   Any. No lock, no allocation.
#pragma once

#include <cstdint>

namespace terrace::tiering {

// While this exists, the thread that made it is migration's.
class EngineThread {
 public:
  EngineThread();
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

 private:
  int place_ = -1;  // -1: too many threads; it counts as the program's
};

// CPU time of all such threads, those that have ended included, in ns.
uint64_t engine_threads_cpu_ns();
bool is_engine_thread(int thread);
// In a child of fork, which has none of them.
void forget_engine_threads();

// CPU time of a thread of this process, to the ns, wherever it runs now: 0 when it has ended.
uint64_t thread_cpu_ns(int thread);

}  // namespace terrace::tiering
