// A plan in words: for people, as JSON, as a CSV of the time series.
//
// Place     sizing.h -> here -> cli/tools/plan.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/tools/plan/sizing.h"
#include "cli/tools/plan/trace.h"

namespace terrace::plan {

// What was assumed, the table, why requests were rejected, one sentence that concludes.
std::string report_text(const Plan& plan, const Trace& trace);

// The sentence alone: what to buy, and how much of the saving needs a pool.
std::string conclusion(const Plan& plan);

// {"trace", "assumed", "baseline", "without_pool", "rows", "best", "conclusion"}
nlohmann::json report_json(const Plan& plan, const Trace& trace);

// One line a state, for the baseline and for the arrangement that is plotted; times as in the trace.
std::string time_series_csv(const Plan& plan);

}  // namespace terrace::plan
