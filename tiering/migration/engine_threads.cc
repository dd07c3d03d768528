// SPDX-License-Identifier: Apache-2.0
#include "tiering/migration/engine_threads.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace terrace::tiering {
namespace {

constexpr int places = 64;
std::atomic<int> threads[places];      // 0: nobody
std::atomic<uint64_t> before[places];  // CPU time that the thread had taken when it came
std::atomic<uint64_t> ended_ns{0};

uint64_t clock_ns(clockid_t clock) {
  timespec time{};
  if (::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

// The kernel's name for the clock of a thread (include/linux/posix-timers_types.h). It looks at the processor on
// which the thread runs, where CLOCK_PROCESS_CPUTIME_ID takes what that processor's last tick noted.
uint64_t thread_cpu_ns(int thread) {
  constexpr unsigned of_thread = 4, scheduled = 2;
  return clock_ns(static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | of_thread | scheduled));
}

EngineThread::EngineThread() {
  const auto self = static_cast<int>(::syscall(SYS_gettid));
  for (int place = 0; place < places; ++place) {
    int nobody = 0;
    if (!threads[place].compare_exchange_strong(nobody, -1, std::memory_order_relaxed)) continue;
    before[place].store(clock_ns(CLOCK_THREAD_CPUTIME_ID), std::memory_order_relaxed);
    threads[place].store(self, std::memory_order_release);  // release: pairs with engine_threads_cpu_ns()
    place_ = place;
    return;
  }
}

EngineThread::~EngineThread() {
  if (place_ < 0) return;
  // Counted twice for a moment rather than not at all: the program's time never jumps ahead.
  ended_ns.fetch_add(clock_ns(CLOCK_THREAD_CPUTIME_ID) - before[place_].load(std::memory_order_relaxed),
                     std::memory_order_relaxed);
  threads[place_].store(0, std::memory_order_release);  // release: pairs with engine_threads_cpu_ns()
}

bool is_engine_thread(int thread) {
  for (const std::atomic<int>& one : threads)
    if (one.load(std::memory_order_relaxed) == thread) return true;
  return false;
}

uint64_t engine_threads_cpu_ns() {
  uint64_t sum = 0;
  for (int place = 0; place < places; ++place) {
    // acquire: pairs with EngineThread() and its end
    const int thread = threads[place].load(std::memory_order_acquire);
    if (thread <= 0) continue;
    const uint64_t now = thread_cpu_ns(thread), then = before[place].load(std::memory_order_relaxed);
    if (now > then) sum += now - then;
  }
  return sum + ended_ns.load(std::memory_order_relaxed);
}

void forget_engine_threads() {
  for (std::atomic<int>& thread : threads) thread.store(0, std::memory_order_relaxed);
  ended_ns.store(0, std::memory_order_relaxed);
}

}  // namespace terrace::tiering
