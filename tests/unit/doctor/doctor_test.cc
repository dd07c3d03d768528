// SPDX-License-Identifier: Apache-2.0
// The doctor's checks of CXL and DAX hardware, on made-up machines; and how checks come from a helper process.
#include <doctest/doctest.h>

#include <set>

#include "daemon/doctor/checks.h"
#include "tests/unit/doctor/made_up_machine.h"

using namespace terrace;
using namespace terrace::doctor;
using inventory::DaxMode;
using inventory::Inventory;
using test::healthy;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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

TEST_CASE("Doctor: checks come out of a helper process as they went in") {
  const std::vector<Check> checks = {
      {.name = "kernel", .state = CheckState::ok, .found = "Linux", .meaning = "fine", .essential = true},
      {.name = "cuda", .state = CheckState::missing, .found = "", .meaning = "no \xe2\x82\xac", .fix = "a\nb"}};
  const auto back = unpack(pack(checks));
  REQUIRE(back.ok());
  REQUIRE(back->size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK((*back)[i].name == checks[i].name);
    CHECK((*back)[i].state == checks[i].state);
    CHECK((*back)[i].found == checks[i].found);
    CHECK((*back)[i].meaning == checks[i].meaning);
    CHECK((*back)[i].fix == checks[i].fix);
    CHECK((*back)[i].essential == checks[i].essential);
  }
  CHECK(unpack("")->empty());
  const std::string whole = pack(checks);
  for (size_t length = 1; length < whole.size(); ++length) {  // cut off anywhere but between two checks
    const auto cut = unpack(std::string_view(whole).substr(0, length));
    CHECK((!cut.ok() || cut->size() == 1));
  }
  CHECK(unpack("9" + whole.substr(1)).error().code == ErrorCode::corrupt);
}

TEST_CASE("Doctor: every check of a machine has its group, and those of hardware are one") {
  for (const Check& check : check_hardware(healthy())) CHECK(group_of(check.name) == CheckGroup::hardware);
  CHECK(group_of("memory") == CheckGroup::memory);
  CHECK(group_of("migration") == CheckGroup::migration);
  CHECK(group_of("something new") == CheckGroup::machine);
}
