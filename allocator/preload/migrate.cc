#include "allocator/preload/migrate.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "allocator/preload/front.h"
#include "allocator/preload/link.h"
#include "allocator/preload/message.h"
#include "tiering/engine/engine.h"

namespace terrace::preload {
namespace {

using tiering::Residency;

constexpr size_t stack_bytes = 256 * 1024;
constexpr int unshare_descriptors = 1 << 1;  // CLOSE_RANGE_UNSHARE
constexpr uint64_t settle_patience_ns = 2'000'000'000;
constexpr uint64_t switch_patience_ns = 10'000'000'000;

enum class State : uint32_t { off, starting, moving, ended };
enum class Asked : uint32_t { nothing, waiting, working, done, failed };

// What the engine's thread owns. Never destroyed: it may run until the process ends.
struct Migration {
  tiering::TieredMemory memory;
  tiering::Engine engine;
  uint32_t range = 0;
  int descriptors[sources_max];  // in the thread's own table
  uint32_t segments = 0;         // known to `memory`
  uint32_t segment_slots[supply::segments_max] = {};
};
alignas(Migration) char migration_storage[sizeof(Migration)];

std::atomic<State> state{State::off};
std::atomic<Migration*> opened{nullptr};  // its `memory` can be asked and held
std::atomic<bool> engine_loops{false};    // Engine::wake() has an effect
std::atomic<bool> engine_ended{false};    // its thread has nothing more to do
std::atomic<bool> running{false};         // there is a thread that nobody has waited for
pthread_t engine_thread = {};
std::atomic<uint32_t> early_holds{0};  // of before `opened`: nothing moves until they are gone
std::atomic<bool> ending{false};
std::atomic<const char*> end_reason{nullptr};
std::atomic<bool> give_back_asked{false};
std::atomic<uint32_t> wanted_pages{0}, wanted_align{0};
std::atomic<uint32_t> settled{0};  // rounds of settle(), and how many of them found memory
std::atomic<uint32_t> settled_with_memory{0};
std::atomic<uint32_t> asked{static_cast<uint32_t>(Asked::nothing)};
Migration* locked = nullptr;  // by the fork under way; heap_lock
SwitchPages asked_switch = nullptr;
void* asked_argument = nullptr;

void futex_wait(std::atomic<uint32_t>* word, uint32_t value, uint64_t ns) {
  timespec time{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  ::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void wake_engine() {
  Migration* migration = opened.load(std::memory_order_acquire);
  if (migration != nullptr && engine_loops.load(std::memory_order_acquire)) migration->engine.wake();
}

template <typename Value>
void put(uint64_t supply::Slot::*cell, Value value) {
  if (window.slot != nullptr)
    std::atomic_ref<uint64_t>(window.slot->*cell)
        .store(static_cast<uint64_t>(value), std::memory_order_relaxed);
}

void put_state(supply::MigrationState now, uint32_t os_errno = 0) {
  put(&supply::Slot::migration_state, static_cast<uint64_t>(now) | uint64_t{os_errno} << 32);
}

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

bool holds_applied = false;  // heap_lock

// ---- of the engine's thread, with heap_lock and the range's lock held

Migration* self = nullptr;  // as opened; of the engine's thread

bool release_by_engine(uint32_t granule) {
  if (self->memory.residency(granule) != Residency::ddr || self->memory.is_held(granule)) return false;
  self->memory.forget(granule, 1, false);
  uncharge_granules(1);
  return true;
}

void adopt_charged() {
  for (uint32_t granule = 0; granule < window.ddr_pages / granule_pages; ++granule)
    if (window.charged[granule] != 0 && self->memory.residency(granule) == Residency::none)
      self->memory.adopt(granule, 1, Residency::ddr);
}

// F2 to the granule: where two traded places beyond the budget, or one was in the way.
void balance_charge() {
  const uint32_t charged = std::atomic_ref<uint32_t>(window.charged_granules).load(std::memory_order_relaxed);
  const uint32_t resident = self->memory.ddr_granules();
  if (resident > charged) charge_granules_anyway(resident - charged);
  if (resident < charged) uncharge_granules(charged - resident);
}

// CXL memory that promotions left, for granules of the reserve that the budget cannot hold.
bool fill_reserve(uint32_t pages, uint32_t align_pages) {
  if (self->memory.free_slots() < (pages + granule_pages - 1) / granule_pages) return false;
  heap::PageSpan granules = take_reserve(pages, align_pages);
  if (granules.pages == 0) return false;
  const uint32_t first = granules.first / granule_pages, count = granules.pages / granule_pages;
  if (self->memory.map(first, count, Residency::cxl) == 0) {
    window.heap.set_dirty(granules, true);
    open_front(granules);
    return true;
  }
  // Some of them may be mapped: those are usable, the rest is what it was.
  for (uint32_t i = 0; i < count; ++i) {
    if (self->memory.residency(first + i) == Residency::none) continue;
    self->memory.map(first + i, 1, Residency::ddr);
  }
  for (uint32_t i = 0; i < count; ++i)
    if (self->memory.residency(first + i) == Residency::ddr) self->memory.forget(first + i, 1, false);
  return_reserve(granules);
  return false;
}

// ---- of the engine's thread

// Descriptors of new segments; before any lock is taken.
void fetch_segments() {
  const uint32_t count = std::atomic_ref<uint32_t>(window.segment_count).load(std::memory_order_acquire);
  if (self->segments == count) return;
  Link link;
  bool connected = false;
  for (uint32_t i = self->segments; i < count; ++i) {
    if (self->descriptors[i] >= 0) continue;
    if (!connected) connected = link.open();
    if (!connected) return;
    self->descriptors[i] = fetch(link, supply::RequestKind::reopen, window.segments[i].key);
  }
}

void adopt_segments() {
  const uint32_t count = window.segment_count;
  for (uint32_t i = self->segments; i < count && self->descriptors[i] >= 0; ++i) {
    const heap::PageSpan span = window.segments[i].span;
    const uint32_t granules = span.pages / granule_pages;
    if (granules > 0) {
      if (self->memory.add_segment(self->descriptors[i], granules * granule_bytes) != 0) return;
      self->memory.adopt(span.first / granule_pages, granules, Residency::cxl, i, 0);
    }
    self->segment_slots[i] = granules;
    self->segments = i + 1;
  }
}

void apply_early_holds() {
  for (uint32_t granule = 0; granule < self->memory.granule_count(); ++granule) {
    if (std::atomic_ref<uint8_t>(window.held_for_good[granule]).load(std::memory_order_seq_cst) != 0)
      self->memory.hold(granule, 1);
    if (window.held_counts[granule] != 0) self->memory.hold(granule, 1);
  }
  holds_applied = true;
}

void serve_switch() {
  auto waiting = static_cast<uint32_t>(Asked::waiting);
  // acquire pairs with the asker's release: function and argument are there.
  if (!asked.compare_exchange_strong(waiting, static_cast<uint32_t>(Asked::working), std::memory_order_acquire))
    return;
  self->memory.lock().enter();
  give_up_for_fork();
  const bool ok = asked_switch(asked_argument, self->descriptors);
  self->memory.lock().leave();
  asked.store(static_cast<uint32_t>(ok ? Asked::done : Asked::failed), std::memory_order_release);
  futex_wake(&asked);
}

void publish() {
  const layout::TierRange& now = self->engine.statistics(self->range);
  put(&supply::Slot::tier_ddr_bytes, self->memory.ddr_granules() * granule_bytes);
  put(&supply::Slot::tier_cxl_bytes, self->memory.cxl_granules() * granule_bytes);
  put(&supply::Slot::promotions, now.promotions);
  put(&supply::Slot::demotions, now.demotions);
  put(&supply::Slot::moves_undone, now.aborted);
  put(&supply::Slot::moves_skipped, now.skipped_busy + now.skipped_vma);
  put(&supply::Slot::stalled_ns, now.stalled_ns);
  put(&supply::Slot::copy_ns, now.copy_ns);
  put(&supply::Slot::sampler_ns, now.sampler_ns);
  put(&supply::Slot::ddr_hit_permille, now.ddr_hit_permille);
  put(&supply::Slot::held_bytes, now.busy_bytes);
}

// After each round: what the heap and the engine have to tell each other.
void settle(void*) {
  serve_switch();
  fetch_segments();
  if (state.load(std::memory_order_acquire) == State::moving) {
    if (!window.heap_lock.enter()) {  // a fork is under way: it waits for the range's lock
      constexpr timespec pause{.tv_sec = 0, .tv_nsec = 200'000};
      ::nanosleep(&pause, nullptr);
      return;
    }
    bool found = false;
    if (engine_moves()) {
      self->memory.lock().enter();
      adopt_charged();
      adopt_segments();
      if (give_back_asked.exchange(false, std::memory_order_relaxed)) give_back_all(release_by_engine);
      const uint32_t pages = wanted_pages.exchange(0, std::memory_order_relaxed);
      if (pages > 0) found = fill_reserve(pages, wanted_align.load(std::memory_order_relaxed));
      balance_charge();
      if (ending.load(std::memory_order_relaxed)) {
        self->engine.give_up(self->range, layout::TierState::stopped,
                             end_reason.load(std::memory_order_relaxed));
        state.store(State::ended, std::memory_order_release);
        put_state(supply::MigrationState::stopped);
      }
      self->memory.lock().leave();
    }
    window.heap_lock.leave();
    publish();
    if (found) settled_with_memory.fetch_add(1, std::memory_order_relaxed);
  }
  settled.fetch_add(1, std::memory_order_release);
  futex_wake(&settled);
}

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
  self->descriptors[front_source] = fetch(link, supply::RequestKind::reopen, window.front_key);
  int device = -1;
  if (control.userfault_from_device != 0) device = fetch(link, supply::RequestKind::userfault_device, 0);
  if (self->descriptors[front_source] < 0) return EBADF;
  tiering::TieredMemoryOptions memory;
  memory.base = window.base;
  memory.bytes = window.total_pages / granule_pages * granule_bytes;
  memory.granule_bytes = granule_bytes;
  memory.ddr_fd = self->descriptors[front_source];
  int failed = self->memory.open(memory);
  if (failed != 0) return failed;
  tiering::EngineOptions engine;
  engine.userfault_device = device;
  engine.copy_bytes_per_s_max = control.copy_bytes_per_s;
  if (control.round_ns != 0) engine.round_ns = control.round_ns;
  failed = self->engine.open(engine);
  close_raw(device);
  tiering::RangeOptions range;
  range.name = "heap";
  range.policy = policy_of(control);
  range.ddr_granules_max = control.ddr_budget / granule_bytes;
  range.hooks = {.owner = nullptr, .take_ddr = take_ddr, .give_ddr = give_ddr, .after_round = settle};
  if (failed == 0) failed = self->engine.add_range(&self->memory, range, &self->range);
  if (failed != 0) {
    self->engine.close();
    self->memory.close();
  }
  return failed;
}

// The first move may come after this: what was held before is known.
void begin_moving() {
  opened.store(self, std::memory_order_seq_cst);
  // Whoever held something without seeing `opened` is counted.
  while (early_holds.load(std::memory_order_seq_cst) != 0) {
    timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  while (!window.heap_lock.enter()) {  // a fork is under way
    timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  self->memory.lock().enter();
  apply_early_holds();
  const bool wanted = !ending.load(std::memory_order_relaxed);
  if (wanted && state.load(std::memory_order_relaxed) == State::starting) {
    adopt_charged();
    state.store(State::moving, std::memory_order_release);
    put_state(supply::MigrationState::running);
  } else {
    self->engine.give_up(self->range, layout::TierState::stopped, "ended before it began");
    state.store(State::ended, std::memory_order_release);
    put_state(supply::MigrationState::stopped);
  }
  self->memory.lock().leave();
  window.heap_lock.leave();
}

void* run_engine(void*) {
  ::prctl(PR_SET_NAME, "terrace-tier", 0, 0, 0);
  // Lower numbers than ours stay free, so that none of ours is ever taken for stdin, stdout or stderr.
  int failed = ::syscall(SYS_close_range, 0, ~0u, unshare_descriptors) == 0 ? 0 : errno;
  if (failed == 0) failed = open_engine();
  if (failed != 0) {
    state.store(State::ended, std::memory_order_release);
    put_state(supply::MigrationState::stopped, static_cast<uint32_t>(failed));
    engine_ended.store(true, std::memory_order_release);
    return nullptr;
  }
  fetch_segments();
  begin_moving();
  engine_loops.store(true, std::memory_order_release);
  self->engine.run();
  engine_loops.store(false, std::memory_order_release);
  self->engine.close();  // what memory lies where is still asked for
  engine_ended.store(true, std::memory_order_release);
  return nullptr;
}

bool start_thread() {
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return false;
  ::pthread_attr_setstacksize(&attributes, stack_bytes);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool ok = ::pthread_create(&engine_thread, &attributes, run_engine, nullptr) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  return ok;
}

// Granules of the window that [address, address + bytes) touches.
heap::PageSpan granules_of(const void* address, size_t bytes) {
  if (bytes == 0) return {};
  const uintptr_t base = reinterpret_cast<uintptr_t>(window.base);
  const uintptr_t end = base + size_t{window.total_pages} * page_bytes;
  const uintptr_t from = reinterpret_cast<uintptr_t>(address);
  const uintptr_t to = from + bytes < from ? UINTPTR_MAX : from + bytes;
  if (to <= base || from >= end) return {};
  const uint32_t count = window.total_pages / granule_pages;
  const auto first = static_cast<uint32_t>((from < base ? 0 : from - base) / granule_bytes);
  const auto last = static_cast<uint32_t>(((to > end ? end : to) - 1 - base) / granule_bytes);
  if (first >= count) return {};
  return {first, (last >= count ? count - 1 : last) - first + 1};
}

// Test seam: shows what is lost without the protection.
bool holds_nothing() {
  static const bool nothing = secure_getenv("TERRACE_TEST_HOLD_NOTHING") != nullptr;
  return nothing;
}

bool may_move() {
  return !holds_nothing() && is_armed() && window.tiered &&
         state.load(std::memory_order_relaxed) != State::ended;
}

}  // namespace

void migrate_new_segment() {
  State off = State::off;
  if (ending.load(std::memory_order_relaxed)) return;
  if (!state.compare_exchange_strong(off, State::starting, std::memory_order_relaxed)) return wake_engine();
  self = new (migration_storage) Migration;
  for (int& fd : self->descriptors) fd = -1;
  if (start_thread()) return running.store(true, std::memory_order_release);
  state.store(State::ended, std::memory_order_release);
  put_state(supply::MigrationState::stopped, EAGAIN);
}

bool engine_moves() {
  return state.load(std::memory_order_acquire) == State::moving;
}

void ask_to_give_back() {
  if (!give_back_asked.exchange(true, std::memory_order_relaxed)) wake_engine();
}

bool again_after_settling(uint32_t pages, uint32_t align_pages) {
  Migration* migration = opened.load(std::memory_order_acquire);
  if (!window.tiered || migration == nullptr || !engine_moves()) return false;
  // A look without locks: wrong numbers cost a try.
  if (window.heap.free_pages(reserve_arena) < pages || migration->memory.free_slots() == 0) return false;
  const uint32_t before = settled_with_memory.load(std::memory_order_relaxed);
  wanted_align.store(align_pages, std::memory_order_relaxed);
  wanted_pages.store(pages, std::memory_order_relaxed);
  const uint64_t end_ns = tiering::monotonic_ns() + settle_patience_ns;
  for (;;) {
    const uint32_t round = settled.load(std::memory_order_acquire);
    if (settled_with_memory.load(std::memory_order_relaxed) != before) return true;
    if (wanted_pages.load(std::memory_order_relaxed) == 0) return false;  // looked for, in vain
    wake_engine();
    const uint64_t now_ns = tiering::monotonic_ns();
    if (now_ns >= end_ns) return false;
    futex_wait(&settled, round, end_ns - now_ns);
  }
}

bool front_granule_in_ddr(uint32_t granule) {
  const Migration* migration = opened.load(std::memory_order_acquire);
  return migration == nullptr || migration->memory.residency(granule) != Residency::cxl;
}

Held begin_hold(const void* address, size_t bytes) {
  if (!may_move()) return Held::nothing;
  const heap::PageSpan granules = granules_of(address, bytes);
  if (granules.pages == 0) return Held::nothing;
  early_holds.fetch_add(1, std::memory_order_seq_cst);
  Migration* migration = opened.load(std::memory_order_seq_cst);
  if (migration == nullptr) return Held::counted;
  early_holds.fetch_sub(1, std::memory_order_seq_cst);
  migration->memory.hold(granules.first, granules.pages);
  return Held::engine;
}

void end_hold(const void* address, size_t bytes, Held held) {
  if (held == Held::counted) early_holds.fetch_sub(1, std::memory_order_seq_cst);
  if (held != Held::engine) return;
  Migration* migration = opened.load(std::memory_order_relaxed);
  if (migration == nullptr) return;  // a fork's child: it has no engine
  const heap::PageSpan granules = granules_of(address, bytes);
  migration->memory.unhold(granules.first, granules.pages);
}

void hold_for_good(const void* address, size_t bytes) {
  if (!may_move()) return;
  const heap::PageSpan granules = granules_of(address, bytes);
  for (uint32_t granule = granules.first; granule < granules.first + granules.pages; ++granule) {
    if (std::atomic_ref<uint8_t>(window.held_for_good[granule]).exchange(1, std::memory_order_seq_cst) != 0)
      continue;
    // Before `opened` the thread finds the mark; twice is no harm.
    Migration* migration = opened.load(std::memory_order_seq_cst);
    if (migration != nullptr) migration->memory.hold(granule, 1);
  }
}

void quit_engine(const char* reason) {
  end_migration(reason);
  if (running.exchange(false, std::memory_order_acq_rel) == false) return;
  // It may not be in its loop yet: it is soon, or it ends by itself.
  while (!engine_loops.load(std::memory_order_acquire) && !engine_ended.load(std::memory_order_acquire)) {
    timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  self->engine.stop();
  ::pthread_join(engine_thread, nullptr);  // until it makes no system call any more
}

bool hold_counted(const void* address, size_t bytes) {
  if (!may_move()) return false;
  const heap::PageSpan granules = granules_of(address, bytes);
  if (granules.pages == 0) return false;
  while (!window.heap_lock.enter()) ::sched_yield();  // a fork is under way
  for (uint32_t granule = granules.first; granule < granules.first + granules.pages; ++granule)
    // The engine's thread never waits for heap_lock while a granule moves.
    if (window.held_counts[granule]++ == 0 && holds_applied) self->memory.hold(granule, 1);
  window.heap_lock.leave();
  return true;
}

void unhold_counted(const void* address, size_t bytes) {
  if (!is_armed() || window.held_counts == nullptr) return;
  const heap::PageSpan granules = granules_of(address, bytes);
  if (granules.pages == 0) return;
  while (!window.heap_lock.enter()) ::sched_yield();
  for (uint32_t granule = granules.first; granule < granules.first + granules.pages; ++granule)
    if (window.held_counts[granule] > 0 && --window.held_counts[granule] == 0 && holds_applied)
      self->memory.unhold(granule, 1);
  window.heap_lock.leave();
}

void end_migration(const char* reason) {
  if (holds_nothing()) return;
  end_reason.store(reason, std::memory_order_relaxed);
  if (ending.exchange(true, std::memory_order_seq_cst)) return;
  Migration* migration = opened.load(std::memory_order_acquire);
  if (migration == nullptr) return;
  // The engine plans nothing after this, and the last move is over once the lock was had. settle() tells the
  // heap.
  migration->memory.lock().enter();
  migration->engine.give_up(migration->range, layout::TierState::stopped, reason);
  migration->memory.lock().leave();
  wake_engine();
}

void lock_moves() {
  // Not opened yet: it begins only under heap_lock, and finds then that it is to end.
  locked = opened.load(std::memory_order_acquire);
  if (locked != nullptr) locked->memory.lock().enter();
}

void unlock_moves() {
  if (locked != nullptr) locked->memory.lock().leave();
  locked = nullptr;
}

void unlock_moves_in_child() {
  // Its tables and aliases are the parent's doing, and nobody moves anything here.
  opened.store(nullptr, std::memory_order_relaxed);
  state.store(State::ended, std::memory_order_relaxed);
  engine_loops.store(false, std::memory_order_relaxed);
  running.store(false, std::memory_order_relaxed);
  holds_applied = false;
}

void give_up_for_fork() {
  Migration* migration = opened.load(std::memory_order_acquire);
  ending.store(true, std::memory_order_relaxed);  // a thread that starts only now finds it
  if (migration == nullptr) return;
  migration->engine.give_up(migration->range, layout::TierState::forked, "memory is private since a fork");
  if (state.exchange(State::ended, std::memory_order_release) == State::moving)
    put_state(supply::MigrationState::forked);
}

PageSource source_of(uint32_t page) {
  const uint32_t granule = page / granule_pages;
  const uint64_t within = uint64_t{page % granule_pages} * page_bytes;
  const Migration* migration = opened.load(std::memory_order_acquire);
  if (migration != nullptr) {
    const Residency residency = migration->memory.residency(granule);
    if (residency == Residency::ddr) return {front_source, granule * granule_bytes + within};
    if (residency == Residency::cxl) {
      uint32_t slot = migration->memory.slot(granule);
      for (uint32_t i = 0; i < migration->segments; ++i) {
        if (slot < migration->segment_slots[i]) return {i, slot * granule_bytes + within};
        slot -= migration->segment_slots[i];
      }
      fatal("fork: a granule's memory is not known");
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
  if (!engine_loops.load(std::memory_order_acquire)) return false;
  asked_switch = switch_pages;
  asked_argument = argument;
  asked.store(static_cast<uint32_t>(Asked::waiting), std::memory_order_release);
  const uint64_t end_ns = tiering::monotonic_ns() + switch_patience_ns;
  for (;;) {
    uint32_t now = asked.load(std::memory_order_acquire);
    if (now == static_cast<uint32_t>(Asked::done)) return true;
    if (now == static_cast<uint32_t>(Asked::failed)) return false;
    wake_engine();
    const uint64_t now_ns = tiering::monotonic_ns();
    auto waiting = static_cast<uint32_t>(Asked::waiting);
    // Not begun in all this time: it must not begin later.
    if (now_ns >= end_ns && asked.compare_exchange_strong(waiting, static_cast<uint32_t>(Asked::nothing)))
      return false;
    futex_wait(&asked, now, now_ns < end_ns ? end_ns - now_ns : 1'000'000);
  }
}

}  // namespace terrace::preload
