// SPDX-License-Identifier: Apache-2.0
// What can be asked of a plan, with the defaults of `terrace plan`.
//
// Place     cli/tools/plan.cc and a helper of the manager's (daemon/helper/jobs) fill it in -> complete() -> sizing.h.
// Threads   Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "daemon/plan/sizing.h"
#include "daemon/plan/trace.h"

namespace terrace::plan {

inline constexpr uint64_t hosts_max = 10'000;
inline constexpr int64_t host_parts_max = 1'000'000;  // cores, GPUs

struct Options {
  Options();
  uint64_t hosts = 0;  // 0: chosen
  uint64_t host_memory_bytes = 0;
  // -1: as of a usual server with GPUs, where the trace names what each request needs of them.
  int64_t host_cores = -1;
  int64_t host_gpus = -1;
  std::vector<double> local_fractions;
  std::vector<uint64_t> pool_bytes;
  std::string placement = "worst-fit";
  std::string spill = "when-full";
  Question question;
};

// Errors    invalid_argument   "'x' is no share between 0 and 1, such as 0.75"
Result<double> parse_share(const std::string& text);
// "0.9,0.8" as its parts.
Result<std::vector<double>> parse_shares(const std::string& text);
Result<std::vector<uint64_t>> parse_sizes(const std::string& text);

// Sets the option that the command line calls --`name`.
// Errors    invalid_argument   there is no such option, or it cannot have that value; names both
Status set_option(Options& options, std::string_view name, const std::string& value);

// What the options leave open is a server as they are sold for this work: 96 cores, 8 GPUs. `trace_name`: for the errors.
// Errors    invalid_argument   asks for what the trace does not tell
Status complete(Options& options, const Trace& trace, const std::string& trace_name);

}  // namespace terrace::plan
