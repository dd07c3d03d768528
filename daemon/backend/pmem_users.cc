#include "daemon/backend/pmem_users.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace terrace::daemon {
namespace {

// The entries of a directory but "." and ".."; none where it cannot be read.
std::vector<std::string> entries(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return names;
  while (const dirent* entry = ::readdir(directory))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  ::closedir(directory);
  return names;
}

bool has_mapped(const std::string& process, const std::string& device) {
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t at = line.find('/');
    if (at != std::string::npos && line.compare(at, device.size(), device) == 0 &&
        (line.size() == at + device.size() || line[at + device.size()] == ' '))
      return true;
  }
  return false;
}

bool has_open(const std::string& process, const std::string& device) {
  for (const std::string& fd : entries(process + "/fd")) {
    char target[256];
    const ssize_t length = ::readlink((process + "/fd/" + fd).c_str(), target, sizeof target);
    if (length > 0 && std::string_view(target, static_cast<size_t>(length)) == device) return true;
  }
  return false;
}

std::string process_using(const std::string& device, const std::string& root) {
  const std::string own = std::to_string(::getpid());
  for (const std::string& pid : entries(root + "/proc")) {
    if (pid.find_first_not_of("0123456789") != std::string::npos || (root.empty() && pid == own)) continue;
    const std::string process = root + "/proc/" + pid;
    if (!has_mapped(process, device) && !has_open(process, device)) continue;
    std::ifstream comm(process + "/comm");
    std::string name;
    std::getline(comm, name);
    return "process " + pid + (name.empty() ? "" : " (" + name + ")");
  }
  return {};
}

// The fifth word of a line of mountinfo is where, the second after " - " is what.
std::string mount_of(const std::string& block, const std::string& root) {
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream head(line.substr(0, dash)), tail(line.substr(dash + 3));
    std::string word, where, type, source;
    for (int i = 0; i < 5; ++i) head >> (i == 4 ? where : word);
    tail >> type >> source;
    if (source == block) return "mounted at " + where;
  }
  return {};
}

}  // namespace

std::string pmem_users(const PmemNamespace& one, const std::string& root) {
  if (!one.device.empty()) return process_using(one.device, root);
  if (one.block.empty()) return {};
  if (const std::string mount = mount_of(one.block, root); !mount.empty()) return mount;
  const std::string name = one.block.substr(one.block.rfind('/') + 1);
  if (const auto above = entries(root + "/sys/class/block/" + name + "/holders"); !above.empty())
    return "used by " + above.front();
  return process_using(one.block, root);
}

}  // namespace terrace::daemon
