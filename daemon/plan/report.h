// SPDX-License-Identifier: Apache-2.0
// A plan as JSON, as a CSV of the time series, and in one sentence.
//
// Place     sizing.h -> here -> cli/tools/plan.cc, and a helper of the manager's for the console.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "daemon/plan/sizing.h"
#include "daemon/plan/trace.h"

namespace terrace::plan {

// The sentence alone: what to buy, and how much of the saving needs a pool.
std::string conclusion(const Plan& plan);

// {"trace", "assumed", "baseline", "without_pool", "rows", "best", "conclusion", "over_time"}
nlohmann::json report_json(const Plan& plan, const Trace& trace);

// One line a state, for the baseline and for the arrangement that is plotted; times as in the trace.
std::string time_series_csv(const Plan& plan);

}  // namespace terrace::plan
