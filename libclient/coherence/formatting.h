// SPDX-License-Identifier: Apache-2.0
// Making an empty space of memory, and reading where its pieces are: of tensors or of blocks.
#pragma once

#include <optional>
#include <span>

#include "core/os/lossy_access.h"
#include "libclient/coherence/geometry.h"
#include "libclient/coherence/lossy_space.h"

namespace terrace {

// What the program says, or the lease's pool where the memory is a lease's.
// Errors    as TensorSpace::format
Result<SpaceCoherence> coherence_for(std::span<const std::byte> memory, std::optional<SpaceCoherence> said);

namespace coherence {

// What `call` answers, unless it missed `memory`.
template <typename Call>
auto unless_lost(const char* where, std::span<const std::byte> memory, Call call) -> decltype(call()) {
  const os::LossyAccesses accesses;
  auto answer = call();
  if (const void* lost = os::LossyAccesses::lost_address(); lost != nullptr)
    return lost_memory(where, lost, memory);
  return answer;
}

// Errors    as TensorSpace::format
Status format_space(const char* where, std::span<std::byte> memory, const GeometryOptions& options,
                    std::optional<SpaceOwnership> ownership);
// Errors    as check_header(); unsupported: a space for memory without coherent caches, on a processor without
//           cache-line write-back
Result<Geometry> read_geometry(std::span<std::byte> memory, SpaceContent content);

}  // namespace coherence
}  // namespace terrace
