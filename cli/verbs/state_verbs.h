// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `terrace state`.
#pragma once

#include <string>

#include "cli/terminal/verb.h"

namespace terrace::cli {

// state_config.cc: export and apply
void add_config_verbs(Command verbs, Context& context);

// Writes `text` to `file` (0600), which is there only once it is whole.
// Errors    already_exists   it is there, and `replace` was not said
Status write_new_file(const std::string& file, const std::string& text, bool replace);

}  // namespace terrace::cli
