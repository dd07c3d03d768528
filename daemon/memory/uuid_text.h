// SPDX-License-Identifier: Apache-2.0
// UUIDs as text, as labels and records have them.
//
// Threads   Plain functions.
#pragma once

#include <array>
#include <string>

#include "core/base/result.h"

namespace terrace::daemon {

using UuidBytes = std::array<unsigned char, 16>;

std::string uuid_text(const unsigned char* bytes);  // 36 characters
// Errors    invalid_argument   not 32 hexadecimal digits beside dashes
Result<UuidBytes> parse_uuid(const std::string& text);
Result<UuidBytes> random_uuid();

}  // namespace terrace::daemon
