// SPDX-License-Identifier: Apache-2.0
// Small traces, spelled out.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "tiering/sim/caches.h"

namespace terrace::tiering {

// One use after the other, a second apart.
inline Trace trace_of(std::string_view letters) {
  TraceBuilder builder("letters");
  uint64_t time_ns = 0;
  for (const char letter : letters) {
    builder.begin_request(time_ns += 1'000'000'000);
    builder.use(static_cast<uint64_t>(letter));
  }
  return builder.finish();
}

// "h" for a hit, "." for a miss, for each use.
inline std::string hits_of(std::string_view cache, std::string_view letters, uint64_t room) {
  const Trace trace = trace_of(letters);
  const auto made = make_cache(cache, trace, room);
  std::string hits;
  for (const uint32_t object : trace.uses) hits += made->use(object) ? 'h' : '.';
  return hits;
}

}  // namespace terrace::tiering
