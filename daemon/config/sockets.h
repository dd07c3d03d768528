// SPDX-License-Identifier: Apache-2.0
// The sockets of a configuration: `socket_role` and `[[sockets]]`, and what is refused of them.
#pragma once

#include <vector>

#include "daemon/config/config.h"
#include "daemon/config/section.h"

namespace terrace::daemon {

void read_sockets(Section& top, const toml::table& file, DaemonConfig& config);
void check_sockets(const DaemonConfig& config, std::vector<ConfigProblem>& problems);

}  // namespace terrace::daemon
