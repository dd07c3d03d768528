// SPDX-License-Identifier: Apache-2.0
// Both sides of a litmus run in this process: two threads, on different CPUs where there are, each with its own
// mapping of the same memory. One host's caches are coherent with themselves, so that this finds memory that is
// mapped, wired or emulated in a wrong way, and no incoherence between hosts (docs/design/0017-litmus.md).
//
// Place     core/litmus; the manager at adoption, tests.
// Threads   Any; starts and joins two of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/litmus/report.h"

namespace terrace::litmus {

struct PairOptions {
  uint64_t rounds = rounds_default;      // of each shape
  uint64_t patience_ns = 5'000'000'000;  // how long a side waits for the other one at a meeting
  uint64_t run_ns_max = 0;  // of the whole run, 0: no end. What was seen by then is reported, never as coherent
  const std::atomic<bool>* stop = nullptr;  // once set, the run ends within some milliseconds
  bool cached = false;  // as if each side had a cache that nothing keeps coherent (cached_memory.h)
};

// Overwrites the first region_bytes of the memory. `first` and `second` are two mappings of it, each at least
// region_bytes long and aligned to 64 bytes.
//
// Errors    invalid_argument  a view too small or unaligned, or rounds beyond rounds_max
//           io_error          the memory failed under an access (SIGBUS): its device went, or was taken away
//           unavailable       a side got no processor in time, or no thread; `stop` was set; or the views are
//                             not of the same memory
Result<Report> run_pair(std::span<std::byte> first, std::span<std::byte> second, const PairOptions& options);

}  // namespace terrace::litmus
