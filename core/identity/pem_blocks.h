// SPDX-License-Identifier: Apache-2.0
// The certificates in a file that is appended to: one that was being written when its writer ended hides none behind it.
#pragma once

#include <string_view>
#include <vector>

namespace terrace {

// From each begin line to the next one, in order; what is before the first is left out.
inline std::vector<std::string_view> pem_blocks(std::string_view text) {
  constexpr std::string_view begin = "-----BEGIN CERTIFICATE-----";
  std::vector<std::string_view> blocks;
  for (size_t at = text.find(begin); at != std::string_view::npos;) {
    const size_t next = text.find(begin, at + begin.size());
    blocks.push_back(text.substr(at, next - at));
    at = next;
  }
  return blocks;
}

}  // namespace terrace
