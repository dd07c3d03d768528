// SPDX-License-Identifier: Apache-2.0
// What users show in directories of their own, and whether it is believed.
#include "cli/tier/page_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "cli/tier/tier_pages.h"

namespace terrace::cli {
namespace {

constexpr const char* directory_where = "page directory";
constexpr size_t files_per_user_max = 4096;

struct DirectoryCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, DirectoryCloser>;

Error directory_error(ErrorCode code, const std::string& path, const std::string& why) {
  return Error{.code = code, .where = directory_where, .detail = path + " " + why};
}

// At most `most` names that do not begin with a dot, numbers by value. `all`: there are no more.
std::vector<std::string> names_in(const UniqueFd& directory, size_t most, bool& all) {
  std::vector<std::string> names;
  all = true;
  UniqueFd copy(::openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Directory stream(copy.valid() ? ::fdopendir(copy.release()) : nullptr);
  if (stream == nullptr) return names;
  while (const dirent* entry = ::readdir(stream.get())) {
    if (entry->d_name[0] == '.') continue;
    if (names.size() == most) {
      all = false;
      break;
    }
    names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end(), [](const std::string& one, const std::string& other) {
    return one.size() != other.size() ? one.size() < other.size() : one < other;  // numbers by value
  });
  return names;
}

// The users for whom `prefix` and a number is there, ascending.
std::vector<uint32_t> users_with_pages(const std::string& prefix) {
  const size_t slash = prefix.rfind('/');
  const std::string parent = prefix.substr(0, slash), begin = prefix.substr(slash + 1);
  std::vector<uint32_t> users;
  const Directory directory(::opendir(parent.c_str()));
  if (directory == nullptr) return users;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(begin)) continue;
    if (const auto uid = plain_number(name.substr(begin.size()), UINT32_MAX)) users.push_back(*uid);
  }
  std::sort(users.begin(), users.end());
  return users;
}

}  // namespace

Result<UniqueFd> open_directory_of(const std::string& path, uint32_t uid) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() && (errno == ELOOP || errno == ENOTDIR))
    return directory_error(ErrorCode::corrupt, path, "is no directory");
  if (!fd.valid()) return os_error(errno, directory_where, "cannot open " + path);
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) return os_error(errno, directory_where, "cannot look at " + path);
  if (about.st_uid != uid || (about.st_mode & 022) != 0)
    return directory_error(ErrorCode::corrupt, path,
                           "is not uid " + std::to_string(uid) + "'s alone; it is left out");
  return fd;
}

void look_at_files(const std::string& prefix, std::optional<uint32_t> uid, std::vector<std::string>& problems,
                   const LookAtFile& look) {
  for (const uint32_t user : uid.has_value() ? std::vector{*uid} : users_with_pages(prefix)) {
    const std::string path = prefix + std::to_string(user);
    const auto directory = open_directory_of(path, user);
    if (!directory.ok()) {
      if (directory.error().code != ErrorCode::not_found) problems.push_back(directory.error().detail);
      continue;
    }
    bool all = true;
    for (const std::string& name : names_in(*directory, files_per_user_max, all))
      look(*directory, path, name, user);
    if (!all)
      problems.push_back(path + " has more than " + std::to_string(files_per_user_max) +
                         " files; the rest was not looked at");
  }
}

}  // namespace terrace::cli
