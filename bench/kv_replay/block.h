// SPDX-License-Identifier: Apache-2.0
// The bytes of a block: its number, its generation, and words that follow from both, so that bytes of two
// generations, or of two blocks, are never taken for one. Every word is compared, which finds more than a
// checksum over them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace terrace::bench {

inline uint64_t block_word(uint64_t block, uint64_t generation, uint64_t index) {
  uint64_t mixed = (block * 0x9e3779b97f4a7c15ull) ^ (generation * 0xbf58476d1ce4e5b9ull);
  mixed ^= mixed >> 29;
  return mixed + index * 0x94d049bb133111ebull;
}

inline void fill_block(std::span<std::byte> bytes, uint64_t block, uint64_t generation) {
  auto* const words = reinterpret_cast<uint64_t*>(bytes.data());
  const size_t count = bytes.size() / sizeof(uint64_t);
  words[0] = block;
  words[1] = generation;
  for (size_t index = 2; index < count; ++index) words[index] = block_word(block, generation, index);
}

struct SeenBlock {
  uint64_t block = 0, generation = 0;
  bool whole = false;  // every word is of this block and generation
};

inline SeenBlock see_block(std::span<const std::byte> bytes) {
  const auto* const words = reinterpret_cast<const uint64_t*>(bytes.data());
  const size_t count = bytes.size() / sizeof(uint64_t);
  SeenBlock seen{.block = words[0], .generation = words[1]};
  uint64_t differing = 0;
  for (size_t index = 2; index < count; ++index)
    differing |= words[index] ^ block_word(seen.block, seen.generation, index);
  seen.whole = differing == 0;
  return seen;
}

}  // namespace terrace::bench
