// SPDX-License-Identifier: Apache-2.0
// The learned data of benefit-density about one range: the time until granules of a class are used again, by
// the time since their last use. A plain value of fixed size in PolicyMemory; all zeros: nothing learned.
//
// Place     note_access() counts uses here, each plan counts granules still unused; learning.cc makes values of
// both.
// Threads   As PolicyMemory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::tiering {

struct LearnedRates {
  // A class is a history (how many uses, how quickly one after the other, in whose company); an age is a step
  // of time since the last use, two to an octave from a millisecond to some hours. A cell is one of each.
  static constexpr size_t classes = 64;
  static constexpr size_t ages = 48;
  static constexpr size_t cells = classes * ages;

  float uses[cells];      // uses of granules that were in this cell when the last plan looked; old ones fade
  float waited[cells];    // granule-seconds spent in this cell; fades with `uses`
  float waiting[cells];   // granules in this cell at the last plan
  float value[cells];     // what keeping such a granule in DDR is worth: expected uses per granule-second
  float chance[cells];    // that it is used before it is worth less than the least worthy in DDR
  float doubt[cells];     // standard error of `value`
  uint16_t level[cells];  // `value`, quantised: learning.h

  bool valued;              // `value` was made once
  float uses_kept;          // all of `uses`
  float uses_unvalued;      // counted since `value` was made
  float weight;             // accesses that one note stands for, smoothed
  uint64_t plan_before_ns;  // the last plan but one
  uint64_t last_note_ns;    // granules noted in one instant, one after the other, keep company
  uint32_t company;         // uses of the one noted before

  float least_worth;  // in DDR, at the last plan

  // New bytes: granules with bytes at the last plan, and how often how many more came between two plans (by
  // octaves).
  static constexpr size_t birth_steps = 20;
  uint64_t alive;
  float births[birth_steps];
  float births_kept;

  // What became of moves: uses and granule-seconds of what was promoted, and demoted, a short time ago.
  float promoted_uses, promoted_waited;
  float demoted_uses, demoted_waited;
  float margin;  // by which a candidate must beat its victim beyond the hysteresis: grows when moves do not pay
};

}  // namespace terrace::tiering
