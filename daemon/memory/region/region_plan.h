// SPDX-License-Identifier: Apache-2.0
// The possible windows, orders of memdevs and granularities of a region, in the order of the tries. Pure, so
// that each refusal can be tested with its words.
//
// Place     daemon/memory/region; for RegionMaker.
// Threads   Plain functions.
#pragma once

#include <string>
#include <vector>

#include "core/base/units.h"
#include "daemon/memory/backend.h"
#include "daemon/memory/region/region_kernel.h"

namespace terrace::daemon {

struct RegionAttempt {
  std::string root;
  std::vector<std::string> order;
  unsigned granularity = 0;

  bool operator==(const RegionAttempt&) const = default;
};

struct RegionPlan {
  bool ram = false;
  uint64_t bytes = 0;
  std::vector<RegionAttempt> attempts;  // the likeliest first, never none
};

// CXL addresses are dealt out in these, each memdev's share is a multiple of it.
inline constexpr uint64_t region_unit_bytes = 256 * mib;

// Errors    as RegionMaker::create()
Result<RegionPlan> plan_region(const RegionRequest& request, const CxlView& view);

// What the kernel's refusal of every attempt means, as far as the view shows it.
Error explain_refusal(const Error& refusal, const RegionRequest& request, const CxlView& view);

}  // namespace terrace::daemon
