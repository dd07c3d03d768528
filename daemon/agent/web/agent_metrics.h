// SPDX-License-Identifier: Apache-2.0
// What an agent tells Prometheus: its manager, its host lease, its guard, and what there is on its host to be fenced.
//
// Labels are bounded: three certificates at most, codes of findings; never a lease.
//
// Threads   The event loop's thread only.
#pragma once

#include <string>

#include "daemon/agent/agent_admin.h"
#include "daemon/agent/local_service.h"

namespace terrace::daemon {

std::string metrics_of_agent(LocalService& service);

}  // namespace terrace::daemon
