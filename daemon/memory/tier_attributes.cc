// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/tier_attributes.h"

#include <algorithm>

#include "core/os/node_attributes.h"
#include "daemon/inventory/sysfs.h"

namespace terrace::daemon {
namespace {

// Every byte read once, all devices at the same time.
uint64_t striped_bandwidth(const std::vector<TierPart>& parts) {
  double bytes = 0, seconds = 0;
  for (const TierPart& part : parts) {
    if (part.attributes.bandwidth_bytes_per_s == 0) return 0;
    bytes += static_cast<double>(part.bytes);
    seconds = std::max(
        seconds, static_cast<double>(part.bytes) / static_cast<double>(part.attributes.bandwidth_bytes_per_s));
  }
  return seconds == 0 ? 0 : static_cast<uint64_t>(bytes / seconds + 0.5);
}

}  // namespace

const char* source_name(AttributesSource source) {
  switch (source) {
    case AttributesSource::hmat: return "hmat";
    case AttributesSource::cdat: return "cdat";
    case AttributesSource::measured: return "measured";
    case AttributesSource::none: break;
  }
  return "";
}

const char* isolation_name(Isolation isolation) {
  switch (isolation) {
    case Isolation::device: return "device";
    case Isolation::namespace_: return "namespace";
    case Isolation::node: return "node";
    case Isolation::file: return "file";
    case Isolation::none: break;
  }
  return "";
}

TierAttributes firmware_attributes(int node, const std::string& cxl_region, const std::string& root) {
  TierAttributes told;
  told.node = node;
  const os::NodeAttributes seen = os::node_attributes(node, root);
  told.distance = seen.distance;
  if (seen.hmat()) {
    told.latency_ns = seen.latency_ns;
    told.bandwidth_bytes_per_s = seen.bandwidth_bytes_per_s;
    told.source = AttributesSource::hmat;
    return told;
  }
  if (cxl_region.empty()) return told;
  const inventory::RegionSpeed speed = inventory::read_region_speed(root, cxl_region);
  told.latency_ns = speed.latency_ns;
  told.bandwidth_bytes_per_s = speed.bandwidth_bytes_per_s;
  if (speed.known()) told.source = AttributesSource::cdat;
  return told;
}

TierAttributes with_measured_speed(TierAttributes told, os::MemorySpeed measured) {
  if (told.source != AttributesSource::none || !measured.known()) return told;
  told.latency_ns = measured.latency_ns;
  told.bandwidth_bytes_per_s = measured.bandwidth_bytes_per_s;
  told.source = AttributesSource::measured;
  return told;
}

TierAttributes combined(const std::vector<TierPart>& parts, bool striped) {
  if (parts.empty()) return {};
  TierAttributes all = parts.front().attributes;
  for (size_t i = 1; i < parts.size(); ++i) {
    const TierAttributes& one = parts[i].attributes;
    const auto worst = [](auto a, auto b) { return a == 0 || b == 0 ? decltype(a){0} : std::max(a, b); };
    all.latency_ns = worst(all.latency_ns, one.latency_ns);
    all.distance = worst(all.distance, one.distance);
    all.bandwidth_bytes_per_s = std::min(all.bandwidth_bytes_per_s, one.bandwidth_bytes_per_s);
    if (all.node != one.node) all.node = -1;
    all.persistent = all.persistent && one.persistent;
    const bool both = all.source != AttributesSource::none && one.source != AttributesSource::none;
    all.source = both ? std::max(all.source, one.source) : AttributesSource::none;
    all.isolation = std::max(all.isolation, one.isolation);
    all.fence = std::max(all.fence, one.fence);
  }
  if (striped && all.isolation != Isolation::file) all.bandwidth_bytes_per_s = striped_bandwidth(parts);
  if (all.latency_ns == 0 && all.bandwidth_bytes_per_s == 0) all.source = AttributesSource::none;
  return all;
}

}  // namespace terrace::daemon
