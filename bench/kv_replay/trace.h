// SPDX-License-Identifier: Apache-2.0
// Requests and the blocks that they name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::bench {

struct TraceRequest {
  uint64_t timestamp_ms = 0;
  uint32_t first = 0, count = 0;  // of Trace::blocks
};

struct Trace {
  std::string name;
  std::vector<TraceRequest> requests;  // by timestamp
  std::vector<uint32_t> blocks;
  uint32_t block_count = 0;  // numbers are below this
  uint32_t distinct_blocks = 0;
};

// Of lines {"timestamp": ms, "hash_ids": [...], ...}, at most `requests_max` (0: all).
// Errors    os_error's; corrupt  a line that is none of these, by its number
Result<Trace> read_trace(const std::string& path, uint64_t requests_max);

// Conversations: each request names what its conversation has had so far and some new blocks; all begin with
// the same few.
Trace make_trace(uint32_t requests, uint64_t seed);

}  // namespace terrace::bench
