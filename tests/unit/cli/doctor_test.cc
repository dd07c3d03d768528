// The doctor's checks of CXL and DAX hardware, and its fixing, on made-up machines.
#include "cli/doctor/doctor.h"

#include <doctest/doctest.h>

#include <set>

#include "cli/doctor/doctor_fix.h"
#include "cli/pools/adopt.h"

using namespace terrace;
using namespace terrace::cli;
using inventory::DaxMode;
using inventory::Inventory;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Root, kernel 6.1: two memdevs of 512 MiB below host bridges of their own, each with a window, nothing
// composed; 1 GiB of soft-reserved memory as one devdax device. Nothing is wrong with it.
Inventory healthy() {
  Inventory all;
  all.cxl_bus = all.dax_bus = all.privileged = true;
  all.kernel_release = "6.1.0-56-amd64";
  all.auto_online_blocks = "offline";
  for (const char* name : {"cxl_acpi", "cxl_pci", "cxl_mem", "cxl_pmem", "device_dax", "dax_hmem", "kmem"})
    all.modules.push_back({.name = name, .loaded = true, .available = true});
  for (int i = 0; i < 2; ++i) {
    const std::string n = std::to_string(i), port = "port" + std::to_string(i + 1);
    all.cxl_pci.push_back("0000:0" + n + ":00.0");
    all.memdevs.push_back({.serial = "0xc" + n,
                           .name = "mem" + n,
                           .pmem_bytes = 512 * mib,
                           .enabled = true,
                           .path = {"ACPI0017:00 root0", port, "0000:0c:00.0"}});
    all.ports.push_back({.name = port, .host = "ACPI0016:0" + n, .depth = 1, .downstream = 2});
    all.decoders.push_back({.name = "decoder0." + n,
                            .kind = "root",
                            .port = "root0",
                            .bytes = 4 * gib,
                            .free_bytes = 4 * gib,
                            .ways = 1,
                            .targets = {"ACPI0016:0" + n}});
    all.decoders.push_back({.name = "decoder" + std::to_string(i + 1) + ".0", .kind = "switch", .port = port});
    all.decoders.push_back({.name = "decoder" + std::to_string(i + 3) + ".0",
                            .kind = "endpoint",
                            .port = "endpoint" + std::to_string(i + 3),
                            .targets = {"0xc" + n}});
  }
  all.soft_reserved.push_back({0x100000000, gib, true});
  all.dax_regions.push_back({.name = "hmem.0",
                             .serial = "dax:hmem@0x100000000",
                             .bytes = gib,
                             .align_bytes = 2 * mib,
                             .target_node = 1});
  all.dax_devices.push_back({.name = "dax0.0",
                             .region = "hmem.0",
                             .mode = DaxMode::devdax,
                             .start = 0x100000000,
                             .bytes = gib,
                             .align_bytes = 2 * mib,
                             .target_node = 1,
                             .dynamic = true});
  return all;
}

// Region `name` of 512 MiB out of the memdevs numbered `of`, as a commit leaves it.
void compose(Inventory& all, const std::string& name, const std::vector<size_t>& of,
             uint64_t bytes = 512 * mib) {
  inventory::Region region{.name = name,
                           .bytes = bytes,
                           .ways = static_cast<uint32_t>(of.size()),
                           .committed = true,
                           .enabled = true};
  for (const size_t i : of) {
    region.memdevs.push_back(all.memdevs[i].serial);
    all.decoders[3 * i + 1].region = all.decoders[3 * i + 2].region = name;
    all.decoders[3 * i + 2].bytes = bytes / of.size();
  }
  all.regions.push_back(region);
}

}  // namespace

TEST_CASE("Doctor: a machine without CXL or DAX hardware is not told about its pains") {
  CHECK(check_hardware(Inventory{}).empty());
}

TEST_CASE("Doctor: where nothing is wrong every check is ok, and says so without a fix") {
  Inventory all = healthy();
  const auto check_all = [&all] {
    std::set<std::string> names;
    for (const Check& check : check_hardware(all)) {
      CAPTURE(check.name);
      CAPTURE(check.found);
      CHECK(check.state == CheckState::ok);
      CHECK(!check.found.empty());
      CHECK(!check.meaning.empty());
      CHECK(check.fix.empty());
      CHECK(names.insert(check.name).second);
    }
    CHECK(names.size() == 9);
  };
  check_all();
  compose(all, "region0", {0});
  compose(all, "region1", {1});
  check_all();
}

TEST_CASE("Doctor: whatever is wrong is said with what it means and how to fix it") {
  Inventory all = healthy();
  all.privileged = false;
  all.cxl_pci.push_back("0000:ff:00.0");
  all.ports[0].downstream = 1;
  all.decoders[2].bytes = mib;
  all.regions.push_back({.name = "region9"});
  all.auto_online_blocks = "online";
  all.dax_devices[0].mode = DaxMode::system_ram;
  all.dax_devices[0].align_bytes = 4 * kib;
  for (const Check& check : check_hardware(all)) {
    CAPTURE(check.name);
    CHECK(check.state != CheckState::ok);
    CHECK(!check.found.empty());
    CHECK(!check.meaning.empty());
    CHECK(!check.fix.empty());
  }
}

TEST_CASE("Doctor: CXL memory on PCI that no driver took names the modules to load") {
  Inventory all = healthy();
  all.memdevs.clear();
  all.modules.clear();
  const Check check = check_cxl_driver(all);
  CHECK(check.state == CheckState::limited);
  CHECK(contains(check.found, "2 CXL memory device(s)"));
  CHECK(contains(check.fix, "modprobe -a cxl_pci cxl_acpi"));
}

TEST_CASE("Doctor: persistent memory without cxl_pmem, memdevs without a window, and drivers that failed") {
  Inventory all = healthy();
  std::erase_if(all.modules, [](const auto& module) { return module.name == "cxl_pmem"; });
  CHECK(check_cxl_driver(all).fix == "modprobe -a cxl_pmem");
  all = healthy();
  std::erase_if(all.decoders, [](const auto& decoder) { return decoder.kind == "root"; });
  CHECK(contains(check_cxl_driver(all).found, "no CXL window"));
  CHECK(contains(check_cxl_driver(all).fix, "dmesg"));
  all = healthy();
  all.memdevs[1].enabled = false;
  CHECK(contains(check_cxl_driver(all).found, "1 memdev(s) not enabled"));
}

TEST_CASE("Doctor: one root port below a host bridge is a danger on 6.1 and none on 6.12") {
  Inventory all = healthy();
  all.ports[0].downstream = 1;
  Check check = check_cxl_ports(all);
  CHECK(check.state == CheckState::missing);
  CHECK(contains(check.found, "port1"));
  CHECK(!contains(check.found, "port2"));
  CHECK(contains(check.meaning, "zeros"));
  CHECK(contains(check.fix, "read it back"));
  for (const char* release : {"6.3.0", "6.12.117+deb12-amd64", "7.0"}) {
    all.kernel_release = release;
    CHECK(check_cxl_ports(all).state == CheckState::ok);
  }
  for (const char* release : {"6.2.9", "5.19.0"}) {
    all.kernel_release = release;
    CHECK(check_cxl_ports(all).state == CheckState::missing);
  }
}

TEST_CASE("Doctor: a switch with one way down, and a host bridge with no memory, are no danger") {
  Inventory all = healthy();
  all.ports[0] = {.name = "port1", .depth = 2, .downstream = 1};
  CHECK(check_cxl_ports(all).state == CheckState::ok);
  all.ports[0] = {.name = "port9", .depth = 1, .downstream = 1};
  CHECK(check_cxl_ports(all).state == CheckState::ok);
}

TEST_CASE("Doctor: capacity that an unfinished region left taken is found, with the way to free it") {
  Inventory all = healthy();
  all.decoders[2].bytes = 512 * mib;  // decoder3.0, in no region
  const Check check = check_cxl_decoders(all);
  CHECK(check.state == CheckState::limited);
  CHECK(contains(check.found, "0xc0 has 512 MiB taken by decoder3.0"));
  CHECK(contains(check.fix, "/sys/bus/cxl/devices/decoder3.0/dpa_size"));
}

TEST_CASE("Doctor: a memdev with room and no decoder left is shut out; with a second decoder it is not") {
  Inventory all = healthy();
  compose(all, "region0", {0}, 256 * mib);
  const Check check = check_cxl_decoders(all);
  CHECK(check.state == CheckState::limited);
  CHECK(contains(check.found, "0xc0 has 256 MiB in no region"));
  all.decoders.push_back({.name = "decoder3.1", .kind = "endpoint", .port = "endpoint3", .targets = {"0xc0"}});
  CHECK(check_cxl_decoders(all).state == CheckState::ok);
}

TEST_CASE("Doctor: a host bridge whose only decoder is taken keeps its other memdev from a region") {
  Inventory all = healthy();
  all.memdevs[1].path = all.memdevs[0].path;  // both below port1
  compose(all, "region0", {0});
  const Check check = check_cxl_decoders(all);
  CHECK(check.state == CheckState::limited);
  CHECK(contains(check.found, "0xc1 cannot have a region of its own"));
  CHECK(contains(check.found, "port1"));
  all.decoders.push_back({.name = "decoder1.1", .kind = "switch", .port = "port1"});
  CHECK(check_cxl_decoders(all).state == CheckState::ok);
}

TEST_CASE("Doctor: a full window is said to be full") {
  Inventory all = healthy();
  all.decoders[0].free_bytes = 0;
  CHECK(contains(check_cxl_decoders(all).found, "window decoder0.0 is full"));
}

TEST_CASE("Doctor: a region that was not committed or has no driver is explained") {
  Inventory all = healthy();
  compose(all, "region0", {0});
  all.regions[0].enabled = false;
  CHECK(contains(check_cxl_regions(all).found, "region0 has no driver"));
  all.regions[0].committed = false;
  const Check check = check_cxl_regions(all);
  CHECK(contains(check.found, "region0 is not committed"));
  CHECK(contains(check.fix, "-hypervisor"));
}

TEST_CASE("Doctor: soft-reserved memory that nothing was made of needs dax_hmem") {
  Inventory all = healthy();
  all.soft_reserved.push_back({0x200000000, 2 * gib, false});
  Check check = check_soft_reserved(all);
  CHECK(check.state == CheckState::limited);
  CHECK(contains(check.meaning, "2 GiB at 0x200000000"));
  CHECK(!contains(check.meaning, "0x100000000"));
  CHECK(contains(check.fix, "dmesg"));
  all.modules.clear();
  CHECK(check_soft_reserved(all).fix == "modprobe -a device_dax dax_hmem");
  all.privileged = false;
  CHECK(contains(check_soft_reserved(all).fix, "root"));
}

TEST_CASE("Doctor: a device that came up as system-ram can be fixed, unless it was onlined for good") {
  Inventory all = healthy();
  all.dax_devices[0].mode = DaxMode::system_ram;
  all.dax_devices[0].online = true;
  Check check = check_dax_mode(all);
  CHECK(check.state == CheckState::limited);
  CHECK(contains(check.found, "dax0.0 (1 GiB of hmem.0) came up as system-ram, node 1, in use"));
  CHECK(contains(check.fix, "terrace doctor --fix"));
  all.dax_devices[0].unmovable = true;
  check = check_dax_mode(all);
  CHECK(!contains(check.fix, "--fix"));
  CHECK(contains(check.fix, "reboot"));
}

TEST_CASE("Doctor: a dax device without a driver may be a fenced lease, and is not to be enabled blindly") {
  Inventory all = healthy();
  all.dax_devices[0].mode = DaxMode::disabled;
  CHECK(contains(check_dax_mode(all).fix, "fenced"));
}

TEST_CASE("Doctor: alignments that leases cannot use, and how each kind of device gets another") {
  Inventory all = healthy();
  for (const uint64_t align : {uint64_t{0}, 4 * kib, 3 * mib, 4 * gib}) {
    CAPTURE(align);
    all.dax_devices[0].align_bytes = align;
    CHECK(check_dax_alignment(all).state == CheckState::limited);
  }
  CHECK(contains(check_dax_alignment(all).fix, "make it again"));
  all.dax_devices[0].dynamic = false;
  CHECK(contains(check_dax_alignment(all).fix, "ndctl create-namespace"));
  all.dax_devices[0].align_bytes = gib;
  CHECK(check_dax_alignment(all).state == CheckState::ok);
  all.dax_devices[0].bytes = gib + 2 * mib;
  CHECK(contains(check_dax_alignment(all).found, "no multiple"));
}

TEST_CASE("Doctor: memory that goes online by itself is found in the kernel's setting and in udev's rules") {
  Inventory all = healthy();
  for (const char* setting : {"online", "online_kernel", "online_movable"}) {
    all.auto_online_blocks = setting;
    CHECK(check_auto_online(all).state == CheckState::limited);
  }
  all.auto_online_blocks = "offline";
  CHECK(check_auto_online(all).state == CheckState::ok);
  all.dax_devices[0].auto_online = true;
  CHECK(contains(check_auto_online(all).fix, "udev"));
}

TEST_CASE("Doctor: drivers that this kernel has, and what their lack means") {
  Inventory all = healthy();
  for (const char* name : {"cxl_core", "cxl_port", "dax_pmem", "dax_cxl"})
    all.modules.push_back({.name = name, .loaded = true, .available = true});
  CHECK(check_cxl_modules(all).state == CheckState::ok);
  const auto without = [&all](const std::string& name) {
    Inventory less = all;
    for (auto& module : less.modules)
      if (module.name == name) module.loaded = module.available = false;
    return check_cxl_modules(less);
  };
  CHECK(without("dax_cxl").state == CheckState::limited);
  CHECK(contains(without("dax_cxl").meaning, "volatile"));
  CHECK(without("kmem").state == CheckState::limited);
  CHECK(without("cxl_pci").state == CheckState::missing);
  CHECK(without("device_dax").state == CheckState::missing);
}

TEST_CASE("Doctor: CXL, dax and nodes of a made-up machine in its general checks") {
  Inventory all = healthy();
  CHECK(check_cxl(all).state == CheckState::ok);
  CHECK(contains(check_cxl(all).found, "0xc0"));
  CHECK(check_dax(all).state == CheckState::ok);
  all.dax_devices.clear();
  CHECK(contains(check_dax(all).found, "hmem.0 (1 GiB, all of it free)"));
  all.dax_regions.clear();
  CHECK(check_dax(all).state == CheckState::missing);
  CHECK(check_numa(all).state == CheckState::limited);
  os::NodeAttributes node;
  node.total_bytes = gib;
  all.numa_nodes.push_back({1, node});
  CHECK(check_numa(all).state == CheckState::ok);
}

namespace {

class NotedModes final : public inventory::DaxModes {
 public:
  Status to_devdax(const std::string& device) override {
    asked.push_back(device);
    if (device == broken) return Error{.code = ErrorCode::busy, .detail = "planted"};
    return {};
  }
  std::vector<std::string> asked;
  std::string broken;
};

class NotedOwner final : public NodeOwner {
 public:
  Status offline(const std::string& serial) override {
    asked.push_back(serial);
    return answer;
  }
  std::vector<std::string> asked;
  Status answer;
};

Inventory with_system_ram() {
  Inventory all = healthy();
  all.dax_devices[0].mode = DaxMode::system_ram;
  all.dax_devices[0].online = true;
  return all;
}

DeviceStatus node_device(bool adopted, uint32_t leases) {
  return DeviceStatus().changed([&](rpc::DeviceInfo::Builder device) {
    device.setSerial("numa:node1");
    device.setBackend("numa");
    device.initAttributes().setNumaNode(1);
    device.setAdopted(adopted);
    device.setLeases(leases);
  });
}

}  // namespace

TEST_CASE("Fix: only devices in system-ram mode are touched") {
  CHECK(plan_fixes(healthy(), {}).empty());
  const auto fixes = plan_fixes(with_system_ram(), {});
  REQUIRE(fixes.size() == 1);
  CHECK(fixes[0].device == "dax0.0");
  CHECK(fixes[0].refusal.empty());
  NotedModes modes;
  const auto outcomes = apply_fixes(fixes, modes, nullptr);
  REQUIRE(outcomes.size() == 1);
  CHECK(outcomes[0].status.ok());
  CHECK(modes.asked == std::vector<std::string>{"dax0.0"});
}

TEST_CASE("Fix: memory of an adopted node is left alone, and so is what cannot be moved or is not root's") {
  const auto adopted = plan_fixes(with_system_ram(), {node_device(true, 2)});
  CHECK(contains(adopted[0].refusal, "2 leases"));
  CHECK(contains(adopted[0].refusal, "terrace device remove numa:node1"));
  Inventory all = with_system_ram();
  all.dax_devices[0].unmovable = true;
  const auto unmovable = plan_fixes(all, {});
  CHECK(contains(unmovable[0].refusal, "reboot"));
  all = with_system_ram();
  all.privileged = false;
  CHECK(contains(plan_fixes(all, {})[0].refusal, "root"));
  NotedModes modes;
  CHECK(apply_fixes(adopted, modes, nullptr).empty());
  CHECK(apply_fixes(unmovable, modes, nullptr).empty());
  CHECK(modes.asked.empty());
  CHECK(describe_fixes(adopted, true).empty());
}

TEST_CASE("Fix: a node of another device, or of another backend, does not stand in the way") {
  const DeviceStatus other = node_device(true, 1).changed(
      [](rpc::DeviceInfo::Builder device) { device.initAttributes().setNumaNode(7); });
  CHECK(plan_fixes(with_system_ram(), {other})[0].refusal.empty());
  const DeviceStatus emulated =
      node_device(true, 1).changed([](rpc::DeviceInfo::Builder device) { device.setBackend("emulated"); });
  CHECK(plan_fixes(with_system_ram(), {emulated})[0].refusal.empty());
}

TEST_CASE("Fix: the manager gives its node back first, and is not overruled when it refuses") {
  const auto fixes = plan_fixes(with_system_ram(), {node_device(false, 0)});
  REQUIRE(fixes[0].refusal.empty());
  NotedModes modes;
  NotedOwner owner;
  CHECK(apply_fixes(fixes, modes, &owner)[0].status.ok());
  CHECK(owner.asked == std::vector<std::string>{"numa:node1"});
  CHECK(modes.asked.size() == 1);
  owner.answer = Error{.code = ErrorCode::busy, .detail = "pages in use"};
  const auto refused = apply_fixes(fixes, modes, &owner);
  CHECK(refused[0].status.error().code == ErrorCode::busy);
  CHECK(modes.asked.size() == 1);
  owner.answer = Error{.code = ErrorCode::unsupported, .detail = "not mine"};  // it did not make the node
  CHECK(apply_fixes(fixes, modes, &owner)[0].status.ok());
  CHECK(modes.asked.size() == 2);
}

TEST_CASE("Fix: one device that cannot be fixed does not keep the next from it") {
  Inventory all = with_system_ram();
  all.dax_devices.push_back(all.dax_devices[0]);
  all.dax_devices[1].name = "dax0.1";
  NotedModes modes;
  modes.broken = "dax0.0";
  const auto outcomes = apply_fixes(plan_fixes(all, {}), modes, nullptr);
  REQUIRE(outcomes.size() == 2);
  CHECK(!outcomes[0].status.ok());
  CHECK(outcomes[1].status.ok());
}

TEST_CASE("Fix: who is asked hears what happens, and that no manager was asked") {
  const auto fixes = plan_fixes(with_system_ram(), {});
  CHECK(contains(describe_fixes(fixes, true), "dax0.0 (1 GiB, node 1)"));
  CHECK(!contains(describe_fixes(fixes, true), "No manager"));
  CHECK(contains(describe_fixes(fixes, false), "No manager was asked"));
}

TEST_CASE("Adopting: what is lost is said for the devices meant that have something on them") {
  const auto device = [](const char* serial, const char* contents) {
    return DeviceStatus().changed([&](rpc::DeviceInfo::Builder out) {
      out.setSerial(serial);
      out.setContents(contents);
    });
  };
  std::vector<DeviceStatus> devices = {device("dax:hmem@0x100000000", "2 dax devices"), device("pmem:0xc0", ""),
                                       device("dax:0xc1", "1 dax device")};
  CHECK(adoption_losses(devices, {"dax:hmem@0x100000000", "pmem:0xc0"}) ==
        "dax:hmem@0x100000000 (2 dax devices)");
  CHECK(adoption_losses(devices, {"dax:0xc1", "dax:hmem@0x100000000"}) ==
        "dax:hmem@0x100000000 (2 dax devices); dax:0xc1 (1 dax device)");
  CHECK(adoption_losses(devices, {"pmem:0xc0", "none"}).empty());
  // Again: nothing new is lost.
  devices[0] = devices[0].changed([](rpc::DeviceInfo::Builder out) { out.setAdopted(true); });
  CHECK(adoption_losses(devices, {"dax:hmem@0x100000000"}).empty());
}

TEST_CASE("Doctor: migration needs a userfaultfd of either kind, and eyes; what lacks is named") {
  const auto with = [](CheckState own, CheckState given, CheckState shmem, CheckState scan) {
    return check_migration({{.name = "userfaultfd", .state = own},
                            {.name = "userfaultfd_device", .state = given},
                            {.name = "userfaultfd_shmem", .state = shmem},
                            {.name = "pagemap_scan", .state = scan}});
  };
  constexpr auto ok = CheckState::ok, limited = CheckState::limited, missing = CheckState::missing;
  CHECK(with(ok, limited, ok, ok).state == ok);
  CHECK(with(limited, ok, ok, ok).state == ok);
  CHECK(with(limited, ok, missing, ok).state == ok);  // the device was tried with all features
  const Check plain = with(limited, limited, ok, ok);
  CHECK(plain.state == limited);
  CHECK(contains(plain.found, "userfaultfd_device"));
  CHECK(!plain.fix.empty());
  CHECK(contains(with(ok, ok, ok, missing).found, "pagemap_scan"));
  CHECK(contains(check_migration({}).found, "userfaultfd"));
}

TEST_CASE("Doctor: without a daemon there is no device, and that is said at once") {
  const Check check = check_userfaultfd_device("/nonexistent/terraced.sock");
  CHECK(check.state == CheckState::limited);
  CHECK(check.found == "no daemon to ask");
  CHECK(!check.fix.empty());
}
