// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/pmem/pmem_users.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "daemon/memory/proc_files.h"

namespace terrace::daemon {
namespace {

Result<std::string> process_using(const std::string& device, const std::string& root) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceUser> users, find_device_users({device}, root));
  if (users.empty()) return std::string();
  const DeviceUser& first = users.front();
  return "process " + std::to_string(first.pid) + (first.command.empty() ? "" : " (" + first.command + ")");
}

// The fifth word of a line of mountinfo is where, the second after " - " is what.
Result<std::string> mount_of(const std::string& block, const std::string& root) {
  TERRACE_ASSIGN_OR_RETURN(const std::string text, read_content(root + "/proc/self/mountinfo"));
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
  TERRACE_ASSIGN_OR_RETURN(const auto above, read_names(root + "/sys/class/block/" + name + "/holders"));
  if (!above.empty()) return "used by " + above.front();
  return process_using(one.block, root);
}

Result<std::string> dax_users(uint64_t start, uint64_t bytes, const std::string& root) {
  const std::string devices = root + "/sys/bus/dax/devices";
  TERRACE_ASSIGN_OR_RETURN(std::vector<std::string> names, read_names(devices));
  std::sort(names.begin(), names.end());
  std::string users;
  for (const std::string& name : names) {
    const std::string folder = devices + "/" + name;
    TERRACE_ASSIGN_OR_RETURN(const std::string resource, read_attribute_line(folder + "/resource"));
    const uint64_t address = std::strtoull(resource.c_str(), nullptr, 0);
    if (resource.empty() || address < start || address - start >= bytes) continue;
    std::string user;
    if (link_name(folder + "/driver") == "kmem") {
      TERRACE_ASSIGN_OR_RETURN(const std::string node, read_attribute_line(folder + "/target_node"));
      user = "the kernel, as memory of node " + node;
    } else {
      TERRACE_ASSIGN_OR_RETURN(user, process_using("/dev/" + name, root));
    }
    if (!user.empty()) users += (users.empty() ? "" : ", ") + name + ": " + user;
  }
  return users;
}

}  // namespace terrace::daemon
