// SPDX-License-Identifier: Apache-2.0
#include "libclient/placement/device_schedule.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace terrace::placement {
namespace {

// From the end of a tensor's use to its next one.
struct Interval {
  uint32_t entry = 0;  // position of the use at its end
  uint32_t first = 0;
  uint32_t length = 0;  // positions; 0: it is in use all the time
};

std::vector<Interval> intervals_of(const std::vector<SlotUse>& uses) {
  const auto count = static_cast<uint32_t>(uses.size());
  std::unordered_map<uint32_t, uint32_t> last;  // by slot: the position of its use before
  for (uint32_t at = 0; at < count; ++at) last[uses[at].slot] = at;
  std::vector<Interval> intervals;
  for (uint32_t at = 0; at < count; ++at) {
    const uint32_t before = std::exchange(last[uses[at].slot], at);
    const uint32_t between = before < at ? at - before : at + count - before;
    const uint32_t busy = std::min(uses[before].positions, between);
    intervals.push_back({.entry = at, .first = (before + busy) % count, .length = between - busy});
  }
  std::stable_sort(intervals.begin(), intervals.end(),
                   [](const Interval& a, const Interval& b) { return a.length < b.length; });
  return intervals;
}

}  // namespace

DeviceSchedule::DeviceSchedule(std::vector<SlotUse> cycle, uint64_t room_bytes) {
  for (const SlotUse& use : cycle)
    if (use.bytes > room_bytes) return;
  uses_ = std::move(cycle);
  kept_.assign(uses_.size(), 0);
  choose_kept(room_bytes);
}

void DeviceSchedule::choose_kept(uint64_t room_bytes) {
  const uint32_t count = positions();
  std::vector<uint64_t> taken(count, 0);
  std::unordered_map<uint32_t, uint64_t> distinct;
  uint64_t all = 0, largest = 0;
  for (uint32_t at = 0; at < count; ++at) {
    const SlotUse& use = uses_[at];
    if (distinct.emplace(use.slot, use.bytes).second) all += use.bytes;
    largest = std::max(largest, use.bytes);
    for (uint32_t i = 0; i < std::min(use.positions, count); ++i) taken[(at + i) % count] += use.bytes;
  }
  const uint64_t reserve = all > room_bytes ? largest : 0;
  const uint64_t room = room_bytes - std::min(room_bytes, reserve);
  for (const Interval& interval : intervals_of(uses_)) {
    const uint64_t bytes = uses_[interval.entry].bytes;
    bool fits = true;
    for (uint32_t i = 0; fits && i < interval.length; ++i)
      fits = taken[(interval.first + i) % count] + bytes <= room;
    if (fits) {
      for (uint32_t i = 0; i < interval.length; ++i) taken[(interval.first + i) % count] += bytes;
      kept_[interval.entry] = 1;
    } else {
      fetch_bytes_ += bytes;
    }
  }
}

std::vector<NextUse> DeviceSchedule::next_uses(uint32_t position, uint32_t slots) const {
  std::vector<NextUse> next(slots);
  const uint32_t count = positions();
  for (uint32_t ahead = 0; ahead < count; ++ahead) {
    const uint32_t at = (position + ahead) % count;
    const uint32_t slot = uses_[at].slot;
    if (slot >= slots || next[slot].distance != NextUse::never) continue;
    next[slot] = {.distance = ahead, .kept = kept_before(at)};
  }
  return next;
}

}  // namespace terrace::placement
