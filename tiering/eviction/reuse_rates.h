// SPDX-License-Identifier: Apache-2.0
// How soon blocks of a class and an age are used again, learned from what happened to blocks before.
//
// Place     block_order.cc counts here and asks worth(). Pure. The same idea as tiering/policy's benefit-density, for
//           single uses and eviction alone.
//
// Ages are in half octaves of uses and inserts. For each class and age two counts: reuses that came then, and how long
// blocks waited at that age. Their ratio is the rate of reuse. What a block is worth is the best average rate from its age
// until any later one: the rate itself where it falls with age, more where it rises (a loop that comes round).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tiering/eviction/block_class.h"

namespace terrace::eviction {

class ReuseRates {
 public:
  ReuseRates();
  void count_reuse(uint8_t block_class, uint32_t age) { ++cells_[block_class][age_step(age)].reuses; }
  void count_waiting(uint8_t block_class, uint32_t age, double blocks) {
    cells_[block_class][age_step(age)].waited += blocks;
  }
  // Expected uses in a unit of time, of a block of this class and age.
  float worth(uint8_t block_class, uint32_t age) const { return worth_[block_class][age_step(age)]; }
  // Makes worth() follow the counts, and lets old ones fade once there are many to each of `blocks`.
  void refresh(size_t blocks);

 private:
  static constexpr int age_steps = 64;
  struct Cell {
    double reuses = 0;
    double waited = 0;
  };
  using Rates = std::array<double, age_steps>;

  static size_t age_step(uint32_t age);
  static double step_begin(int step);
  int steps_seen() const;
  Rates rates_of_all() const;
  void refresh_class(uint8_t block_class, const Rates& of_all, int steps);

  std::array<std::array<Cell, age_steps>, block_classes> cells_;
  std::array<std::array<float, age_steps>, block_classes> worth_;
};

}  // namespace terrace::eviction
