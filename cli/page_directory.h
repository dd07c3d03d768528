// Directories in which the processes of one user show something, a file each: /dev/shm/NAME-UID.
//
// Place     Below tier_scan.cc and top_scan.cc.
// Trust     A directory counts when it belongs to the user in its name and nobody else may write to it.
#pragma once

#include <dirent.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {

struct DirectoryCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, DirectoryCloser>;

// Errors    not_found; corrupt: it is none, or not that user's alone; as os_error
Result<UniqueFd> open_directory_of(const std::string& path, uint32_t uid);
// At most `most` names that do not begin with a dot, numbers by value. `all`: there are no more.
std::vector<std::string> names_in(const UniqueFd& directory, size_t most, bool& all);
// The users for whom `prefix` and a number is there, ascending.
std::vector<uint32_t> users_with_pages(const std::string& prefix);

}  // namespace terrace::cli
