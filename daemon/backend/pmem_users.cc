#include "daemon/backend/pmem_users.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "core/base/unique_fd.h"

namespace terrace::daemon {
namespace {

// Processes end and devices go while they are looked at, and some are not ours to see.
bool gone_or_hidden(int code) {
  return code == ENOENT || code == ESRCH || code == ENODEV || code == ENXIO || code == EACCES ||
         code == EPERM || code == ENOTDIR;
}

Error cannot_see(int code, const std::string& path) {
  return os_error(code, "users", "who uses a device cannot be told: " + path + " cannot be read");
}

// The entries of a directory but "." and "..".
Result<std::vector<std::string>> entries(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) {
    if (gone_or_hidden(errno)) return names;
    return cannot_see(errno, path);
  }
  for (errno = 0; const dirent* entry = ::readdir(directory); errno = 0)
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  const int code = errno;
  ::closedir(directory);
  if (code != 0 && !gone_or_hidden(code)) return cannot_see(code, path);
  return names;
}

// All of a file; empty where it is gone or hidden.
Result<std::string> content(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t got = fd.valid() ? 1 : -1;
  while (got > 0) {
    got = ::read(fd.get(), buffer, sizeof buffer);
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    if (got < 0 && errno == EINTR) got = 1;
  }
  if (got < 0 && !gone_or_hidden(errno)) return cannot_see(errno, path);
  return text;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

bool maps_name(const std::string& maps, const std::string& device) {
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find('/');
    if (at != std::string::npos && line.compare(at, device.size(), device) == 0 &&
        (line.size() == at + device.size() || line[at + device.size()] == ' '))
      return true;
  }
  return false;
}

Result<bool> has_open(const std::string& process, const std::string& device) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> fds, entries(process + "/fd"));
  for (const std::string& fd : fds) {
    char target[256];
    const ssize_t length = ::readlink((process + "/fd/" + fd).c_str(), target, sizeof target);
    if (length > 0 && std::string_view(target, static_cast<size_t>(length)) == device) return true;
  }
  return false;
}

Result<std::string> process_using(const std::string& device, const std::string& root) {
  const std::string own = std::to_string(::getpid());
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> pids, entries(root + "/proc"));
  for (const std::string& pid : pids) {
    if (pid.find_first_not_of("0123456789") != std::string::npos || (root.empty() && pid == own)) continue;
    const std::string process = root + "/proc/" + pid;
    TERRACE_ASSIGN_OR_RETURN(const std::string maps, content(process + "/maps"));
    bool used = maps_name(maps, device);
    if (!used) {
      TERRACE_ASSIGN_OR_RETURN(used, has_open(process, device));
    }
    if (!used) continue;
    TERRACE_ASSIGN_OR_RETURN(std::string name, content(process + "/comm"));
    name = first_line(name);
    for (char& c : name)
      if (c < ' ' || c > '~') c = '?';  // another user chose it
    return "process " + pid + (name.empty() ? "" : " (" + name + ")");
  }
  return std::string();
}

// The fifth word of a line of mountinfo is where, the second after " - " is what.
Result<std::string> mount_of(const std::string& block, const std::string& root) {
  TERRACE_ASSIGN_OR_RETURN(const std::string text, content(root + "/proc/self/mountinfo"));
  std::istringstream mounts(text);
  for (std::string line; std::getline(mounts, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream head(line.substr(0, dash)), tail(line.substr(dash + 3));
    std::string word, where, type, source;
    for (int i = 0; i < 5; ++i) head >> (i == 4 ? where : word);
    tail >> type >> source;
    if (source == block) return "mounted at " + where;
  }
  return std::string();
}

// The last part of where a link leads; empty: no such link.
std::string link_name(const std::string& path) {
  char target[512];
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  const std::string text(target, length > 0 ? static_cast<size_t>(length) : 0);
  return text.substr(text.rfind('/') + 1);
}

}  // namespace

Result<std::string> pmem_users(const PmemNamespace& one, const std::string& root) {
  if (!one.device.empty()) return process_using(one.device, root);
  if (one.block.empty()) return std::string();
  TERRACE_ASSIGN_OR_RETURN(const std::string mount, mount_of(one.block, root));
  if (!mount.empty()) return mount;
  const std::string name = one.block.substr(one.block.rfind('/') + 1);
  TERRACE_ASSIGN_OR_RETURN(const auto above, entries(root + "/sys/class/block/" + name + "/holders"));
  if (!above.empty()) return "used by " + above.front();
  return process_using(one.block, root);
}

Result<std::string> dax_users(uint64_t start, uint64_t bytes, const std::string& root) {
  const std::string devices = root + "/sys/bus/dax/devices";
  TERRACE_ASSIGN_OR_RETURN(std::vector<std::string> names, entries(devices));
  std::sort(names.begin(), names.end());
  std::string users;
  for (const std::string& name : names) {
    const std::string folder = devices + "/" + name;
    TERRACE_ASSIGN_OR_RETURN(const std::string resource, content(folder + "/resource"));
    const uint64_t address = std::strtoull(resource.c_str(), nullptr, 0);
    if (resource.empty() || address < start || address - start >= bytes) continue;
    std::string user;
    if (link_name(folder + "/driver") == "kmem") {
      TERRACE_ASSIGN_OR_RETURN(const std::string node, content(folder + "/target_node"));
      user = "the kernel, as memory of node " + first_line(node);
    } else {
      TERRACE_ASSIGN_OR_RETURN(user, process_using("/dev/" + name, root));
    }
    if (!user.empty()) users += (users.empty() ? "" : ", ") + name + ": " + user;
  }
  return users;
}

}  // namespace terrace::daemon
