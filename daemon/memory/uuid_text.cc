// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/uuid_text.h"

#include <sys/random.h>

#include <cerrno>
#include <charconv>

namespace terrace::daemon {

std::string uuid_text(const unsigned char* bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

Result<UuidBytes> parse_uuid(const std::string& text) {
  const Error wrong{
      .code = ErrorCode::invalid_argument, .where = "parse_uuid", .detail = "'" + text + "' is no UUID"};
  std::string digits;
  for (const char c : text)
    if (c != '-') digits += c;
  UuidBytes uuid{};
  if (digits.size() != 2 * uuid.size()) return wrong;
  for (size_t i = 0; i < uuid.size(); ++i) {
    const char* begin = digits.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, uuid[i], 16);
    if (error != std::errc() || end != begin + 2) return wrong;
  }
  return uuid;
}

// Version 4: random.
Result<UuidBytes> random_uuid() {
  UuidBytes uuid{};
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size()))
    return os_error(errno, "random_uuid", "cannot get random bytes");
  uuid[6] = static_cast<unsigned char>((uuid[6] & 0x0f) | 0x40);
  uuid[8] = static_cast<unsigned char>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

}  // namespace terrace::daemon
