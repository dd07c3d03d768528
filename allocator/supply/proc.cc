// SPDX-License-Identifier: Apache-2.0
#include "allocator/supply/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "core/base/unique_fd.h"

namespace terrace::supply {
namespace {

std::string read_file(const char* path) {
  UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd.valid()) return text;
  char buffer[64 * 1024];
  for (ssize_t got; (got = ::read(fd.get(), buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  return text;
}

std::string read_whole(pid_t pid, const char* file) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/%s", static_cast<int>(pid), file);
  return read_file(path);
}

std::vector<pid_t> numbers_in(const char* folder_path) {
  std::vector<pid_t> numbers;
  DIR* folder = ::opendir(folder_path);
  if (folder == nullptr) return numbers;
  while (const dirent* entry = ::readdir(folder)) {
    char* rest = nullptr;
    long number = std::strtol(entry->d_name, &rest, 10);
    if (number > 0 && *rest == 0) numbers.push_back(static_cast<pid_t>(number));
  }
  ::closedir(folder);
  return numbers;
}

// The first thread's file is empty once that thread has ended, the others' are not.
std::string read_of_any_thread(pid_t pid, const char* file) {
  std::string text = read_whole(pid, file);
  if (!text.empty()) return text;
  char path[80];
  std::snprintf(path, sizeof(path), "/proc/%d/task", static_cast<int>(pid));
  for (pid_t thread : numbers_in(path)) {
    if (thread == pid) continue;
    std::snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", static_cast<int>(pid), static_cast<int>(thread),
                  file);
    text = read_file(path);
    if (!text.empty()) break;
  }
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
  return parse(read_of_any_thread(pid, "maps"));
}

uint64_t anonymous_bytes(pid_t pid) {
  const std::string text = read_of_any_thread(pid, "smaps_rollup");
  const size_t at = text.find("\nAnonymous:");
  uint64_t kib = 0;
  if (at == std::string::npos || std::sscanf(text.c_str() + at, " Anonymous: %" SCNu64, &kib) != 1) return 0;
  return kib * 1024;
}

std::vector<MappedRange> read_smaps(pid_t pid) {
  return parse(read_of_any_thread(pid, "smaps"));
}

bool has_ended(pid_t pid) {
  if (pid <= 0) return true;  // no process: the number comes from a page that the program can write
  if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
  std::string text = read_whole(pid, "stat");
  size_t name_end = text.rfind(')');
  char state = 0;
  long threads = 0;
  // state, then 16 numbers between it and the number of threads
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1,
                  " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld", &state,
                  &threads) != 2)
    return false;  // unreadable: it is there, as far as kill can tell
  return state == 'X' || (state == 'Z' && threads <= 1);
}

std::vector<pid_t> all_processes() {
  return numbers_in("/proc");
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

uint64_t seccomp_filters() {
  std::string text = read_whole(::getpid(), "status");
  for (const char* field : {"\nSeccomp_filters:", "\nSeccomp:"})
    if (size_t at = text.find(field); at != std::string::npos)
      return std::strtoull(text.c_str() + at + std::strlen(field), nullptr, 10);
  return 0;
}

std::string process_name(pid_t pid) {
  std::string name = read_whole(pid, "comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  for (char& byte : name)
    if (static_cast<unsigned char>(byte) < 0x20 || static_cast<unsigned char>(byte) > 0x7e) byte = '?';
  return name.empty() ? "?" : name;
}

}  // namespace terrace::supply
