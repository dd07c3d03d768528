// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/path_access.h"

#include <fcntl.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

#include "core/base/units.h"

namespace terrace::daemon {
namespace {

constexpr const char* opening = "allow_by_path";
constexpr const char* showing = "show_end_of_grace";
constexpr uint32_t no_id = UINT32_MAX;
constexpr long object_users_max = 32;
constexpr long directory_users_max = 1024;

using Entry = posix_acl_xattr_entry;

Entry entry(uint16_t tag, unsigned permissions, uint32_t id = no_id) {
  Entry made{};
  made.e_tag = tag;
  made.e_perm = static_cast<uint16_t>(permissions);
  made.e_id = id;
  return made;
}

Error too_many(long users_max, const std::string& path) {
  return Error{.code = ErrorCode::limit_exceeded,
               .where = opening,
               .detail = std::to_string(users_max) + " users may open " + path +
                         " already; give them a descriptor (terrace lease exec)"};
}

// The list that the mode alone says.
std::vector<Entry> list_of_mode(mode_t mode) {
  return {entry(ACL_USER_OBJ, mode >> 6 & 7), entry(ACL_GROUP_OBJ, mode >> 3 & 7), entry(ACL_OTHER, mode & 7)};
}

Error list_error(int code, const std::string& path) {
  if (code != EOPNOTSUPP) return os_error(code, opening, "cannot change who may open " + path);
  return Error{
      .code = ErrorCode::unsupported,
      .os_errno = code,
      .where = opening,
      .detail = "the file system of " + path +
                " has no access control lists (CONFIG_TMPFS_POSIX_ACL of the kernel), so no user can be "
                "admitted by a path; use the descriptor"};
}

Result<std::vector<Entry>> read_list(int fd, mode_t mode, const std::string& path) {
  std::vector<char> bytes(64 * 1024);  // as large as an attribute can be
  const ssize_t length = ::fgetxattr(fd, "system.posix_acl_access", bytes.data(), bytes.size());
  if (length < 0 && errno == ENODATA) return list_of_mode(mode);
  if (length < 0) return list_error(errno, path);
  constexpr size_t header = sizeof(posix_acl_xattr_header);
  const size_t count =
      static_cast<size_t>(length) < header ? 0 : (static_cast<size_t>(length) - header) / sizeof(Entry);
  std::vector<Entry> entries(count);
  if (count != 0) std::memcpy(entries.data(), bytes.data() + header, count * sizeof(Entry));
  return entries;
}

Status write_list(int fd, const std::vector<Entry>& entries, const std::string& path) {
  posix_acl_xattr_header header{};
  header.a_version = POSIX_ACL_XATTR_VERSION;
  std::vector<char> bytes(sizeof header + entries.size() * sizeof(Entry));
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, entries.data(), entries.size() * sizeof(Entry));
  if (::fsetxattr(fd, "system.posix_acl_access", bytes.data(), bytes.size(), 0) == 0) return {};
  return list_error(errno, path);
}

// The kernel wants the tags in their order, users by number, and a mask wherever there are users.
// A container may have any number of uids, and a list is no longer than one attribute.
Status add_user(int fd, const struct stat& status, uid_t user, unsigned permissions, long users_max,
                const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<Entry> entries, read_list(fd, status.st_mode, path));
  const auto same = std::find_if(entries.begin(), entries.end(), [user](const Entry& one) {
    return one.e_tag == ACL_USER && one.e_id == user;
  });
  if (same != entries.end()) {
    if ((same->e_perm & permissions) == permissions) return {};
    same->e_perm = static_cast<uint16_t>(same->e_perm | permissions);
  } else {
    const auto users =
        std::count_if(entries.begin(), entries.end(), [](const Entry& one) { return one.e_tag == ACL_USER; });
    if (users >= users_max) return too_many(users_max, path);
    entries.push_back(entry(ACL_USER, permissions, user));
  }
  unsigned mask = 0;
  std::erase_if(entries, [](const Entry& one) { return one.e_tag == ACL_MASK; });
  for (const Entry& one : entries)
    if (one.e_tag == ACL_USER || one.e_tag == ACL_GROUP_OBJ || one.e_tag == ACL_GROUP) mask |= one.e_perm;
  entries.push_back(entry(ACL_MASK, mask));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.e_tag, a.e_id) < std::pair(b.e_tag, b.e_id);
  });
  return write_list(fd, entries, path);
}

bool passes(const struct stat& status, uid_t user) {
  return (status.st_mode & S_IXOTH) != 0 || (status.st_uid == user && (status.st_mode & S_IXUSR) != 0);
}

// Others may then ask for files by their names, and open none. So do users beyond the list's length.
Status open_to_all(int fd, const struct stat& status, const std::string& path) {
  if (::fchmod(fd, (status.st_mode & 07777) | S_IXOTH) == 0) return {};
  return os_error(errno, opening, "cannot let users pass through " + path);
}

Status open_own(const std::string& folder, const struct stat& status, uid_t user) {
  const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.valid()) return os_error(errno, opening, "cannot open " + folder);
  const Status added = add_user(opened.get(), status, user, ACL_EXECUTE, directory_users_max, folder);
  if (added.ok() || added.error().code != ErrorCode::limit_exceeded) return added;
  return open_to_all(opened.get(), status, folder);
}

// Its own directory may be closed to all but this process; the folders above belong to whoever set the machine up.
Status open_way(const std::filesystem::path& path, uid_t user) {
  const std::filesystem::path own = path.parent_path();
  for (std::filesystem::path folder = own;; folder = folder.parent_path()) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0)
      return os_error(errno, opening, "cannot look at " + folder.string());
    if (!passes(status, user)) {
      const bool of_a_group = folder != own && (status.st_mode & S_IXGRP) != 0;  // the user's, perhaps
      if (!of_a_group && (folder != own || status.st_uid != ::geteuid()))
        return Error{.code = ErrorCode::permission_denied,
                     .where = opening,
                     .detail = "uid " + std::to_string(user) + " cannot reach " + path.string() +
                               ": the folder " + folder.string() +
                               " is closed to others; chmod o+x it, or choose another runtime directory"};
      if (!of_a_group) TERRACE_RETURN_IF_ERROR(open_own(folder.string(), status, user));
    }
    if (folder == folder.parent_path()) return {};
  }
}

}  // namespace

Status path_stays(uint64_t lease, bool movable, OnFence on_fence) {
  if (on_fence == OnFence::kill)
    return Error{
        .code = ErrorCode::unsupported,
        .where = opening,
        .detail = "whoever holds lease " + std::to_string(lease) +
                  " agreed to be ended before its memory is taken (on_fence kill), and who opens a path agrees "
                  "to nothing. Grant one without --on-fence kill for use by a path"};
  if (!movable) return {};
  return Error{
      .code = ErrorCode::unsupported,
      .where = opening,
      .detail =
          "lease " + std::to_string(lease) +
          " is movable: a drain or a compaction may put it into another file, and whoever has the old one "
          "open loses it. Grant one without --movable for use by a path"};
}

Error other_user_refused(const char* asking) {
  return Error{.code = ErrorCode::permission_denied,
               .where = asking,
               .detail = "only an administrator opens a lease's memory to another user than the one that asks"};
}

Status show_end_of_grace(int fd, uint64_t grace_ns) {
  constexpr uint64_t same_ns = 100 * ns_per_ms;  // between two readings of both clocks
  struct stat status {};
  timespec now{};
  if (::fstat(fd, &status) != 0 || ::clock_gettime(CLOCK_REALTIME, &now) != 0)
    return os_error(errno, showing, "cannot look at the object");
  const auto ns_of = [](const timespec& time) {
    return static_cast<uint64_t>(time.tv_sec) * ns_per_s + static_cast<uint64_t>(time.tv_nsec);
  };
  const uint64_t end_ns = ns_of(now) + grace_ns, shown_ns = ns_of(status.st_mtim);
  if (std::max(end_ns, shown_ns) - std::min(end_ns, shown_ns) < same_ns) return {};
  // Both times: the kernel tells watchers of a change of one alone as of a read or a write.
  const timespec times[] = {
      {.tv_sec = 0, .tv_nsec = UTIME_NOW},
      {.tv_sec = static_cast<time_t>(end_ns / ns_per_s), .tv_nsec = static_cast<long>(end_ns % ns_per_s)}};
  if (::futimens(fd, times) != 0) return os_error(errno, showing, "cannot set the object's time");
  return {};
}

Result<std::string> allow_by_path(int fd, uid_t user, ObjectAccess access) {
  struct stat status {
  }, named{};
  if (::fstat(fd, &status) != 0) return os_error(errno, opening, "cannot look at the object");
  std::error_code failed;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), failed);
  if (failed) return os_error(failed.value(), opening, "cannot find the object's path");
  if (::stat(path.c_str(), &named) != 0 || named.st_ino != status.st_ino || named.st_dev != status.st_dev)
    return Error{.code = ErrorCode::not_found,
                 .where = opening,
                 .detail = "the object has no path any more: its lease has ended"};
  if (user == 0 || user == status.st_uid) return path.string();
  const unsigned permissions = access == ObjectAccess::read_write ? ACL_READ | ACL_WRITE : ACL_READ;
  TERRACE_RETURN_IF_ERROR(add_user(fd, status, user, permissions, object_users_max, path.string()));
  TERRACE_RETURN_IF_ERROR(open_way(path, user));
  return path.string();
}

}  // namespace terrace::daemon
