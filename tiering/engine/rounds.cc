// SPDX-License-Identifier: Apache-2.0
// A round of the engine: what was noted and sampled, requests of the tier page, a plan, its moves, the page.
#include <stdio.h>

#include <algorithm>

#include "tiering/engine/engine.h"

namespace terrace::tiering {
namespace {

constexpr uint64_t divide_every_ns = 2'000'000'000;
constexpr uint64_t sleep_ns_max = 1'000'000'000;
constexpr double hit_share_keeps = 0.8;  // of the estimate's weight from one plan to the next
// A memory sample stands for loads of a line each, a noted access for about a page of them.
constexpr uint64_t lines_a_note = 64;

// Who is held, or put off, is not planned for.
void mark_busy(RangeState& range, uint64_t now_ns) {
  TieredMemory& memory = *range.memory;
  std::span<Granule> granules = memory.granules();
  uint64_t busy = 0;
  for (uint32_t granule = 0; granule < granules.size(); ++granule) {
    granules[granule].busy = memory.is_held(granule) || memory.is_put_off(granule, now_ns) ? 1 : 0;
    busy += granules[granule].busy;
  }
  range.page.busy_bytes = busy * memory.granule_bytes();
}

// Announced uses whose time has come.
void pass_uses(RangeState& range, uint64_t now_ns) {
  for (Granule& granule : range.memory->granules()) {
    if (granule.next_use_ns == 0 || granule.next_use_ns > now_ns) continue;
    if (granule.residency == Residency::ddr) ++range.page.prefetched;  // there when its use was due
    granule.next_use_ns = 0;
  }
}

}  // namespace

void Engine::take_note(const Note& note) {
  if (note.range >= range_count_ || ranges_[note.range].memory == nullptr) return;
  RangeState& range = ranges_[note.range];
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
  Note note;
  for (uint32_t taken = 0; taken < NoteRing::notes_max && notes_.take(&note); ++taken) take_note(note);
}

// First touches go to the sampler of the range; a sample is as much as a guard's count.
void Engine::take_events() {
  if (!events_.opened()) return;
  events_.drain(
      [](void* owner, const AccessEvent& event) {
        auto* engine = static_cast<Engine*>(owner);
        for (uint32_t i = 0; i < engine->range_count_; ++i) {
          RangeState& range = engine->ranges_[i];
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

void Engine::sample(RangeState& range, uint64_t now_ns) {
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

void Engine::plan_and_move(RangeState& range, uint64_t now_ns) {
  TieredMemory& memory = *range.memory;
  mark_busy(range, now_ns);
  PlanInput input;
  input.now_ns = now_ns;
  input.granules = memory.granules();
  input.granule_bytes = memory.granule_bytes();
  input.ddr_granules = memory.ddr_granules();
  input.ddr_granules_max = range.options.ddr_granules_max;
  // Two may trade places with no room at all.
  input.cxl_free_granules = std::max(memory.free_slots(), 1u);
  input.moves_max =
      std::min<uint64_t>(mover_.budget().allowance(now_ns) / memory.granule_bytes(), moves_per_round);
  input.costs = mover_.costs();
  if (input.moves_max > 0) {
    const std::span<Move> moves{moves_, static_cast<size_t>(input.moves_max)};
    const size_t count = range.options.policy->plan(input, range.policy_memory, memory.scratch(), moves);
    const Outcome outcome = count > 0 ? mover_.carry_out(range, moves.first(count)) : Outcome{};
    report_outcome(range.policy_memory, outcome.done, outcome.failed);
  }
  pass_uses(range, now_ns);
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
  for (uint32_t i = 0; i < count; ++i) ranges_[indices[i]].set_ddr_granules_max(shares[i].ddr_granules_max);
}

void Engine::obey(RangeState& range) {
  const std::optional<TierRequest> request = page_.asked(range);
  if (!request.has_value()) return;
  const PolicyEntry* policy = request->policy[0] == 0 ? range.options.policy : find_policy(request->policy);
  const layout::TierState state = range.state();
  auto answer = layout::TierAnswer::done;
  if (policy == nullptr)
    answer = layout::TierAnswer::unknown_policy;
  else if (request->copy_bytes_per_s_max.value_or(0) > CopyBudget::most_bytes_per_s)
    answer = layout::TierAnswer::bad_value;
  else if (request->ddr_bytes_max.has_value() &&
           (*request->ddr_bytes_max > range.memory->bytes() || options_.ddr_granules_shared != 0))
    answer = layout::TierAnswer::bad_value;
  else if (state != layout::TierState::running && state != layout::TierState::paused &&
           state != layout::TierState::forked)
    answer = layout::TierAnswer::refused;
  if (answer == layout::TierAnswer::done) {
    if (policy != range.options.policy) range.set_policy(policy);
    if (request->ddr_bytes_max.has_value())
      range.set_ddr_granules_max(*request->ddr_bytes_max / range.memory->granule_bytes());
    if (request->copy_bytes_per_s_max.has_value()) mover_.budget().set(*request->copy_bytes_per_s_max);
    range.set_paused(request->paused);
    range.plan_due_ns = 0;  // shown at once
  }
  page_.publish(range, mover_.budget().bytes_per_s(), monotonic_ns());
  page_.answer(range, *request, answer);
}

// Returns when the range wants the next round, in monotonic ns.
uint64_t Engine::round_of(RangeState& range) {
  range.may_move();
  obey(range);
  const bool running = range.state() == layout::TierState::running;
  uint64_t now_ns = monotonic_ns();
  if (running && now_ns >= range.sweep_due_ns) sample(range, now_ns);
  now_ns = monotonic_ns();
  if (now_ns >= range.plan_due_ns) {
    if (running) plan_and_move(range, now_ns);
    page_.publish(range, mover_.budget().bytes_per_s(), now_ns);
    range.plan_due_ns = now_ns + options_.round_ns;
  }
  return running ? std::min(range.sweep_due_ns, range.plan_due_ns) : range.plan_due_ns;
}

uint64_t Engine::round() {
  take_events();
  take_notes();
  uint64_t next_ns = monotonic_ns() + sleep_ns_max;
  divide_ddr(monotonic_ns());
  for (uint32_t i = 0; i < range_count_; ++i) {
    RangeState& range = ranges_[i];
    if (range.memory == nullptr) continue;
    MoveLock& lock = range.memory->lock();
    lock.enter();
    next_ns = std::min(next_ns, round_of(range));
    lock.leave();
    if (range.options.hooks.after_round != nullptr) range.options.hooks.after_round(range.options.hooks.owner);
  }
  const uint64_t now_ns = monotonic_ns();
  return next_ns > now_ns ? next_ns - now_ns : 0;
}

}  // namespace terrace::tiering
