// SPDX-License-Identifier: Apache-2.0
// What is known of a block besides its age, in few bits, and the class that follows from it. Blocks of one class and age
// are alike to BlockOrder.
//
// Place     block_order.cc keeps ClassFacts of each block; reuse_rates.cc counts by class.
#pragma once

#include <cstdint>

namespace terrace::eviction {

inline constexpr uint32_t nobody = UINT32_MAX;

struct ClassFacts {
  uint8_t uses = 1;  // up to uses_max; those before it was a ghost count, too
  uint8_t run = 0;   // blocks between it and the block that its run grew from, up to run_max
  // Another block came behind it once. The last block of a prompt is rarely used again.
  bool followed : 1 = false;
  // Since it was inserted.
  bool used : 1 = false;
  // Its run grew from a block that few prompts had used.
  bool branch : 1 = false;
};

inline constexpr uint8_t uses_max = 15;
inline constexpr uint8_t run_max = 255;
inline constexpr uint8_t branch_uses_max = 3;  // uses of the block that a branch grows from, this one included
inline constexpr uint8_t branch_blocks_min = 6;  // a shorter one is the next turn of a conversation
inline constexpr uint8_t block_classes = 10;

// 0..3 once, two or three times, up to eight times, more often; 4: in a long branch, once; 5..9: the same, not followed.
inline uint8_t block_class(const ClassFacts& facts) {
  uint8_t of_uses = facts.uses <= 1 ? 0 : facts.uses <= 3 ? 1 : facts.uses <= 8 ? 2 : 3;
  if (of_uses == 0 && facts.branch && facts.run >= branch_blocks_min) of_uses = 4;
  return static_cast<uint8_t>(of_uses + (facts.followed ? 0 : 5));
}

}  // namespace terrace::eviction
