// SPDX-License-Identifier: Apache-2.0
// Datagrams to a service of this machine that listens at a unix socket (syslog, journald), which may be started anew.
//
// Threads   One.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

class DatagramSocket {
 public:
  // `what` a datagram is, for the log: "an entry of the audit log".
  DatagramSocket(std::string path, std::string what) : path_(std::move(path)), what_(std::move(what)) {}

  // Waits for a second at most. One that is too large for the service is told in the log and counts as sent.
  // Errors    not_found, io_error, ...   the service cannot be reached, or takes nothing; the next call tries again
  Status send(std::string_view datagram);

 private:
  Status connect();

  const std::string path_;
  const std::string what_;
  UniqueFd socket_;
};

}  // namespace terrace::daemon
