// SPDX-License-Identifier: Apache-2.0
// From when on something counts as a finding of the manager's health: the `[health]` table of the configuration.
// docs/operations/health.md says what each means.
#pragma once

#include <cstdint>

#include "core/base/units.h"

namespace terrace::daemon {

struct HealthLimits {
  uint64_t interval_ns = 2 * ns_per_s;  // how often the manager looks at itself
  // How long something has to last.
  uint64_t draining_after_ns = 3600 * ns_per_s;
  uint64_t queue_after_ns = 60 * ns_per_s;
  uint64_t scrub_after_ns = 600 * ns_per_s;  // memory is erased within that, or erasing is behind
  uint64_t fence_after_ns = 10 * ns_per_s;
  uint64_t away_after_ns = 5 * ns_per_s;
  // For how long what happened counts: a finding of it ends when nothing more came for as long.
  uint64_t window_ns = 600 * ns_per_s;
  uint32_t denied_calls_min = 3;  // of a tenant, within the window
  uint32_t thrash_turns_min =
      10;  // exchanges of all that a tenant's programs have in DDR, within the window; 0: never
  uint64_t commit_max_ns = 50 * ns_per_ms;
  uint64_t state_free_bytes_min = 64 * mib;
  uint32_t pool_grantable_percent_min = 10;
  uint32_t pool_largest_run_percent_min = 10;

  bool operator==(const HealthLimits&) const = default;
};

}  // namespace terrace::daemon
