// SPDX-License-Identifier: Apache-2.0
// Which names and labels are acceptable: short, printable, no '/', so that they can stand in tables, file
// names and shell commands.
#pragma once

#include <string_view>

#include "core/base/plain_name.h"

namespace terrace::daemon {

// Pools, tenants, hosts, serials.
constexpr bool valid_name(std::string_view name) {
  return valid_plain_name(name);
}

// Whether `text` is UTF-8 as RFC 3629 has it: no overlong form, no surrogate, nothing above U+10FFFF.
constexpr bool valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : lead >= 0xe0 && lead < 0xf0 ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    if (length == 0 || length > text.size() - at) return false;
    for (size_t i = 1; i < length; ++i)
      if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) return false;
    const auto second = length > 1 ? static_cast<unsigned char>(text[at + 1]) : 0;
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f))
      return false;
    at += length;
  }
  return true;
}

// Labels and reasons: any printable UTF-8 without control characters; may be empty.
constexpr bool valid_text(std::string_view text, size_t bytes_max) {
  if (text.size() > bytes_max || !valid_utf8(text)) return false;
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return true;
}

static_assert(valid_text("\xc3\xa9t\xc3\xa9 \xf0\x9f\x98\x80", 99) && valid_text("", 0));
static_assert(!valid_utf8("\xff\xfe") && !valid_utf8("\xc0\xaf") && !valid_utf8("\xed\xa0\x80") &&
              !valid_utf8("\xe2\x82"));
static_assert(!valid_text("a\nb", 99) && !valid_text("ab", 1));

}  // namespace terrace::daemon
