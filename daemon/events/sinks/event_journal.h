// SPDX-License-Identifier: Apache-2.0
// Events as entries of systemd's journal, each with its fields (`journalctl TERRACE_LEASE=7`).
//
// Place     EventSinks makes one where the configuration says so ([events] journal).
// Threads   As LineQueue.
#pragma once

#include <string>
#include <utility>

#include "daemon/events/sinks/event_text.h"
#include "daemon/lines/journal.h"

namespace terrace::daemon {

class EventJournal {
 public:
  EventJournal(std::string socket, std::string run)
      : run_(std::move(run)),
        journal_({.socket = std::move(socket), .entry = "an event", .entries = "events"}) {}

  void append(const Event& event) {
    journal_.append(journal_entry(event, run_), event.kind == EventKind::events_dropped ? 0 : 1);
  }
  uint64_t left_out() { return journal_.left_out(); }

 private:
  const std::string run_;
  Journal journal_;
};

}  // namespace terrace::daemon
