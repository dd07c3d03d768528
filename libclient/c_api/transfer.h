// SPDX-License-Identifier: Apache-2.0
// Shared by the interface's calls on files: progress callbacks, and the choice of tensors.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"
#include "terrace/safetensors.h"
#include "terrace/terrace_c.h"

namespace terrace::c_api {

// Adds the caller's callbacks to `options`. NULL: none. Errors: invalid_argument, version_mismatch.
Status add_transfer(const terrace_transfer* transfer, TransferOptions& options, const char* where);

// Errors    invalid_argument, naming the entry that is NULL
Result<std::vector<std::string>> strings_of(const char* const* given, size_t count, const char* what,
                                            const char* where);

}  // namespace terrace::c_api
