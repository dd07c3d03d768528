// SPDX-License-Identifier: Apache-2.0
// The plans behind the table, one file each.
#pragma once

#include "tiering/policy/policy.h"

namespace terrace::tiering {

size_t plan_static(const PlanInput& input, PolicyMemory& memory, std::span<uint32_t> scratch,
                   std::span<Move> moves);
size_t plan_watermark_lru(const PlanInput& input, PolicyMemory& memory, std::span<uint32_t> scratch,
                          std::span<Move> moves);
size_t plan_benefit_density(const PlanInput& input, PolicyMemory& memory, std::span<uint32_t> scratch,
                            std::span<Move> moves);

// Collects moves in an order that can be carried out: counts rooms as they change, and never passes the budget.
class MoveList {
 public:
  MoveList(const PlanInput& input, std::span<Move> moves)
      : moves_(moves.first(moves.size() < input.moves_max ? moves.size() : input.moves_max)),
        ddr_free_(input.ddr_granules < input.ddr_granules_max ? input.ddr_granules_max - input.ddr_granules
                                                              : 0),
        ddr_above_(input.ddr_granules > input.ddr_granules_max ? input.ddr_granules - input.ddr_granules_max
                                                               : 0),
        cxl_free_(input.cxl_free_granules) {}

  size_t size() const { return count_; }
  size_t left() const { return moves_.size() - count_; }
  uint64_t ddr_free() const { return ddr_free_; }
  uint64_t ddr_above() const { return ddr_above_; }  // resident beyond what the range may have

  bool demote(uint32_t granule) {
    if (left() == 0 || cxl_free_ == 0) return false;
    moves_[count_++] = {.granule = granule, .to = Residency::cxl};
    --cxl_free_;
    if (ddr_above_ > 0) {
      --ddr_above_;
    } else {
      ++ddr_free_;
    }
    return true;
  }

  bool promote(uint32_t granule) {
    if (left() == 0 || ddr_free_ == 0) return false;
    moves_[count_++] = {.granule = granule, .to = Residency::ddr};
    --ddr_free_;
    ++cxl_free_;
    return true;
  }

  // The victim goes down and the other comes up; neither when there is no room or budget for both.
  bool swap(uint32_t victim, uint32_t candidate) {
    if (left() < 2 || cxl_free_ == 0 || ddr_above_ > 0) return false;
    return demote(victim) && promote(candidate);
  }

 private:
  std::span<Move> moves_;
  size_t count_ = 0;
  uint64_t ddr_free_;
  uint64_t ddr_above_;
  uint64_t cxl_free_;
};

}  // namespace terrace::tiering
