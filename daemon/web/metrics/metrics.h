// SPDX-License-Identifier: Apache-2.0
// What a manager tells Prometheus: where every byte is, who has it, who waits, and what the manager does.
//
// Names and labels are bounded: pools, devices, hosts, and the tenants with the most bytes; never a lease's id.
//
// Threads   The event loop's thread only.
#pragma once

#include <string>

#include "daemon/rpc/service.h"

namespace terrace::daemon {

std::string metrics_of(Service& service);

}  // namespace terrace::daemon
