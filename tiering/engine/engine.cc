// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/engine.h"

#include <errno.h>
#include <limits.h>
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

constexpr uint64_t divide_every_ns = 2'000'000'000;
constexpr uint64_t sleep_ns_max = 1'000'000'000;
constexpr uint64_t sleep_ns_min = 50'000;
constexpr double hit_share_keeps = 0.8;  // of the estimate's weight from one plan to the next
constexpr float learns = 0.1f;           // weight of a new measurement of copy speed
// A memory sample stands for loads of a line each, a noted access for about a page of them.
constexpr uint64_t lines_a_note = 64;

void copy_text(char* to, size_t size, const char* from) {
  size_t length = strnlen(from, size - 1);
  memcpy(to, from, length);
  memset(to + length, 0, size - length);
}

}  // namespace

int Engine::open(const EngineOptions& options) {
  options_ = options;
  budget_.set(options.copy_bytes_per_s_max);
  const size_t bytes = moves_per_round * sizeof(Move) + notes_max * sizeof(Note);
  void* table = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED) return errno;
  notes_ = static_cast<Note*>(table);
  moves_ = reinterpret_cast<Move*>(static_cast<char*>(table) + notes_max * sizeof(Note));
  for (uint32_t i = 0; i < notes_max; ++i) notes_[i].sequence.store(i, std::memory_order_relaxed);
  note_next_.store(0, std::memory_order_relaxed);
  note_read_ = 0;
  // Before any thread of ours, so that those inherit it.
  if (options.access_events) events_.open();
  userfault_errno_ = mover_.start(options.userfault_device, options.batch_bytes);
  mover_.set_copy(options.copy);
  if (mover_.started()) mover_.set_copy_threads(options.copy_threads);
  prove_errno_ = options.prove_moves && mover_.started() ? mover_.prove_moves() : 0;
  if (options.publish) open_page();
  return userfault_errno_;
}

void Engine::close() {
  if (notes_ == nullptr) return;
  for (uint32_t i = 0; i < ranges_max; ++i) remove_range(i);
  if (!abandoned_) {
    mover_.stop();
    close_page();
  }
  events_.close();
  ::munmap(notes_, moves_per_round * sizeof(Move) + notes_max * sizeof(Note));
  notes_ = nullptr;
  moves_ = nullptr;
}

void Engine::abandon_in_child() {
  abandoned_ = true;
  lock_.reset_in_child();
  mover_.abandon();
  events_.close();
  if (page_ != nullptr) forget_page_in_child();
  for (uint32_t i = 0; i < range_count_; ++i) {
    Range& range = ranges_[i];
    range.shown = nullptr;
    if (range.memory == nullptr) continue;
    range.memory->lock().reset_in_child();
    range.memory->abandon();
    give_up(i, layout::TierState::forked, "a child of fork does not have this memory");
  }
}

int Engine::add_range(TieredMemory* memory, const RangeOptions& options, uint32_t* index) {
  for (uint32_t i = 0; i < ranges_max; ++i) {
    Range& range = ranges_[i];
    if (range.memory != nullptr) continue;
    // A kernel before 6.7, or a process that may not look at itself: announcements and guards are all it sees.
    if (options_.sweep_gap_ns_min != 0) range.sampler.set_gap_min(options_.sweep_gap_ns_min);
    const bool blind = range.sampler.open(memory) != 0;
    range.options = options;
    if (range.options.policy == nullptr) range.options.policy = &policies()[0];
    range.policy_memory = PolicyMemory{};
    range.policy_memory.options = options_.policy;
    range.page = layout::TierRange{};
    layout::TierRange& page = range.page;
    copy_text(page.name, sizeof(page.name), options.name);
    copy_text(page.policy, sizeof(page.policy), range.options.policy->name);
    page.base = reinterpret_cast<uintptr_t>(memory->base());
    page.bytes = memory->bytes();
    page.granule_bytes_log2 = static_cast<uint32_t>(__builtin_ctzll(memory->granule_bytes()));
    page.ddr_bytes_max = options.ddr_granules_max * memory->granule_bytes();
    page.copy_bytes_per_s_max = options_.copy_bytes_per_s_max;
    const bool moves = can_move(*memory);
    page.state = static_cast<uint32_t>(moves ? layout::TierState::running : layout::TierState::no_uffd);
    if (!moves)
      copy_text(page.reason, sizeof(page.reason),
                userfault_errno_ == EPERM ? "no right to handle kernel faults (EPERM)"
                                          : strerrorname_np(userfault_errno_));
    if (moves && blind)
      copy_text(page.reason, sizeof(page.reason), "no PAGEMAP_SCAN: only announced and counted uses are seen");
    if (moves && !blind && options_.access_events) tell_refused(page);
    if (events_.opened(EventSource::minor_faults)) range.sampler.expect_first_touches();
    range.sweep_due_ns = blind ? UINT64_MAX : 0;
    range.plan_due_ns = 0;
    range.ddr_accesses = range.cxl_accesses = 0;
    range.lost_memory = false;
    range.options.name = "";  // the caller's text
    range.memory = memory;
    if (i >= range_count_) range_count_ = i + 1;
    show_range(i);
    *index = i;
    return 0;
  }
  return ENOSPC;
}

void Engine::remove_range(uint32_t index) {
  Range& range = ranges_[index];
  if (range.memory == nullptr) return;
  range.sampler.close();
  range.memory = nullptr;
  if (range.shown != nullptr)
    std::atomic_ref<uint32_t>(range.shown->state)
        // release: pairs with TierPageFile::copy_words()
        .store(static_cast<uint32_t>(layout::TierState::absent), std::memory_order_release);
  range.shown = nullptr;
}

void Engine::give_up(uint32_t index, layout::TierState state, const char* reason) {
  Range& range = ranges_[index];
  range.page.state = static_cast<uint32_t>(state);
  copy_text(range.page.reason, sizeof(range.page.reason), reason);
}

void Engine::suspend(uint32_t index, const char* reason) {
  Range& range = ranges_[index];
  const auto paused = static_cast<uint32_t>(layout::TierState::paused);
  const auto suspended = static_cast<uint32_t>(layout::TierState::forked);
  if (range.page.state != suspended) range.paused_meanwhile = range.page.state == paused;
  give_up(index, layout::TierState::forked, reason);
}

void Engine::resume(uint32_t index) {
  Range& range = ranges_[index];
  if (range.page.state != static_cast<uint32_t>(layout::TierState::forked)) return;
  range.page.state =
      static_cast<uint32_t>(range.paused_meanwhile ? layout::TierState::paused : layout::TierState::running);
  copy_text(range.page.reason, sizeof(range.page.reason), "");
}

void Engine::set_paused(uint32_t index, bool paused) {
  const auto running = static_cast<uint32_t>(layout::TierState::running);
  const auto stopped = static_cast<uint32_t>(layout::TierState::paused);
  uint32_t& state = ranges_[index].page.state;
  if (state == running || state == stopped) state = paused ? stopped : running;
  if (state == static_cast<uint32_t>(layout::TierState::forked)) ranges_[index].paused_meanwhile = paused;
}

void Engine::set_policy(uint32_t index, const PolicyEntry* policy) {
  Range& range = ranges_[index];
  range.options.policy = policy;
  copy_text(range.page.policy, sizeof(range.page.policy), policy->name);
}

void Engine::set_ddr_granules_max(uint32_t index, uint64_t granules) {
  Range& range = ranges_[index];
  range.options.ddr_granules_max = granules;
  range.page.ddr_bytes_max = granules * range.memory->granule_bytes();
}

void Engine::announce(uint32_t range, uint32_t first, uint32_t count, uint64_t in_ns) {
  const uint64_t now_ns = monotonic_ns();
  put_note(range, first, count, 0, in_ns < UINT64_MAX - now_ns ? now_ns + in_ns : UINT64_MAX);
}

void Engine::note_access(uint32_t range, uint32_t first, uint32_t count, uint32_t accesses) {
  if (accesses != 0) put_note(range, first, count, accesses, monotonic_ns());
}

void Engine::put_note(uint32_t range, uint32_t first, uint32_t count, uint32_t accesses, uint64_t when_ns) {
  uint32_t position = note_next_.load(std::memory_order_relaxed);
  for (;;) {
    // acquire pairs with the reader's release: the place is empty, for this lap.
    const uint32_t sequence = notes_[position % notes_max].sequence.load(std::memory_order_acquire);
    if (sequence == position) {
      if (note_next_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) break;
    } else if (static_cast<int32_t>(sequence - position) < 0) {
      notes_dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    } else {
      position = note_next_.load(std::memory_order_relaxed);
    }
  }
  Note& place = notes_[position % notes_max];
  place.range = range;
  place.first = first;
  place.count = count;
  place.accesses = accesses;
  place.when_ns = when_ns;
  place.sequence.store(position + 1, std::memory_order_release);  // release: pairs with take_notes()
}

void Engine::take_note(const Note& note) {
  if (note.range >= range_count_ || ranges_[note.range].memory == nullptr) return;
  Range& range = ranges_[note.range];
  MoveLock& lock = range.memory->lock();
  lock.enter();
  std::span<Granule> granules = range.memory->granules();
  const uint64_t end = std::min<uint64_t>(uint64_t{note.first} + note.count, granules.size());
  for (uint64_t granule = note.first; granule < end; ++granule) {
    if (note.accesses == 0) {
      granules[granule].next_use_ns = note.when_ns;
      ++range.page.announced;
    } else {
      terrace::tiering::note_access(granules[granule], range.policy_memory, note.when_ns,
                                    static_cast<float>(note.accesses));
    }
  }
  lock.leave();
}

// As many as fit the ring: what comes meanwhile waits for the next round.
void Engine::take_notes() {
  for (uint32_t taken = 0; taken < notes_max; ++taken) {
    Note& note = notes_[note_read_ % notes_max];
    // acquire pairs with the writer's release: the note is whole.
    if (note.sequence.load(std::memory_order_acquire) != note_read_ + 1) return;
    take_note(note);
    note.sequence.store(note_read_ + notes_max, std::memory_order_release);  // release: pairs with put_note()
    ++note_read_;
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

// First touches go to the sampler of the range; a sample is as much as a guard's count.
void Engine::take_events() {
  if (!events_.opened()) return;
  events_.drain(
      [](void* owner, const AccessEvent& event) {
        auto* engine = static_cast<Engine*>(owner);
        for (uint32_t i = 0; i < engine->range_count_; ++i) {
          Range& range = engine->ranges_[i];
          if (range.memory == nullptr) continue;
          const uint64_t offset = event.address - reinterpret_cast<uintptr_t>(range.memory->base());
          if (offset >= range.memory->bytes()) continue;
          const auto granule = static_cast<uint32_t>(offset / range.memory->granule_bytes());
          if (event.source == EventSource::minor_faults)
            range.sampler.note_first_touch(granule, offset % range.memory->granule_bytes(), event.time_ns);
          else
            engine->note_access(
                i, granule, 1,
                static_cast<uint32_t>(std::clamp<uint64_t>(event.count / lines_a_note, 1, 1u << 24)));
          return;
        }
      },
      this);
}

void Engine::sample(Range& range, uint64_t now_ns) {
  const uint32_t granules = std::max(range.memory->granule_count(), 1u);
  if (!range.sampler.begun()) {
    range.sampler.begin(now_ns);
    range.sweep_due_ns = monotonic_ns() + range.sampler.due_ns();
    if (range.sampler.due_ns() > 0) return;
    now_ns = monotonic_ns();
  }
  take_events();
  const float fits = static_cast<float>(range.options.ddr_granules_max) / static_cast<float>(granules);
  const SweepResult result = range.sampler.finish(range.policy_memory, now_ns, std::clamp(fits, 0.05f, 0.5f));
  ++range.page.sweeps;
  range.page.sampler_ns += result.cost_ns;
  range.ddr_accesses += result.ddr_accesses;
  range.cxl_accesses += result.cxl_accesses;
  range.sweep_due_ns = now_ns + range.sampler.gap_ns() - std::min(range.sampler.gap_ns(), result.wait_ns);
}

// Moves of one direction, by granule, so that neighbours move together.
struct Engine::Batch {
  uint32_t* granules = nullptr;
  uint32_t count = 0, next = 0;
  bool empty() const { return next == count; }
};

void Engine::note_move(Range& range, const MoveReport& report, Residency to) {
  const uint64_t bytes = report.granules * range.memory->granule_bytes();
  layout::TierRange& page = range.page;
  page.stalled_ns += report.times.stall_ns;
  page.copy_ns += report.times.copy_ns;
  if (to == Residency::ddr) {
    page.promotions += report.granules;
    page.promoted_bytes += bytes;
  } else {
    page.demotions += report.granules;
    page.demoted_bytes += bytes;
  }
  range.copied_bytes += bytes;
  budget_.spend(bytes);
  if (report.times.copy_ns == 0) return;
  const float speed = static_cast<float>(bytes) * 1e9f / static_cast<float>(report.times.copy_ns);
  const float beside =
      static_cast<float>(report.times.stall_ns - report.times.copy_ns) / static_cast<float>(report.granules);
  options_.costs.copy_bytes_per_s += learns * (speed - options_.costs.copy_bytes_per_s);
  options_.costs.move_overhead_ns += learns * (beside - options_.costs.move_overhead_ns);
}

// The next run of neighbours of the batch. Returns how many granules moved; those that could not are passed
// over.
uint32_t Engine::move_next(Range& range, Batch& batch, Residency to, uint32_t granules_max) {
  while (!batch.empty()) {
    const uint32_t first = batch.granules[batch.next];
    uint32_t run = 1;
    while (run < granules_max && batch.next + run < batch.count &&
           batch.granules[batch.next + run] == first + run)
      ++run;
    layout::TierRange& page = range.page;
    const uint32_t prepared = to == Residency::ddr ? range.memory->prepare_ddr(first, run) : run;
    if (prepared == 0) {
      ++page.aborted;  // no memory: later, perhaps
      batch.next = batch.count;
      return 0;
    }
    const MoveReport report = range.memory->move(mover_, first, prepared, to);
    if (to == Residency::ddr && report.granules < prepared)
      range.memory->give_prepared_back(first + report.granules, prepared - report.granules);
    switch (report.result) {
      case MoveResult::done:
        batch.next += report.granules;
        note_move(range, report, to);
        return report.granules;
      case MoveResult::no_slot: return 0;
      case MoveResult::lost: give_up_lost(range); return 0;
      case MoveResult::held: ++page.skipped_busy; break;
      case MoveResult::pinned: ++page.skipped_pinned; break;
      case MoveResult::unproven: ++page.skipped_unproven; break;
      case MoveResult::no_mappings: ++page.skipped_vma; break;
      case MoveResult::no_memory:
      case MoveResult::refused: ++page.aborted; break;
      case MoveResult::nothing: break;
    }
    ++batch.next;
  }
  return 0;
}

// No room on either side: some rise first, as many sink into the slots that this leaves. Should too few sink,
// what rose goes back. Returns how many rose for good.
uint32_t Engine::trade(Range& range, Batch& rising, Batch& sinking, uint32_t granules_max) {
  const uint32_t from = rising.next;
  const uint32_t rose = move_next(range, rising, Residency::ddr, granules_max);
  uint32_t sank = 0;
  while (sank < rose) {
    const uint32_t more = move_next(range, sinking, Residency::cxl, rose - sank);
    if (more == 0) break;
    sank += more;
  }
  if (sank == rose) return rose;
  Batch back{
      .granules = rising.granules, .count = rising.next, .next = std::max(from, rising.next - (rose - sank))};
  while (!back.empty()) {
    const uint32_t more = move_next(range, back, Residency::cxl, granules_max);
    if (more == 0) break;
    sank += more;
  }
  // Held meanwhile: they stay, over the bound, until a later plan.
  if (sank < rose && range.options.hooks.take_ddr != nullptr)
    range.options.hooks.take_ddr(range.options.hooks.owner, rose - sank);
  return sank;
}

void Engine::carry_out(Range& range, const Move* moves, uint32_t count, uint32_t* done, uint32_t* failed) {
  TieredMemory& memory = *range.memory;
  const RangeHooks& hooks = range.options.hooks;
  Batch rising, sinking;
  rising.granules = memory.scratch().data();
  for (uint32_t i = 0; i < count; ++i)
    if (moves[i].to == Residency::ddr) rising.granules[rising.count++] = moves[i].granule;
  sinking.granules = rising.granules + rising.count;
  for (uint32_t i = 0; i < count; ++i)
    if (moves[i].to == Residency::cxl) sinking.granules[sinking.count++] = moves[i].granule;
  std::sort(rising.granules, rising.granules + rising.count);
  std::sort(sinking.granules, sinking.granules + sinking.count);
  const auto batch =
      static_cast<uint32_t>(std::max<uint64_t>(options_.batch_bytes / memory.granule_bytes(), 1));
  *done = 0;
  while (!rising.empty() || !sinking.empty()) {
    if (budget_.allowance(monotonic_ns()) == 0) break;
    const uint64_t ddr = memory.ddr_granules(), ddr_max = range.options.ddr_granules_max;
    if (!may_move(range)) break;
    const uint32_t wanted = std::min(batch, rising.count - rising.next);
    const auto room = static_cast<uint32_t>(ddr < ddr_max ? std::min<uint64_t>(ddr_max - ddr, wanted) : 0);
    uint32_t moved = 0;
    if (!rising.empty() && room > 0 && (hooks.take_ddr == nullptr || hooks.take_ddr(hooks.owner, room))) {
      moved = move_next(range, rising, Residency::ddr, room);
      if (hooks.give_ddr != nullptr && moved < room) hooks.give_ddr(hooks.owner, room - moved);
    } else if (!sinking.empty() && memory.free_slots() > 0) {
      moved = move_next(range, sinking, Residency::cxl, batch);
      if (hooks.give_ddr != nullptr && moved > 0) hooks.give_ddr(hooks.owner, moved);
    } else if (!rising.empty() && !sinking.empty()) {
      moved = 2 * trade(range, rising, sinking, batch);
    } else {
      break;
    }
    *done += moved;
    if (moved == 0 && sinking.empty()) break;
  }
  *failed = count - std::min(count, *done);
}

// Not where the range was given up, or its memory is about to go.
bool Engine::may_move(Range& range) {
  const auto state = static_cast<layout::TierState>(range.page.state);
  if (state != layout::TierState::running && state != layout::TierState::paused) return false;
  const RangeHooks& hooks = range.options.hooks;
  const char* why = hooks.why_stop == nullptr ? nullptr : hooks.why_stop(hooks.owner);
  if (why != nullptr) give_up(static_cast<uint32_t>(&range - ranges_), layout::TierState::stopped, why);
  return why == nullptr;
}

// The owner is told of a lease's end some time after that; until then each further copy would fail as well.
void Engine::give_up_lost(Range& range) {
  ++range.page.aborted;
  range.lost_memory = true;
  give_up(static_cast<uint32_t>(&range - ranges_), layout::TierState::stopped,
          "memory behind it went away during a copy, as a lease that is fenced does");
}

MoveResult Engine::move_now(uint32_t index, uint32_t first, uint32_t count, Residency to) {
  Range& range = ranges_[index];
  TieredMemory& memory = *range.memory;
  const RangeHooks& hooks = range.options.hooks;
  const auto batch =
      static_cast<uint32_t>(std::max<uint64_t>(options_.batch_bytes / memory.granule_bytes(), 1));
  MoveResult worst = MoveResult::done;
  memory.lock().enter();
  if (!may_move(range)) worst = MoveResult::refused;
  for (uint32_t granule = first; may_move(range) && granule < first + count;) {
    uint32_t run = std::min(batch, first + count - granule);
    if (memory.residency(granule) == to) {
      ++granule;
      continue;
    }
    if (to == Residency::ddr) {
      const uint64_t ddr = memory.ddr_granules(), ddr_max = range.options.ddr_granules_max;
      run = static_cast<uint32_t>(std::min<uint64_t>(run, ddr < ddr_max ? ddr_max - ddr : 0));
      if (run == 0 || (hooks.take_ddr != nullptr && !hooks.take_ddr(hooks.owner, run))) {
        worst = MoveResult::no_memory;
        break;
      }
    }
    const uint32_t prepared = to == Residency::ddr ? memory.prepare_ddr(granule, run) : run;
    MoveReport report;
    report.result = MoveResult::no_memory;
    if (prepared > 0) report = memory.move(mover_, granule, prepared, to);
    if (to == Residency::ddr && report.granules < prepared)
      memory.give_prepared_back(granule + report.granules, prepared - report.granules);
    if (report.result == MoveResult::done) note_move(range, report, to);
    if (report.result == MoveResult::lost) give_up_lost(range);
    if (report.result != MoveResult::done && report.result != MoveResult::nothing) worst = report.result;
    if (to == Residency::cxl && hooks.give_ddr != nullptr && report.granules > 0)
      hooks.give_ddr(hooks.owner, report.granules);
    if (to == Residency::ddr && hooks.give_ddr != nullptr && report.granules < run)
      hooks.give_ddr(hooks.owner, run - report.granules);
    if (report.result == MoveResult::no_slot || report.result == MoveResult::no_memory) break;
    granule += std::max(report.granules, 1u);
  }
  memory.lock().leave();
  return worst;
}

void Engine::plan_and_move(Range& range, uint64_t now_ns) {
  TieredMemory& memory = *range.memory;
  const uint64_t granule_bytes = memory.granule_bytes();
  std::span<Granule> granules = memory.granules();
  uint64_t held = 0;
  for (uint32_t granule = 0; granule < granules.size(); ++granule) {
    granules[granule].busy = memory.is_held(granule) || memory.is_put_off(granule, now_ns) ? 1 : 0;
    held += granules[granule].busy;
  }
  range.page.busy_bytes = held * granule_bytes;
  PlanInput input;
  input.now_ns = now_ns;
  input.granules = granules;
  input.granule_bytes = granule_bytes;
  input.ddr_granules = memory.ddr_granules();
  input.ddr_granules_max = range.options.ddr_granules_max;
  // Two may trade places with no room at all.
  input.cxl_free_granules = std::max(memory.free_slots(), 1u);
  input.moves_max = std::min<uint64_t>(budget_.allowance(now_ns) / granule_bytes, moves_per_round);
  input.costs = options_.costs;
  if (input.moves_max > 0) {
    const size_t count = range.options.policy->plan(input, range.policy_memory, memory.scratch(),
                                                    {moves_, static_cast<size_t>(input.moves_max)});
    uint32_t done = 0, failed = 0;
    if (count > 0) carry_out(range, moves_, static_cast<uint32_t>(count), &done, &failed);
    report_outcome(range.policy_memory, done, failed);
  }
  for (Granule& granule : granules) {
    if (granule.next_use_ns == 0 || granule.next_use_ns > now_ns) continue;
    if (granule.residency == Residency::ddr) ++range.page.prefetched;  // there when its use was due
    granule.next_use_ns = 0;
  }
  range.ddr_accesses *= hit_share_keeps;
  range.cxl_accesses *= hit_share_keeps;
}

void Engine::divide_ddr(uint64_t now_ns) {
  if (options_.ddr_granules_shared == 0 || now_ns < divided_ns_ + divide_every_ns) return;
  divided_ns_ = now_ns;
  RangeShare shares[ranges_max];
  uint32_t indices[ranges_max];
  uint32_t count = 0;
  for (uint32_t i = 0; i < range_count_; ++i) {
    if (ranges_[i].memory == nullptr) continue;
    shares[count] = {.granules = ranges_[i].memory->granules(),
                     .memory = &ranges_[i].policy_memory,
                     .weight = ranges_[i].options.weight,
                     .ddr_granules_max = ranges_[i].options.ddr_granules_max};
    indices[count++] = i;
  }
  if (count == 0) return;
  for (uint32_t i = 0; i < count; ++i) ranges_[indices[i]].memory->lock().enter();
  share_ddr({shares, count}, options_.ddr_granules_shared, now_ns);
  for (uint32_t i = 0; i < count; ++i) ranges_[indices[i]].memory->lock().leave();
  for (uint32_t i = 0; i < count; ++i) set_ddr_granules_max(indices[i], shares[i].ddr_granules_max);
}

uint64_t Engine::round() {
  take_events();
  take_notes();
  uint64_t next_ns = monotonic_ns() + sleep_ns_max;
  divide_ddr(monotonic_ns());
  for (uint32_t i = 0; i < range_count_; ++i) {
    Range& range = ranges_[i];
    if (range.memory == nullptr) continue;
    MoveLock& lock = range.memory->lock();
    lock.enter();
    may_move(range);
    obey(range);
    const bool running = range.page.state == static_cast<uint32_t>(layout::TierState::running);
    uint64_t now_ns = monotonic_ns();
    if (running && now_ns >= range.sweep_due_ns) sample(range, now_ns);
    now_ns = monotonic_ns();
    if (now_ns >= range.plan_due_ns) {
      if (running) plan_and_move(range, now_ns);
      publish(range, now_ns);
      range.plan_due_ns = now_ns + options_.round_ns;
    }
    next_ns = std::min(next_ns, running ? std::min(range.sweep_due_ns, range.plan_due_ns) : range.plan_due_ns);
    lock.leave();
    if (range.options.hooks.after_round != nullptr) range.options.hooks.after_round(range.options.hooks.owner);
  }
  const uint64_t now_ns = monotonic_ns();
  return next_ns > now_ns ? next_ns - now_ns : 0;
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
