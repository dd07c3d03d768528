#include "core/os/numa.h"

#include <numa.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

namespace terrace::os {
namespace {

struct BitmaskDeleter {
  void operator()(bitmask* mask) const { numa_free_cpumask(mask); }
};

uint64_t pages_as_bytes(int pages_name) {
  const long pages = ::sysconf(pages_name);
  const long page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : 0;
}

NumaTopology whole_machine() {
  NumaNode node;
  node.total_bytes = pages_as_bytes(_SC_PHYS_PAGES);
  node.free_bytes = pages_as_bytes(_SC_AVPHYS_PAGES);
  const long processors = ::sysconf(_SC_NPROCESSORS_ONLN);
  for (int processor = 0; processor < processors; ++processor) node.processors.push_back(processor);
  node.distances = {10};
  return {.supported = false, .nodes = {node}};
}

}  // namespace

const NumaNode* NumaTopology::find(int number) const {
  const auto found = std::find_if(nodes.begin(), nodes.end(),
                                  [number](const NumaNode& node) { return node.number == number; });
  return found == nodes.end() ? nullptr : &*found;
}

NumaTopology read_numa_topology() {
  if (numa_available() < 0) return whole_machine();
  NumaTopology topology{.supported = true, .nodes = {}};
  const std::unique_ptr<bitmask, BitmaskDeleter> processors(numa_allocate_cpumask());
  for (int number = 0; number <= numa_max_node(); ++number) {
    if (numa_bitmask_isbitset(numa_nodes_ptr, static_cast<unsigned>(number)) == 0) continue;
    NumaNode node;
    node.number = number;
    long long free_bytes = 0;
    const long long total_bytes = numa_node_size64(number, &free_bytes);
    node.total_bytes = total_bytes > 0 ? static_cast<uint64_t>(total_bytes) : 0;
    node.free_bytes = free_bytes > 0 ? static_cast<uint64_t>(free_bytes) : 0;
    if (numa_node_to_cpus(number, processors.get()) == 0) {
      for (unsigned bit = 0; bit < processors->size; ++bit) {
        if (numa_bitmask_isbitset(processors.get(), bit) != 0) node.processors.push_back(static_cast<int>(bit));
      }
    }
    topology.nodes.push_back(std::move(node));
  }
  if (topology.nodes.empty()) return whole_machine();
  for (NumaNode& node : topology.nodes) {
    for (const NumaNode& other : topology.nodes)
      node.distances.push_back(numa_distance(node.number, other.number));
  }
  return topology;
}

}  // namespace terrace::os
