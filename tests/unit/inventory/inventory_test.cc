// SPDX-License-Identifier: Apache-2.0
// Inventory: this machine for "it works with nothing", and made-up inventories for what is said of them.
#include "daemon/inventory/inventory.h"

#include <doctest/doctest.h>

#include <filesystem>

using namespace terrace;
using namespace terrace::inventory;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("Inventory: this machine can be looked at, whatever it has") {
  const Inventory inventory = take_inventory();
  CHECK(inventory.cxl_bus == fs::exists("/sys/bus/cxl"));
  CHECK(inventory.dax_bus == fs::exists("/sys/bus/dax"));
  CHECK(inventory.modules.size() > 4);
  CHECK(!inventory.kernel_release.empty());
  if (!inventory.cxl_bus) CHECK(inventory.memdevs.empty());
  for (const Memdev& memdev : inventory.memdevs) CHECK(!memdev.serial.empty());
  for (const DaxDevice& dax : inventory.dax_devices) CHECK(dax.bytes > 0);
  if (fs::exists("/sys/devices/system/node/node0")) {
    REQUIRE(!inventory.numa_nodes.empty());
    CHECK(inventory.numa_nodes[0].id == 0);
    CHECK(inventory.numa_nodes[0].attributes.total_bytes > 0);
  }
}

TEST_CASE("Inventory: who would adopt what lies below a device is told which device that is") {
  Inventory all;
  all.memdevs.push_back({.serial = "0xc0", .name = "mem0"});
  all.memdevs.push_back({.serial = "0xc1", .name = "mem1"});
  all.regions.push_back({.name = "region1", .ways = 1, .memdevs = {"0xc0"}});
  all.dax_regions.push_back({.name = "hmem.0", .serial = "dax:hmem@0x100000000"});
  all.dax_devices.push_back({.name = "dax0.1", .region = "hmem.0"});
  CHECK(contains(explain_unadoptable(all, "0xc0"), "'pmem:0xc0'"));
  CHECK(contains(explain_unadoptable(all, "0xc1"), "in none yet"));
  for (const char* name : {"dax0.1", "dax:dax0.1", "/dev/dax0.1"})
    CHECK(contains(explain_unadoptable(all, name), "'dax:hmem@0x100000000'"));
  CHECK(contains(explain_unadoptable(all, "pmem:0xc0"), "no backend"));
  CHECK(contains(explain_unadoptable(all, "dax:hmem@0x100000000"), "no backend"));
  CHECK(explain_unadoptable(all, "0xc2").empty());
  CHECK(explain_unadoptable(all, "").empty());
}
