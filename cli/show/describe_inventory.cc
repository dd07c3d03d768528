// SPDX-License-Identifier: Apache-2.0
#include "cli/show/describe_inventory.h"

#include <cstdio>

#include "cli/show/describe.h"
#include "cli/terminal/output.h"

namespace terrace::cli {
namespace {

using Found = rpc::Inventory::Reader;
using Rows = std::vector<std::vector<std::string>>;

std::string joined_or_dash(capnp::List<capnp::Text>::Reader parts, const char* between) {
  return or_dash(join(strings(parts), between));
}

std::string text_or_dash(capnp::Text::Reader text) {
  return or_dash(str(text));
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

std::string what_it_decodes(rpc::Inventory::Decoder::Reader decoder) {
  if (decoder.getPmem() && decoder.getVolatile()) return "pmem, ram";
  return decoder.getPmem() ? "pmem" : decoder.getVolatile() ? "ram" : "-";
}

std::string section(const char* heading, const std::vector<std::string>& titles, const Rows& rows) {
  return rows.empty() ? std::string() : std::string("\n") + heading + "\n" + format_table(titles, rows);
}

std::string memdev_section(Found all) {
  Rows rows;
  for (const auto memdev : all.getMemdevs())
    rows.push_back({str(memdev.getSerial()), str(memdev.getName()), size_or_dash(memdev.getRamBytes()),
                    size_or_dash(memdev.getPmemBytes()), text_or_dash(memdev.getModel()),
                    text_or_dash(memdev.getFirmware()),
                    memdev.getEnabled() ? text_or_dash(memdev.getHealth()) : "no driver",
                    node_or_dash(memdev.getNumaNode()), joined_or_dash(memdev.getPath(), " > ")});
  return section("CXL memory devices",
                 {"SERIAL", "NAME", "RAM", "PMEM", "MODEL", "FIRMWARE", "HEALTH", "NODE", "PATH"}, rows);
}

std::string decoder_section(Found all) {
  Rows windows, others;
  for (const auto decoder : all.getDecoders()) {
    const std::string ways = interleave(decoder.getInterleaveWays(), decoder.getInterleaveGranularity());
    const std::string targets = joined_or_dash(decoder.getTargets(), ", ");
    if (str(decoder.getKind()) == "root")
      windows.push_back({str(decoder.getName()), address(decoder.getStart()), exact_size(decoder.getBytes()),
                         exact_size(decoder.getFreeBytes()), ways, what_it_decodes(decoder), targets});
    else
      others.push_back({str(decoder.getName()), str(decoder.getKind()), address(decoder.getStart()),
                        size_or_dash(decoder.getBytes()), ways, text_or_dash(decoder.getRegion()), targets});
  }
  return section("CXL windows", {"DECODER", "START", "SIZE", "FREE", "INTERLEAVE", "CAN HOLD", "HOST BRIDGES"},
                 windows) +
         section("CXL decoders", {"DECODER", "KIND", "START", "SIZE", "INTERLEAVE", "REGION", "TARGETS"},
                 others);
}

std::string region_section(Found all) {
  Rows rows;
  for (const auto region : all.getRegions())
    rows.push_back({str(region.getName()), text_or_dash(region.getSerial()), str(region.getKind()),
                    address(region.getStart()), exact_size(region.getBytes()),
                    interleave(region.getInterleaveWays(), region.getInterleaveGranularity()),
                    joined_or_dash(region.getMemdevs(), ", "),
                    region.getCommitted() ? "committed" : "not committed", text_or_dash(region.getDecoder()),
                    latency_text(region.getAttributes()), bandwidth_text(region.getAttributes())});
  return section("CXL regions",
                 {"NAME", "SERIAL", "KIND", "START", "SIZE", "INTERLEAVE", "MEMDEVS", "STATE", "WINDOW",
                  "LATENCY", "BANDWIDTH"},
                 rows);
}

std::string dax_section(Found all) {
  Rows regions, devices;
  for (const auto region : all.getDaxRegions())
    regions.push_back({str(region.getName()), text_or_dash(region.getSerial()), exact_size(region.getBytes()),
                       exact_size(region.getFreeBytes()), exact_size(region.getAlignBytes()),
                       node_or_dash(region.getNumaNode())});
  for (const auto device : all.getDaxDevices())
    devices.push_back({str(device.getName()), text_or_dash(device.getRegion()),
                       str(device.getMode()) + (device.getOnline() ? ", online" : ""),
                       exact_size(device.getBytes()), exact_size(device.getAlignBytes()),
                       node_or_dash(device.getNumaNode()), text_or_dash(device.getHolder())});
  return section("dax regions", {"NAME", "SERIAL", "SIZE", "FREE", "ALIGN", "NODE"}, regions) +
         section("dax devices", {"NAME", "REGION", "MODE", "SIZE", "ALIGN", "NODE", "HOLDER"}, devices);
}

std::string namespace_section(Found all) {
  Rows rows;
  for (const auto space : all.getNamespaces())
    rows.push_back({str(space.getName()), str(space.getRegion()), str(space.getMode()),
                    exact_size(space.getBytes()), text_or_dash(space.getLabel()),
                    text_or_dash(space.getDevice()), text_or_dash(space.getUuid())});
  return section("namespaces", {"NAME", "REGION", "MODE", "SIZE", "LABEL", "DEVICE", "UUID"}, rows);
}

std::string node_section(Found all) {
  Rows rows;
  for (const auto node : all.getNodes()) {
    const Figures figures = node.getAttributes();
    rows.push_back({std::to_string(node.getId()), node.getCpus() ? "yes" : "no", format_size(node.getBytes()),
                    format_size(node.getFreeBytes()),
                    figures.getNumaDistance() == 0 ? "-" : std::to_string(figures.getNumaDistance()),
                    latency_text(figures), bandwidth_text(figures), text_or_dash(figures.getSource())});
  }
  return section("NUMA nodes", {"NODE", "CPUS", "SIZE", "FREE", "DISTANCE", "LATENCY", "BANDWIDTH", "FROM"},
                 rows);
}

}  // namespace

std::string inventory_text(Found all) {
  std::string text = memdev_section(all) + decoder_section(all) + region_section(all) + dax_section(all) +
                     namespace_section(all) + node_section(all);
  for (const auto note : all.getNotes()) text += "\nnote: " + printable(str(note));
  return all.getNotes().size() == 0 ? text : text + "\n";
}

std::string latency_text(const Figures& figures) {
  return figures.getLatencyNs() == 0 ? "-" : std::to_string(figures.getLatencyNs()) + " ns";
}

std::string bandwidth_text(const Figures& figures) {
  const uint64_t bytes_per_s = figures.getBandwidthBytesPerS();
  return bytes_per_s == 0 ? "-" : format_size(bytes_per_s) + "/s";
}

std::string describe_tier(const Figures& figures) {
  std::vector<std::string> parts;
  if (figures.getLatencyNs() != 0) parts.push_back(latency_text(figures));
  if (figures.getBandwidthBytesPerS() != 0) parts.push_back(bandwidth_text(figures));
  std::string text = parts.empty() ? "speed not known" : join(parts, ", ");
  if (figures.getSource().size() != 0) text += " (" + str(figures.getSource()) + ")";
  if (figures.getNumaNode() >= 0) {
    text += ", node " + std::to_string(figures.getNumaNode());
    if (figures.getNumaDistance() != 0) text += " at distance " + std::to_string(figures.getNumaDistance());
  }
  return figures.getPersistent() ? text + ", persistent" : text;
}

std::string describe_isolation(const Figures& figures) {
  const std::string isolation = str(figures.getIsolation());
  if (isolation == "device") return "a dax device of its own, which nothing else maps";
  if (isolation == "namespace") return "a namespace of its own, which nothing else maps";
  if (isolation == "node") return "a private file; other programs may use the node, too";
  if (isolation == "file") return "a private file in ordinary memory";
  return isolation;  // of a newer manager
}

}  // namespace terrace::cli
