// SPDX-License-Identifier: Apache-2.0
// Whether a block was read before, a while ago at most: a table of one word a place, where the later of two blocks stays. So a block
// that is read once costs a copy neither time nor room.
//
// It forgets by itself, as others come: the window is some times the blocks that the copies have room for. An answer may
// be wrong, and then a block is copied too soon or too late.
//
// Threads   Any.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "libclient/kv/block.h"

namespace terrace::kv {

class SeenBlocks {
 public:
  explicit SeenBlocks(uint64_t copies_bytes)
      : words_(std::bit_ceil(std::clamp<uint64_t>(copies_bytes / (8 << 10), 4096, 1 << 22))) {}

  // Notes it; whether it was noted before.
  bool again(uint64_t space, const Block& block) {
    const uint64_t tag = tag_of(space, block);
    std::atomic<uint64_t>& word = words_[tag >> 32 & (words_.size() - 1)];
    if (word.load(std::memory_order_relaxed) == tag) return true;
    word.store(tag, std::memory_order_relaxed);
    return false;
  }

 private:
  static uint64_t tag_of(uint64_t space, const Block& block) {
    uint64_t mixed = block.key.low ^ (block.word & layout::word_version_mask) * 0x9e3779b97f4a7c15ull;
    mixed ^= (space << 48 ^ uint64_t{block.part} << 32 ^ block.record) * 0xc2b2ae3d27d4eb4full;
    mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
    return (mixed ^ mixed >> 32) | 1;
  }

  std::vector<std::atomic<uint64_t>> words_;
};

}  // namespace terrace::kv
