// SPDX-License-Identifier: Apache-2.0
// The kernel's figures of one memory node: the HMAT's as seen from the nearest CPUs, the SLIT's distance,
// its CPUs and the size of its memory. Read from sysfs, so that a test can make a machine up. libnuma does
// not fit: it settles the nodes when it is loaded and keeps the distances that it read first, but CXL memory
// can come online while the manager runs.
//
// Place     core/os; for daemon/inventory and the backends, which describe a lease's tier by it.
// Threads   Any; each call reads afresh, since memory can be hot-plugged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::os {

struct NodeAttributes {
  bool exists = false;  // online with CPUs or memory; a dax device's node is not before its memory is
  bool has_cpus = false;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t available_bytes = 0;  // free, or clean page cache, which the kernel drops for whoever asks
  // By the HMAT; both 0 where the firmware has none, or a hypervisor hides it.
  uint32_t latency_ns = 0;  // of a read
  uint64_t bandwidth_bytes_per_s = 0;
  // Of the node from the nearest one with CPUs, as in the SLIT (10: local); 0: no such node. A kernel without
  // a SLIT makes it up: 10 and 20.
  uint32_t distance = 0;
  int nearest_cpu_node = -1;

  bool hmat() const { return latency_ns != 0 || bandwidth_bytes_per_s != 0; }
  bool operator==(const NodeAttributes&) const = default;
};

// `root` is put before /sys; "" is this machine.
NodeAttributes node_attributes(int node, const std::string& root = "");

// The online nodes, ascending.
std::vector<int> online_nodes(const std::string& root = "");

}  // namespace terrace::os
