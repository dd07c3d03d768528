#include "allocator/supply/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "core/base/unique_fd.h"

namespace terrace::supply {
namespace {

std::string read_whole(pid_t pid, const char* file) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/%s", static_cast<int>(pid), file);
  UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd.valid()) return text;
  char buffer[64 * 1024];
  for (ssize_t got; (got = ::read(fd.get(), buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  return text;
}

// "7f00-7f10 rw-s 00001000 00:01 123  /memfd" begins a range, "Rss:  4 kB" describes the last one.
std::vector<MappedRange> parse(const std::string& text) {
  std::vector<MappedRange> ranges;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(at, end - at);
    at = end + 1;
    uint64_t begin_address = 0, end_address = 0, offset = 0, inode = 0, kib = 0;
    unsigned int major_number = 0, minor_number = 0;
    char access[8] = {};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64, &begin_address,
                    &end_address, access, &offset, &major_number, &minor_number, &inode) == 7) {
      ranges.push_back({.begin = begin_address,
                        .end = end_address,
                        .device = ::makedev(major_number, minor_number),
                        .inode = inode});
    } else if (!ranges.empty() && std::sscanf(line.c_str(), "Rss: %" SCNu64, &kib) == 1) {
      ranges.back().rss_bytes = kib * 1024;
    } else if (!ranges.empty() && std::sscanf(line.c_str(), "Anonymous: %" SCNu64, &kib) == 1) {
      ranges.back().anonymous_bytes = kib * 1024;
    }
  }
  return ranges;
}

pid_t parent_of(pid_t pid) {
  std::string text = read_whole(pid, "stat");
  size_t name_end = text.rfind(')');  // the name may hold spaces and parentheses
  int parent = 0;
  char state = 0;
  if (name_end == std::string::npos || std::sscanf(text.c_str() + name_end + 1, " %c %d", &state, &parent) != 2)
    return 0;
  return parent;
}

}  // namespace

std::vector<MappedRange> read_maps(pid_t pid) {
  return parse(read_whole(pid, "maps"));
}

std::vector<MappedRange> read_smaps(pid_t pid) {
  return parse(read_whole(pid, "smaps"));
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> processes;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return processes;
  while (const dirent* entry = ::readdir(folder)) {
    char* rest = nullptr;
    long pid = std::strtol(entry->d_name, &rest, 10);
    if (pid > 0 && *rest == 0) processes.push_back(static_cast<pid_t>(pid));
  }
  ::closedir(folder);
  return processes;
}

std::vector<pid_t> descendants(pid_t root) {
  std::unordered_map<pid_t, std::vector<pid_t>> children;
  for (pid_t pid : all_processes()) children[parent_of(pid)].push_back(pid);
  std::vector<pid_t> found = children[root];
  for (size_t i = 0; i < found.size(); ++i) {
    const std::vector<pid_t> next = children[found[i]];
    found.insert(found.end(), next.begin(), next.end());
  }
  return found;
}

std::string process_name(pid_t pid) {
  std::string name = read_whole(pid, "comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name.empty() ? "?" : name;
}

}  // namespace terrace::supply
