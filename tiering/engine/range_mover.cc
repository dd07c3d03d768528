// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/range_mover.h"

#include <algorithm>

namespace terrace::tiering {
namespace {

constexpr float learns = 0.1f;  // weight of a new measurement of copy speed

// The owner is told of a lease's end some time after that; until then each further copy would fail as well.
void give_up_lost(RangeState& range) {
  ++range.page.aborted;
  range.lost_memory = true;
  range.give_up(layout::TierState::stopped,
                "memory behind it went away during a copy, as a lease that is fenced does");
}

bool take_ddr(RangeState& range, uint32_t granules) {
  const RangeHooks& hooks = range.options.hooks;
  return hooks.take_ddr == nullptr || hooks.take_ddr(hooks.owner, granules);
}

void give_ddr(RangeState& range, uint32_t granules) {
  const RangeHooks& hooks = range.options.hooks;
  if (hooks.give_ddr != nullptr && granules > 0) hooks.give_ddr(hooks.owner, granules);
}

// Of `wanted` granules, as many as the range's DDR has room for.
uint32_t ddr_room(const RangeState& range, uint32_t wanted) {
  const uint64_t ddr = range.memory->ddr_granules(), most = range.options.ddr_granules_max;
  return static_cast<uint32_t>(ddr < most ? std::min<uint64_t>(most - ddr, wanted) : 0);
}

void count_refusal(layout::TierRange& page, MoveResult result) {
  switch (result) {
    case MoveResult::held: ++page.skipped_busy; break;
    case MoveResult::pinned: ++page.skipped_pinned; break;
    case MoveResult::unproven: ++page.skipped_unproven; break;
    case MoveResult::no_mappings: ++page.skipped_vma; break;
    case MoveResult::no_memory:
    case MoveResult::refused: ++page.aborted; break;
    case MoveResult::done:
    case MoveResult::no_slot:
    case MoveResult::lost:
    case MoveResult::nothing: break;
  }
}

}  // namespace

// Moves of one direction, by granule, so that neighbours move together.
struct RangeMover::Batch {
  uint32_t* granules = nullptr;
  uint32_t count = 0, next = 0;
  bool empty() const { return next == count; }
  // Of neighbours, from the next one on.
  uint32_t run(uint32_t granules_max) const {
    uint32_t run = 1;
    while (run < granules_max && next + run < count && granules[next + run] == granules[next] + run) ++run;
    return run;
  }
};

void RangeMover::open(uint64_t batch_bytes, uint64_t copy_bytes_per_s_max, const TierCosts& costs) {
  batch_bytes_ = batch_bytes;
  budget_.set(copy_bytes_per_s_max);
  costs_ = costs;
}

uint32_t RangeMover::batch_granules(const RangeState& range) const {
  return static_cast<uint32_t>(std::max<uint64_t>(batch_bytes_ / range.memory->granule_bytes(), 1));
}

void RangeMover::note_move(RangeState& range, const MoveReport& report, Residency to) {
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
  costs_.copy_bytes_per_s += learns * (speed - costs_.copy_bytes_per_s);
  costs_.move_overhead_ns += learns * (beside - costs_.move_overhead_ns);
}

// A run of neighbours. Nothing: DDR has no page for the first of them.
std::optional<MoveReport> RangeMover::move_run(RangeState& range, uint32_t first, uint32_t run, Residency to) {
  TieredMemory& memory = *range.memory;
  const uint32_t prepared = to == Residency::ddr ? memory.prepare_ddr(first, run) : run;
  if (prepared == 0) return std::nullopt;
  const MoveReport report = memory.move(mover_, first, prepared, to);
  if (to == Residency::ddr && report.granules < prepared)
    memory.give_prepared_back(first + report.granules, prepared - report.granules);
  if (report.result == MoveResult::done) note_move(range, report, to);
  if (report.result == MoveResult::lost) give_up_lost(range);
  return report;
}

// The next run of neighbours of the batch; those that cannot move are passed over.
// Returns how many granules moved.
uint32_t RangeMover::move_next(RangeState& range, Batch& batch, Residency to, uint32_t granules_max) {
  while (!batch.empty()) {
    const uint32_t first = batch.granules[batch.next];
    const std::optional<MoveReport> report = move_run(range, first, batch.run(granules_max), to);
    if (!report.has_value()) {
      ++range.page.aborted;
      batch.next = batch.count;  // later, perhaps
      return 0;
    }
    if (report->result == MoveResult::done) {
      batch.next += report->granules;
      return report->granules;
    }
    if (report->result == MoveResult::no_slot || report->result == MoveResult::lost) return 0;
    count_refusal(range.page, report->result);
    ++batch.next;
  }
  return 0;
}

// No room on either side: some rise first, as many sink into the slots that this leaves. Should too few sink,
// what rose goes back. Returns how many rose for good.
uint32_t RangeMover::trade(RangeState& range, Batch& rising, Batch& sinking, uint32_t granules_max) {
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
  if (sank < rose) take_ddr(range, rose - sank);
  return sank;
}

// A batch of either direction, or of both. Returns how many granules moved; `*stuck`: neither can go on.
uint32_t RangeMover::step(RangeState& range, Batch& rising, Batch& sinking, bool* stuck) {
  const uint32_t batch = batch_granules(range);
  const uint32_t room = ddr_room(range, std::min(batch, rising.count - rising.next));
  if (!rising.empty() && room > 0 && take_ddr(range, room)) {
    const uint32_t moved = move_next(range, rising, Residency::ddr, room);
    give_ddr(range, room - moved);
    return moved;
  }
  if (!sinking.empty() && range.memory->free_slots() > 0) {
    const uint32_t moved = move_next(range, sinking, Residency::cxl, batch);
    give_ddr(range, moved);
    return moved;
  }
  *stuck = rising.empty() || sinking.empty();
  return *stuck ? 0 : 2 * trade(range, rising, sinking, batch);
}

Outcome RangeMover::carry_out(RangeState& range, std::span<const Move> moves) {
  Batch rising, sinking;
  rising.granules = range.memory->scratch().data();
  for (const Move& move : moves)
    if (move.to == Residency::ddr) rising.granules[rising.count++] = move.granule;
  sinking.granules = rising.granules + rising.count;
  for (const Move& move : moves)
    if (move.to == Residency::cxl) sinking.granules[sinking.count++] = move.granule;
  std::sort(rising.granules, rising.granules + rising.count);
  std::sort(sinking.granules, sinking.granules + sinking.count);
  uint32_t done = 0;
  bool stuck = false;
  while (!rising.empty() || !sinking.empty()) {
    if (budget_.allowance(monotonic_ns()) == 0 || !range.may_move()) break;
    const uint32_t moved = step(range, rising, sinking, &stuck);
    done += moved;
    if (stuck || (moved == 0 && sinking.empty())) break;
  }
  const auto count = static_cast<uint32_t>(moves.size());
  return {.done = done, .failed = count - std::min(count, done)};
}

MoveResult RangeMover::move_now(RangeState& range, uint32_t first, uint32_t count, Residency to) {
  TieredMemory& memory = *range.memory;
  MoveResult worst = range.may_move() ? MoveResult::done : MoveResult::refused;
  for (uint32_t granule = first; range.may_move() && granule < first + count;) {
    uint32_t run = std::min(batch_granules(range), first + count - granule);
    if (memory.residency(granule) == to) {
      ++granule;
      continue;
    }
    if (to == Residency::ddr) {
      run = ddr_room(range, run);
      if (run == 0 || !take_ddr(range, run)) return MoveResult::no_memory;
    }
    MoveReport none;
    none.result = MoveResult::no_memory;
    const MoveReport report = move_run(range, granule, run, to).value_or(none);
    if (report.result != MoveResult::done && report.result != MoveResult::nothing) worst = report.result;
    give_ddr(range, to == Residency::cxl ? report.granules : run - report.granules);
    if (report.result == MoveResult::no_slot || report.result == MoveResult::no_memory) break;
    granule += std::max(report.granules, 1u);
  }
  return worst;
}

}  // namespace terrace::tiering
