// The memory nodes of this machine, as libnuma shows them. CXL memory that the kernel took as system RAM
// appears as a node without processors.
//
// Place     core/os, the only user of libnuma.
// Threads   Any. Sizes are read afresh; which nodes there are, and how far apart, is what libnuma saw first in
//           this process: for memory that comes and goes there is node_attributes.h.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::os {

struct NumaNode {
  int number = 0;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  std::vector<int> processors;  // empty: memory only
  std::vector<int> distances;   // to each node of NumaTopology::nodes, in their order; 10 is local
  bool memory_only() const { return processors.empty(); }
};

struct NumaTopology {
  // False on a kernel without NUMA support: then one node describes the whole machine.
  bool supported = false;
  std::vector<NumaNode> nodes;  // ascending numbers

  const NumaNode* find(int number) const;
};

NumaTopology read_numa_topology();

}  // namespace terrace::os
