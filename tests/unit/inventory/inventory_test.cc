// Inventory: made-up machines for the texts and the file readers, and this machine for "it works with nothing".
#include "daemon/inventory/inventory.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/base/units.h"

using namespace terrace;
using namespace terrace::inventory;
namespace fs = std::filesystem;

namespace {

class MadeUpRoot {
 public:
  MadeUpRoot() {
    char path[] = "/tmp/terrace-inventory-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    path_ = path;
  }
  ~MadeUpRoot() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path_ + name).parent_path());
    std::ofstream(path_ + name) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

DaxDevice good_dax() {
  return {.name = "dax0.0",
          .mode = DaxMode::devdax,
          .size_bytes = 4 * gib,
          .align_bytes = 2 * mib,
          .region = 0,
          .target_node = 2};
}

SeenHardware describe_one(const DaxDevice& dax) {
  Inventory inventory;
  inventory.dax_devices.push_back(dax);
  const auto seen = describe_hardware(inventory);
  REQUIRE(seen.size() == 1);
  return seen[0];
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("Inventory: this machine can be looked at, whatever it has") {
  const Inventory inventory = take_inventory();
  CHECK(inventory.cxl_bus == fs::exists("/sys/bus/cxl"));
  CHECK(inventory.dax_bus == fs::exists("/sys/bus/dax"));
  CHECK(inventory.modules.size() > 4);
  if (!inventory.cxl_bus) CHECK(inventory.memdevs.empty());
  for (const SeenHardware& seen : describe_hardware(inventory)) {
    CHECK(!seen.serial.empty());
    CHECK(!seen.detail.empty());
  }
  if (fs::exists("/sys/devices/system/node/node0")) {
    REQUIRE(!inventory.numa_nodes.empty());
    CHECK(inventory.numa_nodes[0].id == 0);
    CHECK(inventory.numa_nodes[0].total_bytes > 0);
  }
}

TEST_CASE("Inventory: a devdax device with a usable alignment is usable") {
  const SeenHardware seen = describe_one(good_dax());
  CHECK(seen.usable);
  CHECK(seen.serial == "dax:dax0.0");
  CHECK(seen.capacity_bytes == 4 * gib);
  CHECK(seen.granule_bytes == 2 * mib);
  CHECK(contains(seen.detail, "/dev/dax0.0"));
  CHECK(contains(seen.detail, "node 2"));
}

TEST_CASE("Inventory: a device in system-ram mode is refused with the command that mends it") {
  DaxDevice dax = good_dax();
  dax.mode = DaxMode::system_ram;
  SeenHardware seen = describe_one(dax);
  CHECK(!seen.usable);
  CHECK(contains(seen.detail, "daxctl reconfigure-device --mode=devdax dax0.0"));
  dax.online = true;
  seen = describe_one(dax);
  CHECK(contains(seen.detail, "--force dax0.0"));
}

TEST_CASE("Inventory: a disabled device says how to enable it") {
  DaxDevice dax = good_dax();
  dax.mode = DaxMode::disabled;
  const SeenHardware seen = describe_one(dax);
  CHECK(!seen.usable);
  CHECK(contains(seen.detail, "daxctl enable-device dax0.0"));
}

TEST_CASE("Inventory: alignments that leases cannot use are refused") {
  DaxDevice dax = good_dax();
  for (const uint64_t align : {uint64_t{0}, 4 * kib, 3 * mib, 4 * gib}) {
    dax.align_bytes = align;
    CAPTURE(align);
    const SeenHardware seen = describe_one(dax);
    CHECK(!seen.usable);
    CHECK(!seen.detail.empty());
  }
  dax.align_bytes = 1 * gib;
  CHECK(describe_one(dax).usable);
}

TEST_CASE("Inventory: a memdev is shown by its serial, with what it lacks") {
  Inventory inventory;
  inventory.memdevs.push_back(
      {.serial = "0xabc", .name = "mem3", .host = "0000:35:00.0", .ram_bytes = 2 * gib, .pmem_bytes = gib});
  const auto seen = describe_hardware(inventory);
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].serial == "0xabc");
  CHECK(seen[0].capacity_bytes == 3 * gib);
  CHECK(contains(seen[0].detail, "cxl enable-memdev mem3"));
  CHECK(contains(seen[0].detail, "1 GiB of it persistent"));
}

TEST_CASE("Inventory: modules are found loaded, on disk, or not at all") {
  const MadeUpRoot root;
  root.write("/sys/module/cxl_core/refcnt", "1\n");
  root.write("/lib/modules/6.1.0/modules.dep",
             "kernel/drivers/cxl/cxl_pci.ko: kernel/x.ko\nkernel/drivers/dax/device_dax.ko:\n");
  root.write("/lib/modules/6.1.0/modules.builtin", "kernel/drivers/dax/kmem.ko\n");
  const auto modules = read_modules(root.path(), "6.1.0");
  const auto find = [&](const std::string& name) {
    for (const KernelModule& module : modules) {
      if (module.name == name) return module;
    }
    FAIL("no module ", name);
    return KernelModule{};
  };
  CHECK(find("cxl_core").loaded);
  CHECK(find("cxl_core").available);
  CHECK(!find("cxl_pci").loaded);
  CHECK(find("cxl_pci").available);
  CHECK(find("device_dax").available);
  CHECK(find("kmem").available);
  CHECK(!find("cxl_acpi").available);
}

TEST_CASE("Inventory: a node without processors is recognised") {
  const MadeUpRoot root;
  root.write("/sys/devices/system/node/node0/cpulist", "0-3\n");
  root.write("/sys/devices/system/node/node0/meminfo",
             "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:         512 kB\n");
  root.write("/sys/devices/system/node/node10/cpulist", "\n");
  root.write("/sys/devices/system/node/node10/meminfo",
             "Node 10 MemTotal:       4096 kB\nNode 10 MemFree:        4096 kB\n");
  root.write("/sys/devices/system/node/node2/cpulist", "4\n");
  root.write("/sys/devices/system/node/possible", "0-2\n");
  const auto nodes = read_numa_nodes(root.path());
  REQUIRE(nodes.size() == 3);
  CHECK(nodes[0].has_cpus);
  CHECK(nodes[0].total_bytes == mib);
  CHECK(nodes[0].free_bytes == 512 * kib);
  CHECK(nodes[1].id == 2);
  CHECK(nodes[2].id == 10);
  CHECK(!nodes[2].has_cpus);
  CHECK(nodes[2].total_bytes == 4 * mib);
}

TEST_CASE("Inventory: a root with nothing in it gives empty lists") {
  const MadeUpRoot root;
  CHECK(read_numa_nodes(root.path()).empty());
  for (const KernelModule& module : read_modules(root.path(), "0.0")) CHECK(!module.available);
}
