// SPDX-License-Identifier: Apache-2.0
// Bounds of what the owners of parts may take of the manager; the other bounds are in core/base/limits.h.
#pragma once

#include <cstdint>

namespace terrace::daemon::owner_limits {

// "python3[1234]": a name on a screen, stored once a part.
inline constexpr uint64_t holder_bytes_max = 64;

// Parts that have, or had, an owner, of all leases: about 256 bytes of memory and a row of the store each.
// 1,024 leases whose 64 parts are all used.
inline constexpr uint64_t rows_max = 65'536;

}  // namespace terrace::daemon::owner_limits
