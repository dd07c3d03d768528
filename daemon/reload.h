// SPDX-License-Identifier: Apache-2.0
// SIGHUP: the log file is opened again, and of the configuration is taken over what a running terraced can.
//
// Place     The roles make one beside their event loop. A configuration with a mistake changes nothing; what needs a new
//           start is named in the log.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-unix.h>

#include <functional>
#include <string>

#include "daemon/config/config.h"
#include "daemon/roles.h"
#include "daemon/rpc/peer_limits.h"

namespace terrace::daemon {

class Reload {
 public:
  // `running`: what is in force. `status`: what the service manager is shown afterwards.
  Reload(DaemonConfig running, const Surroundings& surroundings, Peers& peers,
         std::function<std::string()> status)
      : running_(std::move(running)), surroundings_(surroundings), peers_(peers), status_(std::move(status)) {}

  // What else follows the configuration.
  void on_change(std::function<void(const DaemonConfig&)> take) { take_ = std::move(take); }
  // Told of how each ended, in words, in place of the log.
  void on_outcome(std::function<void(bool taken, const std::string&)> tell) { tell_ = std::move(tell); }
  // At each SIGHUP, for as long as the promise is kept.
  kj::Promise<void> at_hangup(kj::UnixEventPort& port);

 private:
  void once();
  void take(const DaemonConfig& read);
  void tell(bool taken, const std::string& text) const;

  DaemonConfig running_;
  const Surroundings& surroundings_;
  Peers& peers_;
  const std::function<std::string()> status_;
  std::function<void(const DaemonConfig&)> take_;
  std::function<void(bool, const std::string&)> tell_;
};

}  // namespace terrace::daemon
