// SPDX-License-Identifier: Apache-2.0
// The newest events, within a bound of entries and bytes for each origin: a flood of one origin pushes out its own only.
//
// Place     EventLog has one. Pure.
// Threads   One.
// Invariants  E1  ids ascend by one from 1 on, over all origins: who knows two of them knows how many lie between
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "daemon/events/event.h"

namespace terrace::daemon {

struct EventRingBound {
  size_t entries_max = 8192;
  uint64_t bytes_max = 4ull << 20;
};

// Empty fields match all.
struct EventFilter {
  uint64_t since = 0;  // ids greater than this
  uint64_t since_wall_ns = 0;
  uint64_t kinds = 0;  // a bit for each EventKind
  EventSeverity severity_min = EventSeverity::info;
  uint64_t lease = 0;
  std::string tenant = {}, pool = {}, device = {}, host = {};

  bool matches(const Event& event) const;
};
static_assert(event_kinds <= 64);

struct EventPage {
  std::vector<const Event*> events = {};  // by ascending ids; good until the next push()
  uint64_t next = 0;                      // what to read on behind
  uint64_t lost = 0;  // after `since` up to `next`, and kept no more; whether they would match or not
  bool more = false;  // further ones match: newer ones, or older ones of the newest
};

class EventRing {
 public:
  explicit EventRing(EventRingBound bound = {}) : bound_(bound) {}

  // Gives `event` its id. The reference is good until the next push().
  const Event& push(Event event);
  // The oldest `limit` that match, or the newest.
  EventPage read(const EventFilter& filter, size_t limit, bool newest = false) const;

  uint64_t newest() const { return last_id_; }
  size_t entries() const;
  uint64_t bytes() const;

 private:
  struct Part {
    std::deque<Event> events;
    uint64_t bytes = 0;
  };

  const EventRingBound bound_;  // of each part
  std::array<Part, event_origins> parts_;
  uint64_t last_id_ = 0;
};

// What an event takes in memory, about.
uint64_t event_bytes(const Event& event);

}  // namespace terrace::daemon
