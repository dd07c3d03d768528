// SPDX-License-Identifier: Apache-2.0
// Directories in which the processes of one user show something, a file each: /dev/shm/NAME-UID.
//
// Place     Below tier_scan.cc and top_scan.cc.
// Trust     A directory counts when it belongs to the user in its name and nobody else may write to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {

// Errors    not_found; corrupt: it is none, or not that user's alone; as os_error
Result<UniqueFd> open_directory_of(const std::string& path, uint32_t uid);

// Calls look(directory, its path, a file's name, user) for the files of `uid`, or of all users where there is
// none, at most 4096 a user: far more than one machine runs. What cannot be looked at is added to `problems`.
using LookAtFile = std::function<void(const UniqueFd& directory, const std::string& path,
                                      const std::string& name, uint32_t uid)>;
void look_at_files(const std::string& prefix, std::optional<uint32_t> uid, std::vector<std::string>& problems,
                   const LookAtFile& look);

}  // namespace terrace::cli
