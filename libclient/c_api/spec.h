// SPDX-License-Identifier: Apache-2.0
// Checks the C description of a tensor to be made, and converts it.
#pragma once

#include "core/base/result.h"
#include "terrace/tensor_pool.h"
#include "terrace/terrace_c.h"

namespace terrace::c_api {

// Errors    invalid_argument, version_mismatch
Result<TensorSpec> spec_of(const terrace_tensor_spec* spec, const char* where);

}  // namespace terrace::c_api
