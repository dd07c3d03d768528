// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/proc_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>
#include <string_view>

#include "core/base/unique_fd.h"

namespace terrace::daemon {
namespace {

Error cannot_read(int code, const std::string& path) {
  return os_error(code, "proc_files", path + " cannot be read");
}

void add_mapped(const std::string& maps, const std::vector<std::string>& devices, std::set<std::string>& held) {
  for (size_t at = 0; at < maps.size();) {
    const size_t end = std::min(maps.find('\n', at), maps.size());
    const std::string_view line(maps.data() + at, end - at);
    at = end + 1;
    const size_t slash = line.find(" /dev/") + 1;  // few lines have one
    if (slash == 0) continue;
    const std::string_view name = line.substr(slash);  // with " (deleted)" it was another of that name
    for (const std::string& device : devices)
      if (name == device) held.insert(device);
  }
}

Status add_open(const std::string& process, const std::vector<std::string>& devices,
                std::set<std::string>& held) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> fds, read_names(process + "/fd"));
  for (const std::string& fd : fds) {
    char target[256];
    const ssize_t length = ::readlink((process + "/fd/" + fd).c_str(), target, sizeof target);
    if (length <= 0) continue;  // closed meanwhile
    const std::string_view name(target, static_cast<size_t>(length));
    for (const std::string& device : devices)
      if (name == device) held.insert(device);
  }
  return {};
}

}  // namespace

bool gone_or_hidden(int code) {
  return code == ENOENT || code == ESRCH || code == ENODEV || code == ENXIO || code == EACCES ||
         code == EPERM || code == ENOTDIR;
}

Result<std::vector<std::string>> read_names(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) {
    if (gone_or_hidden(errno)) return names;
    return cannot_read(errno, path);
  }
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    errno = 0;
  }
  const int code = errno;
  ::closedir(directory);
  if (code != 0 && !gone_or_hidden(code)) return cannot_read(code, path);
  return names;
}

Result<std::string> read_content(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[16384];
  ssize_t got = fd.valid() ? 1 : -1;
  while (got > 0) {
    got = ::read(fd.get(), buffer, sizeof buffer);
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    if (got < 0 && errno == EINTR) got = 1;
  }
  if (got < 0 && !gone_or_hidden(errno)) return cannot_read(errno, path);
  return text;
}

Result<std::string> read_attribute_line(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(const std::string text, read_content(path));
  return text.substr(0, text.find('\n'));
}

Result<std::vector<DeviceUser>> find_device_users(const std::vector<std::string>& devices,
                                                  const std::string& root) {
  std::vector<DeviceUser> users;
  if (devices.empty()) return users;
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> entries, read_names(root + "/proc"));
  for (const std::string& entry : entries) {
    pid_t pid = 0;
    const auto [rest, error] = std::from_chars(entry.data(), entry.data() + entry.size(), pid);
    if (error != std::errc{} || rest != entry.data() + entry.size()) continue;
    if (root.empty() && pid == ::getpid()) continue;
    const std::string process = root + "/proc/" + entry;
    std::set<std::string> held;
    TERRACE_ASSIGN_OR_RETURN(const std::string maps, read_content(process + "/maps"));
    add_mapped(maps, devices, held);
    TERRACE_RETURN_IF_ERROR(add_open(process, devices, held));
    if (held.empty()) continue;
    TERRACE_ASSIGN_OR_RETURN(std::string command, read_attribute_line(process + "/comm"));
    for (char& c : command)
      if (c < ' ' || c > '~') c = '?';  // another user chose it
    for (const std::string& device : held) users.push_back({pid, command, device});
  }
  return users;
}

}  // namespace terrace::daemon
