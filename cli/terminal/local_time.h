// SPDX-License-Identifier: Apache-2.0
// Moments as people write and read them: the local time of this machine.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace terrace::cli {

// "2h" (that long ago), "11:30" or "11:30:05" (today), "2026-11-21", "2026-11-21 11:30[:05]" or with T, local
// time; with Z: UTC. In nanoseconds since 1970; `now_ns` as well.
// Errors    invalid_argument  none of these, or no such day or hour
Result<uint64_t> parse_moment(const std::string& text, uint64_t now_ns);

// "2026-11-21 11:30:05"
std::string format_moment(uint64_t wall_ns);

// How often something is to be done: "2", "0.5" (seconds), "500ms"; in nanoseconds. `option` for the message.
// Errors    invalid_argument   none of these, or not from 0.1 s to a day
Result<uint64_t> parse_interval(const std::string& option, const std::string& text);

}  // namespace terrace::cli
