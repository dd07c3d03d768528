// SPDX-License-Identifier: Apache-2.0
// memcpy between host memory and ours, where the host memory may be a lease that is fenced meanwhile.
#pragma once

#include <cstring>

#include "core/base/result.h"
#include "core/base/units.h"
#include "core/os/fault_guard.h"
#include "tiering/migration/copy.h"

namespace terrace::device {

inline Error went_away() {
  return {ErrorCode::lease_expired, 0, "DeviceStream",
          "the host memory of a copy went away during it (SIGBUS): its lease was fenced, or its file cut"};
}

inline Status copy_guarded_bytes(void* to, const void* from, uint64_t bytes) {
  if (os::guarded([&] { std::memcpy(to, from, bytes); })) return {};
  return went_away();
}

// From or to a pinned buffer. Large copies go past the caches: what a device reads or wrote is not read again by
// this thread, and a store to memory that is not in the cache would read it first.
inline Status copy_staged_bytes(void* to, const void* from, uint64_t bytes) {
  constexpr uint64_t streamed_bytes_min = 64 * kib, whole = 512;  // of copy_streamed
  const uint64_t streamed = bytes < streamed_bytes_min ? 0 : bytes - bytes % whole;
  const auto copy = [&] {
    tiering::copy_streamed(to, from, streamed);
    std::memcpy(static_cast<std::byte*>(to) + streamed, static_cast<const std::byte*>(from) + streamed,
                bytes - streamed);
  };
  if (os::guarded(copy)) return {};
  return went_away();
}

}  // namespace terrace::device
