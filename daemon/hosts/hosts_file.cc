// SPDX-License-Identifier: Apache-2.0
#include "daemon/hosts/hosts_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "core/base/host_names.h"
#include "core/base/unique_fd.h"
#include "daemon/hosts/agent_wire.h"

namespace terrace::daemon {

// A line that is no host's name (the end of one that an earlier version was writing) is nobody's: that host had no
// orders yet.
HostsFile::HostsFile(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    if (valid_agent_name(line) && known_.size() < agents_max) known_.insert(line);
    if (line.starts_with('!') && valid_agent_name(line.substr(1))) removed_.insert(line.substr(1));
  }
}

Status HostsFile::remember(const std::string& name) {
  if (known_.contains(name)) return {};
  auto known = known_;
  known.insert(name);
  return change(std::move(known), removed_);
}

Status HostsFile::forget(const std::string& name) {
  if (!known_.contains(name)) return {};
  auto known = known_;
  known.erase(name);
  return change(std::move(known), removed_);
}

Status HostsFile::remove(const std::string& name) {
  if (removed_.contains(name)) return {};
  auto removed = removed_;
  removed.insert(name);
  return change(known_, std::move(removed));
}

Status HostsFile::allow(const std::string& name) {
  if (!removed_.contains(name)) return {};
  auto removed = removed_;
  removed.erase(name);
  return change(known_, std::move(removed));
}

Status HostsFile::change(std::set<std::string> known, std::set<std::string> removed) {
  if (!path_.empty()) {
    const std::string fresh = path_ + ".new", directory = path_.substr(0, path_.rfind('/') + 1);
    std::string content;
    for (const std::string& name : known) content += name + "\n";
    for (const std::string& name : removed) content += "!" + name + "\n";
    const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const UniqueFd folder(
        ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!file.valid() || !folder.valid() ||
        ::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
        ::fsync(file.get()) != 0 || ::rename(fresh.c_str(), path_.c_str()) != 0 || ::fsync(folder.get()) != 0)
      return os_error(errno, "HostsFile", "cannot write the names of hosts to " + path_);
  }
  known_ = std::move(known);
  removed_ = std::move(removed);
  return {};
}

}  // namespace terrace::daemon
