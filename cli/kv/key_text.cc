// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/key_text.h"

#include <algorithm>
#include <cstdint>

#include "terrace/kv_space.h"

namespace terrace::cli {
namespace {

constexpr std::string_view hex_digits = "0123456789abcdef";

// Also where it stands: blanks at an end are not seen.
bool is_key_text(std::string_view key) {
  if (key.empty() || key.starts_with("0x") || key.front() == ' ' || key.back() == ' ' || !is_utf8(key))
    return false;
  for (size_t at = 0; at < key.size(); ++at) {
    const auto byte = static_cast<unsigned char>(key[at]);
    if (byte < ' ' || byte == 0x7f) return false;
    if (byte == 0xc2 && static_cast<unsigned char>(key[at + 1]) < 0xa0)
      return false;  // C1: move a terminal, too
  }
  return true;
}

int key_digit(char c) {
  const size_t at = hex_digits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

}  // namespace

std::string text_of_key(std::string_view key) {
  if (is_key_text(key)) return std::string(key);
  std::string text = "0x";
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    text += hex_digits[byte >> 4];
    text += hex_digits[byte & 15];
  }
  return text;
}

Result<std::string> key_of_text(std::string_view text, const char* where) {
  const auto wrong_key = [where](std::string detail) {
    return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = std::move(detail)};
  };
  std::string key(text);
  if (text.starts_with("0x")) {
    const std::string_view digits = text.substr(2);
    const bool all_hex = std::all_of(digits.begin(), digits.end(), [](char c) { return key_digit(c) >= 0; });
    if (digits.size() % 2 != 0 || !all_hex)
      return wrong_key("--key " + std::string(text) +
                       ": behind 0x come pairs of hex digits, two for each byte of the key");
    key.clear();
    for (size_t at = 0; at < digits.size(); at += 2)
      key += static_cast<char>(key_digit(digits[at]) * 16 + key_digit(digits[at + 1]));
  }
  if (key.empty() || key.size() > kv_key_bytes_max)
    return wrong_key("--key: a key has 1 to " + std::to_string(kv_key_bytes_max) + " bytes, this one has " +
                     std::to_string(key.size()));
  return key;
}

}  // namespace terrace::cli
