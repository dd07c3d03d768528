// SPDX-License-Identifier: Apache-2.0
// What of the metrics the engine counts: commands, commits, grants and refusals, how long things took. The simulator
// compares them with what it asked for and was answered.
//
// Place     metrics.h puts them with the others.
// Threads   The event loop's thread only.
#pragma once

#include "daemon/event_loop/engine.h"
#include "daemon/web/metrics/metrics_text.h"

namespace terrace::daemon {

void add_engine(MetricsText& out, const Engine& engine);

}  // namespace terrace::daemon
