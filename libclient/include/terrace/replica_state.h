// SPDX-License-Identifier: Apache-2.0
// The state of a copy of a tensor, from comparing versions: Shared (equal to the tensor at that version),
// Modified (changed here; the tensor has an older version) or Invalid (the tensor has a newer version, or there
// is no copy). For copies on a device (terrace/device_replicas.h) and in a holder's own DDR
// (terrace/local_replicas.h).
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

enum class ReplicaState : uint8_t { invalid, shared, modified };

inline constexpr std::string_view replica_state_name(ReplicaState state) {
  if (state == ReplicaState::shared) return "shared";
  return state == ReplicaState::modified ? "modified" : "invalid";
}

}  // namespace terrace
