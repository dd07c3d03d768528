// SPDX-License-Identifier: Apache-2.0
// The address ranges of this process that are mapped memory of leases, and the leases that it has. From memory
// alone the library finds its lease (lease_of_memory() in terrace/mapping.h), also if the program mapped the
// lease's descriptor itself.
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
// From now on memory that is mapped from the lease's descriptor is the lease's.
void note_lease(std::weak_ptr<Lease> lease);
// What begins at `first`. Before the range is unmapped.
void forget_lease_range(const std::byte* first);

}  // namespace terrace
