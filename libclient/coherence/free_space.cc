// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/free_space.h"

#include <iterator>

namespace terrace::coherence {

void FreeSpace::add(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void FreeSpace::drop(std::map<uint64_t, uint64_t>::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  free_bytes_ -= hole->second;
  by_offset_.erase(hole);
}

std::optional<uint64_t> FreeSpace::take(uint64_t bytes) {
  const auto fit = by_size_.lower_bound({bytes, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const uint64_t offset = fit->second;
  const uint64_t hole_bytes = fit->first;
  drop(by_offset_.find(offset));
  add(offset + bytes, hole_bytes - bytes);
  return offset;
}

bool FreeSpace::take_at(uint64_t offset, uint64_t bytes) {
  auto hole = by_offset_.upper_bound(offset);
  if (hole == by_offset_.begin()) return false;
  --hole;
  const uint64_t begin = hole->first;
  const uint64_t end = begin + hole->second;
  if (offset > end || bytes > end - offset) return false;
  drop(hole);
  add(begin, offset - begin);
  add(offset + bytes, end - offset - bytes);
  return true;
}

bool FreeSpace::has(uint64_t offset, uint64_t bytes) const {
  const auto next = by_offset_.upper_bound(offset);
  if (next == by_offset_.begin()) return false;
  const auto& [begin, length] = *std::prev(next);
  return offset - begin <= length && bytes <= length - (offset - begin);
}

void FreeSpace::give(uint64_t offset, uint64_t bytes) {
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      drop(before);
    }
  }
  if (next != by_offset_.end() && offset + bytes == next->first) {
    bytes += next->second;
    drop(next);
  }
  add(offset, bytes);
}

}  // namespace terrace::coherence
