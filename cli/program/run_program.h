// SPDX-License-Identifier: Apache-2.0
// A program that a command asks something of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::cli {

struct ProgramOutput {
  int status = 0;  // as waitpid gives it
  std::string out, err;
};

// Runs a program to its end and keeps what it said. It gets no signal blocked.
// Errors    io_error, not_found, permission_denied  it cannot be run
//           unavailable   it took longer than `limit_ns` (0: as long as it takes), and was killed
Result<ProgramOutput> run_program(const std::string& program, const std::vector<std::string>& arguments,
                                  uint64_t limit_ns = 0);

}  // namespace terrace::cli
