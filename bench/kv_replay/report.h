// SPDX-License-Identifier: Apache-2.0
// The result of a run: for people and for machines.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/kv_replay/shared_run.h"

namespace terrace::bench {

struct RunFigures {
  std::string trace;
  uint32_t distinct_blocks = 0;
  uint64_t cxl_bytes = 0;     // of the lease
  double seconds = 0;         // of all requests
  double copy_us_p50 = 0;     // a block copied and looked at, cold, by nobody's protocol
  double reuse_in_trace = 0;  // uses of a block that the trace named before: no cache does better
  uint64_t kills = 0, checked_at_end = 0;
};

nlohmann::json figures_of(SharedRun& run, const RunFigures& figures);
void print(const nlohmann::json& figures);

}  // namespace terrace::bench
