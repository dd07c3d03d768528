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

// Tenants with a series of their own; what the others have is told together, as tenant "".
inline constexpr size_t metrics_tenants_max = 500;

std::string metrics_of(Service& service);

}  // namespace terrace::daemon
