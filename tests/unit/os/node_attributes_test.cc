// SPDX-License-Identifier: Apache-2.0
// Node attributes: made-up sysfs trees in the kernel's own format, and this machine.
#include "core/os/node_attributes.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/base/units.h"
#include "tests/support/skip.h"

using namespace terrace;
using namespace terrace::os;
namespace fs = std::filesystem;

namespace {

class MadeUpNodes {
 public:
  MadeUpNodes() {
    char path[] = "/tmp/terrace-nodes-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    path_ = path;
  }
  ~MadeUpNodes() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    const std::string file = path_ + "/sys/devices/system/node/" + name;
    fs::create_directories(fs::path(file).parent_path());
    std::ofstream(file) << text;
  }
  void node(int number, const std::string& cpus, const std::string& distance, uint64_t kilobytes) const {
    const std::string directory = "node" + std::to_string(number);
    const std::string line = "Node " + std::to_string(number) + " ";
    write(directory + "/cpulist", cpus + "\n");
    write(directory + "/distance", distance + "\n");
    write(directory + "/meminfo", line + "MemTotal:       " + std::to_string(kilobytes) + " kB\n" + line +
                                      "MemFree:        " + std::to_string(kilobytes / 2) + " kB\n" + line +
                                      "Dirty: 8 kB\n" + line + "Active(file):        30 kB\n" + line +
                                      "Inactive(file):      2 kB\n");
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("node_attributes: this machine's first node has memory and is local to itself") {
  const std::vector<int> nodes = online_nodes();
  if (nodes.empty()) {
    TERRACE_SKIP(memory_policy, "a kernel without NUMA");
    return;
  }
  const NodeAttributes first = node_attributes(nodes.front());
  CHECK(first.exists);
  CHECK(first.total_bytes > 0);
  if (first.has_cpus) CHECK(first.distance == 10);
}

TEST_CASE("node_attributes: the figures of the HMAT are those seen from the nearest CPUs") {
  const MadeUpNodes machine;
  machine.write("online", "0-1\n");
  machine.node(0, "0-1", "10 20", 2048);
  machine.node(1, "", "20 10", 1048576);
  machine.write("node1/access0/initiators/read_latency", "90\n");  // a GPU beside the memory
  machine.write("node1/access0/initiators/read_bandwidth", "100000\n");
  machine.write("node1/access1/initiators/read_latency", "300\n");
  machine.write("node1/access1/initiators/read_bandwidth", "8192\n");
  const NodeAttributes node = node_attributes(1, machine.path());
  CHECK(node == NodeAttributes{.exists = true,
                               .has_cpus = false,
                               .total_bytes = gib,
                               .free_bytes = gib / 2,
                               .available_bytes = gib / 2 + 24 * kib,
                               .latency_ns = 300,
                               .bandwidth_bytes_per_s = 8 * gib,
                               .distance = 20,
                               .nearest_cpu_node = 0});
  CHECK(node.hmat());
  CHECK(!node_attributes(0, machine.path()).hmat());
}

TEST_CASE("node_attributes: a kernel with one class of initiators only is understood") {
  const MadeUpNodes machine;
  machine.write("online", "0-1\n");
  machine.node(0, "0", "10 17", 2048);
  machine.node(1, "", "17 10", 2048);
  machine.write("node1/access0/initiators/read_latency", "250\n");
  const NodeAttributes node = node_attributes(1, machine.path());
  CHECK(node.latency_ns == 250);
  CHECK(node.bandwidth_bytes_per_s == 0);
  CHECK(node.hmat());
}

TEST_CASE("node_attributes: the nearest CPUs count, and columns follow the online nodes, not their numbers") {
  const MadeUpNodes machine;
  machine.write("online", "0,2,5-6\n");
  machine.node(0, "0-3", "10 21 40 50", 2048);
  machine.node(2, "4-7", "21 10 30 60", 2048);
  machine.node(5, "", "40 30 10 80", 2048);
  machine.node(6, "", "50 60 80 10", 2048);
  CHECK(online_nodes(machine.path()) == std::vector<int>{0, 2, 5, 6});
  CHECK(node_attributes(5, machine.path()).distance == 30);
  CHECK(node_attributes(5, machine.path()).nearest_cpu_node == 2);
  CHECK(node_attributes(6, machine.path()).distance == 50);
  CHECK(node_attributes(6, machine.path()).nearest_cpu_node == 0);
  CHECK(node_attributes(2, machine.path()).distance == 10);
}

TEST_CASE("node_attributes: a node that is not there, and a file that is none of the kernel's, say nothing") {
  const MadeUpNodes machine;
  CHECK(node_attributes(1, machine.path()) == NodeAttributes{});
  CHECK(node_attributes(-1, machine.path()) == NodeAttributes{});
  CHECK(online_nodes(machine.path()).empty());
  machine.write("online", "0-99999999,x,-3,1\n");
  machine.node(1, "", "10", 2048);
  CHECK(online_nodes(machine.path()) == std::vector<int>{1});
  const NodeAttributes alone = node_attributes(1, machine.path());
  CHECK(alone.exists);
  CHECK(alone.distance == 0);  // no CPUs anywhere
  CHECK(alone.nearest_cpu_node == -1);
}
