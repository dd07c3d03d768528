// SPDX-License-Identifier: Apache-2.0
// Metrics that a manager and an agent have alike.
//
// Threads   The event loop's thread only.
#pragma once

#include <string>

#include "core/base/units.h"
#include "daemon/health/health_engine.h"
#include "daemon/rpc/peer_limits.h"
#include "daemon/web/metrics/metrics_text.h"

namespace terrace::daemon {

inline double seconds(uint64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(ns_per_s);
}

void add_build_info(MetricsText& out);
void add_calls(MetricsText& out, const Peers& peers);
// By code, so that a rule can name what it is about; `terrace health` says of what.
void add_health(MetricsText& out, const HealthEngine& health);
// Under the names that every program's have. `whose`: "the manager".
void add_process(MetricsText& out, const std::string& whose);

}  // namespace terrace::daemon
