// SPDX-License-Identifier: Apache-2.0
// The readers of sysfs and procfs, on made-up machines whose files say what real ones said (kernel 6.1
// and 6.12).
#include "daemon/inventory/sysfs.h"

#include "core/base/units.h"
#include "tests/unit/inventory/made_up_machine.h"

using namespace terrace;
using namespace terrace::inventory;

namespace {

const std::string acpi_root = "/platform/ACPI0017:00/root0";

// Memdev `number` in a slot of its own below host bridge port `port`, with endpoint `endpoint` and its decoder.
void add_memdev(const MadeUpMachine& machine, int number, const std::string& serial, int port, int endpoint) {
  const std::string n = std::to_string(number), bus = number == 0 ? "0c" : "de";
  const std::string function = "/pci0000:" + bus + "/0000:" + bus + ":00.0/0000:" + bus + ":01.0";
  machine.cxl(function + "/mem" + n);
  machine.write("/sys/devices" + function + "/mem" + n + "/serial", serial + "\n");
  machine.write("/sys/devices" + function + "/vendor", "0x8086\n");
  machine.write("/sys/devices" + function + "/device", "0x0d93\n");
  const std::string above = acpi_root + "/port" + std::to_string(port);
  const std::string its = above + "/endpoint" + std::to_string(endpoint);
  machine.cxl(its);
  machine.link("/sys/devices" + its + "/uport", "/sys/devices" + function + "/mem" + n);
  machine.cxl(its + "/decoder" + std::to_string(endpoint) + ".0");
}

void add_region(const MadeUpMachine& machine, const std::string& name,
                const std::vector<std::string>& targets) {
  const std::string path = acpi_root + "/decoder0.0/" + name, folder = "/sys/devices" + path + "/";
  machine.cxl(path);
  machine.write(folder + "resource", "0x150000000\n");
  machine.write(folder + "size", "0x20000000\n");
  machine.write(folder + "interleave_ways", std::to_string(targets.size()) + "\n");
  machine.write(folder + "interleave_granularity", "256\n");
  machine.write(folder + "commit", "1\n");
  for (size_t i = 0; i < targets.size(); ++i)
    machine.write(folder + "target" + std::to_string(i), targets[i] + "\n");
}

}  // namespace

TEST_CASE("Inventory: a region is read with its memdevs in the order of interleaving") {
  const MadeUpMachine machine;
  add_memdev(machine, 0, "0xc0", 1, 3);
  add_memdev(machine, 1, "0xc1", 2, 4);
  add_region(machine, "region1", {"decoder4.0", "decoder3.0"});
  machine.folder("/sys/devices" + acpi_root + "/decoder0.0/region1/driver");
  const auto regions = read_regions(machine.root());
  REQUIRE(regions.size() == 1);
  CHECK(regions[0].name == "region1");
  CHECK(regions[0].kind == RegionKind::pmem);  // 6.1 has no `mode`
  CHECK(regions[0].start == 0x150000000);
  CHECK(regions[0].bytes == 512 * mib);
  CHECK(regions[0].memdevs == std::vector<std::string>{"0xc1", "0xc0"});
  CHECK(regions[0].serial() == "pmem:0xc1.0xc0");
  CHECK(regions[0].committed);
  CHECK(regions[0].enabled);
  CHECK(regions[0].decoder == "decoder0.0");
}

TEST_CASE("Inventory: a volatile region says so by its mode") {
  const MadeUpMachine machine;
  add_memdev(machine, 0, "0xc0", 1, 3);
  add_region(machine, "region0", {"decoder3.0"});
  machine.write("/sys/devices" + acpi_root + "/decoder0.0/region0/mode", "ram\n");
  const auto regions = read_regions(machine.root());
  REQUIRE(regions.size() == 1);
  CHECK(regions[0].serial() == "dax:0xc0");
  CHECK(!regions[0].enabled);
}

TEST_CASE("Inventory: of two regions over one memdev each is called by where it begins") {
  const MadeUpMachine machine;
  add_memdev(machine, 0, "0xc0", 1, 3);
  const std::string memdev = "/sys/devices/pci0000:0c/0000:0c:00.0/0000:0c:01.0/mem0";
  const std::string endpoint = "/sys/devices" + acpi_root + "/port1/endpoint3";
  machine.cxl(acpi_root + "/port1/endpoint3/decoder3.1");
  machine.write(memdev + "/ram/size", "0x20000000\n");  // before the persistent memory
  machine.write(endpoint + "/decoder3.0/dpa_resource", "0x20000000\n");
  machine.write(endpoint + "/decoder3.1/dpa_resource", "0x30000000\n");
  add_region(machine, "region0", {"decoder3.0"});
  add_region(machine, "region1", {"decoder3.1"});
  const auto regions = read_regions(machine.root());
  REQUIRE(regions.size() == 2);
  CHECK(regions[0].serial() == "pmem:0xc0");
  CHECK(regions[1].serial() == "pmem:0xc0@0x10000000");
}

TEST_CASE(
    "Inventory: what the kernel makes of the devices' CDAT is read where it does, and not known where not") {
  const MadeUpMachine machine;
  add_memdev(machine, 0, "0xc0", 1, 3);
  add_region(machine, "region0", {"decoder3.0"});
  const std::string region = "/sys/devices" + acpi_root + "/decoder0.0/region0";
  CHECK(!read_regions(machine.root())[0].speed.known());
  CHECK(read_qos_class(machine.root(), "mem0", "ram") == -1);
  machine.write(region + "/access0/read_latency", "150\n");
  CHECK(read_regions(machine.root())[0].speed.latency_ns == 150);
  machine.write(region + "/access1/read_latency", "180\n");  // from the nearest CPUs: that counts
  machine.write(region + "/access1/read_bandwidth", "20480\n");
  const RegionSpeed speed = read_regions(machine.root())[0].speed;
  CHECK(speed.latency_ns == 180);
  CHECK(speed.bandwidth_bytes_per_s == 20 * gib);
  machine.write("/sys/bus/cxl/devices/mem0/ram/qos_class", "3\n");
  machine.write("/sys/bus/cxl/devices/mem0/pmem/qos_class", "-1\n");
  CHECK(read_qos_class(machine.root(), "mem0", "ram") == 3);
  CHECK(read_qos_class(machine.root(), "mem0", "pmem") == -1);
}

TEST_CASE("Inventory: a region that is only half made is shown and is no device") {
  const MadeUpMachine machine;
  add_memdev(machine, 0, "0xc0", 1, 3);
  add_region(machine, "region7", {"decoder3.0", ""});
  machine.write("/sys/devices" + acpi_root + "/decoder0.0/region7/commit", "0\n");
  machine.write("/sys/devices" + acpi_root + "/decoder0.0/region7/resource", "0xffffffffffffffff\n");
  const auto regions = read_regions(machine.root());
  REQUIRE(regions.size() == 1);
  CHECK(regions[0].serial().empty());
  CHECK(!regions[0].committed);
  CHECK(regions[0].start == 0);
}

TEST_CASE("Inventory: pmem_region and other names beside regions are not regions") {
  const MadeUpMachine machine;
  machine.cxl(acpi_root + "/decoder0.0/region1/pmem_region1");
  machine.cxl(acpi_root + "/decoder0.0/regional");
  CHECK(read_regions(machine.root()).empty());
}

TEST_CASE("Inventory: the way to a memdev goes by its ports and then by PCI") {
  const MadeUpMachine machine;
  add_memdev(machine, 0, "0xc0", 2, 3);
  CHECK(read_memdev_path(machine.root(), "mem0") ==
        std::vector<std::string>{"ACPI0017:00 root0", "port2", "0000:0c:00.0", "0000:0c:01.0"});
  CHECK(read_memdev_model(machine.root(), "mem0") == "8086:0d93");
  CHECK(read_memdev_serial(machine.root(), "mem0") == "0xc0");
}

TEST_CASE("Inventory: a memdev without a driver is found by PCI alone, one without a serial by where it sits") {
  const MadeUpMachine machine;
  machine.cxl("/pci0000:0c/0000:0c:00.0/0000:0d:00.0/mem5");
  CHECK(read_memdev_path(machine.root(), "mem5") == std::vector<std::string>{"0000:0c:00.0", "0000:0d:00.0"});
  CHECK(read_memdev_serial(machine.root(), "mem5") == "mem5@0000:0d:00.0");
  CHECK(read_memdev_model(machine.root(), "mem5").empty());
}

TEST_CASE("Inventory: ports say how deep they are and how many ways lead down") {
  const MadeUpMachine machine;
  const std::string bridge = acpi_root + "/port1", sw = bridge + "/port3";
  for (const std::string& path : {bridge, sw}) machine.cxl(path);
  machine.folder("/sys/devices/LNXSYSTM:00/ACPI0016:00");
  machine.link("/sys/devices" + bridge + "/uport", "/sys/devices/LNXSYSTM:00/ACPI0016:00");
  machine.folder("/sys/devices" + bridge + "/dport0");
  for (const char* down : {"dport0", "dport1", "dports"}) machine.folder("/sys/devices" + sw + "/" + down);
  const auto ports = read_ports(machine.root());
  REQUIRE(ports.size() == 2);
  CHECK(ports[0].name == "port1");
  CHECK(ports[0].host == "ACPI0016:00");
  CHECK(ports[0].depth == 1);
  CHECK(ports[0].downstream == 1);
  CHECK(ports[1].depth == 2);
  CHECK(ports[1].downstream == 2);
}

TEST_CASE("Inventory: CXL memory on PCI is found by its class, with or without a driver") {
  const MadeUpMachine machine;
  machine.write("/sys/bus/pci/devices/0000:0d:00.0/class", "0x050210\n");
  machine.write("/sys/bus/pci/devices/0000:00:01.0/class", "0x020000\n");
  machine.write("/sys/bus/pci/devices/0000:00:02.0/class", "");
  CHECK(read_cxl_functions(machine.root()) == std::vector<std::string>{"0000:0d:00.0"});
}

TEST_CASE("Inventory: soft-reserved memory and where a dax region of it begins") {
  const MadeUpMachine machine;
  machine.write("/proc/iomem",
                "00001000-0009fbff : System RAM\n"
                "100000000-13fffffff : hmem.0\n"
                "  100000000-13fffffff : Soft Reserved\n"
                "    100000000-10fffffff : dax0.1\n"
                "200000000-23fffffff : Soft Reserved\n"
                "broken line\n"
                "zz-yy : Soft Reserved\n");
  CHECK(read_soft_reserved(machine.root()) ==
        std::vector<SoftReserved>{{0x100000000, gib, true}, {0x200000000, gib, false}});
  CHECK(read_hmem_start(machine.root(), "hmem.0") == 0x100000000);
  CHECK(read_hmem_start(machine.root(), "hmem.1") == 0);
}

TEST_CASE("Inventory: who is not root sees zeros for addresses, and no region gets a name of them") {
  const MadeUpMachine machine;
  machine.write("/proc/iomem", "00000000-00000000 : hmem.0\n  00000000-00000000 : Soft Reserved\n");
  CHECK(read_soft_reserved(machine.root()).empty());
  CHECK(read_hmem_start(machine.root(), "hmem.0") == 0);
}

TEST_CASE(
    "Inventory: holders of a dax device are those who have it open or mapped, once each, but not oneself") {
  const MadeUpMachine machine;
  machine.write("/proc/12/comm", "vllm\n");
  machine.link("/proc/12/fd/3", "/dev/dax0.1", false);
  machine.link("/proc/12/fd/4", "/dev/dax0.1", false);
  machine.write("/proc/12/maps", "7f00-7f10 rw-s 00000000 00:06 5 /dev/dax0.1\n7f20-7f30 r--p 0 0 0 /lib/x\n");
  machine.write("/proc/7/comm", "redis\n");
  machine.write("/proc/7/maps", "7f00-7f10 rw-s 00000000 00:06 5 /dev/dax1.0 (deleted)\n");
  machine.write("/proc/99/comm", "me\n");
  machine.link("/proc/99/fd/3", "/dev/dax0.1", false);
  machine.write("/proc/version", "Linux\n");
  const auto holders = read_dax_holders(machine.root(), 99);
  REQUIRE(holders.size() == 2);
  CHECK(holders.at("dax0.1") == std::vector<Holder>{{12, "vllm"}});
  CHECK(holders.at("dax1.0") == std::vector<Holder>{{7, "redis"}});
}

TEST_CASE("Inventory: the region of a dax device is the nearest in its path") {
  CHECK(dax_region_name("/platform/hmem.0") == "hmem.0");
  CHECK(dax_region_name("/platform/ACPI0017:00/root0/decoder0.0/region3/dax_region3") == "region3");
  CHECK(dax_region_name("/platform/ACPI0017:00/root0/nvdimm-bridge0/ndbus0/region1/dax1.0") == "region1");
  CHECK(dax_region_name("/platform/odd") == "odd");
  CHECK(dax_region_name("").empty());
}

TEST_CASE("Inventory: modules are found loaded, on disk, or not at all") {
  const MadeUpMachine machine;
  machine.write("/sys/module/cxl_core/refcnt", "1\n");
  machine.write("/lib/modules/6.1.0/modules.dep",
                "kernel/drivers/cxl/cxl_pci.ko: kernel/x.ko\nkernel/drivers/dax/device_dax.ko:\n");
  machine.write("/lib/modules/6.1.0/modules.builtin", "kernel/drivers/dax/kmem.ko\n");
  const auto modules = read_modules(machine.root(), "6.1.0");
  const auto find = [&](const std::string& name) {
    for (const KernelModule& module : modules)
      if (module.name == name) return module;
    FAIL("no module ", name);
    return KernelModule{};
  };
  CHECK(find("cxl_core").loaded);
  CHECK(find("cxl_core").available);
  CHECK(!find("cxl_pci").loaded);
  CHECK(find("cxl_pci").available);
  CHECK(find("device_dax").available);
  CHECK(find("kmem").available);
  CHECK(find("kmem").loaded);  // built in
  CHECK(!find("cxl_acpi").available);
}

TEST_CASE("Inventory: a root with nothing in it gives empty lists") {
  const MadeUpMachine machine;
  CHECK(read_ports(machine.root()).empty());
  CHECK(read_regions(machine.root()).empty());
  CHECK(read_cxl_functions(machine.root()).empty());
  CHECK(read_soft_reserved(machine.root()).empty());
  CHECK(read_dax_holders(machine.root(), 0).empty());
  CHECK(read_memdev_path(machine.root(), "mem0").empty());
  for (const KernelModule& module : read_modules(machine.root(), "0.0")) CHECK(!module.available);
}
