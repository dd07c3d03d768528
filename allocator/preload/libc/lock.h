// SPDX-License-Identifier: Apache-2.0
// A lock that a thread can hold over a fork without a deadlock, with any locks of other libraries'
// fork handlers.
//
// While one thread forks, the heap's records must not change, or the child would get half of a change. Other
// threads do not wait for that: one of them may hold a library's mutex which the forking thread's handlers are
// about to take. Instead enter() fails at once, and the caller does without the heap: it allocates from the
// next malloc and queues the blocks that it frees. enter() also fails in a signal handler that interrupted the
// holder of this lock.
//
// Threads   Any. Raw futex calls: no cancellation point, nothing allocated. errno stays as it was.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "core/base/sync/thread_safety.h"

namespace terrace::preload {

// A number for the calling thread, never 0. Kept by the main thread of a forked child.
inline uint32_t thread_number() {
  static constinit std::atomic<uint32_t> last{0};
  static thread_local constinit uint32_t mine __attribute__((tls_model("initial-exec"))) = 0;
  while (mine == 0) mine = (last.fetch_add(1, std::memory_order_relaxed) + 1) & 0x7fffffffu;
  return mine;
}

class TERRACE_CAPABILITY("fork lock") ForkLock {
 public:
  constexpr ForkLock() = default;

  // False: a fork is under way, or this thread holds the lock already; the caller must do without.
  bool enter() TERRACE_TRY_ACQUIRE(true) {
    if (forking_.load(std::memory_order_relaxed)) return false;
    return try_enter() || enter_slowly(true);
  }

  // It could be entered now, or within some milliseconds. For callers that do without rather than wait: its
  // holder may be a thread that is stopped until this one has done its work (a collector's).
  bool is_free_soon() const {
    // A yield takes a busy machine milliseconds. After a few of them a holder that only lacked a processor has had one.
    constexpr int yields_max = 2'000, yields_min = 10;
    constexpr int64_t patience_ns = 5'000'000;
    int64_t begin_ns = 0;
    for (int i = 0; i < yields_max; ++i) {
      if (forking()) return false;
      if (state_.load(std::memory_order_relaxed) == 0) return true;
      if (i == 0) begin_ns = now_ns();
      if (i >= yields_min && now_ns() - begin_ns > patience_ns) return false;
      ::sched_yield();
    }
    return false;
  }

  void leave() TERRACE_RELEASE() {
    // release: pairs with both entries.
    if ((state_.exchange(0, std::memory_order_release) & contended) != 0) wake(1);
  }

  // This thread holds it: to be asked by a signal handler, which may have interrupted the holder.
  bool is_mine() const { return (state_.load(std::memory_order_relaxed) & ~contended) == thread_number() << 1; }

  // Takes the lock for a fork; it is not this thread's.
  void begin_fork() TERRACE_ACQUIRE() {
    if (!try_enter()) enter_slowly(false);
    begin_fork_inside();  // those who wait see forking_ and give up
  }

  void end_fork() TERRACE_RELEASE() {
    forking_.store(false, std::memory_order_seq_cst);  // seq_cst: pairs with enter_slowly(), forking()
    leave();
  }

  // The same for a fork by a signal handler that has interrupted the holder: this thread has the lock and keeps
  // it.
  void begin_fork_inside() {
    forking_.store(true, std::memory_order_seq_cst);  // seq_cst: pairs with enter_slowly(), forking()
    wake(INT32_MAX);
  }

  void end_fork_inside() { forking_.store(false, std::memory_order_seq_cst); }  // pairs with forking()

  // A fork has begun and not ended; by the next line that may have changed.
  // seq_cst: pairs with the stores of begin_fork_inside(), end_fork(), end_fork_inside()
  bool forking() const { return forking_.load(std::memory_order_seq_cst); }

  // In the child: nobody else exists.
  void reset_in_child() {
    state_.store(0, std::memory_order_relaxed);
    forking_.store(false, std::memory_order_seq_cst);  // seq_cst: one thread, pairs with none
  }

  // In a child that does without what the lock protects: enter() fails from now on, whoever holds it.
  void refuse_in_child() { forking_.store(true, std::memory_order_seq_cst); }  // pairs with none

 private:
  static int64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }

  // The word holds the owner's number above the lowest bit, in one store with the locking itself: a signal
  // handler finds either a lock that it can take, or its own thread's number.
  static constexpr uint32_t contended = 1;

  bool try_enter() {
    uint32_t expected = 0;
    // acquire pairs with the release in leave(): what the last holder wrote is seen.
    return state_.compare_exchange_strong(expected, thread_number() << 1, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }

  bool enter_slowly(bool give_up_for_fork) {
    const uint32_t mine = thread_number() << 1;
    for (;;) {
      uint32_t now = state_.load(std::memory_order_relaxed);
      if ((now & ~contended) == mine) return false;
      // seq_cst: pairs with begin_fork_inside(), which stores forking_, then wakes: it is seen here, or the
      // wait below is woken, or, begun after that wake, ends by itself (brief).
      if (give_up_for_fork && forking_.load(std::memory_order_seq_cst)) return false;
      if (now == 0) {
        // Others may wait still: whoever takes the lock after a wait leaves it marked.
        // acquire: pairs with leave()
        if (state_.compare_exchange_weak(now, mine | contended, std::memory_order_acquire,
                                         std::memory_order_relaxed))
          return true;
        continue;
      }
      if ((now & contended) == 0 &&
          !state_.compare_exchange_weak(now, now | contended, std::memory_order_relaxed))
        continue;
      futex(FUTEX_WAIT_PRIVATE, now | contended, &brief);
    }
  }

  void wake(int count) { futex(FUTEX_WAKE_PRIVATE, static_cast<uint32_t>(count), nullptr); }

  // EAGAIN of a wait that came too late, or ETIMEDOUT, is not the program's.
  void futex(int operation, uint32_t value, const timespec* time) {
    const int saved = errno;
    ::syscall(SYS_futex, &state_, operation, value, time, nullptr, 0);
    errno = saved;
  }

  // A wait that begins after begin_fork_inside()'s wake, by a thread that missed its store, ends by itself.
  static constexpr timespec brief = {0, 2'000'000};

  std::atomic<uint32_t> state_{0};
  std::atomic<bool> forking_{false};
};

}  // namespace terrace::preload
