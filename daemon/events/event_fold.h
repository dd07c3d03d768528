// SPDX-License-Identifier: Apache-2.0
// Refused calls that repeat, as one event with a count: the first of a tenant and error is told at once, and then once a
// window how many more there were, with the last one's text.
//
// Place     EventLog has one. Pure.
// Threads   One.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/base/units.h"
#include "daemon/events/event.h"

namespace terrace::daemon {

class EventFold {
 public:
  static constexpr uint64_t window_ns = 10 * ns_per_s;
  // Tenants beyond it are told as one: who can be many uids must not take more memory with each.
  static constexpr size_t keys_max = 256;

  // What of it is to be told now.
  std::optional<Event> admit(Event event, uint64_t now_ns);
  // What was held back, and has been for a window.
  std::vector<Event> due(uint64_t now_ns);

 private:
  using Key = std::tuple<EventKind, std::string, std::string>;  // tenant, code
  struct Held {
    uint64_t began_ns = 0;
    uint32_t count = 0;  // since then, and not told
    Event last = {};
  };

  std::map<Key, Held> held_;
};

}  // namespace terrace::daemon
