// SPDX-License-Identifier: Apache-2.0
// The call of a fork: its locks and signals, and what a signal handler's fork has interrupted.
//
//   interrupted                       parent                              child
//   the program                       ranges in use become private        all of the heap, as ever
//   a talk with the supervisor        the same                            lives without the window from then on
//   a change to the heap's records    all of each lease becomes private   the same
//   this thread's own fork            nothing: all is private already     all of the heap
//
// "Without the window": what is in use stays usable, new memory is plain, what is freed is not used again. The
// interrupted code goes on there if the handler returns; that its change ends half done somewhere, or twice, is
// nobody's matter. A child that only calls exec or _exit sees nothing of this.
//
// Signals are blocked but for the time in the C library's fork, whose handlers may start threads: a handler
// finds one of the four lines above, and nothing between them.
//
// Threads   Any. A fork by another thread waits for its turn.
#include <errno.h>
#include <signal.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include "allocator/preload/fork/fork_window.h"
#include "allocator/preload/fork/registered.h"
#include "allocator/preload/libc/message.h"
#include "allocator/preload/libc/signals_blocked.h"
#include "allocator/preload/migration/fold_after_fork.h"
#include "allocator/preload/window/large_requests.h"
#include "allocator/preload/window/movement.h"
#include "allocator/preload/window/supervisor_link.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {
namespace {

// The thread whose fork has made the window ready and has not ended; 0: none.
std::atomic<uint32_t> forking_thread{0};
// The last process that began as a child.
std::atomic<pid_t> begun{0};

// The locks of one fork, and what it has interrupted.
class Locks {
 public:
  Locks() {
    // Who holds heap_lock waits for nobody, and the table of leases does not change meanwhile. In the other
    // order than the locks are taken elsewhere nobody could go on.
    in_heap_ = window.heap_lock.is_mine();
    in_supply_ = window.supply_lock.is_mine();
    if (in_supply_)
      window.supply_lock.begin_fork_inside();
    else if (!in_heap_)
      window.supply_lock.begin_fork();
    if (in_heap_)
      window.heap_lock.begin_fork_inside();
    else
      window.heap_lock.begin_fork();
    lock_moves();
  }
  // Not analysed: which locks it has depends on what the fork has interrupted.
  void leave() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
    unlock_moves();
    if (!in_heap_ && is_armed()) free_deferred();
    if (in_heap_)
      window.heap_lock.end_fork_inside();
    else
      window.heap_lock.end_fork();
    if (in_supply_)
      window.supply_lock.end_fork_inside();
    else if (!in_heap_)
      window.supply_lock.end_fork();
  }
  bool in_heap() const { return in_heap_; }
  bool in_any() const { return in_heap_ || in_supply_; }

 private:
  bool in_heap_, in_supply_;
};

// What the forking thread has interrupted, for the child.
bool inside_heap = false, inside_any = false;

void begin_whole_child() {
  if (is_armed()) start_child();
  window.heap_lock.reset_in_child();
  window.supply_lock.reset_in_child();
}

void begin_abandoned_child() {
  window.abandoned = true;
  if (!inside_heap) {
    begin_whole_child();  // the records are good: a process of the run as others
  } else {
    start_abandoned_child();
  }
  break_link_in_child();
  window.supply_gone.store(true, std::memory_order_relaxed);
  large_from.store(SIZE_MAX, std::memory_order_relaxed);
  window.heap_lock.refuse_in_child();
  window.supply_lock.refuse_in_child();
}

// Makes this run's memory usable by both sides of a fork. False: not all of it could be made so.
bool prepare_memory_for_fork(bool in_heap) {
  return mark_registered() && (in_heap ? make_parts_private() : make_window_private()) && copy_registered();
}

pid_t fork_once(pid_t (*real)(void*), void* argument) {
  const pid_t pid = real(argument);
  if (pid != 0) return pid;
  const int saved = errno;
  SignalsBlocked blocked;
  // A handler of this process may have forked already, and this be its child.
  if (begun.load(std::memory_order_relaxed) != ::getpid()) begin_child();
  errno = saved;
  return 0;
}

}  // namespace

void begin_child() {
  forking_thread.store(0, std::memory_order_relaxed);
  begun.store(::getpid(), std::memory_order_relaxed);
  if (window.abandoned) return;
  if (inside_any)
    begin_abandoned_child();
  else
    begin_whole_child();
}

pid_t fork_safely(pid_t (*real)(void*), void* argument, pid_t (*bare)(void*)) {
  if (window.abandoned || (large_from.load(std::memory_order_relaxed) == SIZE_MAX && !is_armed()))
    return real(argument);
  const uint32_t mine = thread_number();
  // A handler that has interrupted this thread's own fork. For the C library the engine's thread is one of the
  // program's: that fork holds locks for it, which it leaves out otherwise.
  if (forking_thread.load(std::memory_order_relaxed) == mine)
    return fork_once(bare != nullptr && __libc_single_threaded == 0 ? bare : real, argument);
  int saved = errno;
  SignalsBlocked blocked;
  Locks locks;
  note_fork();
  const bool safe = !is_armed() || prepare_memory_for_fork(locks.in_heap());
  if (!safe) {
    count(&supply::Slot::forks_failed);
    locks.leave();
    say("fork refused (EAGAIN): memory of this run cannot be made private (supervisor gone, no memory for a "
        "copy, or too many mappings)");
    errno = EAGAIN;
    return -1;
  }
  const bool lends_free = is_armed() && !locks.in_heap();
  if (lends_free) set_free_ranges_inherited(true);
  inside_heap = locks.in_heap();
  inside_any = locks.in_any();
  forking_thread.store(mine, std::memory_order_relaxed);
  blocked.unblock();
  errno = saved;
  const pid_t pid = fork_once(real, argument);
  saved = errno;
  blocked.block();
  // Elsewhere already: in a child, or in one that a handler made in the meantime and that went on from here.
  if (pid != 0 && forking_thread.load(std::memory_order_relaxed) == mine) {
    forking_thread.store(0, std::memory_order_relaxed);
    if (lends_free) set_free_ranges_inherited(false);
    drop_copies();
    locks.leave();
  }
  errno = saved;
  return pid;
}

}  // namespace terrace::preload
