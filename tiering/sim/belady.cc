// SPDX-License-Identifier: Apache-2.0
#include "tiering/sim/belady.h"

namespace terrace::tiering {

std::vector<uint64_t> next_uses(const Trace& trace) {
  std::vector<uint64_t> next(trace.uses.size());
  std::vector<uint64_t> seen(trace.objects, UINT64_MAX);
  for (size_t at = trace.uses.size(); at-- > 0;) {
    next[at] = seen[trace.uses[at]];
    seen[trace.uses[at]] = at;
  }
  return next;
}

Belady::Belady(const Trace& trace, uint64_t room)
    : next_(next_uses(trace)), cached_until_(trace.objects), room_(room) {}

bool Belady::use(uint32_t object) {
  const uint64_t next = next_[position_++];
  const bool hit = cached_until_[object] != 0;
  if (hit) cache_.erase({cached_until_[object], object});
  cached_until_[object] = 0;
  if (next == UINT64_MAX) {  // never used again: not worth a place
    put_out_ += hit ? 1 : 0;
    return hit;
  }
  if (cache_.size() >= room_) {
    const auto farthest = std::prev(cache_.end());
    if (farthest->first < next) {
      put_out_ += hit ? 1 : 0;
      return hit;
    }
    cached_until_[farthest->second] = 0;
    cache_.erase(farthest);
    ++put_out_;
  }
  cached_until_[object] = next;
  cache_.insert({next, object});
  brought_in_ += hit ? 0 : 1;
  return hit;
}

}  // namespace terrace::tiering
