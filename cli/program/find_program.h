// SPDX-License-Identifier: Apache-2.0
// The file that a command starts.
#pragma once

#include <string>

#include "core/base/result.h"

namespace terrace::cli {

// What env, nice and timeout exit with, so that these can be told from the program's own codes.
inline constexpr int exit_own_failure = 125;
inline constexpr int exit_not_executable = 126;
inline constexpr int exit_no_program = 127;

// Finds `program` as execvp would. `where`: of the error.
// Errors    not_found          no such file, or not in PATH
//           permission_denied  it is no executable file
Result<std::string> find_program(const std::string& program, const char* where);

}  // namespace terrace::cli
