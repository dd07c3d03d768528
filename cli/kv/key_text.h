// SPDX-License-Identifier: Apache-2.0
// Keys as people write them: text as it is, other bytes as 0x and hex digits.
//
// Threads   Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace terrace::cli {

// What key_of_text() takes back. Hex for what is not text of printable characters, and for text that begins with 0x.
std::string text_of_key(std::string_view key);

// Errors    invalid_argument   empty, longer than kv_key_bytes_max, or 0x and no pairs of hex digits
Result<std::string> key_of_text(std::string_view text, const char* where);

}  // namespace terrace::cli
