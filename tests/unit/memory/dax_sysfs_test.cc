// SPDX-License-Identifier: Apache-2.0
// What SysfsDaxBus makes of a machine, as files below a folder: the shapes are those of kernel 6.1
// (soft-reserved memory, pmem) and 6.12 (volatile CXL regions).
#include "daemon/memory/devdax/dax_sysfs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "core/base/units.h"

namespace terrace::daemon {
namespace {

namespace fs = std::filesystem;

class Machine {
 public:
  Machine() {
    char path[] = "/tmp/t-daxsysfs-XXXXXX";
    REQUIRE(::mkdtemp(path) != nullptr);
    root_ = path;
    fs::create_directories(root_ + "/sys/bus/dax/devices");
    fs::create_directories(root_ + "/sys/bus/dax/drivers/device_dax");
    fs::create_directories(root_ + "/sys/bus/cxl/devices");
    fs::create_directories(root_ + "/dev");
  }
  ~Machine() { fs::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << '\n';
  }
  void link(const std::string& from, const std::string& to) {
    fs::create_directories(fs::path(root_ + from).parent_path());
    fs::create_symlink(root_ + to, root_ + from);
  }
  std::string region(const std::string& path, uint64_t bytes, bool dynamic = true) {
    write(path + "/dax_region/size", std::to_string(bytes));
    write(path + "/dax_region/align", "2097152");
    write(path + "/dax_region/available_size", "1");
    if (dynamic) write(path + "/dax_region/create", "");
    return path;
  }
  void device(const std::string& region, const std::string& name, const std::string& number,
              const std::vector<DaxRange>& ranges, bool enabled = true) {
    const std::string path = region + "/" + name;
    uint64_t bytes = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const std::string mapping = path + "/mapping" + std::to_string(i);
      write(mapping + "/start", hex(ranges[i].start));
      write(mapping + "/end", hex(ranges[i].end() - 1));
      write(mapping + "/page_offset", hex(bytes / 4096));
      bytes += ranges[i].bytes;
    }
    write(path + "/size", std::to_string(bytes));
    write(path + "/dev", number);
    write(path + "/align", "2097152");
    write(path + "/target_node", "1");
    if (enabled) link(path + "/driver", "/sys/bus/dax/drivers/device_dax");
    link("/sys/bus/dax/devices/" + name, path);
  }
  static std::string hex(uint64_t number) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%lx", static_cast<unsigned long>(number));
    return text;
  }

 private:
  std::string root_;
};

constexpr uint64_t base = 4 * gib;

}  // namespace

TEST_CASE("dax sysfs: a region is found with its devices, their ranges in the order of the mapping") {
  Machine machine;
  const std::string region = machine.region("/sys/devices/platform/hmem.0", 1 * gib);
  machine.device(region, "dax0.0", "252:0", {}, false);
  machine.write(region + "/dax0.0/resource", "0x100000000");
  machine.device(region, "dax0.10", "252:10", {{base + 64 * mib, 4 * mib}, {base, 2 * mib}});
  machine.device(region, "dax0.2", "252:2", {{base + 128 * mib, 2 * mib}}, false);
  SysfsDaxBus bus(machine.root());
  const auto regions = bus.regions();
  REQUIRE(regions.ok());
  REQUIRE(regions->size() == 1);
  const DaxRegion& found = regions->front();
  CHECK(found.serial == "dax:hmem@0x100000000");
  CHECK(found.name == "hmem.0");
  CHECK(found.range() == DaxRange{base, 1 * gib});
  CHECK(found.target_node == 1);
  REQUIRE(found.devices.size() == 3);
  CHECK(found.devices[0].is_first());
  CHECK(found.devices[1].name == "dax0.2");
  CHECK(found.devices[1].driver == DaxDriver::none);
  CHECK(found.devices[2].name == "dax0.10");
  CHECK_FALSE(found.devices[2].is_first());
  CHECK(found.devices[2].driver == DaxDriver::device_dax);
  CHECK(found.devices[2].ranges == std::vector<DaxRange>{{base + 64 * mib, 4 * mib}, {base, 2 * mib}});
}

TEST_CASE("dax sysfs: a region whose devices do not begin where it does is known by the map of memory") {
  Machine machine;
  const std::string region = machine.region("/sys/devices/platform/hmem.1", 1 * gib);
  machine.device(region, "dax1.0", "252:0", {{base + 512 * mib, 2 * mib}});
  SysfsDaxBus bus(machine.root());
  CHECK(bus.regions()->empty());  // nobody can say where it is: it must not be taken for another
  machine.write(
      "/proc/iomem",
      "00000000-00000fff : Reserved\n  100000000-13fffffff : Soft Reserved\n    120000000-1201fffff : dax1.0");
  REQUIRE(bus.regions()->size() == 1);
  CHECK(bus.regions()->front().serial == "dax:hmem@0x100000000");
}

TEST_CASE("dax sysfs: the static region of a pmem namespace is not one of ours") {
  Machine machine;
  const std::string region = machine.region("/sys/devices/LNXSYSTM:00/ndbus0/region0/dax0.0", 1 * gib, false);
  machine.device(region, "dax0.0", "252:0", {{base, 1 * gib}});
  CHECK(SysfsDaxBus(machine.root()).regions()->empty());
}

TEST_CASE("dax sysfs: a volatile CXL region has the name of its memdevs, in their order of interleaving") {
  Machine machine;
  const std::string cxl = "/sys/devices/platform/ACPI0017:00/root0/decoder0.0/region0";
  const std::string region = machine.region(cxl + "/dax_region0", 1 * gib);
  machine.device(region, "dax0.0", "252:0", {}, false);
  machine.write(region + "/dax0.0/resource", "0x290000000");
  machine.link("/sys/bus/cxl/devices/region0", cxl);
  machine.write(cxl + "/interleave_ways", "2");
  for (const auto& [way, memdev, serial] : {std::tuple{0, 1, "0xc1"}, std::tuple{1, 0, "0xc0"}}) {
    const std::string number = std::to_string(memdev);
    const std::string endpoint = "/sys/devices/pci0000:0c/endpoint" + number;
    const std::string decoder = "decoder" + std::to_string(memdev + 2) + ".0";
    machine.write(cxl + "/target" + std::to_string(way), decoder);
    machine.write(endpoint + "/" + decoder + "/mode", "ram");
    machine.link("/sys/bus/cxl/devices/" + decoder, endpoint + "/" + decoder);
    machine.write("/sys/devices/pci0000:0c/0000:0d:0" + number + ".0/mem" + number + "/serial", serial);
    machine.link(endpoint + "/uport", "/sys/devices/pci0000:0c/0000:0d:0" + number + ".0/mem" + number);
  }
  const auto regions = SysfsDaxBus(machine.root()).regions();
  REQUIRE(regions->size() == 1);
  CHECK(regions->front().serial == "dax:0xc1.0xc0");
  machine.write("/sys/devices/pci0000:0c/endpoint1/decoder3.0/dpa_resource", "0x10000000");
  CHECK(SysfsDaxBus(machine.root()).regions()->at(0).serial == "dax:0xc1.0xc0@0x10000000");
}

TEST_CASE("dax sysfs: an attribute that cannot be read is an error, and not less of a machine") {
  for (const char* attribute :
       {"dax0.1/size", "dax0.1/dev", "dax0.1/mapping0/start", "dax0.1/mapping1/start", "dax_region/size",
        "dax_region/align", "dax_region/available_size", "dax0.0/resource", "dax0.0/target_node"}) {
    CAPTURE(attribute);
    Machine machine;
    const std::string region = machine.region("/sys/devices/platform/hmem.0", 1 * gib);
    machine.device(region, "dax0.0", "252:0", {}, false);
    machine.write(region + "/dax0.0/resource", "0x100000000");
    machine.device(region, "dax0.1", "252:1", {{base, 2 * mib}, {base + 4 * mib, 2 * mib}});
    REQUIRE(SysfsDaxBus(machine.root()).regions()->size() == 1);
    fs::remove(machine.root() + region + "/" + attribute);
    fs::create_directory(machine.root() + region + "/" + attribute);  // reading it fails with EISDIR
    CHECK_FALSE(SysfsDaxBus(machine.root()).regions().ok());
  }
}

TEST_CASE("dax sysfs: a machine without the bus has no regions, and that is no error") {
  SysfsDaxBus bus("/nonexistent");
  CHECK_FALSE(bus.present());
  REQUIRE(bus.regions().ok());
  CHECK(bus.regions()->empty());
  CHECK(bus.device("dax0.0").error().code == ErrorCode::not_found);
}

TEST_CASE("dax sysfs: a file in the place of a device's node is not opened for it") {
  Machine machine;
  const std::string region = machine.region("/sys/devices/platform/hmem.0", 1 * gib);
  machine.device(region, "dax0.0", "252:0", {{base, 2 * mib}});
  machine.write("/dev/dax0.0", "not a device");
  SysfsDaxBus bus(machine.root());
  CHECK(bus.open(*bus.device("dax0.0"), false).error().code == ErrorCode::corrupt);
  fs::remove(machine.root() + "/dev/dax0.0");
  CHECK(bus.open(*bus.device("dax0.0"), false).error().code == ErrorCode::not_found);
}

TEST_CASE("dax sysfs: who has a device is found by its mappings and its descriptors") {
  Machine machine;
  machine.write("/proc/41/maps", "7f00-7f01 rw-s 00000000 00:05 1 /dev/dax0.1");
  machine.write("/proc/41/comm", "vllm\x1b");
  machine.write("/proc/42/maps", "7f00-7f01 rw-s 00000000 00:05 1 /dev/dax0.1 (deleted)");
  machine.write("/proc/43/maps", "");
  fs::create_directories(machine.root() + "/proc/43/fd");
  fs::create_symlink("/dev/dax0.1", machine.root() + "/proc/43/fd/7");
  machine.write("/proc/43/comm", "db");
  machine.write("/proc/44/maps", "7f00-7f01 rw-s 00000000 00:05 1 /dev/dax0.10");
  DaxDevice device;
  device.name = "dax0.1";
  auto found = SysfsDaxBus(machine.root()).holders({device});
  REQUIRE(found.ok());
  std::vector<DaxHolder> holders = *found;
  std::sort(holders.begin(), holders.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  REQUIRE(holders.size() == 2);
  CHECK(holders[0].pid == 41);
  CHECK(holders[0].command == "vllm?");
  CHECK(holders[1].pid == 43);
  CHECK(holders[1].device == "dax0.1");
}

}  // namespace terrace::daemon
