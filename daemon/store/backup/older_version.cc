// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/backup/older_version.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>

#include "core/base/failpoint.h"
#include "core/base/unique_fd.h"
#include "daemon/store/backup/store_copy_file.h"
#include "daemon/store/schema.h"
#include "daemon/store/store_files.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_keep = "keep_older_version";

// All that an older build needs to go on from there. SQLite makes -shm anew.
constexpr const char* kept_suffixes[] = {"", "-wal", "-journal-a", "-journal-b", "-mark", "-holders", ".hosts"};

// PRAGMA user_version, of the file's header. A log that was cut off may hold a newer one, and then a copy is one too
// many.
Result<int64_t> version_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  unsigned char bytes[4] = {};
  if (!file.valid() || ::pread(file.get(), bytes, sizeof(bytes), 60) != static_cast<ssize_t>(sizeof(bytes)))
    return os_error(errno, where_keep, "cannot read " + path);
  int64_t version = 0;
  for (const unsigned char byte : bytes) version = version * 256 + byte;
  return version;
}

Result<std::string> folder_for(const std::string& path, int64_t version) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return os_error(errno, where_keep, "cannot look at " + path);
  std::tm parts{};
  ::gmtime_r(&status.st_mtim.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &parts);
  return path + ".version-" + std::to_string(version) + "-" + text;
}

Status copy_into(const std::string& state_path, const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0)
    return os_error(errno, where_keep, "cannot make the folder " + folder);
  const std::string base = folder + "/" + std::filesystem::path(state_path).filename().string();
  for (const char* suffix : kept_suffixes) {
    struct stat status {};
    if (::lstat((state_path + suffix).c_str(), &status) == 0)
      TERRACE_RETURN_IF_ERROR(copy_file_bytes(state_path + suffix, base + suffix));
  }
  if (const int code = TERRACE_FAILPOINT(keep_older_copy); code != 0)
    return os_error(code, where_keep, "cannot copy " + state_path);
  return sync_folder_of(base);
}

}  // namespace

Result<KeptVersion> keep_older_version(const std::string& state_path, int64_t newest) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t version, version_of(state_path));
  if (version < store_version_first || version >= newest) return KeptVersion{};
  TERRACE_ASSIGN_OR_RETURN(const std::string folder, folder_for(state_path, version));
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) return KeptVersion{folder, version};
  const std::string part = folder + ".part";
  std::filesystem::remove_all(part, ignored);
  Status copied = copy_into(state_path, part);
  if (copied.ok() && ::rename(part.c_str(), folder.c_str()) != 0)
    copied = os_error(errno, where_keep, "cannot rename " + part + " to " + folder);
  if (copied.ok()) copied = sync_folder_of(state_path);
  if (copied.ok()) return KeptVersion{folder, version};
  std::filesystem::remove_all(part, ignored);
  Error error = std::move(copied).error();
  error.detail = "the store is of version " + std::to_string(version) + " and is not migrated to " +
                 std::to_string(newest) + " before a copy of it is kept in " + folder + ": " + error.detail;
  return error;
}

}  // namespace terrace::daemon
