// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/sinks/event_journal.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "daemon/events/sinks/event_text.h"

namespace terrace::daemon {

EventJournal::EventJournal(EventJournalOptions options, std::string run)
    : run_(std::move(run)),
      socket_(options.socket, "an event"),
      queue_({.name = options.socket,
              .lines = "events",
              .meanwhile = {},
              .waiting_bytes_max = options.waiting_bytes_max,
              .retry_ms = options.retry_ms},
             [this](std::string& entries) { return write(entries); }) {}

void EventJournal::append(const Event& event) {
  const std::string entry = journal_entry(event, run_);
  const auto size = static_cast<uint32_t>(entry.size());
  std::string framed(sizeof(size), '\0');
  std::memcpy(framed.data(), &size, sizeof(size));
  queue_.append(framed + entry, event.kind == EventKind::events_dropped ? 0 : 1);
}

Status EventJournal::write(std::string& entries) {
  size_t done = 0;
  Status sent;
  while (done < entries.size()) {
    uint32_t size = 0;
    std::memcpy(&size, entries.data() + done, sizeof(size));
    sent = socket_.send(std::string_view(entries).substr(done + sizeof(size), size));
    if (!sent.ok()) break;
    done += sizeof(size) + size;
  }
  entries.erase(0, done);
  return sent;
}

}  // namespace terrace::daemon
