// SPDX-License-Identifier: Apache-2.0
// Names that can stand in tables, file names, shell commands and certificates.
#pragma once

#include <string_view>

#include "core/base/limits.h"

namespace terrace {

// Letters, digits and "-_.:@", not empty, not beginning with '-' or '.'.
constexpr bool valid_plain_name(std::string_view name) {
  if (name.empty() || name.size() > limits::name_bytes_max || name[0] == '-' || name[0] == '.') return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '-' && c != '_' && c != '.' && c != ':' && c != '@') return false;
  }
  return true;
}

}  // namespace terrace
