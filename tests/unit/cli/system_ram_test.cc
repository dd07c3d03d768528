// SPDX-License-Identifier: Apache-2.0
// Which devices `pool create --system-ram` means.
#include "cli/pools/system_ram.h"

#include <doctest/doctest.h>

using namespace terrace;
using namespace terrace::cli;

namespace {

DeviceStatus device(const std::string& serial, const std::string& backend, bool adopted = false) {
  return DeviceStatus().changed([&](rpc::DeviceInfo::Builder out) {
    out.setSerial(serial);
    out.setBackend(backend);
    out.setAdopted(adopted);
    out.setPresent(true);
  });
}

}  // namespace

TEST_CASE("system ram: the only dax device that nobody adopted is meant where none is named") {
  const std::vector<DeviceStatus> all = {device("emu:a", "emulated"), device("dax:a", "devdax"),
                                         device("dax:b", "devdax", true), device("pmem:c", "pmem")};
  const auto found = system_ram_devices(all, {});
  REQUIRE(found.ok());
  REQUIRE(found->size() == 1);
  CHECK(str(found->front()->getSerial()) == "dax:a");
}

TEST_CASE("system ram: none, and several, have to be named") {
  CHECK(system_ram_devices({device("emu:a", "emulated")}, {}).error().code == ErrorCode::not_found);
  const auto several = system_ram_devices({device("dax:a", "devdax"), device("dax:b", "devdax")}, {});
  CHECK(several.error().code == ErrorCode::invalid_argument);
  CHECK(several.error().detail.find("dax:a, dax:b") != std::string::npos);
  const DeviceStatus absent =
      device("dax:a", "devdax").changed([](rpc::DeviceInfo::Builder out) { out.setPresent(false); });
  CHECK(system_ram_devices({absent}, {}).error().code == ErrorCode::not_found);
}

TEST_CASE("system ram: named devices must be dax devices that nobody adopted, or memory nodes") {
  const std::vector<DeviceStatus> all = {device("emu:a", "emulated"), device("dax:a", "devdax"),
                                         device("dax:b", "devdax", true), device("numa:node1", "numa")};
  const auto found = system_ram_devices(all, {"numa:node1", "dax:a"});
  REQUIRE(found.ok());
  CHECK(found->size() == 2);
  CHECK(system_ram_devices(all, {"dax:z"}).error().code == ErrorCode::not_found);
  CHECK(system_ram_devices(all, {"emu:a"}).error().code == ErrorCode::invalid_argument);
  const auto adopted = system_ram_devices(all, {"dax:a", "dax:b"});
  CHECK(adopted.error().code == ErrorCode::busy);
  CHECK(adopted.error().detail.find("device remove dax:b") != std::string::npos);
}
