// Which names and labels are acceptable: short, printable, no '/', so that they can stand in tables, file
// names and shell commands.
#pragma once

#include <string_view>

#include "core/base/limits.h"

namespace terrace::daemon {

// Pools, tenants, hosts, serials: letters, digits and "-_.:@", not empty, not beginning with '-' or '.'.
constexpr bool valid_name(std::string_view name) {
  if (name.empty() || name.size() > limits::name_bytes_max || name[0] == '-' || name[0] == '.') return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '-' && c != '_' && c != '.' && c != ':' && c != '@') return false;
  }
  return true;
}

// Labels and reasons: any printable text, UTF-8 included, without control characters; may be empty.
constexpr bool valid_text(std::string_view text, size_t bytes_max) {
  if (text.size() > bytes_max) return false;
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return true;
}

}  // namespace terrace::daemon
