// SPDX-License-Identifier: Apache-2.0
// Carries out a plan's moves of one range, within its share of DDR and the copy budget.
//
// Threads   The engine thread's, with the range's lock held, or before the thread starts.
//
// Invariants
//   E1  No range holds more than its share of DDR but by the granules of one batch, while two trade places.
//   E2  No granule that is held, or gone, is moved.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tiering/engine/range_state.h"
#include "tiering/migration/copy.h"
#include "tiering/migration/mover.h"
#include "tiering/policy/policy.h"

namespace terrace::tiering {

struct Outcome {
  uint32_t done = 0, failed = 0;  // granules
};

class RangeMover {
 public:
  // `batch_bytes`: of one run of moves, which is how long an access can wait.
  void open(uint64_t batch_bytes, uint64_t copy_bytes_per_s_max, const TierCosts& costs);
  Mover& mover() { return mover_; }
  const Mover& mover() const { return mover_; }
  // What others copy for the engine counts too.
  CopyBudget& budget() { return budget_; }
  // With what the moves so far taught of the speed of copies and of what a move costs beside its copy.
  const TierCosts& costs() const { return costs_; }

  // In the order of granules, so that neighbours move together; what the budget does not allow counts as failed.
  Outcome carry_out(RangeState& range, std::span<const Move> moves);
  // Whatever the policy thinks, within the range's DDR bound but beyond the copy budget. What stopped it, if
  // something did: no_slot, no_memory (the bound), held, ...
  MoveResult move_now(RangeState& range, uint32_t first, uint32_t count, Residency to);

 private:
  struct Batch;
  std::optional<MoveReport> move_run(RangeState& range, uint32_t first, uint32_t run, Residency to);
  uint32_t move_next(RangeState& range, Batch& batch, Residency to, uint32_t granules_max);
  uint32_t trade(RangeState& range, Batch& rising, Batch& sinking, uint32_t granules_max);
  uint32_t step(RangeState& range, Batch& rising, Batch& sinking, bool* stuck);
  void note_move(RangeState& range, const MoveReport& report, Residency to);
  uint32_t batch_granules(const RangeState& range) const;

  Mover mover_;
  CopyBudget budget_;
  TierCosts costs_;
  uint64_t batch_bytes_ = 0;
};

}  // namespace terrace::tiering
