// SPDX-License-Identifier: Apache-2.0
// Policies side by side on one trace: what `terrace tiersim` and the console's planner show.
//
// Place     Trace -> here -> simulate() for each policy and share of DDR. cli/tools/tiersim.cc prints it; a helper of the
//           manager's (daemon/helper/jobs) sends it. Pure.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiering/sim/simulate.h"

namespace terrace::tiering {

struct ComparisonOptions {
  ComparisonOptions();  // the defaults of the command line
  // As said, and what it means.
  std::vector<std::pair<std::string, double>> ddr_fractions = {{"0.01", 0.01}, {"0.05", 0.05}, {"0.1", 0.1}};
  std::vector<std::string> policies = {"benefit-density", "lru",   "arc", "s3-fifo",     "lirs",
                                       "w-tinylfu",       "sieve", "2q",  "decayed-lfu", "prefix-order",
                                       "belady"};
  uint64_t granule_bytes;
  uint64_t ddr_latency_ns, cxl_latency_ns, copy_overhead_ns;
  uint64_t ddr_bandwidth, cxl_bandwidth, copy_bandwidth;
  uint64_t copy_budget = 0;
  uint32_t look_ahead = 0;
  PolicyOptions policy;
};

inline constexpr uint32_t look_ahead_max = 100'000;

struct ComparisonRow {
  std::string ddr_fraction;
  Outcome outcome;
  double hits_over_belady = 0;
  double memory_over_belady = 0;
};

struct Comparison {
  Machine machine;
  std::vector<ComparisonRow> rows;
};

// "belady, lru, ..."
std::string simulated_names_text();

// Errors    invalid_argument   what is wrong with the text
Status parse_ddr_fractions(ComparisonOptions& options, const std::string& text);
Status parse_policies(ComparisonOptions& options, const std::string& text);
// Sets the option that the command line calls --`name`.
// Errors    invalid_argument   there is no such option, or it cannot have that value; names both
Status set_option(ComparisonOptions& options, std::string_view name, const std::string& value);

// Errors    invalid_argument   a machine that cannot be; says which option to change
Result<Machine> machine_of(const ComparisonOptions& options);

// `what`: policy and share; `done` of `total` requests of that one.
using ComparisonTick = std::function<void(const std::string& what, uint64_t done, uint64_t total)>;

// Errors    those of machine_of() and simulate()
Result<Comparison> compare(const Trace& trace, const ComparisonOptions& options,
                           const ComparisonTick& tick = {});

// {"trace", "requests", "uses", "objects", "re_references", "granule_bytes", "look_ahead_requests", "results"}
nlohmann::json comparison_json(const Trace& trace, const Comparison& comparison);

}  // namespace terrace::tiering
