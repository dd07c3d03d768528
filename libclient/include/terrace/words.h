// SPDX-License-Identifier: Apache-2.0
// The words of enums in session.h, as in JSON, the command line and Python: those of the RPC schema.
// lease_cause_name() and memory_coherence_name() are in session.h.
//
// Threads   Any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/session.h"

namespace terrace {

std::string_view lease_mode_name(LeaseMode mode);  // "exclusive", "shared_read_only", "shared_coherent"
std::optional<LeaseMode> lease_mode_of_name(std::string_view name);
const std::vector<std::string>& lease_mode_names();
std::string_view on_fence_name(OnFence on_fence);  // "keep", "kill"
std::optional<OnFence> on_fence_of_name(std::string_view name);
std::string_view pool_placement_name(PoolPlacement placement);  // "linear", "striped", "spread"

}  // namespace terrace
