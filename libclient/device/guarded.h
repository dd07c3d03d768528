// memcpy between host memory and ours, where the host memory may be a lease that is fenced meanwhile.
#pragma once

#include <cstring>

#include "core/base/result.h"
#include "core/os/fault_guard.h"

namespace terrace::device {

inline Status copy_guarded_bytes(void* to, const void* from, uint64_t bytes) {
  if (os::guarded([&] { std::memcpy(to, from, bytes); })) return {};
  return Error{ErrorCode::lease_expired, 0, "DeviceStream",
               "the host memory of a copy went away during it (SIGBUS): its lease was fenced, or its file cut"};
}

}  // namespace terrace::device
