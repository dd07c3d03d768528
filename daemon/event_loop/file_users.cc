// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/file_users.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/memory/proc_files.h"

namespace terrace::daemon {
namespace {

// The next word of `line`, which is cut off with the blanks after it.
std::string_view next_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(word.size(), line.size()));
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return word;
}

// "2f:3" in hexadecimal; 0 where it is something else.
dev_t device_of(std::string_view text) {
  unsigned major = 0, minor = 0;
  const char* const end = text.data() + text.size();
  const auto [colon, error] = std::from_chars(text.data(), end, major, 16);
  if (error != std::errc{} || colon == end || *colon != ':') return 0;
  std::from_chars(colon + 1, end, minor, 16);
  return makedev(major, minor);
}

// Whether a mapping whose line shows the file's inode, but another device, is of the file all the same: some file
// systems show a device of their own there. The kernel tells it to who may follow the link; to others it counts as
// the file, which only delays what is asked for.
bool is_the_file(const std::string& process, std::string_view range, const FileId& file) {
  struct stat status {};
  const std::string link = process + "/map_files/" + std::string(range);
  if (::stat(link.c_str(), &status) != 0) return errno != ENOENT;  // gone meanwhile
  return FileId{status.st_dev, status.st_ino} == file;
}

// "7f12a000-7f12c000 rw-s 00000000 00:2f 1234   /path". Two emulated pools are two tmpfs whose inodes have the same
// numbers, so the device decides.
void add_mapped(const std::string& process, std::string_view maps, const std::multimap<ino_t, FileId>& by_inode,
                std::set<FileId>& used) {
  for (size_t end; (end = maps.find('\n')) != std::string_view::npos; maps.remove_prefix(end + 1)) {
    std::string_view line = maps.substr(0, end);
    const std::string_view range = next_word(line);
    next_word(line);  // what is allowed
    next_word(line);  // the offset
    const dev_t device = device_of(next_word(line));
    const std::string_view number = next_word(line);
    ino_t inode = 0;
    std::from_chars(number.data(), number.data() + number.size(), inode);
    if (inode == 0) continue;
    const auto [first, last] = by_inode.equal_range(inode);
    for (auto at = first; at != last; ++at)
      if (at->second.first == device || is_the_file(process, range, at->second)) used.insert(at->second);
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
    const std::string process = "/proc/" + entry;
    TERRACE_ASSIGN_OR_RETURN(const std::string maps, read_content(process + "/maps"));
    add_mapped(process, maps, by_inode, used);
    TERRACE_RETURN_IF_ERROR(add_open(process + "/fd", files, used));
  }
  return used;
}

}  // namespace terrace::daemon
