// SPDX-License-Identifier: Apache-2.0
// Asks the engine of a running process for something, through its tier page, and waits for its answer.
//
// Place     Between tier_pages.h and the verbs.
// Threads   One. Two commands at once take turns by a lock of the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/tier/tier_pages.h"

namespace terrace::cli {

// What is not said stays as it is.
struct TierRequest {
  std::optional<bool> paused;
  std::optional<uint64_t> ddr_bytes_max;
  std::optional<uint64_t>
      copy_bytes_per_s_max;  // of the whole process: its ranges share one copy budget; 0: none
  std::string policy;
};

// Returns once the engine has done it.
// Errors    invalid_argument   no such policy in that program, or a value it does not take; says which are fine
//           unsupported        the range migrates nothing, and why
//           unavailable        no answer within `wait_ns`: the process is stopped, or its engine does not come
//                              round. What was asked for stays written, and is done when it does
//           busy               another command is asking this process all that time
//           not_found          the process ended
//           corrupt            the answer is none
Status ask_tier_engine(const TierPlaces& places, const TierPageView& page, const TierRangeView& range,
                       const TierRequest& request, uint64_t wait_ns);

// The migration policies of this build, "benefit-density, lru".
std::string policy_names();

// Refuses a policy that this build does not know: "... ; did you mean 'watermark-lru'?".
Status check_policy(const std::string& name);

}  // namespace terrace::cli
