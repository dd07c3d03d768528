// SPDX-License-Identifier: Apache-2.0
// The roles of a terraced: the manager of pools, or the agent of one further host. Each builds its parts,
// connects them and runs the event loop until SIGTERM or SIGINT.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/service_manager/service_manager.h"

namespace terrace::daemon {

// What an operator says to one start, as a flag and nowhere else.
struct StartWords {
  bool accept_lost_objects = false;  // end leases whose memory is gone, even when all of it is
  bool destroy_orphans = false;      // memory that no lease has goes, and so does another store's
};

// What a role has around it.
struct Surroundings {
  // The configuration as it would be at a start now: the file read once more, and the flags over it.
  std::function<Result<DaemonConfig>()> read_config;
  ServiceManager service_manager;
};

// Errors    whatever keeps it from starting or recovering, in words
Status run_manager(const DaemonConfig& config, StartWords words, const Surroundings& surroundings);
// `command`: this program's command line, for the guard (daemon/agent/guard.h).
Status run_agent(const DaemonConfig& config, StartWords words, const Surroundings& surroundings,
                 const std::vector<std::string>& command);
Status run_host_guard(const DaemonConfig& config);

}  // namespace terrace::daemon
