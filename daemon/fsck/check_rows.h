// SPDX-License-Identifier: Apache-2.0
// The parts of check_consistency that look at rows alone.
//
// Threads   Pure functions.
#pragma once

#include <vector>

#include "daemon/fsck/fsck.h"

namespace terrace::daemon {

// Invariants of the rows among themselves: extents on and within their devices and in one lease only, and
// everything that the state machine refuses to start from.
void check_invariants(const Image& image, std::vector<Finding>& findings);

// Devices against what is seen, and what an operator did to them.
void check_devices(const Image& image, const std::vector<SeenDevice>& devices, std::vector<Finding>& findings);

// Quotas that are exceeded and reservations that cannot be kept.
void check_bounds(const Image& image, const std::vector<SeenDevice>& devices, std::vector<Finding>& findings);

// "lease 7 (tenant a, label x)"
std::string subject_of(const LeaseRow& lease);

// Its holder may use it now.
inline bool usable(const LeaseRow& lease) {
  return lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking;
}

}  // namespace terrace::daemon
