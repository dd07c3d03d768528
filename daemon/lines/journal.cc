// SPDX-License-Identifier: Apache-2.0
#include "daemon/lines/journal.h"

#include <cstring>
#include <utility>

namespace terrace::daemon {

// A value with a line feed in it would begin a field of its own, in the short form.
void add_journal_field(std::string& entry, std::string_view key, std::string_view value) {
  entry += key;
  if (value.find('\n') == std::string_view::npos) {
    entry += '=';
  } else {
    entry += '\n';
    for (unsigned byte = 0; byte < 8; ++byte)
      entry += static_cast<char>(static_cast<uint64_t>(value.size()) >> (8 * byte) & 0xff);
  }
  entry += value;
  entry += '\n';
}

Journal::Journal(JournalOptions options)
    : socket_(options.socket, options.entry),
      queue_({.name = options.socket,
              .lines = std::move(options.entries),
              .meanwhile = std::move(options.meanwhile),
              .waiting_bytes_max = options.waiting_bytes_max,
              .retry_ms = options.retry_ms},
             [this](std::string& entries) { return write(entries); }) {}

void Journal::append(const std::string& entry, size_t count) {
  const auto size = static_cast<uint32_t>(entry.size());
  std::string framed(sizeof(size), '\0');
  std::memcpy(framed.data(), &size, sizeof(size));
  queue_.append(framed + entry, count);
}

Status Journal::write(std::string& entries) {
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
