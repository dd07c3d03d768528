// SPDX-License-Identifier: Apache-2.0
// Takes a host's leased memory away from who has it mapped, knowing nothing of it but where it can be: the guard, and
// the agent before it looks at its objects.
//
// Threads   Any; some of its own for the moment of fencing, with the priority of the calling one.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::daemon {

// Where leases' memory can be on this host.
struct GuardedMemory {
  std::vector<std::string> directories;  // of object files
  std::vector<std::string> dax_regions;  // that are adopted: their directories in sysfs

  bool operator==(const GuardedMemory&) const = default;
};

// How many objects are taken away at once: one that takes long must not keep the others mapped.
inline constexpr uint32_t fenced_at_once_max = 8;

// All of it, side by side, whatever directory or region it is in. Every object is tried; the first error is told. Done
// again it is no error.
//
// directories   every object file is truncated; one that does not exist has none
// dax_regions   every dax device is taken from the driver of mappable ones: mappings give SIGBUS, descriptors ENXIO.
//               What is unbound is never bound again: the agent destroys it when it registers. A region that is gone
//               has none
Status fence_memory(const GuardedMemory& memory);

}  // namespace terrace::daemon
