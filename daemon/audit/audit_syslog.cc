// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_syslog.h"

#include <unistd.h>

#include <ctime>
#include <string_view>
#include <utility>

namespace terrace::daemon {
namespace {

constexpr int authpriv_info = 10 * 8 + 6, authpriv_notice = 10 * 8 + 5;

// Quotes inside of texts are escaped: this is the entry's own verb, whatever a tenant calls itself.
bool tells_of_denial(std::string_view line) {
  return line.find("\"verb\": \"denied ") != std::string_view::npos;
}

std::string message_of(std::string_view line) {
  char when[32] = "";
  const std::time_t now = std::time(nullptr);
  std::tm broken{};
  if (::localtime_r(&now, &broken) != nullptr) std::strftime(when, sizeof(when), "%b %e %H:%M:%S", &broken);
  return "<" + std::to_string(tells_of_denial(line) ? authpriv_notice : authpriv_info) + ">" + when +
         " terraced-audit[" + std::to_string(::getpid()) + "]: " + std::string(line);
}

}  // namespace

AuditSyslog::AuditSyslog(AuditSyslogOptions options)
    : options_(std::move(options)),
      socket_(options_.socket, "an entry of the audit log"),
      queue_({.name = options_.socket,
              .lines = "entries of the audit log",
              .meanwhile = ", and are in the store",
              .waiting_bytes_max = options_.waiting_bytes_max,
              .retry_ms = options_.retry_ms},
             [this](std::string& lines) { return write(lines); }) {}

Status AuditSyslog::write(std::string& lines) {
  size_t done = 0;
  Status sent;
  while (done < lines.size()) {
    const size_t end = lines.find('\n', done);
    sent = socket_.send(message_of(std::string_view(lines).substr(done, end - done)));
    if (!sent.ok()) break;
    done = end + 1;
  }
  lines.erase(0, done);
  return sent;
}

}  // namespace terrace::daemon
