// SPDX-License-Identifier: Apache-2.0
// The figures of a day.
#pragma once

#include "bench/kv_day/processes.h"

namespace terrace::bench::day {

struct DayFigures {
  std::string trace;
  uint64_t distinct_blocks = 0;
  uint64_t lease_bytes = 0, data_bytes = 0;  // data: what blocks have room in
  double cache_over_trace = 0;               // of that, and of all distinct blocks with their names
  uint64_t upgrade_at = 0;                   // requests; 0: none
  Happened happened;
  uint64_t checked_at_end = 0;
};

void report(const Shared& shared, const DayFigures& day, kv::Figures& figures);

}  // namespace terrace::bench::day
