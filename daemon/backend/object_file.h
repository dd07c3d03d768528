// What the two halves of the emulated backend share: names of files, and errors.
//
// Threads   Pure functions.
#pragma once

#include <string>

#include "core/base/error.h"

namespace terrace::daemon {

// The file of object `name` within the object directory.
std::string object_file(const std::string& name);

Error bad_object_name(const std::string& name, const char* where);

// As os_error; a missing piece of memory means the same to the caller whether the mount or the machine is short
// of it: capacity_exhausted.
Error memory_error(int os_errno, const char* where, std::string detail);

}  // namespace terrace::daemon
