// SPDX-License-Identifier: Apache-2.0
// The migration state of processes, as JSON for programs and as tables and words for people.
//
// Place     Between tier_pages.h and the verbs. Pure.
// The JSON keys are documented in docs/operations/cli.md and only ever added to.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/tier/tier_pages.h"
#include "cli/tier/tier_request.h"

namespace terrace::cli {

const char* tier_state_name(layout::TierState state);  // "running", "paused", "no_uffd", ...

struct StateWords {
  std::string text;  // what it means, the process's own reason included
  std::string fix;   // what to do about it; empty: nothing is wrong
};
StateWords explain_state(const TierRangeView& range);

// "policy watermark-lru, DDR 1 GiB, copies at most 2 GiB/s"
std::string describe_request(const TierRequest& request);
// "2 GiB/s", "no bound" for 0.
std::string describe_rate(uint64_t bytes_per_s);
// "97.3%", or "-" where the sampler has not seen anything yet.
std::string describe_hits(const TierRangeView& range);

nlohmann::json to_json(const TierRangeView& range);
nlohmann::json to_json(const TierPageView& page);

// One line a range, then what is wrong with any.
std::string tier_table(const std::vector<TierPageView>& pages);
// Everything of one process.
std::string tier_block(const TierPageView& page);

// What changed between two looks, a second. Of processes and ranges that were not there before: nothing.
class TierRates {
 public:
  // The table of tier_table() with moves and waits a second instead of since the start.
  std::string table(const std::vector<TierPageView>& pages, uint64_t now_ns);

 private:
  struct Before {
    uint64_t start_ticks, base, promotions, demotions, bytes, stalled_ns, at_ns;
  };
  std::map<std::pair<int, uint32_t>, Before> before_;  // by process and range
};

}  // namespace terrace::cli
