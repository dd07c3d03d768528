// SPDX-License-Identifier: Apache-2.0
// Regions of the pmem backend: tried, made again after a reboot, taken apart.
#include <doctest/doctest.h>

#include "tests/unit/memory/pmem/manager.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("pmem: a region that forgets what is written to it is refused with the reason, and taken apart") {
  PmemManager manager;
  manager.machine.silent_zeros = true;
  const auto made = manager.backend->create_region({{"0xc0"}, 0, 0});
  REQUIRE(!made.ok());
  CHECK(made.error().code == ErrorCode::io_error);
  CHECK(says(made.error().detail, "reads back as zeros"));
  CHECK(says(made.error().detail, "second root port"));
  CHECK(manager.machine.regions() == 0);
  CHECK(manager.backend->discover().empty());
}

TEST_CASE("pmem: trying a region leaves neither a namespace nor other bytes") {
  PmemManager manager;
  manager.compose();
  CHECK(manager.machine.namespaces().empty());
  manager.machine.fill(2 * mib, 4096, 0x77);
  REQUIRE(manager.backend->destroy_region(serial).ok());
  CHECK(manager.machine.regions() == 0);
  manager.compose();
  CHECK(manager.machine.byte_at(2 * mib) == 0x77);
}

TEST_CASE("pmem: after a reboot regions are made again, and leases are there with their bytes") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  REQUIRE(manager.carve("pmem:lease-2", 2 * granule).ok());
  write_to(*manager.backend, "pmem:lease-2", "over the reboot");
  manager.machine.reboot();
  CHECK(manager.machine.regions() == 0);
  manager.restart();
  REQUIRE(manager.backend->discover().size() == 1);
  CHECK(manager.backend->discover()[0].serial == serial);
  CHECK(manager.backend->list()->size() == 2);
  CHECK(manager.backend->usage("pmem:lease-2")->bytes == 2 * granule);
  CHECK(read_from(*manager.backend, "pmem:lease-2", 15) == "over the reboot");
}

TEST_CASE("pmem: a region that is made again before its driver is there stays, and is tried when it can be") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  write_to(*manager.backend, "pmem:lease-1", "over the reboot");
  manager.machine.reboot();
  manager.machine.pmem_driver = false;
  manager.restart();
  CHECK(manager.machine.regions() == 1);
  REQUIRE(manager.backend->discover().size() == 1);
  CHECK(manager.backend->discover()[0].capacity_bytes == 0);
  CHECK(says(manager.backend->discover()[0].detail, "could not be tried yet"));
  CHECK(!manager.backend->open("pmem:lease-1", ObjectAccess::read_only).ok());
  manager.machine.pmem_driver = true;
  CHECK(manager.backend->refresh().ok());
  CHECK(manager.machine.regions() == 1);
  REQUIRE(manager.backend->discover().size() == 1);
  CHECK(manager.backend->discover()[0].capacity_bytes == 448 * mib);
  CHECK(!says(manager.backend->discover()[0].detail, "could not be tried"));
  CHECK(read_from(*manager.backend, "pmem:lease-1", 15) == "over the reboot");
  CHECK(manager.carve("pmem:lease-2", granule).ok());
}

TEST_CASE("pmem: whatever step of trying a region that is made again fails, the region and its leases stay") {
  for (unsigned step = 6; step <= 10; ++step) {  // 1 to 5 make it
    CAPTURE(step);
    PmemManager manager;
    manager.compose();
    manager.adopt();
    REQUIRE(manager.carve("pmem:lease-1", granule).ok());
    write_to(*manager.backend, "pmem:lease-1", "over the reboot");
    manager.machine.reboot();
    manager.machine.fault_at(step, StepFault::fails);
    manager.restart();
    CHECK(manager.machine.steps() >= step);
    manager.machine.no_faults();
    CHECK(manager.machine.regions() == 1);
    CHECK(manager.backend->usage("pmem:lease-1").ok());
    CHECK(says(manager.backend->discover()[0].detail, "could not be tried yet"));
    const Status refused = manager.carve("pmem:lease-2", granule);
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::unavailable);
    CHECK(manager.backend->refresh().ok());
    CHECK(manager.carve("pmem:lease-2", granule).ok());
    CHECK(read_from(*manager.backend, "pmem:lease-1", 15) == "over the reboot");
  }
}

TEST_CASE("pmem: a region that is made again and forgets what is written to it is taken apart again") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  manager.machine.reboot();
  manager.machine.silent_zeros = true;
  manager.restart();
  CHECK(manager.machine.regions() == 0);
  CHECK(says(manager.backend->discover()[0].detail, "reads back as zeros"));
}

TEST_CASE("pmem: a region is not taken apart under somebody's feet") {
  PmemManager manager;
  manager.compose();
  manager.machine.add_foreign(32 * mib, "database");
  manager.machine.user = "process 12 (vllm)";
  const Status busy = manager.backend->destroy_region(serial);
  REQUIRE(!busy.ok());
  CHECK(busy.error().code == ErrorCode::busy);
  CHECK(manager.machine.regions() == 1);
  manager.machine.user.clear();
  CHECK(manager.backend->destroy_region(serial).ok());
  manager.compose();  // labels stay: what was on it is there again
  CHECK(manager.machine.namespaces().size() == 1);
}

TEST_CASE("pmem: a volatile region is tried, too, and is another backend's device") {
  for (const bool forgets : {false, true}) {
    FakeCxlMachine machine;
    machine.add_memdev("0xd0", true);
    machine.add_window({{"0xd0"}});
    machine.silent_zeros = forgets;
    PmemBackend backend(machine.pmem(), machine.cxl(), RegionRecords(""), PmemOptions{.look_ns = 0});
    const auto made = backend.create_region({{"0xd0"}, 0, 0});
    CHECK(made.ok() == !forgets);
    CHECK(machine.regions() == (forgets ? 0 : 1));
    CHECK(backend.discover().empty());
    if (made.ok()) CHECK(backend.destroy_region("dax:0xd0").ok());
    CHECK(machine.regions() == 0);
  }
}

TEST_CASE("pmem: a volatile region is not taken apart under those who use its dax devices") {
  FakeCxlMachine machine;
  machine.add_memdev("0xd0", true);
  machine.add_window({{"0xd0"}});
  PmemBackend backend(machine.pmem(), machine.cxl(), RegionRecords(""), PmemOptions{.look_ns = 0});
  REQUIRE(backend.create_region({{"0xd0"}, 0, 0}).ok());
  machine.user = "process 12 (vllm)";
  const Status busy = backend.destroy_region("dax:0xd0");
  REQUIRE(!busy.ok());
  CHECK(busy.error().code == ErrorCode::busy);
  CHECK(says(busy.error().detail, "dax0.0: process 12 (vllm)"));
  CHECK(machine.regions() == 1);
  machine.user.clear();
  CHECK(backend.destroy_region("dax:0xd0").ok());
  CHECK(machine.regions() == 0);
}

TEST_CASE("pmem: another manager's namespace that is called as a lease of ours is no lease") {
  PmemManager manager;
  manager.compose();
  manager.machine.add_foreign(32 * mib, "pmem:lease-1");
  manager.backend->know_objects({{"pmem:lease-1", granule, {{DeviceId{7}, 0, 1}}}});  // of another region
  CHECK(manager.backend->refresh().ok());
  CHECK(!manager.backend->discover()[0].contents.empty());
  manager.adopt();
  CHECK(manager.machine.namespaces().empty());
}
