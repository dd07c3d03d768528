// SPDX-License-Identifier: Apache-2.0
// Words of findings that several of them have.
//
// Place     daemon/health. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/units.h"

namespace terrace::daemon {

// Rounded for people, who read it again each second.
inline std::string lasted(uint64_t ns) {
  if (ns < ns_per_ms) return "a moment";
  if (ns < ns_per_s) return format_duration(ns / ns_per_ms * ns_per_ms);
  return format_duration(ns / ns_per_s * ns_per_s);
}

inline std::string many(uint64_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

inline std::string days(int64_t left) {
  return left < 0 ? "has ended" : "ends in " + many(static_cast<uint64_t>(left), "day");
}

}  // namespace terrace::daemon
