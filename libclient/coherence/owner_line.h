// SPDX-License-Identifier: Apache-2.0
// The first steps of a new owner of a part or a seat, and the space's record of its kind of owners.
#pragma once

#include "core/os/lossy_access.h"
#include "libclient/coherence/geometry.h"
#include "libclient/coherence/memory/memory.h"

namespace terrace::coherence {

template <CoherenceMemory Memory>
void store_owner(Memory memory, const Geometry& geometry, uint32_t holder, uint64_t epoch, uint64_t host,
                 layout::PartState state) {
  layout::PartOwner* const owner = geometry.owner(holder);
  memory.store(&owner->epoch, epoch);
  memory.store(&owner->host, host);
  memory.store(&owner->pins_used, 0);
  memory.store(&owner->state, static_cast<uint64_t>(state));
  memory.write_back(owner, sizeof *owner, Step::take_over_written_back);
}

template <CoherenceMemory Memory>
void clear_pins(Memory memory, const Geometry& geometry, uint32_t holder) {
  for (uint32_t index = 0; index < geometry.pins; ++index) memory.store(geometry.pin(holder, index), 0);
  memory.write_back(geometry.pin(holder, 0), uint64_t{geometry.pins} * sizeof(uint64_t),
                    Step::take_over_written_back);
}

template <CoherenceMemory Memory>
void store_free(Memory memory, const Geometry& geometry, uint32_t holder) {
  layout::PartOwner* const owner = geometry.owner(holder);
  memory.store(&owner->pins_used, 0);
  memory.store(&owner->state, static_cast<uint64_t>(layout::PartState::free));
  memory.write_back(owner, sizeof *owner, Step::release_written_back);
  memory.store_barrier(Step::release_written_back);
}

// The kind of owners that the space has; 0: not known yet. Only where geometry.says_ownership().
template <CoherenceMemory Memory>
uint64_t kind_of_owners(Memory memory, const Geometry& geometry) {
  const layout::SpaceOwnership* const line = geometry.ownership();
  memory.invalidate(line, sizeof *line, Step::none);
  memory.load_barrier(Step::none);
  return memory.load(&line->kind);
}

// Makes `kind` the space's unless it has one; returns the one that it has. Of two on one machine exactly one is
// first. Hosts without coherent caches store the same, or are two kinds of which the last to write back stays:
// a space for them says its kind when it is formatted.
template <CoherenceMemory Memory>
uint64_t settle_kind(Memory memory, const Geometry& geometry, uint64_t kind) {
  if (const uint64_t known = kind_of_owners(memory, geometry); known != 0) return known;
  layout::SpaceOwnership* const line = geometry.ownership();
  os::replace_or_drop(&line->kind, 0, kind);  // memory that is gone says 0 above
  memory.write_back(line, sizeof *line, Step::none);
  memory.full_barrier(Step::none);
  return kind_of_owners(memory, geometry);
}

}  // namespace terrace::coherence
