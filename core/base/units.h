// SPDX-License-Identifier: Apache-2.0
// Sizes and durations as people write them, and back.
//
// Units     Sizes: bytes. K, M, G, T are powers of 1024, with or without "iB" or "B" (64M = 64MiB = 64MB).
//           Durations: nanoseconds. Suffixes ns, us, ms, s, m, h, d.
// Threads   Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace terrace {

inline constexpr uint64_t kib = uint64_t{1} << 10;
inline constexpr uint64_t mib = uint64_t{1} << 20;
inline constexpr uint64_t gib = uint64_t{1} << 30;

inline constexpr uint64_t ns_per_us = 1'000;
inline constexpr uint64_t ns_per_ms = 1'000'000;
inline constexpr uint64_t ns_per_s = 1'000'000'000;

constexpr uint64_t round_up(uint64_t value, uint64_t power_of_two) {
  return (value + power_of_two - 1) & ~(power_of_two - 1);
}
constexpr bool is_power_of_two(uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

// "64M", "2GiB", "1.5G", "4096" -> bytes.
// Errors    invalid_argument  empty, no digits, an unknown suffix, or more than 2^63 bytes; names the text.
Result<uint64_t> parse_size(std::string_view text);

// "250ms", "10s", "2h" -> nanoseconds. A bare number is refused: its unit would be a guess.
// Errors    invalid_argument  as for parse_size.
Result<uint64_t> parse_duration(std::string_view text);

// 67108864 -> "64 MiB"; 1610612736 -> "1.5 GiB"; below 1 KiB "37 B". At most two decimals.
std::string format_size(uint64_t bytes);

// 1500000000 -> "1.5 s"; 7200 s -> "2 h".
std::string format_duration(uint64_t ns);

}  // namespace terrace
