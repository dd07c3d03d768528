// SPDX-License-Identifier: Apache-2.0
// A loop over independent pieces of work, by several threads: checksums of many tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace terrace {

// How many threads for `items` pieces of work: `wanted`, or with 0 one a processor, at most 8 (memory is
// saturated before that).
uint32_t worker_threads(uint32_t wanted, size_t items);

// Calls `work(index)` once for each index below `items`, on `threads` threads, in no order. Returns when all
// are done. Where a thread cannot be started, the others do its share.
void parallel_for(size_t items, uint32_t threads, const std::function<void(size_t)>& work);

}  // namespace terrace
