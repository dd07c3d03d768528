// SPDX-License-Identifier: Apache-2.0
// Zeroes mapped memory that keeps its bytes (dax, persistent memory), and checks that it is zero. So leases are
// erased on memory for which the kernel hands out no fresh pages.
//
// Stores bypass the caches where the processor can (the widest of AVX-512, AVX2 and SSE2). So no cache has the
// erased lines, and the check reads the memory itself.
//
// Place     core/os; backends whose memory stays in place.
// Threads   Any; starts and joins its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"

namespace terrace::os {

// By what instructions; `best` is the widest that this processor has, `plain` is memset through the caches.
enum class EraseStores : uint8_t { best, avx512, avx2, sse2, plain };

// Whether this processor has them.
bool can_erase_with(EraseStores stores);

struct EraseOptions {
  unsigned threads = 1;      // 0 counts as 1; small ranges use fewer
  uint64_t bytes_per_s = 0;  // at most that much, all threads together; 0: as fast as it goes
  uint64_t seed = 0;         // where the check looks: give a new random one each time
  EraseStores stores = EraseStores::best;
};

struct Erased {
  uint64_t bytes = 0;
  uint64_t checked_bytes = 0;  // of those, read back
  double bytes_per_s = 0;      // the check and any waiting included
};

// Zeroes `range`, of any alignment and length, then reads back its first and last cache line and a random line
// of every 4 KiB between. Every store has left the processor when it returns.
//
// Errors    io_error     a byte read back is not zero, or the memory failed under the access itself (SIGBUS);
//                        says where
//           unsupported  the processor lacks options.stores
Result<Erased> erase(std::span<std::byte> range, const EraseOptions& options);

// Leaves no line of `range` in any cache of this machine: what was changed is in the memory, and the next read
// comes from there. Where the processor has no instruction for it (not x86-64) it orders memory accesses, no
// more.
void flush(std::span<std::byte> range);

// The check alone. Returns the bytes that were read.
Result<uint64_t> check_erased(std::span<const std::byte> range, uint64_t seed);

}  // namespace terrace::os
