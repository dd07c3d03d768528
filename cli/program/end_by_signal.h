// SPDX-License-Identifier: Apache-2.0
// Before a program is started there is none that signals could be passed on to: while this lives, SIGINT, SIGTERM, SIGHUP and
// SIGQUIT end this process as they would end any other. So who waits for room leaves the queue.
#pragma once

#include <thread>

#include "cli/program/supervisor.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {

class EndBySignal {
 public:
  // Reads the supervisor's signals meanwhile, in a thread of its own. Without descriptors for it, signals stay blocked.
  explicit EndBySignal(const Supervisor& supervisor);
  ~EndBySignal();
  EndBySignal(const EndBySignal&) = delete;
  EndBySignal& operator=(const EndBySignal&) = delete;

 private:
  void watch(int signals) const;

  UniqueFd done_;
  std::thread thread_;
};

}  // namespace terrace::cli
