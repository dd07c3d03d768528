// Which addresses of this process are mapped memory of which lease: whoever is given memory alone finds its
// lease (lease_of_memory() in terrace/mapping.h).
//
// Threads   Any.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "terrace/session.h"

namespace terrace {

// Replaces what was noted for a range with the same first byte.
void note_lease_range(std::span<const std::byte> range, std::weak_ptr<Lease> lease);
// What begins at `first`. Before the range is unmapped.
void forget_lease_range(const std::byte* first);

}  // namespace terrace
