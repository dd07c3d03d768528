// SPDX-License-Identifier: Apache-2.0
// What terraced tells the service manager that started it, as systemd's protocol has it (sd_notify(3)): that it serves,
// what it does, that it ends, that it lives. Text lines in one datagram to the socket that $NOTIFY_SOCKET names.
//
// Place     daemon/main.cc makes one before there are threads; the roles say what they are at, watchdog.h that the event
//           loop lives.
// Threads   Any, after from_environment(). Nothing here waits: a service manager that takes nothing holds up nobody.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

class ServiceManager {
 public:
  // None: what is told goes nowhere.
  ServiceManager() = default;
  // As $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID say. All three are taken out of the environment, so that no
  // process that this one starts speaks in its name.
  // Errors    invalid_argument   $NOTIFY_SOCKET is no address of a socket
  static Result<ServiceManager> from_environment();

  bool listens() const { return socket_.valid(); }
  // A watchdog wants to hear that we live at least twice as often as this; 0: none does.
  uint64_t watchdog_ns() const { return watchdog_ns_; }

  // `status`: one line for people, as `systemctl status` shows it.
  void ready(std::string_view status) const { send("READY=1\nSTATUS=" + line(status)); }
  void status(std::string_view status) const { send("STATUS=" + line(status)); }
  // Until ready() is said again.
  void reloading() const;
  void stopping(std::string_view status) const { send("STOPPING=1\nSTATUS=" + line(status)); }
  void alive(std::string_view status) const { send("WATCHDOG=1\nSTATUS=" + line(status)); }

 private:
  static std::string line(std::string_view text);
  void send(const std::string& lines) const;

  std::string address_;  // a path, or a zero byte and an abstract name
  UniqueFd socket_;
  uint64_t watchdog_ns_ = 0;
};

}  // namespace terrace::daemon
