// SPDX-License-Identifier: Apache-2.0
// JSON documents as YAML: what `--output yaml` prints.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace terrace::cli {

// Block style, a line for each value. Texts are always quoted, so that "no", "1e3" and "~" stay texts.
std::string to_yaml(const nlohmann::json& document);

}  // namespace terrace::cli
