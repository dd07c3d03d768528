// SPDX-License-Identifier: Apache-2.0
#include "tiering/eviction/reuse_rates.h"

#include <algorithm>
#include <bit>

namespace terrace::eviction {
namespace {

constexpr double first_rate_by_age = 0.7;  // believed before anything is known: this over the age, so plain LRU
constexpr double belief_of_all = 2;        // reuses that the belief about all classes is worth, in each age
constexpr double belief_of_class = 4;      // and the one that a class is as all are
constexpr double reuses_per_block = 2;     // counts are halved beyond
constexpr double reuses_min = 1000;
constexpr double still_there_min = 1e-4;

}  // namespace

ReuseRates::ReuseRates() {
  for (auto& row : cells_) row.fill({});
  refresh(0);
}

// 0: an age of 0 or 1; 2 and 3: from 2 and from 3; 4 and 5: from 4 and from 6; and so on. There is no 1.
size_t ReuseRates::age_step(uint32_t age) {
  if (age < 2) return 0;
  const int octave = static_cast<int>(std::bit_width(age)) - 1;
  return 2 * static_cast<size_t>(octave) + (age >> (octave - 1) & 1);
}

double ReuseRates::step_begin(int step) {
  if (step <= 0) return 1;
  if (step == 1) return 2;
  const auto octave = static_cast<double>(uint64_t{1} << (step / 2));
  return step % 2 == 0 ? octave : octave * 1.5;
}

// Two more than were ever seen: beyond, nothing is known, and the first belief would rule.
int ReuseRates::steps_seen() const {
  int last = 0;
  for (const auto& row : cells_)
    for (int step = last; step < age_steps; ++step)
      if (row[static_cast<size_t>(step)].waited > 0) last = step;
  return std::min(last + 2, age_steps);
}

ReuseRates::Rates ReuseRates::rates_of_all() const {
  Rates rates{};
  for (int step = 0; step < age_steps; ++step) {
    const double believed = first_rate_by_age / step_begin(step);
    double reuses = belief_of_all, waited = belief_of_all / believed;
    for (const auto& row : cells_) {
      reuses += row[static_cast<size_t>(step)].reuses;
      waited += row[static_cast<size_t>(step)].waited;
    }
    rates[static_cast<size_t>(step)] = reuses / waited;
  }
  return rates;
}

void ReuseRates::refresh_class(uint8_t block_class, const Rates& of_all, int steps) {
  const auto& row = cells_[block_class];
  double reuses = belief_of_class, expected = belief_of_class;
  for (size_t step = 0; step < age_steps; ++step) {
    reuses += row[step].reuses;
    expected += row[step].waited * of_all[step];
  }
  Rates rates{}, stays{};  // stays: the chance to get through a step without a use
  for (size_t step = 0; step < age_steps; ++step) {
    const double believed = of_all[step] * reuses / expected;
    rates[step] = (row[step].reuses + belief_of_class) / (row[step].waited + belief_of_class / believed);
    const int at = static_cast<int>(step);
    stays[step] = 1 / (1 + rates[step] * (step_begin(at + 1) - step_begin(at)));
  }
  for (int from = 0; from < age_steps; ++from) {
    const auto first = static_cast<size_t>(from);
    double best_used = rates[first], best_time = 1;
    double there = 1, used = 0, time = 0;
    for (size_t step = first; step < static_cast<size_t>(steps) && there > still_there_min; ++step) {
      double leaves = there * (1 - stays[step]);
      if (step == first) leaves *= 0.5;  // half of the step is over
      used += leaves;
      time += leaves / rates[step];
      there -= leaves;
      if (used * best_time > best_used * time) best_used = used, best_time = time;
    }
    worth_[block_class][first] = static_cast<float>(best_used / best_time);
  }
}

void ReuseRates::refresh(size_t blocks) {
  const Rates of_all = rates_of_all();
  const int steps = steps_seen();
  for (uint8_t block_class = 0; block_class < block_classes; ++block_class)
    refresh_class(block_class, of_all, steps);
  double reuses = 0;
  for (const auto& row : cells_)
    for (const Cell& cell : row) reuses += cell.reuses;
  if (reuses < reuses_min + reuses_per_block * static_cast<double>(blocks)) return;
  for (auto& row : cells_)
    for (Cell& cell : row) cell = {.reuses = cell.reuses / 2, .waited = cell.waited / 2};
}

}  // namespace terrace::eviction
