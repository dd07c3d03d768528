// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/engine.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace terrace::tiering {
namespace {

constexpr uint64_t sleep_ns_min = 50'000;

}  // namespace

int Engine::open(const EngineOptions& options) {
  options_ = options;
  mover_.open(options.batch_bytes, options.copy_bytes_per_s_max, options.costs);
  void* table = ::mmap(nullptr, tables_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED) return errno;
  tables_ = static_cast<char*>(table);
  notes_.open(tables_);
  moves_ = reinterpret_cast<Move*>(tables_ + NoteRing::bytes);
  // Before any thread of ours, so that those inherit it.
  if (options.access_events) events_.open();
  Mover& mover = mover_.mover();
  userfault_errno_ = mover.start(options.userfault_device, options.batch_bytes);
  mover.set_copy(options.copy);
  if (mover.started()) mover.set_copy_threads(options.copy_threads);
  prove_errno_ = options.prove_moves && mover.started() ? mover.prove_moves() : 0;
  if (options.publish) page_.open();
  return userfault_errno_;
}

void Engine::close() {
  if (tables_ == nullptr) return;
  for (uint32_t i = 0; i < ranges_max; ++i) remove_range(i);
  if (!abandoned_) {
    mover_.mover().stop();
    page_.close();
  }
  events_.close();
  ::munmap(tables_, tables_bytes);
  tables_ = nullptr;
  moves_ = nullptr;
}

void Engine::abandon_in_child() {
  abandoned_ = true;
  lock_.reset_in_child();
  mover_.mover().abandon();
  events_.close();
  page_.forget_in_child();
  for (uint32_t i = 0; i < range_count_; ++i) {
    RangeState& range = ranges_[i];
    range.shown = nullptr;
    if (range.memory == nullptr) continue;
    range.memory->lock().reset_in_child();
    range.memory->abandon();
    range.give_up(layout::TierState::forked, "a child of fork does not have this memory");
  }
}

// The range works without; that it does is worth a word all the same.
void Engine::tell_refused(layout::TierRange& page) {
  const char* faults = events_.why(EventSource::minor_faults);
  const char* samples = events_.why(EventSource::memory_samples);
  if (faults != nullptr)
    snprintf(page.reason, sizeof(page.reason), "no faults: %s", faults);
  else if (samples != nullptr)
    snprintf(page.reason, sizeof(page.reason), "no samples: %s", samples);
}

// What the tier page says of a range that is new.
void Engine::describe(RangeState& range, TieredMemory* memory, const char* name, bool blind) {
  layout::TierRange& page = range.page;
  page = layout::TierRange{};
  copy_text(page.name, sizeof(page.name), name);
  copy_text(page.policy, sizeof(page.policy), range.options.policy->name);
  page.base = reinterpret_cast<uintptr_t>(memory->base());
  page.bytes = memory->bytes();
  page.granule_bytes_log2 = static_cast<uint32_t>(__builtin_ctzll(memory->granule_bytes()));
  page.ddr_bytes_max = range.options.ddr_granules_max * memory->granule_bytes();
  page.copy_bytes_per_s_max = options_.copy_bytes_per_s_max;
  if (!can_move(*memory)) {
    range.give_up(layout::TierState::no_uffd, userfault_errno_ == EPERM
                                                  ? "no right to handle kernel faults (EPERM)"
                                                  : strerrorname_np(userfault_errno_));
    return;
  }
  range.set_state(layout::TierState::running);
  if (blind)
    copy_text(page.reason, sizeof(page.reason), "no PAGEMAP_SCAN: only announced and counted uses are seen");
  else if (options_.access_events)
    tell_refused(page);
}

int Engine::add_range(TieredMemory* memory, const RangeOptions& options, uint32_t* index) {
  for (uint32_t i = 0; i < ranges_max; ++i) {
    RangeState& range = ranges_[i];
    if (range.memory != nullptr) continue;
    // A kernel before 6.7, or a process that may not look at itself: announcements and guards are all it sees.
    if (options_.sweep_gap_ns_min != 0) range.sampler.set_gap_min(options_.sweep_gap_ns_min);
    const bool blind = range.sampler.open(memory) != 0;
    range.options = options;
    if (range.options.policy == nullptr) range.options.policy = &policies()[0];
    range.options.name = "";  // the caller's text
    range.policy_memory = PolicyMemory{};
    range.policy_memory.options = options_.policy;
    describe(range, memory, options.name, blind);
    if (events_.opened(EventSource::minor_faults)) range.sampler.expect_first_touches();
    range.sweep_due_ns = blind ? UINT64_MAX : 0;
    range.plan_due_ns = 0;
    range.ddr_accesses = range.cxl_accesses = 0;
    range.lost_memory = false;
    range.memory = memory;
    if (i >= range_count_) range_count_ = i + 1;
    page_.show(range, i);
    *index = i;
    return 0;
  }
  return ENOSPC;
}

void Engine::remove_range(uint32_t index) {
  RangeState& range = ranges_[index];
  if (range.memory == nullptr) return;
  range.sampler.close();
  range.memory = nullptr;
  page_.hide(range);
}

void Engine::announce(uint32_t range, uint32_t first, uint32_t count, uint64_t in_ns) {
  const uint64_t now_ns = monotonic_ns();
  notes_.put({.range = range,
              .first = first,
              .count = count,
              .when_ns = in_ns < UINT64_MAX - now_ns ? now_ns + in_ns : UINT64_MAX});
}

void Engine::note_access(uint32_t range, uint32_t first, uint32_t count, uint32_t accesses) {
  if (accesses == 0) return;
  notes_.put({.range = range, .first = first, .count = count, .accesses = accesses, .when_ns = monotonic_ns()});
}

MoveResult Engine::move_now(uint32_t index, uint32_t first, uint32_t count, Residency to) {
  RangeState& range = ranges_[index];
  MoveLock& lock = range.memory->lock();
  lock.enter();
  const MoveResult result = mover_.move_now(range, first, count, to);
  lock.leave();
  return result;
}

void Engine::run() {
  ::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // sweeps are short
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint32_t word = wake_word_.load(std::memory_order_acquire);  // acquire: pairs with wake()
    lock_.enter();
    // Never back to back: who waits for the lock would not get it.
    const uint64_t sleep_ns = std::max(round(), sleep_ns_min);
    lock_.leave();
    const timespec time{.tv_sec = static_cast<time_t>(sleep_ns / 1'000'000'000),
                        .tv_nsec = static_cast<long>(sleep_ns % 1'000'000'000)};
    ::syscall(SYS_futex, &wake_word_, FUTEX_WAIT_PRIVATE, word, &time, nullptr, 0);
  }
}

void Engine::wake() {
  wake_word_.fetch_add(1, std::memory_order_release);  // release: pairs with run()
  ::syscall(SYS_futex, &wake_word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void Engine::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  wake();
}

}  // namespace terrace::tiering
