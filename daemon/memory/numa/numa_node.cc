// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/numa/numa_node.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/base/units.h"
#include "core/os/page_nodes.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t margin_part = 128;
constexpr uint64_t margin_bytes_min = 32 * mib;

// Of the margin: how much holders can grow their files by, and how much stays free in any case.
constexpr uint64_t slack_part = 4;
constexpr uint64_t kept_free_part = 4;

// Looking at a page of a huge page that nobody used yet has the kernel clear all of it: 256 MiB at most.
constexpr uint64_t pages_checked_max = 128;

ObjectDirectoryOptions directory_options(const NumaNodeOptions& options) {
  ObjectDirectoryOptions wanted;
  wanted.runtime_directory = options.runtime_directory;
  wanted.name = numa_directory_name(options.node);
  wanted.bytes = numa_capacity(options.total_bytes);
  wanted.slack_bytes = numa_margin(options.total_bytes) / slack_part;
  wanted.node = options.node;
  wanted.mount = options.mount;
  wanted.huge_pages = options.huge_pages;
  return wanted;
}

}  // namespace

uint64_t numa_margin(uint64_t total_bytes) {
  return std::max(total_bytes / margin_part, margin_bytes_min);
}

uint64_t numa_capacity(uint64_t total_bytes) {
  const uint64_t margin = numa_margin(total_bytes);
  if (total_bytes <= margin) return 0;
  return (total_bytes - margin) / limits::granule_bytes * limits::granule_bytes;
}

std::string numa_directory_name(int node) {
  return "node" + std::to_string(node);
}

std::vector<std::string> find_numa_directories(const std::string& runtime_directory) {
  const std::string beside = shared_memory_directory(runtime_directory, numa_directory_name(0));
  const std::string shared = beside.substr(0, beside.size() - 1);  // without the number
  std::vector<std::string> found;
  for (const std::string& prefix : {runtime_directory + "/node", shared}) {
    std::error_code failed;
    const std::filesystem::path folder = std::filesystem::path(prefix).parent_path();
    for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
         at.increment(failed)) {
      const std::string path = at->path().string();
      if (path.size() > prefix.size() && path.starts_with(prefix) &&
          path.find_first_not_of("0123456789", prefix.size()) == std::string::npos)
        found.push_back(path);
    }
  }
  return found;
}

Result<std::shared_ptr<NumaNode>> NumaNode::open(const NumaNodeOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(ObjectDirectory directory, ObjectDirectory::prepare(directory_options(options)));
  std::shared_ptr<NumaNode> opened(new NumaNode(options));
  opened->path_ = directory.path();
  opened->files_ = std::make_unique<EmulatedBackend>(std::move(directory),
                                                     EmulatedOptions{.devices = {}, .source = opened.get()});
  return opened;
}

Status NumaNode::grow(uint64_t total_bytes) {
  if (total_bytes <= this->total_bytes()) return {};
  NumaNodeOptions wanted = options_;
  wanted.total_bytes = total_bytes;
  TERRACE_RETURN_IF_ERROR(files_->enlarge_directory(directory_options(wanted)));
  total_bytes_.store(total_bytes, std::memory_order_relaxed);
  return {};
}

os::MemorySpeed NumaNode::measure() {
  constexpr uint64_t bytes = os::measured_bytes;
  files_->allow_beside(bytes);
  const os::MemorySpeed speed = measure_file(bytes);
  files_->allow_beside(0);
  return speed;
}

os::MemorySpeed NumaNode::measure_file(uint64_t bytes) {
  const UniqueFd file(::open(path_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return {};
  if (!room(bytes).ok() || !bind(file.get(), 0, bytes).ok()) return {};
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0) return {};
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return {};
  const os::MemorySpeed speed = os::measure_memory({static_cast<std::byte*>(at), bytes});
  ::munmap(at, bytes);
  return speed;
}

Status NumaNode::bind(int fd, uint64_t offset, uint64_t bytes) {
  return os::bind_file(fd, {offset, bytes}, options_.node);
}

Status NumaNode::room(uint64_t bytes) {
  const os::NodeAttributes now = os::node_attributes(options_.node, options_.root);
  const uint64_t kept_free = numa_margin(total_bytes()) / kept_free_part;
  if (now.available_bytes >= bytes + kept_free) return {};
  return Error{.code = ErrorCode::capacity_exhausted,
               .where = "NumaNode::room",
               .detail = "node " + std::to_string(options_.node) + " has " + format_size(now.available_bytes) +
                         " free, of which " + format_size(kept_free) +
                         " are kept for the kernel, and this lease still needs " + format_size(bytes) +
                         "; processes that are no tenants use the node, too: 'numastat -p' shows which"};
}

Status NumaNode::verify(int fd, uint64_t offset, uint64_t bytes) {
  TERRACE_ASSIGN_OR_RETURN(const os::PageNodes found,
                           os::nodes_of_file(fd, {offset, bytes}, pages_checked_max));
  if (found.elsewhere(options_.node) == 0) return {};
  return Error{.code = ErrorCode::io_error,
               .where = "NumaNode::verify",
               .detail = "the kernel put its pages elsewhere than on node " + std::to_string(options_.node) +
                         ": of those looked at " + found.words()};
}

}  // namespace terrace::daemon
