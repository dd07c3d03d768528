// SPDX-License-Identifier: Apache-2.0
// All that happens in the manager goes through here: it gets an id, is kept for those who ask, and is handed on to those
// who listen (the log, the sinks of [events], calls that wait).
//
// Place     Engine has the one; tell() is called by daemon/event_loop, daemon/rpc, daemon/hosts and daemon.
// Threads   The event loop's thread only. Listeners must not wait, and must not tell().
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "daemon/events/event_fold.h"
#include "daemon/events/event_ring.h"

namespace terrace::daemon {

class EventLog {
 public:
  using Listener = std::function<void(const Event&)>;

  explicit EventLog(const Clock& clock, EventRingBound bound = {});

  void tell(Event event);
  void tell(std::vector<Event> events) {
    for (Event& event : events) tell(std::move(event));
  }
  // Tells what was held back for long enough. Called every few seconds.
  void flush();

  // `sink` has left out so many, in all: what is new of it is told.
  void note_dropped(const std::string& sink, uint64_t total);
  const std::map<std::string, uint64_t>& dropped() const { return dropped_; }

  // `listener` is called from now on.
  void listen(Listener listener) { listeners_.push_back(std::move(listener)); }

  // Of this process: ids begin at 1 in each.
  const std::string& run() const { return run_; }
  const EventRing& ring() const { return ring_; }

 private:
  void push(Event event);

  const Clock& clock_;
  const std::string run_;
  EventRing ring_;
  EventFold fold_;
  std::map<std::string, uint64_t> dropped_;  // by sink
  std::vector<Listener> listeners_;
};

}  // namespace terrace::daemon
