// SPDX-License-Identifier: Apache-2.0
// The free bytes of a part's chunks. It exists in the owner's process only, and the next owner makes it again
// from the records: nothing about free space is stored in shared memory. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace terrace::coherence {

class FreeSpace {
 public:
  FreeSpace() = default;
  explicit FreeSpace(uint64_t bytes) { give(0, bytes); }

  // The smallest hole that `bytes` fit in. Units: bytes, a multiple of 64.
  std::optional<uint64_t> take(uint64_t bytes);
  // Exactly this range; false, and nothing is taken, if any of it is not free.
  bool take_at(uint64_t offset, uint64_t bytes);
  // Joins its neighbours.
  void give(uint64_t offset, uint64_t bytes);

  bool has(uint64_t offset, uint64_t bytes) const;                          // whether all of this range is free
  const std::map<uint64_t, uint64_t>& holes() const { return by_offset_; }  // offset, bytes; none touch

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void add(uint64_t offset, uint64_t bytes);
  void drop(std::map<uint64_t, uint64_t>::iterator hole);

  std::map<uint64_t, uint64_t> by_offset_;           // offset, bytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // bytes, offset
  uint64_t free_bytes_ = 0;
};

}  // namespace terrace::coherence
