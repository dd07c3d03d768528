#include "daemon/event_loop/file_users.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/backend/proc_files.h"

namespace terrace::daemon {
namespace {

// "7f12a000-7f12c000 rw-s 00000000 00:2f 1234   /path". By the inode's number alone: some file systems show
// another device here than stat() does. A number that is by chance another file's only delays what is asked for.
void add_mapped(std::string_view maps, const std::multimap<ino_t, FileId>& by_inode, std::set<FileId>& used) {
  for (size_t end; (end = maps.find('\n')) != std::string_view::npos; maps.remove_prefix(end + 1)) {
    std::string_view line = maps.substr(0, end);
    for (int word = 0; word < 4; ++word) line.remove_prefix(std::min(line.find(' '), line.size() - 1) + 1);
    ino_t inode = 0;
    std::from_chars(line.data(), line.data() + line.size(), inode);
    const auto [first, last] = by_inode.equal_range(inode);
    for (auto at = first; inode != 0 && at != last; ++at) used.insert(at->second);
  }
}

Status add_open(const std::string& folder, const std::set<FileId>& files, std::set<FileId>& used) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, read_names(folder));
  for (const std::string& name : names) {
    struct stat status {};
    if (::stat((folder + "/" + name).c_str(), &status) != 0) continue;  // closed meanwhile
    const FileId file{status.st_dev, status.st_ino};
    if (files.contains(file)) used.insert(file);
  }
  return {};
}

}  // namespace

Result<FileId> file_id(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return os_error(errno, "file_id", "cannot look at an open file");
  return FileId{status.st_dev, status.st_ino};
}

Result<std::set<FileId>> files_in_use(const std::set<FileId>& files) {
  std::set<FileId> used;
  std::multimap<ino_t, FileId> by_inode;
  for (const FileId& file : files) by_inode.emplace(file.second, file);
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> entries, read_names("/proc"));
  for (const std::string& entry : entries) {
    pid_t pid = 0;
    const auto [rest, error] = std::from_chars(entry.data(), entry.data() + entry.size(), pid);
    if (error != std::errc{} || rest != entry.data() + entry.size() || pid == ::getpid()) continue;
    TERRACE_ASSIGN_OR_RETURN(const std::string maps, read_content("/proc/" + entry + "/maps"));
    add_mapped(maps, by_inode, used);
    TERRACE_RETURN_IF_ERROR(add_open("/proc/" + entry + "/fd", files, used));
  }
  return used;
}

}  // namespace terrace::daemon
