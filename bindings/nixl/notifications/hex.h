// SPDX-License-Identifier: Apache-2.0
// Bytes of any value as words of NIXL's metadata.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::nixl {

inline constexpr std::string_view hex_digits = "0123456789abcdef";

inline std::string to_hex(const std::string& bytes) {
  std::string text;
  for (const char one : bytes) {
    const auto value = static_cast<unsigned char>(one);
    text += hex_digits[value / 16];
    text += hex_digits[value % 16];
  }
  return text;
}

// Nothing: the text is none of these.
inline std::optional<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t at = 0; at != text.size(); at += 2) {
    const size_t high = hex_digits.find(text[at]), low = hex_digits.find(text[at + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace terrace::nixl
