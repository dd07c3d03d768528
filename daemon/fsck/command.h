// SPDX-License-Identifier: Apache-2.0
// `terraced --fsck`: the check of a manager that is not running, for people or programs.
//
// Place     daemon/main.cc.
// Threads   One.
#pragma once

#include <string>

#include "daemon/config/config.h"

namespace terrace::daemon {

// Reads a private copy of the store, lists objects and devices as `config` has them, looks at every process,
// and prints what does not fit together to standard output. No file of the manager is changed.
// Returns   the exit code: 0 no finding of severity error; 1 at least one, an unreadable store being one; 2 it
//           cannot be checked now (a terraced is serving from this state), said on standard error.
int run_fsck(const DaemonConfig& config, bool json);

// `text` as a JSON string.
std::string json_quoted(const std::string& text);

}  // namespace terrace::daemon
