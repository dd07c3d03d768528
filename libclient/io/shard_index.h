// SPDX-License-Identifier: Apache-2.0
// The index of a model in several safetensors files: {"metadata": {…}, "weight_map": {"tensor": "file", …}}.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace terrace {

// Tensor to file; hostile input. `path` names the index in error texts.
//
// Errors    corrupt         no JSON, no weight_map of strings, a tensor twice, a file's name with a '/' in it
//           limit_exceeded  more than 2^20 tensors
// Threads   Pure function.
Result<std::map<std::string, std::string>> parse_shard_index(std::string_view text, std::string_view path);

}  // namespace terrace
