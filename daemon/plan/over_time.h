// SPDX-License-Identifier: Apache-2.0
// A long series as so many values as a picture has columns.
//
// Place     replay.h -> here -> figure.h, report.h. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "daemon/plan/replay.h"
#include "daemon/plan/trace.h"

namespace terrace::plan {

// Each of `columns` equal spans of the trace's time with its highest value, and the last value behind them. A trace has
// more samples than a picture has columns, and its peaks are what memory is bought for.
std::vector<double> highest_over_time(const Outcome& outcome, const Trace& trace, size_t columns,
                                      const std::function<double(const Sample&)>& value);

}  // namespace terrace::plan
