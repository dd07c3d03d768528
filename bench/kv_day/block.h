// SPDX-License-Identifier: Apache-2.0
// What a block of the day holds: its number, who put it, and words that follow from both. So every word says whether it
// belongs to this block and to this put, also where two engines have put blocks of one number.
#pragma once

#include <cstring>
#include <span>

#include "core/base/prng.h"

namespace terrace::bench::day {

inline constexpr uint64_t word_step = 0x9e3779b97f4a7c15ull;

// A put: the engine's process, counted over all that were ever started, and its number among that process's puts.
struct PutId {
  uint32_t process = 0;
  uint32_t number = 0;
};

inline uint64_t word_of(PutId put) {
  return uint64_t{put.process} << 32 | put.number;
}
inline PutId put_of(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
}
inline uint64_t first_of(uint64_t block, uint64_t put) {
  return Prng(block ^ put * word_step).next();
}

// `to`: whole words, at least two.
inline void make_block(uint64_t block, PutId put, std::span<std::byte> to) {
  const uint64_t by = word_of(put);
  std::memcpy(to.data(), &block, 8);
  std::memcpy(to.data() + 8, &by, 8);
  uint64_t word = first_of(block, by);
  for (size_t at = 16; at < to.size(); at += 8, word += word_step) std::memcpy(to.data() + at, &word, 8);
}

struct Seen {
  uint64_t block = 0;
  PutId put;
  size_t wrong_at = 0;  // the first byte of a word that is not this block's; 0: there is none
};

// Looks at every word.
inline Seen see_block(std::span<const std::byte> bytes) {
  const auto word_at = [&](size_t at) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    return word;
  };
  Seen seen{.block = word_at(0), .put = put_of(word_at(8))};
  const uint64_t first = first_of(seen.block, word_at(8));
  uint64_t different = 0, word = first;
  size_t at = 16;
  for (; at + 32 <= bytes.size(); at += 32, word += 4 * word_step)
    different |= (word_at(at) ^ word) | (word_at(at + 8) ^ (word + word_step)) |
                 (word_at(at + 16) ^ (word + 2 * word_step)) | (word_at(at + 24) ^ (word + 3 * word_step));
  for (; at + 8 <= bytes.size(); at += 8, word += word_step) different |= word_at(at) ^ word;
  if (different == 0) return seen;
  word = first;
  for (at = 16; at + 8 <= bytes.size() && word_at(at) == word; at += 8) word += word_step;
  seen.wrong_at = at;
  return seen;
}

}  // namespace terrace::bench::day
