// The NUMA seam against whatever machine the test runs on: its answers must agree with each other.
#include "core/os/numa.h"

#include <doctest/doctest.h>

#include <set>

#include "core/base/units.h"

TEST_CASE("numa: the topology is complete and consistent on any machine") {
  const terrace::os::NumaTopology topology = terrace::os::read_numa_topology();
  REQUIRE_FALSE(topology.nodes.empty());
  if (!topology.supported) MESSAGE("this kernel has no NUMA support: one node stands for the machine");
  std::set<int> processors;
  int previous = -1;
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    const terrace::os::NumaNode& node = topology.nodes[i];
    CHECK(node.number > previous);
    previous = node.number;
    total_bytes += node.total_bytes;
    CHECK(node.free_bytes <= node.total_bytes);
    REQUIRE(node.distances.size() == topology.nodes.size());
    CHECK(node.distances[i] == 10);
    for (const int processor : node.processors) CHECK(processors.insert(processor).second);
    CHECK(topology.find(node.number) == &node);
  }
  CHECK_FALSE(processors.empty());
  CHECK(total_bytes > 64 * terrace::mib);
  CHECK(topology.find(-1) == nullptr);
}
