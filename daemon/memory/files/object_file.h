// SPDX-License-Identifier: Apache-2.0
// Files in an object directory, and errors: shared by the parts of the emulated backend and by offline checks.
//
// Threads   Any.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"
#include "daemon/memory/backend.h"

namespace terrace::daemon {

// The file of object `name` within the object directory.
std::string object_file(const std::string& name);

Error bad_object_name(const std::string& name, const char* where);

// As os_error; a missing piece of memory means the same to the caller whether the mount or the machine is short
// of it: capacity_exhausted.
Error memory_error(int os_errno, const char* where, std::string detail);

// The objects in an open directory, by name; `path` is for errors. Others' files and links are none.
Result<std::vector<ObservedObject>> list_objects(int directory, const std::string& path);

// Whether the mark of that emulated device's unplugging lies there (emulated.h).
bool unplugged(int directory, const std::string& device);

}  // namespace terrace::daemon
