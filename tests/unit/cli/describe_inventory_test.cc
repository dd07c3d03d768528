// SPDX-License-Identifier: Apache-2.0
// What is shown of hardware: pure, no machine.
#include "cli/show/describe_inventory.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/show/describe.h"
#include "core/base/units.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void fill_texts(capnp::List<capnp::Text>::Builder out, const std::vector<std::string>& texts) {
  for (unsigned at = 0; at < out.size(); ++at) out.set(at, texts[at]);
}

Hardware some_hardware() {
  return Hardware().changed([](rpc::Inventory::Builder all) {
    auto memdev = all.initMemdevs(1)[0];
    memdev.setSerial("0xc0");
    memdev.setName("mem1");
    memdev.setPmemBytes(512 * mib);
    memdev.setFirmware("BWFW VERSION 00");
    memdev.setEnabled(true);
    memdev.setModel("8086:0d93");
    memdev.setHealth("ok");
    fill_texts(memdev.initPath(4), {"ACPI0017:00 root0", "port1", "0000:0c:00.0", "0000:0d:00.0"});
    auto decoder = all.initDecoders(1)[0];
    decoder.setName("decoder0.0");
    decoder.setKind("root");
    decoder.setStart(0x150000000);
    decoder.setBytes(4 * gib);
    decoder.setFreeBytes(3 * gib);
    decoder.setInterleaveWays(1);
    decoder.setInterleaveGranularity(256);
    fill_texts(decoder.initTargets(1), {"ACPI0016:00"});
    decoder.setPmem(true);
    decoder.setVolatile(true);
    auto region = all.initRegions(1)[0];
    region.setName("region0");
    region.setKind("pmem");
    region.setSerial("pmem:0xc0.0xc1");
    region.setStart(0x150000000);
    region.setBytes(gib);
    region.setInterleaveWays(2);
    region.setInterleaveGranularity(4096);
    fill_texts(region.initMemdevs(2), {"0xc0", "0xc1"});
    region.setCommitted(true);
    region.setDecoder("decoder0.0");
    region.initAttributes().setLatencyNs(180);
    region.getAttributes().setBandwidthBytesPerS(24 * gib);
    region.getAttributes().setSource("cdat");
    auto dax = all.initDaxDevices(1)[0];
    dax.setName("dax0.1");
    dax.setRegion("hmem.0");
    dax.setMode("devdax");
    dax.setBytes(130023424);
    dax.setAlignBytes(2 * mib);
    dax.setNumaNode(1);
    dax.setHolder("lease 7, vllm[12]");
    auto node = all.initNodes(1)[0];
    node.setId(1);
    node.setBytes(gib);
    node.initAttributes().setLatencyNs(300);
    node.getAttributes().setBandwidthBytesPerS(8 * gib);
    node.getAttributes().setNumaDistance(20);
    node.getAttributes().setSource("hmat");
  });
}

template <typename Fill>
Figures figures(Fill fill) {
  static schema::Message<rpc::TierAttributes> made;  // the last one
  made = schema::Message<rpc::TierAttributes>().changed(fill);
  return *made;
}

using Fields = rpc::TierAttributes::Builder;

}  // namespace

TEST_CASE("Hardware: what there is has a section with a heading, what there is not has none") {
  const std::string text = inventory_text(*some_hardware());
  for (const char* part :
       {"CXL memory devices", "0xc0", "ACPI0017:00 root0 > port1 > 0000:0c:00.0 > 0000:0d:00.0", "CXL windows",
        "0x150000000", "CXL regions", "pmem:0xc0.0xc1", "x2 every 4 KiB", "0xc0, 0xc1", "dax devices",
        "lease 7, vllm[12]", "124 MiB", "180 ns", "24 GiB/s", "NUMA nodes", "300 ns", "8 GiB/s", "hmat"}) {
    CAPTURE(part);
    CHECK(contains(text, part));
  }
  CHECK(!contains(text, "namespaces"));
  CHECK(!contains(text, "dax regions"));
  CHECK(!contains(text, "CXL decoders"));
  CHECK(inventory_text(*Hardware()).empty());
}

TEST_CASE("Hardware: notes come last; control characters of a label do not reach the terminal") {
  const Hardware all = Hardware().changed([](rpc::Inventory::Builder out) {
    auto space = out.initNamespaces(1)[0];
    space.setName("namespace0.0");
    space.setRegion("region0");
    space.setMode("devdax");
    space.setLabel("x\x1b[2J");
    out.initNotes(1).set(0, "libcxl cannot start\n");
  });
  const std::string text = inventory_text(*all);
  CHECK(!contains(text, "\x1b"));
  CHECK(text.ends_with("note: libcxl cannot start?\n"));
}

TEST_CASE("Hardware: the JSON form has every list, and null where nothing is known") {
  const auto document = to_json(some_hardware());
  for (const char* key :
       {"memdevs", "decoders", "regions", "dax_regions", "dax_devices", "namespaces", "nodes", "notes"})
    CHECK(document[key].is_array());
  CHECK(document["memdevs"][0]["numa_node"].is_null());
  CHECK(document["memdevs"][0]["path"].size() == 4);
  CHECK(document["memdevs"][0]["ram_qos_class"].is_null());
  CHECK(document["memdevs"][0]["pmem_qos_class"].is_null());
  CHECK(document["regions"][0]["serial"] == "pmem:0xc0.0xc1");
  CHECK(document["regions"][0]["figures"]["latency_ns"] == 180);
  CHECK(document["regions"][0]["figures"]["source"] == "cdat");
  CHECK(document["dax_devices"][0]["holder"] == "lease 7, vllm[12]");
  CHECK(document["nodes"][0]["figures"]["latency_ns"] == 300);
  CHECK(document["nodes"][0]["figures"]["source"] == "hmat");
  CHECK(to_json(Hardware())["nodes"].empty());
}

TEST_CASE("Tier: only what is known is said, and where from") {
  const schema::Message<rpc::TierAttributes> none;
  CHECK(describe_tier(*none) == "speed not known");
  CHECK(to_json(none)["latency_ns"].is_null());
  const Figures known = figures([](Fields out) {
    out.setLatencyNs(300);
    out.setBandwidthBytesPerS(8 * gib);
    out.setNumaNode(1);
    out.setNumaDistance(20);
    out.setPersistent(true);
    out.setSource("hmat");
  });
  CHECK(describe_tier(known) == "300 ns, 8 GiB/s (hmat), node 1 at distance 20, persistent");
  CHECK(to_json(known)["isolation"].is_null());
  CHECK(describe_tier(figures([](Fields out) { out.setNumaNode(2); })) == "speed not known, node 2");
  CHECK(describe_tier(figures([](Fields out) {
          out.setBandwidthBytesPerS(gib);
          out.setSource("cdat");
        })) == "1 GiB/s (cdat)");
}

TEST_CASE("Tier: what a lease is, and who else has a way to its memory, is said in words for each kind") {
  const auto words = [](const char* isolation) {
    return describe_isolation(figures([isolation](Fields out) { out.setIsolation(isolation); }));
  };
  CHECK(words("").empty());
  CHECK(contains(words("device"), "nothing else maps"));
  CHECK(contains(words("namespace"), "nothing else maps"));
  CHECK(contains(words("node"), "other programs may use the node"));
  CHECK(contains(words("file"), "ordinary memory"));
  CHECK(words("vault") == "vault");  // of a newer manager
}

TEST_CASE("Device: its JSON form and block say how fast it is and what adopting it loses") {
  const DeviceStatus device = DeviceStatus().changed([](rpc::DeviceInfo::Builder out) {
    out.setSerial("dax:hmem@0x100000000");
    out.setContents("1 dax device");
    out.initAttributes().setLatencyNs(300);
    out.getAttributes().setSource("measured");
  });
  CHECK(to_json(device)["contents"] == "1 dax device");
  CHECK(to_json(device)["figures"]["source"] == "measured");
  CHECK(contains(device_block(device), "1 dax device"));
  CHECK(contains(device_block(device), "300 ns (measured)"));
  CHECK(to_json(DeviceStatus())["contents"].is_null());
}
