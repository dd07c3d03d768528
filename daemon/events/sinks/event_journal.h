// SPDX-License-Identifier: Apache-2.0
// Events as entries of systemd's journal, each with its fields (`journalctl TERRACE_LEASE=7`).
//
// Place     EventSinks makes one where the configuration says so ([events] journal).
// Threads   As LineQueue.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/events/event.h"
#include "daemon/lines/datagram_socket.h"
#include "daemon/lines/line_queue.h"

namespace terrace::daemon {

struct EventJournalOptions {
  std::string socket = "/run/systemd/journal/socket";
  uint64_t waiting_bytes_max = 4ull << 20;
  uint64_t retry_ms = 1000;
};

class EventJournal {
 public:
  EventJournal(EventJournalOptions options, std::string run);

  void append(const Event& event);
  uint64_t left_out() { return queue_.left_out(); }

 private:
  Status write(std::string& entries);

  const std::string run_;
  DatagramSocket socket_;  // the writing thread's
  LineQueue queue_;        // entries, each behind its length; last: its thread uses the others
};

}  // namespace terrace::daemon
