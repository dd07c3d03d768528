// SPDX-License-Identifier: Apache-2.0
// Which id a key has: a hash table with linear probing. Hashes are the caller's, 32 bits of a key; two keys of one hash
// are taken for one another, which costs a wrong parent at worst.
//
// Place     block_order.cc looks parents up in it. Pure.
//
// A slot has an id and how far it is from the slot that its hash asks for, so that blocks with other hashes, each of them
// a cache miss, need not be looked at.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tiering/eviction/block_class.h"

namespace terrace::eviction {

// Spreads keys that are no hashes themselves.
inline uint32_t hash_key(uint64_t key) {
  key = (key ^ (key >> 32)) * 0x9e3779b97f4a7c15ull;
  key = (key ^ (key >> 29)) * 0xbf58476d1ce4e5b9ull;
  return static_cast<uint32_t>(key >> 32);
}

class KeyIndex {
 public:
  static constexpr uint32_t ids_max = (1u << 24) - 1;

  // Before the first key.
  void reserve(size_t keys) {
    if (keys > 0) slots_.assign(std::bit_ceil(keys + keys / 2 + 1), nobody);
  }
  void prefetch(uint32_t hash) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[home(hash)]);
  }
  // `hash_of(id)`: the hash that the id was added with.
  template <typename HashOf>
  uint32_t find(uint32_t hash, HashOf hash_of) const {
    if (slots_.empty()) return nobody;
    size_t distance = 0;
    for (size_t at = home(hash); slots_[at] != nobody; at = (at + 1) & mask(), ++distance)
      if (far_of(slots_[at]) == std::min(distance, far_max) && hash_of(id_of(slots_[at])) == hash)
        return id_of(slots_[at]);
    return nobody;
  }
  template <typename HashOf>
  void add(uint32_t hash, uint32_t id, HashOf hash_of) {
    if ((count_ + 1) * 3 > slots_.size() * 2) grow(hash_of);
    put(hash, id);
    ++count_;
  }
  // `id` was added with `hash`. Moves those behind it up, so that there are no holes to search across.
  template <typename HashOf>
  void remove(uint32_t hash, uint32_t id, HashOf hash_of) {
    size_t hole = home(hash);
    while (id_of(slots_[hole]) != id) hole = (hole + 1) & mask();
    for (size_t at = (hole + 1) & mask(); slots_[at] != nobody; at = (at + 1) & mask()) {
      const uint32_t other = id_of(slots_[at]);
      size_t distance = far_of(slots_[at]);
      if (distance == far_max) distance = (at - home(hash_of(other))) & mask();
      const size_t step = (at - hole) & mask();
      if (distance < step) continue;
      slots_[hole] = slot(other, distance - step);
      hole = at;
    }
    slots_[hole] = nobody;
    --count_;
  }
  size_t memory_bytes() const { return slots_.capacity() * sizeof(uint32_t); }

 private:
  static constexpr size_t far_max = 255;  // that far, or farther
  static uint32_t id_of(uint32_t slot) { return slot & ids_max; }
  static size_t far_of(uint32_t slot) { return slot >> 24; }
  static uint32_t slot(uint32_t id, size_t distance) {
    return static_cast<uint32_t>(std::min(distance, far_max) << 24) | id;
  }
  size_t mask() const { return slots_.size() - 1; }
  size_t home(uint32_t hash) const { return hash & mask(); }
  void put(uint32_t hash, uint32_t id) {
    size_t distance = 0;
    while (slots_[(home(hash) + distance) & mask()] != nobody) ++distance;
    slots_[(home(hash) + distance) & mask()] = slot(id, distance);
  }
  template <typename HashOf>
  void grow(HashOf hash_of) {
    const std::vector<uint32_t> old = std::move(slots_);
    slots_.assign(old.empty() ? 64 : old.size() * 2, nobody);
    for (const uint32_t filled : old)
      if (filled != nobody) put(hash_of(id_of(filled)), id_of(filled));
  }

  std::vector<uint32_t> slots_;  // a power of two of them, at most two thirds used
  size_t count_ = 0;
};

}  // namespace terrace::eviction
