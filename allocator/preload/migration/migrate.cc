// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/window/movement.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/single_threaded.h>
#include <time.h>

#include <new>

#include "allocator/preload/libc/message.h"
#include "allocator/preload/libc/signals_blocked.h"
#include "allocator/preload/migration/fold_after_fork.h"
#include "allocator/preload/migration/migration_state.h"

namespace terrace::preload {

using namespace migration;
using tiering::Residency;

namespace {

constexpr uint64_t settle_patience_ns = 2'000'000'000;
constexpr uint64_t switch_patience_ns = 10'000'000'000;

alignas(Migration) char migration_storage[sizeof(Migration)];

}  // namespace

std::atomic<bool> engine_start_due{false};

void note_new_segment() {
  if (shared.state.load(std::memory_order_relaxed) == State::off)
    engine_start_due.store(true, std::memory_order_relaxed);
  else
    wake_engine();
}

void start_engine_if_due() {
  if (!engine_start_due.exchange(false, std::memory_order_relaxed)) return;
  State off = State::off;
  if (shared.ending.load(std::memory_order_relaxed) ||
      !shared.state.compare_exchange_strong(off, State::starting, std::memory_order_relaxed))
    return;
  shared.self = new (migration_storage) Migration;
  for (int& fd : shared.self->descriptors) fd = -1;
  const int saved = errno;  // a request that succeeds leaves it alone
  const bool started = start_thread();
  errno = saved;
  // release: pairs with quit_engine()
  if (started) return shared.running.store(true, std::memory_order_release);
  shared.state.store(State::ended, std::memory_order_release);  // release: pairs with engine_moves()
  put_state(supply::MigrationState::stopped, EAGAIN);
}

// Without it whatever pins pages of the window unseen loses bytes. For users who know that nothing of theirs
// does, on memory that cannot be asked (devices); and a test seam.
bool moves_are_proved() {
  static const bool proved =
      secure_getenv("TERRACE_MOVE_UNPROVEN") == nullptr && secure_getenv("TERRACE_TEST_ASK_NOTHING") == nullptr;
  return proved;
}

bool engine_moves() {
  // acquire: pairs with begin_moving(), resume_moving()
  return shared.state.load(std::memory_order_acquire) == State::moving;
}

void ask_to_give_back() {
  if (!shared.give_back_asked.exchange(true, std::memory_order_relaxed)) wake_engine();
}

void ask_for_leases_back(bool all) {
  if (!engine_moves()) return;
  if (all) shared.all_leases_asked.store(true, std::memory_order_relaxed);
  if (!shared.leases_asked.exchange(true, std::memory_order_relaxed)) wake_engine();
}

bool wait_for_trim() {
  const uint32_t before = shared.given_back.load(std::memory_order_relaxed);
  const uint64_t end_ns = tiering::monotonic_ns() + settle_patience_ns;
  for (;;) {
    const uint32_t round = shared.settled.load(std::memory_order_acquire);  // acquire: pairs with settle()
    // acquire: both pair with the end of what was asked, in settle() and return_leases().
    if (!shared.give_back_asked.load(std::memory_order_acquire) &&
        !shared.leases_asked.load(std::memory_order_acquire))
      break;
    const uint64_t now_ns = tiering::monotonic_ns();
    if (now_ns >= end_ns || !engine_moves()) break;
    wake_engine();
    futex_wait(&shared.settled, round, end_ns - now_ns);
  }
  return shared.given_back.load(std::memory_order_relaxed) != before;
}

bool wait_for_reserve_memory(uint32_t pages, uint32_t align_pages) {
  Migration* migration = shared.opened.load(std::memory_order_acquire);  // acquire: pairs with begin_moving()
  if (!window.tiered || migration == nullptr || !engine_moves()) return false;
  // A look without locks: wrong numbers cost a try.
  if (window.heap.free_pages(reserve_arena) < pages || migration->memory.free_slots() == 0) return false;
  const uint32_t before = shared.settled_with_memory.load(std::memory_order_relaxed);
  shared.wanted_align.store(align_pages, std::memory_order_relaxed);
  shared.wanted_pages.store(pages, std::memory_order_relaxed);
  const uint64_t end_ns = tiering::monotonic_ns() + settle_patience_ns;
  for (;;) {
    const uint32_t round = shared.settled.load(std::memory_order_acquire);  // acquire: pairs with settle()
    if (shared.settled_with_memory.load(std::memory_order_relaxed) != before) return true;
    if (shared.wanted_pages.load(std::memory_order_relaxed) == 0) return false;  // looked for, in vain
    wake_engine();
    const uint64_t now_ns = tiering::monotonic_ns();
    if (now_ns >= end_ns) return false;
    futex_wait(&shared.settled, round, end_ns - now_ns);
  }
}

bool front_granule_in_ddr(uint32_t granule) {
  // acquire: pairs with begin_moving()
  const Migration* migration = shared.opened.load(std::memory_order_acquire);
  return migration == nullptr || migration->memory.residency(granule) != Residency::cxl;
}

bool program_has_one_thread() {
  if (__libc_single_threaded != 0) return true;
  // The engine's thread allocates when it makes the reader of faults. It cannot end that where it waits for
  // what a signal handler's fork has interrupted: so not for ever.
  constexpr int patience_yields = 100'000;
  for (int tries = 0; tries < patience_yields && engine_is_opening(); ++tries) ::sched_yield();
  return proc_shows_one_program_thread();
}

void quit_engine(supply::EndReason reason) {
  end_migration(reason);
  // acq_rel: pairs with start_engine_if_due(), its release half with nothing.
  if (shared.running.exchange(false, std::memory_order_acq_rel) == false) return;
  // It may not be in its loop yet: it is soon, or it ends by itself.
  // acquire: both pair with run_engine().
  while (!shared.engine_loops.load(std::memory_order_acquire) &&
         !shared.engine_ended.load(std::memory_order_acquire)) {
    timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  shared.self->engine.stop();
  ::pthread_join(shared.thread, nullptr);  // until it makes no system call any more
}

void end_migration(supply::EndReason reason) {
  if (holds_nothing()) return;
  shared.end_reason.store(reason, std::memory_order_relaxed);
  // seq_cst: pairs with empty_leases(), begin_moving()
  if (shared.ending.exchange(true, std::memory_order_seq_cst)) return;
  // seq_cst: pairs with begin_moving(): `ending` here, then `opened`; there the other way.
  Migration* migration = shared.opened.load(std::memory_order_seq_cst);
  if (migration == nullptr) return;
  // The engine plans nothing after this, and the last move is over once the lock was had. settle() tells the
  // heap. Of the threads that take it this one alone has handlers: one that forks would wait for its own lock.
  const SignalsBlocked blocked;
  migration->memory.lock().enter();
  migration->engine.give_up(migration->range, layout::TierState::stopped, supply::end_reason_text(reason));
  migration->memory.lock().leave();
  wake_engine();
}

// Not analysed, as the next: the lock of a range, if there is one by then, which another function gives back.
void lock_moves() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  // Not opened yet: it begins only under heap_lock, and finds then that it is to end.
  shared.locked = shared.opened.load(std::memory_order_acquire);  // acquire: pairs with begin_moving()
  if (shared.locked != nullptr) shared.locked->memory.lock().enter();
}

void unlock_moves() TERRACE_NO_THREAD_SAFETY_ANALYSIS {
  if (shared.locked != nullptr) shared.locked->memory.lock().leave();
  shared.locked = nullptr;
}

void unlock_moves_in_child() {
  // Its tables and aliases are the parent's doing, and nobody moves anything here.
  shared.opened.store(nullptr, std::memory_order_relaxed);
  shared.state.store(State::ended, std::memory_order_relaxed);
  shared.engine_loops.store(false, std::memory_order_relaxed);
  shared.running.store(false, std::memory_order_relaxed);
  shared.holds_applied = false;
}

void give_up_for_fork() {
  Migration* migration = shared.opened.load(std::memory_order_acquire);  // acquire: pairs with begin_moving()
  // acquire: pairs with begin_moving(), resume_moving()
  const State was = shared.state.load(std::memory_order_acquire);
  if (migration == nullptr || was == State::starting) return;  // its thread sees when it begins
  if (was == State::moving) {
    shared.state.store(State::forked, std::memory_order_release);  // release: pairs with settle()
    put_state(supply::MigrationState::forked);
  }
  migration->engine.suspend(migration->range, "memory is private since a fork");
}

PageSource source_of(uint32_t page) {
  const uint32_t granule = page / granule_pages;
  const uint64_t within = uint64_t{page % granule_pages} * page_bytes;
  // acquire: pairs with begin_moving()
  const Migration* migration = shared.opened.load(std::memory_order_acquire);
  if (migration != nullptr) {
    const Residency residency = migration->memory.residency(granule);
    if (residency == Residency::ddr) return {front_source, granule * granule_bytes + within};
    if (residency == Residency::cxl) {
      const tiering::TieredMemory::Place place = migration->memory.place(granule);
      return {place.segment, place.offset + within};
    }
  }
  // As it was mapped first.
  if (page < window.ddr_pages) return {front_source, uint64_t{page} * page_bytes};
  for (uint32_t i = 0; i < window.segment_count; ++i) {
    const heap::PageSpan span = window.segments[i].span;
    if (page - span.first < span.pages) return {i, uint64_t{page - span.first} * page_bytes};
  }
  fatal("fork: a page of no segment");
}

bool switch_by_engine(SwitchPages switch_pages, void* argument) {
  if (!shared.engine_loops.load(std::memory_order_acquire)) return false;  // acquire: pairs with run_engine()
  shared.asked_switch = switch_pages;
  shared.asked_argument = argument;
  // release: pairs with serve_switch()
  shared.asked.store(static_cast<uint32_t>(Asked::waiting), std::memory_order_release);
  const uint64_t end_ns = tiering::monotonic_ns() + switch_patience_ns;
  for (;;) {
    // acquire: pairs with the answer of serve_switch()
    uint32_t now = shared.asked.load(std::memory_order_acquire);
    if (now == static_cast<uint32_t>(Asked::done)) return true;
    if (now == static_cast<uint32_t>(Asked::failed)) return false;
    wake_engine();
    const uint64_t now_ns = tiering::monotonic_ns();
    auto waiting = static_cast<uint32_t>(Asked::waiting);
    // Not begun in all this time: it must not begin later.
    if (now_ns >= end_ns &&
        shared.asked.compare_exchange_strong(waiting, static_cast<uint32_t>(Asked::nothing)))
      return false;
    futex_wait(&shared.asked, now, now_ns < end_ns ? end_ns - now_ns : 1'000'000);
  }
}

}  // namespace terrace::preload
