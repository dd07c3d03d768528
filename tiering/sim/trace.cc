// SPDX-License-Identifier: Apache-2.0
#include "tiering/sim/trace.h"

#include <utility>

namespace terrace::tiering {

TraceBuilder::TraceBuilder(std::string name) {
  trace_.name = std::move(name);
}

void TraceBuilder::begin_request(uint64_t time_ns) {
  trace_.requests.push_back(
      {.time_ns = time_ns, .first = static_cast<uint32_t>(trace_.uses.size()), .count = 0});
}

void TraceBuilder::use(uint64_t object) {
  const auto [found, fresh] = numbers_.try_emplace(object, trace_.objects);
  if (fresh) {
    ++trace_.objects;
    last_request_.push_back(0);
  }
  uint32_t& last = last_request_[found->second];
  const auto request = static_cast<uint32_t>(trace_.requests.size());
  if (last == request) return;
  last = request;
  trace_.uses.push_back(found->second);
  ++trace_.requests.back().count;
}

Trace TraceBuilder::finish() {
  numbers_.clear();
  last_request_.clear();
  return std::move(trace_);
}

}  // namespace terrace::tiering
