// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_fold.h"

#include <utility>

namespace terrace::daemon {

std::optional<Event> EventFold::admit(Event event, uint64_t now_ns) {
  Key key{event.kind, event.tenant, event.code};
  if (held_.size() >= keys_max && !held_.contains(key)) {
    event.tenant = "(others)";
    key = {event.kind, event.tenant, event.code};
  }
  const auto [at, fresh] = held_.try_emplace(std::move(key));
  Held& held = at->second;
  if (!fresh && now_ns - held.began_ns < window_ns) {
    ++held.count;
    held.last = std::move(event);
    return std::nullopt;
  }
  event.count = std::exchange(held.count, 0) + 1;
  held.began_ns = now_ns;
  return event;
}

std::vector<Event> EventFold::due(uint64_t now_ns) {
  std::vector<Event> told;
  for (auto at = held_.begin(); at != held_.end();) {
    Held& held = at->second;
    if (now_ns - held.began_ns < window_ns) {
      ++at;
    } else if (held.count == 0) {
      at = held_.erase(at);
    } else {
      held.last.count = std::exchange(held.count, 0);
      held.began_ns = now_ns;
      told.push_back(std::move(held.last));
      ++at;
    }
  }
  return told;
}

}  // namespace terrace::daemon
