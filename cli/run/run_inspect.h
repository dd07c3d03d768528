// SPDX-License-Identifier: Apache-2.0
// Inspects the program of `terrace run`: can a preload library reach its malloc at all?
#pragma once

#include <string>

#include "core/base/result.h"

namespace terrace::cli {

struct ProgramFacts {
  std::string path;      // what will be executed
  std::string obstacle;  // why no preload library can serve it; empty: it can
};

// Finds `program` as execvp would, and reads its ELF header (or its interpreter's, for a script).
// Errors    not_found          no such file, or not in PATH
//           permission_denied  it is no executable file
//           corrupt            it is neither an ELF program nor a script
Result<ProgramFacts> inspect_program(const std::string& program);

// libterrace_heap.so or, for large requests only, libterrace_malloc.so: $TERRACE_MALLOC_LIBRARY, else next to
// this executable, in ../lib*, or in the build tree.
// Errors    not_found         names the places that were tried
//           invalid_argument   its path holds a space or colon, which LD_PRELOAD cannot express
Result<std::string> find_malloc_library(bool whole_heap);

}  // namespace terrace::cli
