// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/over_time.h"

#include <algorithm>

namespace terrace::plan {

std::vector<double> highest_over_time(const Outcome& outcome, const Trace& trace, size_t columns,
                                      const std::function<double(const Sample&)>& value) {
  const double span_s = std::max(1.0, static_cast<double>(trace.end_s - trace.begin_s));
  std::vector<double> values;
  size_t next = 0;
  double holds = 0;
  for (size_t column = 0; column < columns; ++column) {
    const double end_s = span_s * static_cast<double>(column + 1) / static_cast<double>(columns);
    double highest = holds;
    for (; next < outcome.samples.size(); ++next) {
      const Sample& sample = outcome.samples[next];
      if (static_cast<double>(sample.time_s - trace.begin_s) >= end_s && column + 1 < columns) break;
      holds = value(sample);
      highest = std::max(highest, holds);
    }
    values.push_back(highest);
  }
  values.push_back(holds);
  return values;
}

}  // namespace terrace::plan
