// SPDX-License-Identifier: Apache-2.0
// Where events go beside Admin.events: the log, and what [events] of the configuration names.
//
// Place     daemon/role_manager.cc makes one beside the engine, before that starts.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>

#include <memory>
#include <string>

#include "daemon/events/event_log.h"
#include "daemon/events/sinks/event_journal.h"
#include "daemon/events/sinks/event_webhook.h"
#include "daemon/lines/line_file.h"

namespace terrace::daemon {

struct EventSinksOptions {
  bool log = true;  // a line of the log each; not where the log is the journal, and that has them already
  bool journal = false;
  std::string journal_socket = "/run/systemd/journal/socket";
  std::string file = {};
  uint64_t rotate_bytes = 64ull << 20;
  std::string webhook = {};
};

class EventSinks {
 public:
  // `events` outlives it.
  EventSinks(const EventSinksOptions& options, EventLog& events, kj::Network& network, kj::Timer& timer);

  // Tells what is held back and what was left out, now and then; for as long as the promise is kept.
  kj::Promise<void> look_again();
  // Resolves once the webhook has all of them.
  kj::Promise<void> drain();

 private:
  void take(const Event& event);
  void tell_left_out();

  EventLog& events_;
  kj::Timer& timer_;
  const bool log_;
  std::unique_ptr<LineFile> file_;
  std::unique_ptr<EventJournal> journal_;
  kj::Own<EventWebhook> webhook_;
  unsigned looks_ = 0;
};

}  // namespace terrace::daemon
