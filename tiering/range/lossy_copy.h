// Copies of granules whose lease may be fenced in the middle: an answer, where the engine's thread would get a
// signal.
//
// Place     tiering/range: what libterrace's engines and snapshots copy with. The preload library's engine does
//           not: there the handler of SIGBUS is the program's own, which libterrace would go in front of.
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
