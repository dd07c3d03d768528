#include "daemon/audit/audit_syslog.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

#include "daemon/log/log.h"

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
      queue_({.name = options_.socket,
              .waiting_bytes_max = options_.waiting_bytes_max,
              .retry_ms = options_.retry_ms},
             [this](std::string& lines) { return write(lines); }) {}

Status AuditSyslog::connect() {
  socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, options_.socket.c_str(), sizeof(address.sun_path) - 1);
  // A service that takes nothing holds up the end of terraced for so long, and nothing else.
  const timeval patience{.tv_sec = 1, .tv_usec = 0};
  if (socket_.valid() &&
      ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0 &&
      ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return {};
  const int why = errno;
  socket_ = UniqueFd();
  return os_error(why, "AuditSyslog", "cannot reach the logging service at " + options_.socket);
}

Status AuditSyslog::write(std::string& lines) {
  size_t done = 0;
  Status sent;
  while (done < lines.size() && sent.ok()) {
    if (!socket_.valid()) sent = connect();
    if (!sent.ok()) break;
    const size_t end = lines.find('\n', done);
    const std::string message = message_of(std::string_view(lines).substr(done, end - done));
    if (::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL) >= 0) {
      done = end + 1;
    } else if (errno == EMSGSIZE) {
      log::error("an entry of {} bytes of the audit log is too large for {}", message.size(), options_.socket);
      done = end + 1;
    } else if (errno != EINTR) {
      sent = os_error(errno, "AuditSyslog", "cannot write to the logging service at " + options_.socket);
      socket_ = UniqueFd();  // it may have been started anew
    }
  }
  lines.erase(0, done);
  return sent;
}

}  // namespace terrace::daemon
