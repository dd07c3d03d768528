// SPDX-License-Identifier: Apache-2.0
#include "core/os/node_attributes.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "core/base/units.h"

namespace terrace::os {
namespace {

// More nodes than any kernel is built for (MAX_NUMNODES); a longer list is not one of a kernel's.
constexpr int nodes_max = 1 << 16;

std::string nodes_directory(const std::string& root) {
  return root + "/sys/devices/system/node";
}

std::string node_directory(int node, const std::string& root) {
  return nodes_directory(root) + "/node" + std::to_string(node);
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

uint64_t read_number(const std::string& path) {
  uint64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

// "Node 1 MemTotal:        1048576 kB"
uint64_t size_of(const std::string& meminfo, const std::string& key) {
  const size_t at = meminfo.find(" " + key + ":");
  uint64_t kilobytes = 0;
  if (at == std::string::npos) return 0;
  if (std::sscanf(meminfo.c_str() + at + key.size() + 2, "%" SCNu64, &kilobytes) != 1) return 0;
  return kilobytes > UINT64_MAX / kib ? 0 : kilobytes * kib;
}

void read_sizes(const std::string& meminfo, NodeAttributes& attributes) {
  attributes.total_bytes = size_of(meminfo, "MemTotal");
  attributes.free_bytes = size_of(meminfo, "MemFree");
  const uint64_t cache = size_of(meminfo, "Active(file)") + size_of(meminfo, "Inactive(file)");
  const uint64_t unclean = size_of(meminfo, "Dirty") + size_of(meminfo, "Writeback");
  attributes.available_bytes = attributes.free_bytes + cache - std::min(cache, unclean);
}

bool has_cpus(int node, const std::string& root) {
  return read_text(node_directory(node, root) + "/cpulist").find_first_of("0123456789") != std::string::npos;
}

// access1 is as seen from the nearest CPUs, access0 from the nearest initiator of any kind (kernels before 5.17
// have only that).
void read_hmat(int node, const std::string& root, NodeAttributes& attributes) {
  for (const char* access : {"/access1", "/access0"}) {
    const std::string directory = node_directory(node, root) + access + "/initiators";
    const uint64_t latency_ns = read_number(directory + "/read_latency");
    const uint64_t bandwidth_mib_per_s = read_number(directory + "/read_bandwidth");
    if (latency_ns == 0 && bandwidth_mib_per_s == 0) continue;
    attributes.latency_ns = static_cast<uint32_t>(std::min<uint64_t>(latency_ns, UINT32_MAX));
    attributes.bandwidth_bytes_per_s = std::min(bandwidth_mib_per_s, UINT64_MAX / mib) * mib;
    return;
  }
}

// A row of the SLIT has a column for each online node, in their order. The row of the node with the CPUs says
// how far they see the other.
void read_distance(int node, const std::string& root, NodeAttributes& attributes) {
  const std::vector<int> nodes = online_nodes(root);
  const auto column = std::find(nodes.begin(), nodes.end(), node);
  if (column == nodes.end()) return;
  for (const int from : nodes) {
    if (!has_cpus(from, root)) continue;
    std::istringstream row(read_text(node_directory(from, root) + "/distance"));
    uint32_t distance = 0;
    for (auto at = nodes.begin(); at <= column && row >> distance; ++at) {
    }
    if (!row || distance == 0) continue;
    if (attributes.distance == 0 || distance < attributes.distance) {
      attributes.distance = distance;
      attributes.nearest_cpu_node = from;
    }
  }
}

}  // namespace

// "0-1,3"
std::vector<int> online_nodes(const std::string& root) {
  std::vector<int> nodes;
  std::istringstream ranges(read_text(nodes_directory(root) + "/online"));
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0;
    int last = 0;
    const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (read == 1) last = first;
    if (read < 1 || first < 0 || last < first || last > nodes_max) continue;
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

NodeAttributes node_attributes(int node, const std::string& root) {
  NodeAttributes attributes;
  const std::string meminfo = node < 0 ? std::string() : read_text(node_directory(node, root) + "/meminfo");
  if (meminfo.empty()) return attributes;
  attributes.exists = true;
  attributes.has_cpus = has_cpus(node, root);
  read_sizes(meminfo, attributes);
  read_hmat(node, root, attributes);
  read_distance(node, root, attributes);
  return attributes;
}

}  // namespace terrace::os
