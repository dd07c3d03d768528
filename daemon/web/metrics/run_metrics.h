// SPDX-License-Identifier: Apache-2.0
// Metrics of what programs report of their memory (daemon/runs), summed by tenant: no pid, no lease.
//
// Threads   The event loop's thread only.
#pragma once

#include "daemon/runs/run_table.h"
#include "daemon/web/metrics/metrics_text.h"

namespace terrace::daemon {

void add_runs(MetricsText& out, const RunTable& runs, uint64_t now_ns);

}  // namespace terrace::daemon
