// SPDX-License-Identifier: Apache-2.0
// The bytes of a region that this process has erased and verified, and not handed out again. A new namespace
// may lie anywhere; only its bytes outside these ranges must be erased before a holder gets it.
//
// Place     daemon/memory/pmem; plain values, remembered by no file: after a start nothing counts as erased.
// Threads   Not shared.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace terrace::daemon {

struct ByteRange {
  uint64_t begin = 0, end = 0;

  bool operator==(const ByteRange&) const = default;
};

class ErasedRanges {
 public:
  void add(ByteRange range) {
    if (range.begin >= range.end) return;
    auto at = ranges_.upper_bound(range.begin);
    if (at != ranges_.begin() && std::prev(at)->second >= range.begin) --at;
    while (at != ranges_.end() && at->first <= range.end) {
      range.begin = at->first < range.begin ? at->first : range.begin;
      range.end = at->second > range.end ? at->second : range.end;
      at = ranges_.erase(at);
    }
    ranges_[range.begin] = range.end;
  }

  void remove(ByteRange range) {
    if (range.begin >= range.end) return;
    auto at = ranges_.upper_bound(range.begin);
    if (at != ranges_.begin()) --at;
    while (at != ranges_.end() && at->first < range.end) {
      const ByteRange have{at->first, at->second};
      if (have.end <= range.begin) {
        ++at;
        continue;
      }
      at = ranges_.erase(at);
      if (have.begin < range.begin) ranges_[have.begin] = range.begin;
      if (have.end > range.end) ranges_[range.end] = have.end;
    }
  }

  // The parts of `range` that are not erased, ascending.
  std::vector<ByteRange> missing(ByteRange range) const {
    std::vector<ByteRange> parts;
    uint64_t begin = range.begin;
    for (const auto& [from, to] : ranges_) {
      if (to <= begin || from >= range.end) continue;
      if (from > begin) parts.push_back({begin, from});
      begin = to;
    }
    if (begin < range.end) parts.push_back({begin, range.end});
    return parts;
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end; neither touching nor overlapping
};

}  // namespace terrace::daemon
