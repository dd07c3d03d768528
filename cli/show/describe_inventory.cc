#include "cli/show/describe_inventory.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/show/describe.h"
#include "cli/terminal/output.h"

namespace terrace::cli {
namespace {

using inventory::Inventory;
using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

std::string address(uint64_t at) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(at));
  return at == 0 ? "-" : text;
}

std::string size_or_dash(uint64_t bytes) {
  return bytes == 0 ? "-" : exact_size(bytes);
}

std::string node_or_dash(int node) {
  return node < 0 ? "-" : std::to_string(node);
}

std::string interleave(uint32_t ways, uint32_t granularity) {
  if (ways == 0) return "-";
  return "x" + std::to_string(ways) + (ways > 1 ? " every " + exact_size(granularity) : "");
}

std::string what_it_decodes(const inventory::Decoder& decoder) {
  if (decoder.pmem && decoder.ram) return "pmem, ram";
  return decoder.pmem ? "pmem" : decoder.ram ? "ram" : "-";
}

std::string section(const char* heading, const std::vector<std::string>& titles, const Rows& rows) {
  return rows.empty() ? std::string() : std::string("\n") + heading + "\n" + format_table(titles, rows);
}

std::string memdev_section(const Inventory& all) {
  Rows rows;
  for (const inventory::Memdev& memdev : all.memdevs)
    rows.push_back({memdev.serial, memdev.name, size_or_dash(memdev.ram_bytes), size_or_dash(memdev.pmem_bytes),
                    or_dash(memdev.model), or_dash(memdev.firmware),
                    memdev.enabled ? or_dash(memdev.health) : "no driver", node_or_dash(memdev.numa_node),
                    or_dash(joined(memdev.path, " > "))});
  return section("CXL memory devices",
                 {"SERIAL", "NAME", "RAM", "PMEM", "MODEL", "FIRMWARE", "HEALTH", "NODE", "PATH"}, rows);
}

std::string decoder_section(const Inventory& all) {
  Rows windows, others;
  for (const inventory::Decoder& decoder : all.decoders) {
    if (decoder.kind == "root")
      windows.push_back({decoder.name, address(decoder.start), exact_size(decoder.bytes),
                         exact_size(decoder.free_bytes), interleave(decoder.ways, decoder.granularity),
                         what_it_decodes(decoder), or_dash(joined(decoder.targets, ", "))});
    else
      others.push_back({decoder.name, decoder.kind, address(decoder.start), size_or_dash(decoder.bytes),
                        interleave(decoder.ways, decoder.granularity), or_dash(decoder.region),
                        or_dash(joined(decoder.targets, ", "))});
  }
  return section("CXL windows", {"DECODER", "START", "SIZE", "FREE", "INTERLEAVE", "CAN HOLD", "HOST BRIDGES"},
                 windows) +
         section("CXL decoders", {"DECODER", "KIND", "START", "SIZE", "INTERLEAVE", "REGION", "TARGETS"},
                 others);
}

TierFigures tier_of(const inventory::NumaNode& node) {
  return {.latency_ns = node.attributes.latency_ns,
          .bandwidth_bytes_per_s = node.attributes.bandwidth_bytes_per_s,
          .node = node.id,
          .distance = node.attributes.distance,
          .source = node.attributes.hmat() ? "hmat" : ""};
}

TierFigures tier_of(const inventory::Region& region) {
  return {.latency_ns = region.speed.latency_ns,
          .bandwidth_bytes_per_s = region.speed.bandwidth_bytes_per_s,
          .persistent = region.kind == inventory::RegionKind::pmem,
          .source = region.speed.known() ? "cdat" : ""};
}

std::string region_section(const Inventory& all) {
  Rows rows;
  for (const inventory::Region& region : all.regions)
    rows.push_back({region.name, or_dash(region.serial()), inventory::region_kind_name(region.kind),
                    address(region.start), exact_size(region.bytes),
                    interleave(region.ways, region.granularity), or_dash(joined(region.memdevs, ", ")),
                    region.committed ? "committed" : "not committed", or_dash(region.decoder),
                    latency_text(tier_of(region)), bandwidth_text(tier_of(region))});
  return section("CXL regions",
                 {"NAME", "SERIAL", "KIND", "START", "SIZE", "INTERLEAVE", "MEMDEVS", "STATE", "WINDOW",
                  "LATENCY", "BANDWIDTH"},
                 rows);
}

std::string dax_section(const Inventory& all) {
  Rows regions, devices;
  for (const inventory::DaxRegion& region : all.dax_regions)
    regions.push_back({region.name, or_dash(region.serial), exact_size(region.bytes),
                       exact_size(region.free_bytes), exact_size(region.align_bytes),
                       node_or_dash(region.target_node)});
  for (const inventory::DaxDevice& device : all.dax_devices)
    devices.push_back({device.name, or_dash(device.region),
                       std::string(inventory::dax_mode_name(device.mode)) + (device.online ? ", online" : ""),
                       exact_size(device.bytes), exact_size(device.align_bytes),
                       node_or_dash(device.target_node), or_dash(device.holder)});
  return section("dax regions", {"NAME", "SERIAL", "SIZE", "FREE", "ALIGN", "NODE"}, regions) +
         section("dax devices", {"NAME", "REGION", "MODE", "SIZE", "ALIGN", "NODE", "HOLDER"}, devices);
}

std::string namespace_section(const Inventory& all) {
  Rows rows;
  for (const inventory::Namespace& space : all.namespaces)
    rows.push_back({space.name, space.region, space.mode, exact_size(space.bytes), or_dash(space.label),
                    or_dash(space.device), or_dash(space.uuid)});
  return section("namespaces", {"NAME", "REGION", "MODE", "SIZE", "LABEL", "DEVICE", "UUID"}, rows);
}

std::string node_section(const Inventory& all) {
  Rows rows;
  for (const inventory::NumaNode& node : all.numa_nodes) {
    const TierFigures tier = tier_of(node);
    rows.push_back({std::to_string(node.id), node.attributes.has_cpus ? "yes" : "no",
                    format_size(node.attributes.total_bytes), format_size(node.attributes.free_bytes),
                    tier.distance == 0 ? "-" : std::to_string(tier.distance), latency_text(tier),
                    bandwidth_text(tier), or_dash(tier.source)});
  }
  return section("NUMA nodes", {"NODE", "CPUS", "SIZE", "FREE", "DISTANCE", "LATENCY", "BANDWIDTH", "FROM"},
                 rows);
}

template <typename Things, typename Convert>
json list_of(const Things& things, Convert convert) {
  json list = json::array();
  for (const auto& thing : things) list.push_back(convert(thing));
  return list;
}

json text_or_null(const std::string& text) {
  return text.empty() ? json(nullptr) : json(text);
}

json number_or_null(uint64_t number) {
  return number == 0 ? json(nullptr) : json(number);
}

json node_or_null(int node) {
  return node < 0 ? json(nullptr) : json(node);
}

json memdev_json(const inventory::Memdev& memdev) {
  return {{"serial", memdev.serial},
          {"name", memdev.name},
          {"model", memdev.model},
          {"firmware", memdev.firmware},
          {"health", memdev.health},
          {"ram_bytes", memdev.ram_bytes},
          {"pmem_bytes", memdev.pmem_bytes},
          {"numa_node", node_or_null(memdev.numa_node)},
          {"enabled", memdev.enabled},
          {"path", memdev.path},
          {"ram_qos_class", node_or_null(memdev.ram_qos_class)},
          {"pmem_qos_class", node_or_null(memdev.pmem_qos_class)}};
}

json decoder_json(const inventory::Decoder& decoder) {
  return {{"name", decoder.name},
          {"kind", decoder.kind},
          {"start", decoder.start},
          {"bytes", decoder.bytes},
          {"free_bytes", decoder.kind == "root" ? json(decoder.free_bytes) : json(nullptr)},
          {"interleave_ways", decoder.ways},
          {"interleave_granularity", decoder.granularity},
          {"pmem", decoder.pmem},
          {"ram", decoder.ram},
          {"region", text_or_null(decoder.region)},
          {"targets", decoder.targets}};
}

json region_json(const inventory::Region& region) {
  return {{"name", region.name},
          {"serial", text_or_null(region.serial())},
          {"kind", inventory::region_kind_name(region.kind)},
          {"start", number_or_null(region.start)},
          {"bytes", region.bytes},
          {"interleave_ways", region.ways},
          {"interleave_granularity", region.granularity},
          {"memdevs", region.memdevs},
          {"committed", region.committed},
          {"decoder", region.decoder},
          {"tier", to_json(tier_of(region))}};
}

json dax_region_json(const inventory::DaxRegion& region) {
  return {{"name", region.name},
          {"serial", text_or_null(region.serial)},
          {"bytes", region.bytes},
          {"free_bytes", region.free_bytes},
          {"align_bytes", region.align_bytes},
          {"numa_node", node_or_null(region.target_node)}};
}

json dax_device_json(const inventory::DaxDevice& device) {
  return {{"name", device.name},
          {"region", device.region},
          {"mode", inventory::dax_mode_name(device.mode)},
          {"bytes", device.bytes},
          {"align_bytes", device.align_bytes},
          {"numa_node", node_or_null(device.target_node)},
          {"online", device.online},
          {"holder", text_or_null(device.holder)}};
}

json namespace_json(const inventory::Namespace& space) {
  return {{"name", space.name},
          {"region", space.region},
          {"mode", space.mode},
          {"bytes", space.bytes},
          {"uuid", text_or_null(space.uuid)},
          {"label", text_or_null(space.label)},
          {"device", text_or_null(space.device)}};
}

json node_json(const inventory::NumaNode& node) {
  return {{"node", node.id},
          {"cpus", node.attributes.has_cpus},
          {"bytes", node.attributes.total_bytes},
          {"free_bytes", node.attributes.free_bytes},
          {"tier", to_json(tier_of(node))}};
}

}  // namespace

std::string inventory_text(const Inventory& all) {
  std::string text = memdev_section(all) + decoder_section(all) + region_section(all) + dax_section(all) +
                     namespace_section(all) + node_section(all);
  for (const std::string& note : all.notes) text += "\nnote: " + printable(note);
  return all.notes.empty() ? text : text + "\n";
}

json to_json(const Inventory& all) {
  return {{"memdevs", list_of(all.memdevs, memdev_json)},
          {"decoders", list_of(all.decoders, decoder_json)},
          {"regions", list_of(all.regions, region_json)},
          {"dax_regions", list_of(all.dax_regions, dax_region_json)},
          {"dax_devices", list_of(all.dax_devices, dax_device_json)},
          {"namespaces", list_of(all.namespaces, namespace_json)},
          {"nodes", list_of(all.numa_nodes, node_json)},
          {"notes", all.notes}};
}

std::string latency_text(const TierFigures& tier) {
  return tier.latency_ns == 0 ? "-" : std::to_string(tier.latency_ns) + " ns";
}

std::string bandwidth_text(const TierFigures& tier) {
  return tier.bandwidth_bytes_per_s == 0 ? "-" : format_size(tier.bandwidth_bytes_per_s) + "/s";
}

std::string describe_tier(const TierFigures& tier) {
  std::vector<std::string> parts;
  if (tier.latency_ns != 0) parts.push_back(latency_text(tier));
  if (tier.bandwidth_bytes_per_s != 0) parts.push_back(bandwidth_text(tier));
  std::string text = parts.empty() ? "speed not known" : joined(parts, ", ");
  if (!tier.source.empty()) text += " (" + tier.source + ")";
  if (tier.node >= 0) {
    text += ", node " + std::to_string(tier.node);
    if (tier.distance != 0) text += " at distance " + std::to_string(tier.distance);
  }
  return tier.persistent ? text + ", persistent" : text;
}

std::string describe_isolation(const TierFigures& tier) {
  if (tier.isolation == "device") return "a dax device of its own, which nothing else maps";
  if (tier.isolation == "namespace") return "a namespace of its own, which nothing else maps";
  if (tier.isolation == "node") return "a private file; other programs may use the node, too";
  if (tier.isolation == "file") return "a private file in ordinary memory";
  return tier.isolation;  // of a newer manager
}

json to_json(const TierFigures& tier) {
  return {{"latency_ns", number_or_null(tier.latency_ns)},
          {"bandwidth_bytes_per_s", number_or_null(tier.bandwidth_bytes_per_s)},
          {"numa_node", node_or_null(tier.node)},
          {"numa_distance", number_or_null(tier.distance)},
          {"persistent", tier.persistent},
          {"source", text_or_null(tier.source)},
          {"isolation", text_or_null(tier.isolation)}};
}

}  // namespace terrace::cli
