// SPDX-License-Identifier: Apache-2.0
#include "cli/vm/monitor.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/clock.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr const char* monitor_where = "QEMU's monitor";
constexpr uint64_t answer_ns = 60 * ns_per_s;
constexpr size_t line_bytes_max = size_t{8} << 20;  // far more than any answer that is asked for here

Error monitor_gone(std::string detail) {
  return Error{.code = ErrorCode::unavailable, .where = monitor_where, .detail = std::move(detail)};
}

class SocketMonitor final : public Monitor {
 public:
  explicit SocketMonitor(UniqueFd socket) : socket_(std::move(socket)) {}

  // The greeting, and leave to give commands.
  Status open() {
    TERRACE_ASSIGN_OR_RETURN(const nlohmann::json greeting, next_document(SystemClock().now_ns() + answer_ns));
    if (!greeting.contains("QMP")) return monitor_gone("what answers there is no monitor of QEMU's");
    const Result<nlohmann::json> ready = ask("qmp_capabilities", nlohmann::json::object());
    return ready.ok() ? Status() : Status(ready.error());
  }

  Result<nlohmann::json> ask(const std::string& command, const nlohmann::json& arguments) override {
    const uint64_t id = ++asked_;  // an answer that comes too late is not the next one's
    const std::string line =
        nlohmann::json({{"execute", command}, {"arguments", arguments}, {"id", id}}).dump() + "\n";
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t count = ::send(socket_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return gone();
      sent += static_cast<size_t>(count);
    }
    const uint64_t until_ns = SystemClock().now_ns() + answer_ns;
    for (;;) {
      TERRACE_ASSIGN_OR_RETURN(const nlohmann::json document, next_document(until_ns));
      if (document.value("id", nlohmann::json()) == id) return answer_of(document, command);
    }
  }

  int descriptor() const override { return socket_.get(); }

  bool has_ended() override {
    while (!ended_ && readable(0)) (void)receive();
    while (take_line().has_value()) {
    }
    return ended_;
  }

 private:
  Error gone() {
    ended_ = true;
    return monitor_gone("the machine has ended");
  }

  bool readable(int wait_ms) const {
    pollfd wait{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&wait, 1, wait_ms) > 0;
  }

  Status receive() {
    char bytes[16384];
    const ssize_t count = ::recv(socket_.get(), bytes, sizeof(bytes), 0);
    if (count < 0 && errno == EINTR) return {};
    if (count <= 0 || received_.size() > line_bytes_max) return gone();
    received_.append(bytes, static_cast<size_t>(count));
    return {};
  }

  std::optional<std::string> take_line() {
    const size_t end = received_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }

  Result<nlohmann::json> next_document(uint64_t until_ns) {
    for (;;) {
      if (const std::optional<std::string> line = take_line(); line.has_value()) {
        nlohmann::json document = nlohmann::json::parse(*line, nullptr, false);
        if (!document.is_object()) return monitor_gone("what answers there does not speak as QEMU's monitor");
        return document;
      }
      const uint64_t now_ns = SystemClock().now_ns();
      if (now_ns >= until_ns) return monitor_gone("the machine does not answer");
      const uint64_t left_ms = (until_ns - now_ns) / ns_per_ms + 1;
      if (readable(static_cast<int>(left_ms))) TERRACE_RETURN_IF_ERROR(receive());
    }
  }

  UniqueFd socket_;
  std::string received_;
  uint64_t asked_ = 0;
  bool ended_ = false;
};

}  // namespace

Result<nlohmann::json> answer_of(const nlohmann::json& document, const std::string& command) {
  if (document.is_object() && document.contains("return")) return document["return"];
  std::string why = "no reason";
  if (document.is_object() && document.contains("error") && document["error"].is_object())
    why = document["error"].value("desc", why);
  return Error{.code = ErrorCode::io_error, .where = monitor_where, .detail = command + ": " + why};
}

Result<std::unique_ptr<Monitor>> connect_monitor(const std::string& path, uint64_t wait_ns, const char* where) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = path + ": a socket's path has at most 107 bytes"};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const uint64_t until_ns = SystemClock().now_ns() + wait_ns;
  for (;;) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.valid()) return os_error(errno, where, "cannot make a socket");
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      auto monitor = std::make_unique<SocketMonitor>(std::move(socket));
      TERRACE_RETURN_IF_ERROR(monitor->open());
      return std::unique_ptr<Monitor>(std::move(monitor));
    }
    const int code = errno;
    if (SystemClock().now_ns() >= until_ns || (code != ENOENT && code != ECONNREFUSED && code != EINTR)) {
      Error error = os_error(code, where, "no machine's monitor answers at " + path);
      if (code == ENOENT || code == ECONNREFUSED) error.code = ErrorCode::unavailable;
      return error;
    }
    ::poll(nullptr, 0, 50);
  }
}

}  // namespace terrace::cli
