// SPDX-License-Identifier: Apache-2.0
// Patterns of KEYS and SCAN: * any bytes, ? one byte, [abc] [a-z] [^abc] one of them, \ takes the next byte as it is.
//
// Threads   A pure function.
#pragma once

#include <string_view>

namespace terrace::kv_serve {

// Linear in the text for each * of the pattern: it remembers only the last one.
bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace terrace::kv_serve
