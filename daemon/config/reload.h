// SPDX-License-Identifier: Apache-2.0
// What a running terraced takes over of a configuration that was read again, and what waits for its next start.
//
// Place     daemon/reload.h calls it at each SIGHUP.
// Threads   Pure: plain values.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"

namespace terrace::daemon {

struct Reloaded {
  DaemonConfig config;                    // in force from now on: `running` with what could be taken over
  std::vector<std::string> taken;         // keys, as in the file, that differ and are in force now
  std::vector<std::string> need_restart;  // keys that differ and stay as they were
};

// `read`: valid, as after validate().
Reloaded take_over(const DaemonConfig& running, const DaemonConfig& read);

}  // namespace terrace::daemon
