// SPDX-License-Identifier: Apache-2.0
#include "tiering/sim/prefix_order.h"

#include <algorithm>

namespace terrace::tiering {

PrefixOrder::PrefixOrder(const Trace& trace, uint64_t room)
    : trace_(trace),
      id_of_(trace.objects, eviction::nobody),
      object_of_(std::min<uint64_t>(room, trace.objects)) {
  for (size_t id = object_of_.size(); id-- > 0;) free_.push_back(static_cast<uint32_t>(id));
}

bool PrefixOrder::use(uint32_t object) {
  const uint64_t parent = parent_key();
  ++position_;
  if (id_of_[object] != eviction::nobody) {
    order_.use(id_of_[object]);
    return true;
  }
  const uint32_t id = free_id();
  order_.insert(id, {.key = object + uint64_t{1}, .parent = parent, .bytes = 1});
  id_of_[object] = id;
  object_of_[id] = object;
  ++brought_in_;
  return false;
}

uint32_t PrefixOrder::free_id() {
  if (free_.empty()) {
    const uint32_t victim = order_.victim().value();
    order_.erase(victim, true);
    id_of_[object_of_[victim]] = eviction::nobody;
    free_.push_back(victim);
    ++put_out_;
  }
  const uint32_t id = free_.back();
  free_.pop_back();
  return id;
}

uint64_t PrefixOrder::parent_key() {
  while (position_ >= trace_.requests[request_].first + size_t{trace_.requests[request_].count}) ++request_;
  return position_ == trace_.requests[request_].first ? 0 : trace_.uses[position_ - 1] + uint64_t{1};
}

}  // namespace terrace::tiering
