// SPDX-License-Identifier: Apache-2.0
#include "daemon/service_manager/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/base/units.h"

namespace terrace::daemon {
namespace {

std::string take_from_environment(const char* name) {
  const char* value = std::getenv(name);
  const std::string text = value == nullptr ? "" : value;
  ::unsetenv(name);
  return text;
}

// What is no number is none: the variable was set for somebody else's purposes.
uint64_t number_in(const std::string& text) {
  uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc{} && read.ptr == text.data() + text.size() ? number : 0;
}

}  // namespace

Result<ServiceManager> ServiceManager::from_environment() {
  std::string address = take_from_environment("NOTIFY_SOCKET");
  const uint64_t watchdog_us = number_in(take_from_environment("WATCHDOG_USEC"));
  const std::string watched = take_from_environment("WATCHDOG_PID");
  ServiceManager manager;
  if (address.empty()) return manager;
  const std::string said = address;
  const auto refused = [&said](const char* why) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "NOTIFY_SOCKET",
                 .detail = "the service manager's socket '" + said + "' " + why + "; unset NOTIFY_SOCKET"};
  };
  if (address[0] != '/' && address[0] != '@')
    return refused("is neither an absolute path nor an abstract name");
  if (address.size() >= sizeof(sockaddr_un{}.sun_path)) return refused("is longer than a socket's name can be");
  if (address[0] == '@') address[0] = '\0';
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return os_error(errno, "NOTIFY_SOCKET", "cannot make a socket");
  manager.address_ = std::move(address);
  manager.socket_ = std::move(socket);
  // Another process's watchdog is none of ours.
  if (watched.empty() || number_in(watched) == static_cast<uint64_t>(::getpid()))
    manager.watchdog_ns_ = watchdog_us > UINT64_MAX / 1000 ? 0 : watchdog_us * 1000;
  return manager;
}

void ServiceManager::reloading() const {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // systemd tells by it which of several reloads this is
  const uint64_t now_us =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
  send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now_us) + "\nSTATUS=reading the configuration again");
}

// A line break would begin another message.
std::string ServiceManager::line(std::string_view text) {
  std::string line(text);
  for (char& letter : line)
    if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
  return line;
}

void ServiceManager::send(const std::string& lines) const {
  if (!socket_.valid()) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  // A path ends with a zero byte, which is part of an abstract name's length only if it belongs to the name.
  const size_t length = offsetof(sockaddr_un, sun_path) + address_.size() + (address_[0] == '\0' ? 0 : 1);
  // A datagram that is lost (the service manager is started again itself) is no reason to fail: the next one follows.
  [[maybe_unused]] const ssize_t sent =
      ::sendto(socket_.get(), lines.data(), lines.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to),
               static_cast<socklen_t>(length));
}

}  // namespace terrace::daemon
