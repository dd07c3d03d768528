#include "daemon/backend/numa_node.h"

#include <algorithm>

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

Result<std::shared_ptr<NumaNode>> NumaNode::open(const NumaNodeOptions& options) {
  ObjectDirectoryOptions wanted;
  wanted.runtime_directory = options.runtime_directory;
  wanted.name = numa_directory_name(options.node);
  wanted.bytes = numa_capacity(options.total_bytes);
  wanted.slack_bytes = numa_margin(options.total_bytes) / slack_part;
  wanted.node = options.node;
  wanted.mount = options.mount;
  wanted.huge_pages = options.huge_pages;
  TERRACE_ASSIGN_OR_RETURN(ObjectDirectory directory, ObjectDirectory::prepare(wanted));
  std::shared_ptr<NumaNode> opened(new NumaNode(options));
  opened->path_ = directory.path();
  opened->files_ = std::make_unique<EmulatedBackend>(std::move(directory),
                                                     EmulatedOptions{.devices = {}, .source = opened.get()});
  return opened;
}

Status NumaNode::bind(int fd, uint64_t offset, uint64_t bytes) {
  return os::bind_file(fd, {offset, bytes}, options_.node);
}

Status NumaNode::room(uint64_t bytes) {
  const os::NodeAttributes now = os::node_attributes(options_.node, options_.root);
  const uint64_t kept_free = numa_margin(options_.total_bytes) / kept_free_part;
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
