// SPDX-License-Identifier: Apache-2.0
// The `[health]` table of a configuration, and what is refused of it.
#pragma once

#include <vector>

#include "daemon/config/config.h"
#include "daemon/config/section.h"

namespace terrace::daemon {

void read_health(Section& top, DaemonConfig& config);
void check_health(const DaemonConfig& config, std::vector<ConfigProblem>& problems);

}  // namespace terrace::daemon
