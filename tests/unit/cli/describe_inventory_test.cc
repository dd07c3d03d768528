// What is shown of hardware: pure, no machine.
#include "cli/show/describe_inventory.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/show/describe.h"

using namespace terrace;
using namespace terrace::cli;
using inventory::Inventory;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Inventory some_hardware() {
  Inventory all;
  all.memdevs.push_back({.serial = "0xc0",
                         .name = "mem1",
                         .pmem_bytes = 512 * mib,
                         .firmware = "BWFW VERSION 00",
                         .enabled = true,
                         .model = "8086:0d93",
                         .health = "ok",
                         .path = {"ACPI0017:00 root0", "port1", "0000:0c:00.0", "0000:0d:00.0"}});
  all.decoders.push_back({.name = "decoder0.0",
                          .kind = "root",
                          .start = 0x150000000,
                          .bytes = 4 * gib,
                          .free_bytes = 3 * gib,
                          .ways = 1,
                          .granularity = 256,
                          .targets = {"ACPI0016:00"},
                          .pmem = true,
                          .ram = true});
  all.regions.push_back({.name = "region0",
                         .start = 0x150000000,
                         .bytes = gib,
                         .ways = 2,
                         .granularity = 4096,
                         .memdevs = {"0xc0", "0xc1"},
                         .committed = true,
                         .decoder = "decoder0.0",
                         .speed = {.latency_ns = 180, .bandwidth_bytes_per_s = 24 * gib}});
  all.dax_devices.push_back({.name = "dax0.1",
                             .region = "hmem.0",
                             .mode = inventory::DaxMode::devdax,
                             .bytes = 130023424,
                             .align_bytes = 2 * mib,
                             .target_node = 1,
                             .holder = "lease 7, vllm[12]"});
  os::NodeAttributes node;
  node.total_bytes = gib;
  node.latency_ns = 300;
  node.bandwidth_bytes_per_s = 8 * gib;
  node.distance = 20;
  all.numa_nodes.push_back({1, node});
  return all;
}

}  // namespace

TEST_CASE("Hardware: what there is has a section with a heading, what there is not has none") {
  const std::string text = inventory_text(some_hardware());
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
  CHECK(inventory_text(Inventory{}).empty());
}

TEST_CASE("Hardware: notes come last; control characters of a label do not reach the terminal") {
  Inventory all;
  all.namespaces.push_back(
      {.name = "namespace0.0", .region = "region0", .mode = "devdax", .label = "x\x1b[2J"});
  all.notes.push_back("libcxl cannot start\n");
  const std::string text = inventory_text(all);
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
  CHECK(document["regions"][0]["tier"]["latency_ns"] == 180);
  CHECK(document["regions"][0]["tier"]["source"] == "cdat");
  CHECK(document["dax_devices"][0]["holder"] == "lease 7, vllm[12]");
  CHECK(document["nodes"][0]["tier"]["latency_ns"] == 300);
  CHECK(document["nodes"][0]["tier"]["source"] == "hmat");
  CHECK(to_json(Inventory{})["nodes"].empty());
}

TEST_CASE("Tier: only what is known is said, and where from") {
  TierFigures tier;
  CHECK(describe_tier(tier) == "speed not known");
  CHECK(to_json(tier)["latency_ns"].is_null());
  tier = {.latency_ns = 300,
          .bandwidth_bytes_per_s = 8 * gib,
          .node = 1,
          .distance = 20,
          .persistent = true,
          .source = "hmat"};
  CHECK(describe_tier(tier) == "300 ns, 8 GiB/s (hmat), node 1 at distance 20, persistent");
  CHECK(describe_tier({.node = 2}) == "speed not known, node 2");
  CHECK(describe_tier({.bandwidth_bytes_per_s = gib, .source = "cdat"}) == "1 GiB/s (cdat)");
  CHECK(to_json(tier)["isolation"].is_null());
}

TEST_CASE("Tier: what a lease is, and who else has a way to its memory, is said in words for each kind") {
  CHECK(describe_isolation({}).empty());
  CHECK(contains(describe_isolation({.isolation = "device"}), "nothing else maps"));
  CHECK(contains(describe_isolation({.isolation = "namespace"}), "nothing else maps"));
  CHECK(contains(describe_isolation({.isolation = "node"}), "other programs may use the node"));
  CHECK(contains(describe_isolation({.isolation = "file"}), "ordinary memory"));
  CHECK(describe_isolation({.isolation = "vault"}) == "vault");  // of a newer manager
  CHECK(to_json(TierFigures{.isolation = "node"})["isolation"] == "node");
}

TEST_CASE("Device: its JSON form and block say how fast it is and what adopting it loses") {
  DeviceStatus device;
  device.serial = "dax:hmem@0x100000000";
  device.contents = "1 dax device";
  device.tier.latency_ns = 300;
  device.tier.source = "measured";
  CHECK(to_json(device)["contents"] == "1 dax device");
  CHECK(to_json(device)["tier"]["source"] == "measured");
  CHECK(contains(device_block(device), "1 dax device"));
  CHECK(contains(device_block(device), "300 ns (measured)"));
  device.contents.clear();
  CHECK(to_json(device)["contents"].is_null());
}
