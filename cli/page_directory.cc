#include "cli/page_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "cli/tier_pages.h"

namespace terrace::cli {
namespace {

constexpr const char* where = "page directory";

Error refused(ErrorCode code, const std::string& path, const std::string& why) {
  return Error{.code = code, .where = where, .detail = path + " " + why};
}

}  // namespace

// The directory of `uid`, which nobody else may have written to. Errors    not_found, corrupt, as os_error
Result<UniqueFd> open_directory_of(const std::string& path, uint32_t uid) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() && (errno == ELOOP || errno == ENOTDIR))
    return refused(ErrorCode::corrupt, path, "is no directory");
  if (!fd.valid()) return os_error(errno, where, "cannot open " + path);
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) return os_error(errno, where, "cannot look at " + path);
  if (about.st_uid != uid || (about.st_mode & 022) != 0)
    return refused(ErrorCode::corrupt, path, "is not uid " + std::to_string(uid) + "'s alone; it is left out");
  return fd;
}

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

}  // namespace terrace::cli
