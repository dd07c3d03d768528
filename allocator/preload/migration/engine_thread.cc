// SPDX-License-Identifier: Apache-2.0
// The engine's thread: it starts, opens what it moves, loops in Engine::run, and meets the heap between rounds.
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "allocator/preload/migration/fold_after_fork.h"
#include "allocator/preload/migration/migration_state.h"
#include "allocator/preload/window/ddr_part.h"
#include "allocator/preload/window/statistics.h"
#include "allocator/preload/window/supervisor_link.h"

namespace terrace::preload::migration {

Shared shared;

void futex_wait(std::atomic<uint32_t>* word, uint32_t value, uint64_t ns) {
  timespec time{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  ::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void wake_engine() {
  // acquire: both pair with the engine thread, in begin_moving() and run_engine().
  Migration* migration = shared.opened.load(std::memory_order_acquire);
  if (migration != nullptr && shared.engine_loops.load(std::memory_order_acquire)) migration->engine.wake();
}

namespace {

template <typename Value>
void put(uint64_t supply::Slot::*cell, Value value) {
  if (window.slot != nullptr)
    std::atomic_ref<uint64_t>(window.slot->*cell)
        .store(static_cast<uint64_t>(value), std::memory_order_relaxed);
}

}  // namespace

void put_state(supply::MigrationState now, uint32_t os_errno) {
  put(&supply::Slot::migration_state, static_cast<uint64_t>(now) | uint64_t{os_errno} << 32);
}

namespace {

using tiering::Residency;

constexpr size_t stack_bytes = 256 * 1024;
constexpr uint64_t naming_patience_ns = 100'000'000;  // then it is looked again
constexpr int unshare_descriptors = 1 << 1;           // CLOSE_RANGE_UNSHARE

// The descriptor of a source, over the engine thread's own connection; -1.
int fetch(Link& link, supply::RequestKind kind, uint64_t key) {
  supply::Request request{};
  request.magic = supply::magic;
  request.version = supply::version;
  request.kind = static_cast<uint16_t>(kind);
  request.segment_key = key;
  supply::Reply reply{};
  int fd = -1;
  return link.ask(request, &reply, &fd) ? fd : -1;
}

// ---- of the engine's thread, with heap_lock and the range's lock held

bool release_by_engine(uint32_t granule) {
  if (shared.self->memory.residency(granule) != Residency::ddr || shared.self->memory.is_held(granule))
    return false;
  shared.self->memory.forget(granule, 1, false);
  uncharge_granules(1);
  return true;
}

void adopt_charged() {
  for (uint32_t granule = 0; granule < window.ddr_pages / granule_pages; ++granule)
    if (window.charged[granule] != 0 && shared.self->memory.residency(granule) == Residency::none)
      shared.self->memory.adopt(granule, 1, Residency::ddr);
}

// F2 to the granule: where two traded places beyond the budget, or one was in the way.
void balance_charge() {
  const uint32_t charged = std::atomic_ref<uint32_t>(window.charged_granules).load(std::memory_order_relaxed);
  const uint32_t resident = shared.self->memory.ddr_granules();
  if (resident > charged) charge_granules_anyway(resident - charged);
  if (resident < charged) uncharge_granules(charged - resident);
}

// Other processes of the run use the budget as well: a plan must know what it can have, or it counts on room
// that is not there and names nothing that could sink.
void limit_ddr() {
  Migration& my = *shared.self;
  const uint64_t now = my.engine.statistics(my.range).ddr_bytes_max / granule_bytes;
  if (now != my.ddr_set) my.ddr_wanted = now;
  const uint64_t budget = window.control->ddr_budget;
  const uint64_t used = std::atomic_ref<uint64_t>(window.control->ddr_used).load(std::memory_order_relaxed);
  const uint64_t mine = std::atomic_ref<uint32_t>(window.charged_granules).load(std::memory_order_relaxed);
  const uint64_t can = mine + (used < budget ? (budget - used) / granule_bytes : 0);
  my.ddr_set = can < my.ddr_wanted ? can : my.ddr_wanted;
  if (my.ddr_set != now) my.engine.set_ddr_granules_max(my.range, my.ddr_set);
}

// CXL memory that promotions left, for granules of the reserve that the budget cannot hold.
bool fill_reserve(uint32_t pages, uint32_t align_pages) {
  if (shared.self->memory.free_slots() < (pages + granule_pages - 1) / granule_pages) return false;
  heap::PageSpan granules = take_reserve(pages, align_pages);
  if (granules.pages == 0) return false;
  const uint32_t first = granules.first / granule_pages, count = granules.pages / granule_pages;
  if (shared.self->memory.map(first, count, Residency::cxl) == 0) {
    window.heap.set_dirty(granules, true);
    open_front(granules);
    return true;
  }
  // Some of them may be mapped: those are usable, the rest is what it was.
  for (uint32_t i = 0; i < count; ++i) {
    if (shared.self->memory.residency(first + i) == Residency::none) continue;
    shared.self->memory.map(first + i, 1, Residency::ddr);
  }
  for (uint32_t i = 0; i < count; ++i)
    if (shared.self->memory.residency(first + i) == Residency::ddr)
      shared.self->memory.forget(first + i, 1, false);
  return_reserve(granules);
  return false;
}

// ---- of the engine's thread

// Descriptors of new segments; before any lock is taken.
void fetch_segments() {
  // acquire: pairs with note_new_slots(), which stores the key before.
  const uint32_t count = std::atomic_ref<uint32_t>(window.segment_count).load(std::memory_order_acquire);
  Link link;
  bool connected = false;
  for (uint32_t i = 0; i < count; ++i) {
    // acquire: pairs with note_new_slots(); forget_segment() is of this thread.
    const uint64_t key = std::atomic_ref<uint64_t>(window.segments[i].key).load(std::memory_order_acquire);
    if (key == 0 || shared.self->descriptors[i] >= 0 || has_left(i)) continue;
    if (!connected) connected = link.open();
    if (!connected) return;
    shared.self->descriptors[i] = fetch(link, supply::RequestKind::reopen, key);
  }
}

void adopt_segments() {
  for (uint32_t i = 0; i < window.segment_count; ++i) {
    const heap::PageSpan span = window.segments[i].span;
    const uint32_t granules = span.pages / granule_pages;
    if (shared.self->segment_slots[i] != 0 || granules == 0 || shared.self->descriptors[i] < 0 || has_left(i))
      continue;
    if (shared.self->memory.add_segment(shared.self->descriptors[i], granules * granule_bytes, i) != 0)
      continue;
    shared.self->memory.adopt(span.first / granule_pages, granules, Residency::cxl, i, 0);
    shared.self->segment_slots[i] = granules;
  }
}

void apply_early_holds() {
  for (uint32_t granule = 0; granule < shared.self->memory.granule_count(); ++granule) {
    // seq_cst: pairs with hold_for_good(): it sees `opened`, or its mark is seen here.
    if (std::atomic_ref<uint8_t>(window.held_for_good[granule]).load(std::memory_order_seq_cst) != 0)
      shared.self->memory.hold(granule, 1);
    if (window.held_counts[granule] != 0) shared.self->memory.hold(granule, 1);
  }
  shared.holds_applied = true;
}

// Whoever ended it said why.
void stop_moving() {
  const supply::EndReason reason = shared.end_reason.load(std::memory_order_relaxed);
  shared.self->engine.give_up(shared.self->range, layout::TierState::stopped, supply::end_reason_text(reason));
  shared.state.store(State::ended, std::memory_order_release);  // release: pairs with engine_moves()
  put(&supply::Slot::end_reason, reason);
  put_state(supply::MigrationState::stopped);
}

void serve_switch() {
  auto waiting = static_cast<uint32_t>(Asked::waiting);
  // acquire pairs with the asker's release: function and argument are there.
  if (!shared.asked.compare_exchange_strong(waiting, static_cast<uint32_t>(Asked::working),
                                            std::memory_order_acquire))
    return;
  shared.self->memory.lock().enter();
  give_up_for_fork();
  const bool ok = shared.asked_switch(shared.asked_argument, shared.self->descriptors);
  shared.self->memory.lock().leave();
  // release: pairs with switch_by_engine()
  shared.asked.store(static_cast<uint32_t>(ok ? Asked::done : Asked::failed), std::memory_order_release);
  futex_wake(&shared.asked);
}

void publish() {
  const layout::TierRange& now = shared.self->engine.statistics(shared.self->range);
  put(&supply::Slot::tier_ddr_bytes, shared.self->memory.ddr_granules() * granule_bytes);
  put(&supply::Slot::tier_cxl_bytes, shared.self->memory.cxl_granules() * granule_bytes);
  put(&supply::Slot::promotions, now.promotions);
  put(&supply::Slot::demotions, now.demotions);
  put(&supply::Slot::moves_undone, now.aborted);
  put(&supply::Slot::moves_skipped,
      now.skipped_busy + now.skipped_vma + now.skipped_pinned + now.skipped_unproven);
  put(&supply::Slot::stalled_ns, now.stalled_ns);
  put(&supply::Slot::copy_ns, now.copy_ns);
  put(&supply::Slot::sampler_ns, now.sampler_ns);
  put(&supply::Slot::ddr_hit_permille, now.ddr_hit_permille);
  put(&supply::Slot::held_bytes, now.busy_bytes);
  statistics::note_moved(now.promoted_bytes, now.demoted_bytes);
}

// Folds what it can, or ends where it was told to.
void after_fork() {
  if (!shared.ending.load(std::memory_order_relaxed)) {
    if (fold_back()) shared.self->engine.wake();
    return publish();
  }
  if (!window.heap_lock.enter()) return;
  shared.self->memory.lock().enter();
  if (shared.state.load(std::memory_order_relaxed) == State::forked) stop_moving();
  shared.self->memory.lock().leave();
  window.heap_lock.leave();
}

// After each round: what the heap and the engine have to tell each other.
void settle(void*) {
  serve_switch();
  fetch_segments();
  ask_for_room();
  // acquire: no partner: this thread itself stores State::moving, another one only State::forked.
  if (shared.state.load(std::memory_order_acquire) == State::moving) {
    if (!window.heap_lock.enter()) {  // a fork is under way: it waits for the range's lock
      constexpr timespec pause{.tv_sec = 0, .tv_nsec = 200'000};
      ::nanosleep(&pause, nullptr);
      return;
    }
    bool found = false;
    if (engine_moves()) {
      shared.self->memory.lock().enter();
      import_heap_changes();
      if (shared.give_back_asked.load(std::memory_order_relaxed)) {
        shared.given_back.fetch_add(give_back_all(release_by_engine), std::memory_order_relaxed);
        shared.give_back_asked.store(false, std::memory_order_release);  // pairs with wait_for_trim()
      }
      return_leases();
      const uint32_t pages = shared.wanted_pages.exchange(0, std::memory_order_relaxed);
      if (pages > 0) found = fill_reserve(pages, shared.wanted_align.load(std::memory_order_relaxed));
      balance_charge();
      limit_ddr();
      statistics::answer_tiers(shared.self->memory);
      if (shared.ending.load(std::memory_order_relaxed)) {
        stop_moving();
      }
      shared.self->memory.lock().leave();
    }
    window.heap_lock.leave();
    empty_leases();
    publish();
    if (found) shared.settled_with_memory.fetch_add(1, std::memory_order_relaxed);
  }
  // acquire: pairs with give_up_for_fork()
  if (shared.state.load(std::memory_order_acquire) == State::forked) after_fork();
  // release: pairs with both waits for it in migrate.cc.
  shared.settled.fetch_add(1, std::memory_order_release);
  futex_wake(&shared.settled);
}

}  // namespace

void import_heap_changes() {
  adopt_charged();
  adopt_segments();
}

void resume_moving() {
  balance_charge();
  shared.self->engine.resume(shared.self->range);
  shared.state.store(State::moving, std::memory_order_release);  // release: pairs with engine_moves()
  put_state(supply::MigrationState::running);
}

namespace {

bool take_ddr(void*, uint32_t granules) {
  return charge_granules(granules);
}

void give_ddr(void*, uint32_t granules) {
  uncharge_granules(granules);
}

// Test seam, by no command line: as many random moves as the copy budget lets, in both directions.
size_t plan_churn(const tiering::PlanInput& input, tiering::PolicyMemory&, std::span<uint32_t>,
                  std::span<tiering::Move> moves) {
  static uint64_t random = 0x9e3779b97f4a7c15u;
  size_t planned = 0;
  for (size_t tries = 0; planned < moves.size() && planned < 64 && tries < 256; ++tries) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const auto granule = static_cast<uint32_t>(random % input.granules.size());
    const Residency now = input.granules[granule].residency;
    if (now == Residency::none || input.granules[granule].busy != 0) continue;
    moves[planned++] = {.granule = granule, .to = now == Residency::ddr ? Residency::cxl : Residency::ddr};
  }
  return planned;
}
constexpr tiering::PolicyEntry churn = {.name = "churn", .what = "", .plan = plan_churn};

const tiering::PolicyEntry* policy_of(const supply::ControlHeader& control) {
  const std::string_view name{control.policy, strnlen(control.policy, sizeof(control.policy))};
  return name == churn.name ? &churn : tiering::find_policy(name);
}

// Of the thread that starts. 0, or an errno. What the program's threads see of it is only `opened`.
int open_engine() {
  const supply::ControlHeader& control = *window.control;
  Link link;
  if (!link.open()) return errno;
  shared.self->descriptors[front_source] = fetch(link, supply::RequestKind::reopen, window.front_key);
  int device = -1;
  if (control.userfault_from_device != 0) device = fetch(link, supply::RequestKind::userfault_device, 0);
  if (shared.self->descriptors[front_source] < 0) return EBADF;
  tiering::TieredMemoryOptions memory;
  memory.base = window.base;
  memory.bytes = window.total_pages / granule_pages * granule_bytes;
  memory.granule_bytes = granule_bytes;
  memory.ddr_fd = shared.self->descriptors[front_source];
  int failed = shared.self->memory.open(memory);
  if (failed != 0) return failed;
  tiering::EngineOptions engine;
  engine.userfault_device = device;
  engine.copy_bytes_per_s_max = control.copy_bytes_per_s;
  if (control.round_ns != 0) engine.round_ns = control.round_ns;
  engine.access_events = control.access_events != 0;
  // Each look costs a fault for each granule in use, which a server's 99th percentile shows when there are 20 a
  // second.
  engine.sweep_gap_ns_min = engine.round_ns;
  engine.prove_moves = moves_are_proved();
  failed = shared.self->engine.open(engine);
  close_raw(device);
  tiering::RangeOptions range;
  range.name = "heap";
  range.policy = policy_of(control);
  range.ddr_granules_max = control.ddr_budget / granule_bytes;
  shared.self->ddr_wanted = shared.self->ddr_set = range.ddr_granules_max;
  range.hooks = {.owner = nullptr, .take_ddr = take_ddr, .give_ddr = give_ddr, .after_round = settle};
  if (failed == 0) failed = shared.self->engine.add_range(&shared.self->memory, range, &shared.self->range);
  if (failed == 0 && shared.self->engine.prove_errno() != 0) end_migration(supply::EndReason::no_proof);
  if (failed == 0)
    open_fold(window.token_key != 0 ? fetch(link, supply::RequestKind::reopen, window.token_key) : -1);
  if (failed != 0) {
    shared.self->engine.close();
    shared.self->memory.close();
  }
  return failed;
}

// The first move may come after this: what was held before is known.
void begin_moving() {
  // seq_cst: pairs with begin_hold(): it sees `opened`, or its count is seen below.
  shared.opened.store(shared.self, std::memory_order_seq_cst);
  // Whoever held something without seeing `opened` is counted.
  while (shared.early_holds.load(std::memory_order_seq_cst) != 0) {  // pairs with begin_hold(), end_hold()
    timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  while (!window.heap_lock.enter()) {  // a fork is under way
    timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  shared.self->memory.lock().enter();
  apply_early_holds();
  // seq_cst: pairs with end_migration(): it sees `opened`, or `ending` is seen here.
  const bool wanted = !shared.ending.load(std::memory_order_seq_cst);
  if (wanted && shared.state.load(std::memory_order_relaxed) == State::starting) {
    adopt_charged();
    // A fork was before the engine.
    const bool forked = has_detached() || window.private_for_good;
    // release: pairs with engine_moves(), give_up_for_fork(), engine_is_opening().
    shared.state.store(forked ? State::forked : State::moving, std::memory_order_release);
    put_state(forked ? supply::MigrationState::forked : supply::MigrationState::running);
    if (forked) give_up_for_fork();
  } else {
    stop_moving();
  }
  shared.self->memory.lock().leave();
  window.heap_lock.leave();
}

void* run_engine(void*) {
  ::prctl(PR_SET_NAME, engine_thread_name, 0, 0, 0);  // inherited by the threads that it makes
  shared.named.store(1, std::memory_order_release);   // release: pairs with start_thread()
  futex_wake(&shared.named);
  // Lower numbers than ours stay free, so that none of ours is ever taken for stdin, stdout or stderr.
  int failed = ::syscall(SYS_close_range, 0, ~0u, unshare_descriptors) == 0 ? 0 : errno;
  if (failed == 0) failed = open_engine();
  if (failed != 0) {
    never_fold();
    shared.state.store(State::ended, std::memory_order_release);  // release: pairs with engine_moves()
    put_state(supply::MigrationState::stopped, static_cast<uint32_t>(failed));
    shared.engine_ended.store(true, std::memory_order_release);  // release: pairs with quit_engine()
    return nullptr;
  }
  fetch_segments();
  begin_moving();
  // release: pairs with wake_engine(), switch_by_engine(), quit_engine()
  shared.engine_loops.store(true, std::memory_order_release);
  shared.self->engine.run();
  shared.engine_loops.store(false, std::memory_order_release);  // release: pairs with wake_engine()
  // Its last round may have been before it was told to end. Without the heap's lock: a handler that ends it may
  // have interrupted who holds that.
  shared.self->memory.lock().enter();
  if (shared.ending.load(std::memory_order_relaxed)) stop_moving();
  shared.self->memory.lock().leave();
  shared.self->engine.close();                                 // what memory lies where is still asked for
  shared.engine_ended.store(true, std::memory_order_release);  // release: pairs with quit_engine()
  return nullptr;
}

}  // namespace

bool start_thread() {
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return false;
  ::pthread_attr_setstacksize(&attributes, stack_bytes);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  shared.named.store(0, std::memory_order_relaxed);
  const bool ok = ::pthread_create(&shared.thread, &attributes, run_engine, nullptr) == 0;
  // Until then a signal handler's fork would take it for one of the program's.
  while (ok && shared.named.load(std::memory_order_acquire) == 0)  // acquire: pairs with run_engine()
    futex_wait(&shared.named, 0, naming_patience_ns);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  return ok;
}

}  // namespace terrace::preload::migration
