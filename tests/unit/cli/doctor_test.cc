// SPDX-License-Identifier: Apache-2.0
// The doctor's fixing, on made-up machines, and what it says of a daemon.
#include "cli/doctor/doctor.h"

#include <doctest/doctest.h>

#include "cli/doctor/doctor_fix.h"
#include "cli/pools/adopt.h"
#include "tests/unit/doctor/made_up_machine.h"

using namespace terrace;
using namespace terrace::cli;
using inventory::DaxMode;
using inventory::Inventory;
using test::healthy;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

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

TEST_CASE("Doctor: without a daemon there is no device, and that is said at once") {
  const Check check = check_userfaultfd_device("/nonexistent/terraced.sock");
  CHECK(check.state == CheckState::limited);
  CHECK(check.found == "no daemon to ask");
  CHECK(!check.fix.empty());
}
