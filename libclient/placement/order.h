// SPDX-License-Identifier: Apache-2.0
// The order in which a step uses memory, learned from the guards that opened in it.
//
// Place     TensorPool tells it of each guard and each step; schedule.h makes a plan of the order it has
//           learned. Pure: numbers in, numbers out.
// Threads   One at a time (the pool's mutex).
//
// A use is a run of granules, not a tensor: a tensor made again in each step at the same place is the same use,
// and a view counts for its own granules. Successive uses of one run (a read, then a write) are one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace::placement {

struct Use {
  uint32_t first = 0, count = 0;  // granules
  // How many openings of other uses there were until its guards were closed, itself included: it must lie in
  // DDR at so many positions. Not part of what makes two orders the same.
  uint32_t positions = 1;
  bool same_place(const Use& other) const { return first == other.first && count == other.count; }
};

struct OrderOptions {
  uint32_t uses_max = 1 << 16;         // of a step; a longer one is not learned
  uint32_t look_ahead = 16;            // uses that may be skipped before one counts as out of order
  uint32_t deviations_min = 2;         // so many are always forgiven
  uint32_t deviations_permille = 125;  // and this share of the order
};

class OrderLearner {
 public:
  explicit OrderLearner(const OrderOptions& options = {}) : options_(options) {}

  // A guard was opened. The returned ticket is for closed().
  uint64_t opened(uint32_t first, uint32_t count);
  void closed(uint64_t ticket);

  enum class Step : uint8_t {
    observing,  // nothing is known yet
    learned,    // known from now on, or another order than before: plan anew
    following,  // as known
    forgotten,  // too far from what was known: nothing is known any more
  };
  // The step is over; the next one begins.
  Step step();
  void forget();

  bool known() const { return !cycle_.empty(); }
  std::span<const Use> cycle() const { return cycle_; }
  // The use that is expected next; cycle().size() when the step has none left.
  uint32_t position() const { return position_; }
  uint64_t deviations() const { return deviations_total_; }

 private:
  void follow(const Use& use);
  bool too_many() const;

  OrderOptions options_;
  std::vector<Use> current_, previous_, cycle_;
  std::vector<uint32_t> open_;     // guards that are open, by use of this step
  std::vector<uint32_t> skipped_;  // positions that were passed over in this step
  uint32_t step_number_ = 0;
  uint32_t position_ = 0;
  uint32_t deviations_ = 0;  // of this step
  uint64_t deviations_total_ = 0;
  bool overflowed_ = false, previous_whole_ = false;
};

}  // namespace terrace::placement
