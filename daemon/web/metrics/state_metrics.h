// SPDX-License-Identifier: Apache-2.0
// What of the metrics follows from the state alone: where every byte is, who has it, who waits. The simulator compares
// them with the rows after its steps.
//
// Place     metrics.h puts them with the others. Pure.
#pragma once

#include <cstddef>

#include "daemon/state/state_machine.h"
#include "daemon/web/metrics/metrics_text.h"

namespace terrace::daemon {

// Tenants with a series of their own; what the others have is told together, as tenant "".
inline constexpr size_t metrics_tenants_max = 500;

void add_state(MetricsText& out, const StateMachine& state);

}  // namespace terrace::daemon
