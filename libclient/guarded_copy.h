// SPDX-License-Identifier: Apache-2.0
// Copies memory that may be fenced during the copy. The kernel copies, so the result is an error where memcpy
// would raise SIGBUS. Also makes the copy durable; there a fault guard turns the signal into an error.
//
// Place     libclient; Mapping::move uses it.
// Threads   Any.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/result.h"
#include "core/os/persist.h"

namespace terrace {

// Copies the first bytes of `from_fd` into `to`, all of which is a mapping; `from` is a mapping of the same
// bytes for descriptors that cannot be read (dax devices).
// Errors    cancelled      `to` was fenced
//           lease_expired  the source was fenced
//           others         as os_error says
Status copy_guarded(int from_fd, std::span<const std::byte> from, std::span<std::byte> to);

// Makes the copied bytes durable. On a dax device that is an access to each line of them.
// Errors    cancelled      `to` was fenced
Status persist_guarded(const os::FileMap& to, std::span<const std::byte> bytes);

// From mapping to mapping, through a pipe: two copies, for any kind of memory. As copy_guarded otherwise.
Status copy_through_pipe(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace terrace
