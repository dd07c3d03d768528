// SPDX-License-Identifier: Apache-2.0
// Runs as the manager knows them by their reports: those of containers and further hosts, which show no file here.
//
// Place     cli/run (`terrace top`) and cli/tier (`terrace tier status`) show them beside what they see themselves.
// Threads   One.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/terminal/output.h"

namespace terrace::cli {

// Where a run on this machine shows itself: this and the uid, then a file, named by its supervisor's number.
inline constexpr char run_directory_prefix[] = "/dev/shm/terrace-run-";

struct ReportedRun {
  std::string program, tenant, host;
  bool here = false;  // on the manager's own machine: `pid` and `uid` are known
  uint32_t pid = 0, uid = 0, processes = 0;
  uint64_t live_bytes = 0, ddr_bytes = 0, cxl_bytes = 0, plain_bytes = 0;
  uint64_t ddr_bytes_max = 0, leased_bytes = 0;
  uint64_t sampled_bytes = 0;  // 0: `ddr_hit_permille` says nothing
  uint32_t ddr_hit_permille = 0;
  uint64_t promotions = 0, demotions = 0, stalled_ns = 0, refused = 0, fallbacks = 0;
  uint64_t promotions_per_s = 0, demotions_per_s = 0, copy_bytes_per_s = 0;
  uint64_t age_ns = 0;
  std::shared_ptr<const nlohmann::json> json;  // all of it, as the schema has it
};

// All runs that the manager tells of, but for those of this machine that have a file below one of `prefixes`: these
// are shown by what it says. None where there is no manager, it is an older one, or this user is no operator; a manager
// that does not answer is waited for a second.
std::vector<ReportedRun> runs_not_seen_here(const Context& context, const std::vector<std::string>& prefixes);

nlohmann::json to_json(const std::vector<ReportedRun>& runs);
// A line a run, under a heading that says whence this is; empty for none.
std::string reported_table(const std::vector<ReportedRun>& runs);

}  // namespace terrace::cli
