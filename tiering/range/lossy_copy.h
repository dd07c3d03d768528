// SPDX-License-Identifier: Apache-2.0
// Copies of granules whose lease may be fenced in the middle: they return a failure, where a plain copy would
// raise a signal in the engine's thread.
//
// Place     tiering/range: for libterrace's engines and snapshots, not for the preload library's engine. There
//           the handler of SIGBUS is the program's own, and libterrace would be installed in front of it.
// Threads   Any, also those that have SIGBUS blocked.
#pragma once

#include <cstddef>

#include "core/os/fault_guard.h"
#include "tiering/migration/copy.h"

namespace terrace {

// As copy_streamed. False: a lease behind one of them was fenced. Three short system calls dearer.
inline bool copy_unless_lost(char* to, const char* from, size_t bytes) {
  return os::guarded([&] { tiering::copy_streamed(to, from, bytes); });
}

}  // namespace terrace
