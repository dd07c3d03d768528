// SPDX-License-Identifier: Apache-2.0
// Files that verbs make.
#pragma once

#include <string>

#include "core/base/result.h"

namespace terrace::cli {

// The whole file or none: written beside its place under another name, then renamed.
// Errors    as os_error
Status write_atomically(const std::string& path, const std::string& text);

}  // namespace terrace::cli
