// SPDX-License-Identifier: Apache-2.0
// What a client passes on of the environment variable TRACEPARENT: of W3C's Trace Context, as it came.
//
// Threads   Any, as long as nobody changes the environment.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr size_t traceparent_bytes = 55;

// What a later version may have behind that is left out; empty: it cannot be one. Whether it is one the receiver says.
inline std::string bounded_traceparent(std::string_view text) {
  if (text.size() < traceparent_bytes) return {};
  if (text.size() > traceparent_bytes && (text.starts_with("00") || text[traceparent_bytes] != '-')) return {};
  return std::string(text.substr(0, traceparent_bytes));
}

inline std::string traceparent_of_environment() {
  const char* set = std::getenv("TRACEPARENT");
  return set == nullptr ? std::string() : bounded_traceparent(set);
}

}  // namespace terrace
