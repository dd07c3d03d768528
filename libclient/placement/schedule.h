// SPDX-License-Identifier: Apache-2.0
// Chooses the granules that stay in DDR between two uses of a learned order, and the next copies: Belady's
// choice, made ahead of use.
//
// Place     order.h learns the order; the pool's mover carries next_moves() out. Pure.
// Threads   Plain values.
//
// The order repeats, so each use of a granule begins an interval that ends at its next use. An interval is kept
// (the granule stays in DDR), or it costs a copy out and a copy in. Short intervals are kept first, as many
// as fit beside the granules in use and a reserve for copies under way. Apart from that reserve this gives
// the fewest copies, as Belady's rule. Of intervals of like length a part of each is kept, so that the
// copies are spread over the whole step and never pause. In a pass in one direction every interval is as
// long as the step: Belady's rule alone would keep one stretch of the step whole, and copy nothing during
// its use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libclient/placement/order.h"

namespace terrace::placement {

class Schedule {
 public:
  Schedule() = default;
  // `granules`: of the whole range. `ddr_granules`: what the order may have of DDR. `pinned`, by granule: not
  // planned, neither in DDR nor to be fetched; empty: none. Entries (granules times uses) beyond 2^24 are not
  // planned: empty() then.
  Schedule(std::span<const Use> cycle, uint32_t granules, uint32_t ddr_granules,
           std::span<const uint8_t> pinned = {});

  bool empty() const { return uses_.empty(); }
  uint32_t positions() const { return static_cast<uint32_t>(uses_.size()); }
  const Use& use(uint32_t position) const { return uses_[position]; }
  uint32_t granules() const { return granules_; }
  // Whether that granule of the use was to be in DDR since its use before.
  bool kept_before(uint32_t position, uint32_t index) const { return kept_[begin_[position] + index] != 0; }
  // Intervals that are not kept: copies in, a step, once the order runs.
  uint64_t fetches() const { return fetches_; }
  uint32_t reserve_granules() const { return reserve_; }

 private:
  void choose_kept(uint32_t ddr_granules, std::span<const uint8_t> pinned);

  std::vector<Use> uses_;
  std::vector<uint32_t> begin_;  // of each position's entries; one more at the end
  std::vector<uint8_t> kept_;    // by entry
  uint32_t granules_ = 0, reserve_ = 0;
  uint64_t fetches_ = 0;
};

struct GranuleState {
  static constexpr uint8_t in_ddr = 1;
  static constexpr uint8_t fixed = 2;      // in use, held or pinned: stays where it is
  static constexpr uint8_t immovable = 4;  // held or pinned: also while somebody waits for it
};

struct Run {
  uint32_t first = 0, count = 0;
};

struct PlannedMove {
  uint32_t granule = 0;
  bool to_ddr = false;
};

struct PlanView {
  uint32_t position = 0;               // the use that is expected next
  std::span<const uint8_t> granules;   // GranuleState, of the whole range
  uint32_t room = 0;                   // granules that DDR has free
  std::span<const Run> demanded = {};  // somebody waits for these
  uint32_t moves_max = 64;
};

// What to copy next, in order: a granule that goes out comes before the one that gets its place. Demanded ones
// first, then by use; nothing that is needed sooner goes out for what is needed later, and what is kept only
// for what is demanded.
std::vector<PlannedMove> next_moves(const Schedule& schedule, const PlanView& view);

// Copies into DDR a step by Belady's rule without look-ahead, once the order has run some times: no way of
// choosing has fewer. Each was preceded by one out of it.
uint64_t belady_fetches(std::span<const Use> cycle, uint32_t granules, uint32_t ddr_granules);

}  // namespace terrace::placement
