// SPDX-License-Identifier: Apache-2.0
// Entries of systemd's journal with fields of their own, by its native protocol: a datagram each.
//
// Place     daemon/events/sinks and daemon/audit make entries of what they have, and have a Journal each.
// Threads   As LineQueue.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "daemon/lines/datagram_socket.h"
#include "daemon/lines/line_queue.h"

namespace terrace::daemon {

inline constexpr const char* journal_socket_default = "/run/systemd/journal/socket";

// Adds a field to an entry. `key`: capitals, digits and '_'; `value`: any bytes.
void add_journal_field(std::string& entry, std::string_view key, std::string_view value);

struct JournalOptions {
  std::string socket = journal_socket_default;
  std::string entry;           // what one is, for the log: "an event"
  std::string entries;         // "events"
  std::string meanwhile = {};  // as LineQueueOptions
  uint64_t waiting_bytes_max = 4ull << 20;
  uint64_t retry_ms = 1000;
};

class Journal {
 public:
  explicit Journal(JournalOptions options);

  // `count`: 0 for one whose loss nobody counts.
  void append(const std::string& entry, size_t count = 1);
  uint64_t left_out() { return queue_.left_out(); }

 private:
  Status write(std::string& entries);

  DatagramSocket socket_;  // the writing thread's
  LineQueue queue_;        // entries, each behind its length; last: its thread uses the other
};

}  // namespace terrace::daemon
