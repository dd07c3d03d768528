// SPDX-License-Identifier: Apache-2.0
// The objects of one memory node: files of a private tmpfs whose memory comes from that node only, and the
// check that it does. EmulatedBackend keeps the files; this decides where their pages come from.
//
//   root      the tmpfs is mounted with mpol=bind:<node>, so that the policy holds for every page of every
//             file, whoever touches it first
//   others    each file is bound (mbind) before it gets memory
//
// Both are checked: after memory was reserved, and before anyone gets the object, the kernel is asked on which
// node its pages lie (move_pages). Of large objects a sample: a policy that does not hold shows in the first
// page as well as in the last.
//
// A node that is full is not like a full tmpfs. The kernel would rather kill processes, of whichever owner,
// than refuse memory that is bound to a node. So the node's free memory is looked at before each piece that is
// reserved, and part of it is never given to leases (numa_margin).
//
// Beside the list in emulated.h a holder can do this to its own lease: move its pages to another node, or bind
// the file elsewhere. It takes memory from the machine then, as any process may, and none from other leases.
//
// Threads   As EmulatedBackend's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/os/measure_memory.h"
#include "core/os/node_attributes.h"
#include "daemon/memory/files/emulated.h"

namespace terrace::daemon {

// What of a node's memory leases never get: the kernel's own pages and lists, its low watermark, and what a
// holder can grow its file by. One 128th, at least 32 MiB.
uint64_t numa_margin(uint64_t total_bytes);

// What a node with so much memory gives to leases; whole granules.
uint64_t numa_capacity(uint64_t total_bytes);

struct NumaNodeOptions {
  int node = -1;
  uint64_t total_bytes = 0;
  std::string runtime_directory;
  bool mount = true;
  HugePages huge_pages = HugePages::always;
  std::string root = {};  // before /sys; tests make a machine up
};

class NumaNode final : private MemorySource {
 public:
  // Errors    as ObjectDirectory::prepare
  static Result<std::shared_ptr<NumaNode>> open(const NumaNodeOptions& options);

  int node() const { return options_.node; }
  EmulatedBackend& files() { return *files_; }
  const std::string& path() const { return path_; }

  // The node has more memory than it had: leases get of that, too.
  Status grow(uint64_t total_bytes);

  // How fast the node's memory is, through a file of its own that has no name; nothing (0) where there is no
  // room for one. Takes half a second at most.
  os::MemorySpeed measure();

 private:
  explicit NumaNode(const NumaNodeOptions& options) : options_(options), total_bytes_(options.total_bytes) {}
  os::MemorySpeed measure_file(uint64_t bytes);
  Status bind(int fd, uint64_t offset, uint64_t bytes) override;
  Status room(uint64_t bytes) override;
  Status verify(int fd, uint64_t offset, uint64_t bytes) override;

  uint64_t total_bytes() const { return total_bytes_.load(std::memory_order_relaxed); }

  const NumaNodeOptions options_;
  std::atomic<uint64_t> total_bytes_;  // grows; a number of its own, that orders nothing
  std::string path_;
  std::unique_ptr<EmulatedBackend> files_;
};

// The directory's name below the runtime directory: "node1".
std::string numa_directory_name(int node);

// Directories of nodes that a daemon with this runtime directory has, or had and left objects in.
std::vector<std::string> find_numa_directories(const std::string& runtime_directory);

}  // namespace terrace::daemon
