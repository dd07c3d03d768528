// SPDX-License-Identifier: Apache-2.0
// A trace: requests one after the other, each of which uses a list of objects of one size (KV blocks,
// granules).
//
// Place     First step of the simulator; text → Trace (trace_reader.cc), or made up (generators.cc). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/result.h"

namespace terrace::tiering {

struct TraceRequest {
  uint64_t time_ns = 0;  // when it is served; never before the one ahead of it
  uint32_t first = 0;    // its accesses: uses[first .. first + count)
  uint32_t count = 0;
};

struct Trace {
  std::string name;
  std::vector<TraceRequest> requests;
  std::vector<uint32_t> uses;  // objects, numbered from 0 by first use
  uint32_t objects = 0;

  std::span<const uint32_t> uses_of(const TraceRequest& request) const {
    return std::span(uses).subspan(request.first, request.count);
  }
  uint64_t re_references() const { return uses.size() - objects; }
};

enum class TraceFormat { mooncake, accesses };

// Reads a trace; docs/operations/tiersim.md describes the formats:
//   mooncake   one JSON object a line: timestamp (ms) and hash_ids (the request's blocks); other members are
//              ignored
//   accesses   one access a line: "time_us object [r|w]"; '#' begins a comment; objects are any words
// Requests stamped alike by a coarse clock (mooncake's ticks every three seconds) are spread evenly until the
// next stamp. An object named twice by one request counts once.
//
// Errors    invalid_argument  names `name`, the line, what was found there and how to fix it
//           limit_exceeded    more accesses than accesses_max
inline constexpr uint64_t trace_accesses_max = uint64_t{1} << 26;
Result<Trace> parse_trace(std::string_view text, TraceFormat format, const std::string& name);

// Builds a Trace from requests in order; numbers objects by first use.
class TraceBuilder {
 public:
  explicit TraceBuilder(std::string name);
  void begin_request(uint64_t time_ns);
  void use(uint64_t object);  // any number; twice in one request counts once
  size_t uses() const { return trace_.uses.size(); }
  Trace finish();

 private:
  Trace trace_;
  std::unordered_map<uint64_t, uint32_t> numbers_;
  std::vector<uint32_t> last_request_;  // of each object: the request that used it last, counted from 1
};

}  // namespace terrace::tiering
