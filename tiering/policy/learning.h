// SPDX-License-Identifier: Apache-2.0
// From counts of uses to the value of a granule: classes, ages, and the index that benefit-density ranks by.
//
// A cell's hazard is its uses over the granule-seconds waited in it. Its value is the highest ratio, over all
// times to give up at, of the chance to be used until then to the expected time in DDR until then: the Gittins
// index of the hazard, which is what "time saved per byte and second" comes to when the bytes of all granules
// are equal.
//
// Threads   As PolicyMemory.
#pragma once

#include <bit>

#include "tiering/policy/numbers.h"
#include "tiering/policy/policy.h"

namespace terrace::tiering {

// Granule::policy_a: the class in the low byte, and which way the granule was moved lately; policy_b: when, in
// units of 2^20 ns.
inline constexpr uint16_t class_mask = 0x00ff;
inline constexpr uint16_t promoted_flag = 0x0100;
inline constexpr uint16_t demoted_flag = 0x0200;
inline constexpr uint16_t moved_flags = promoted_flag | demoted_flag;
// And above: between how many plans, one after the other, it has been used, up to three.
inline constexpr uint16_t streak_shift = 12;
inline constexpr uint16_t streak_mask = 0x3000;

inline constexpr unsigned first_age_bit = 20;  // ages below 2^20 ns are one step

inline size_t age_step(uint64_t age_ns) {
  const auto bit = static_cast<unsigned>(std::bit_width(age_ns));
  if (bit <= first_age_bit) return 0;
  const size_t step = 1 + 2 * (bit - 1 - first_age_bit) + ((age_ns >> (bit - 2)) & 1);
  return step < LearnedRates::ages ? step : LearnedRates::ages - 1;
}

// Worth, quantised: sixteen levels to an octave of uses per second. Level 0 is worth nothing.
inline constexpr uint32_t levels = 1024;
inline constexpr uint32_t lowest_level_bits = (127u - 40u) << 4;  // 2^-40 uses a second

inline uint32_t level_of(float worth) {
  const uint32_t bits = std::bit_cast<uint32_t>(worth) >> 19;
  if (bits <= lowest_level_bits) return 0;
  const uint32_t level = bits - lowest_level_bits;
  return level < levels ? level : levels - 1;
}

inline float worth_at(uint32_t level) {
  return level == 0 ? 0 : std::bit_cast<float>((level + lowest_level_bits) << 19);
}

inline size_t cell_of(const Granule& granule, uint64_t now_ns) {
  if (granule.last_access_ns == 0) return 0;
  return (granule.policy_a & class_mask) * LearnedRates::ages + age_step(since(now_ns, granule.last_access_ns));
}

// Class and streak, as in policy_a, of a granule that has just been used; `before`: as it was until then.
uint16_t history_after_use(const Granule& before, const PolicyMemory& memory, uint64_t now_ns,
                           uint32_t company);

// Counts a use of `granule` (as it was before) at the cell where the last plan saw it.
void learn_use(const Granule& granule, PolicyMemory& memory);

// Adds the time since the last plan to what waited, lets old counts fade, and makes values anew when enough has
// been counted since. Leaves `waiting` at zero, for the plan to fill.
void learn_waiting(PolicyMemory& memory, uint64_t now_ns);

}  // namespace terrace::tiering
