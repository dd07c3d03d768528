// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/runtime_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace terrace::daemon {
namespace {

constexpr const char* where = "prepare_runtime_directory";

Error refused(const std::string& folder, const std::string& why) {
  return Error{.code = ErrorCode::permission_denied,
               .where = where,
               .detail = folder + " " + why +
                         ", so that somebody else could put a socket of their own into its place; fix that, or "
                         "choose another runtime_directory"};
}

// A folder in which this user's entries are safe from others: root's or our own, and closed to other writers
// unless it is sticky, as /tmp is (there only an entry's owner can rename it).
Status check_folder(const std::string& folder, bool last) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return os_error(errno, where, "cannot look at " + folder);
  if (!S_ISDIR(status.st_mode)) {
    return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = folder + " is no directory"};
  }
  const uid_t self = ::geteuid();
  if (last ? status.st_uid != self : (status.st_uid != self && status.st_uid != 0))
    return refused(folder, "belongs to uid " + std::to_string(status.st_uid));
  if ((status.st_mode & 022) != 0 && (last || (status.st_mode & S_ISVTX) == 0))
    return refused(folder, "can be written by others");
  return {};
}

}  // namespace

Status prepare_runtime_directory(const std::string& path) {
  if (path.empty() || path[0] != '/') {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "runtime_directory '" + path + "' must be an absolute path"};
  }
  const mode_t mode = ::geteuid() == 0 ? 0755 : 0700;
  const std::string text = std::filesystem::path(path).lexically_normal().string();
  for (size_t end = text.find('/', 1);; end = text.find('/', end + 1)) {
    const std::string folder = text.substr(0, end);
    const bool last = end == std::string::npos || end + 1 == text.size();
    const bool made = ::mkdir(folder.c_str(), mode) == 0;
    if (!made && errno != EEXIST) return os_error(errno, where, "cannot make " + folder);
    if (made && ::chmod(folder.c_str(), mode) != 0)
      return os_error(errno, where, "cannot set the mode of " + folder);
    struct stat status {};
    const bool link = ::lstat(folder.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
    // Links on the way, as /var/run, are followed only where nobody else can turn them elsewhere.
    if (link && (last || (status.st_uid != 0 && status.st_uid != ::geteuid())))
      return refused(folder, "is a symbolic link of uid " + std::to_string(status.st_uid));
    TERRACE_RETURN_IF_ERROR(check_folder(folder, last));
    if (last) return {};
  }
}

}  // namespace terrace::daemon
