// SPDX-License-Identifier: Apache-2.0
// The `[events]` table of a configuration, and what is refused of it.
#pragma once

#include <string_view>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/config/section.h"

namespace terrace::daemon {

// "http://HOST[:PORT][/PATH]"; what else may be wrong with it shows when something is sent.
bool names_server(std::string_view url);

void read_events(Section& top, DaemonConfig& config);
void check_events(const DaemonConfig& config, std::vector<ConfigProblem>& problems);

}  // namespace terrace::daemon
