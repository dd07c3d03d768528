// SPDX-License-Identifier: Apache-2.0
// The pmem backend where steps fail, and among namespaces of other people.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "tests/unit/memory/pmem/manager.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("pmem: whatever step of a grant fails or lies, nothing stays of it") {
  for (const StepFault fault : {StepFault::fails, StepFault::fails_late, StepFault::lies}) {
    for (unsigned step = 1; step <= 3; ++step) {
      CAPTURE(step);
      CAPTURE(static_cast<int>(fault));
      PmemManager manager;
      manager.compose();
      manager.adopt();
      manager.machine.fault_at(step, fault);
      const Status carved = manager.backend->carve("pmem:lease-1", granule, PmemManager::extents(granule));
      manager.machine.no_faults();
      CHECK(!carved.ok());
      // What the kernel says it did not do is found at the next start.
      manager.restart();
      const auto listed = manager.backend->list();
      REQUIRE(listed.ok());
      for (const ObservedObject& orphan : *listed) {
        CHECK(manager.backend->fence(orphan.name).ok());
        CHECK(manager.backend->scrub(orphan.name).ok());
      }
      CHECK(manager.machine.namespaces().empty());
      CHECK(manager.backend->carve("pmem:lease-1", granule, PmemManager::extents(granule)).ok());
    }
  }
}

TEST_CASE(
    "pmem: killed at any step of a lease's life, the next start finds it or an orphan, and can end both") {
  for (const StepFault fault : {StepFault::dies_before, StepFault::dies_after}) {
    for (unsigned step = 1; step <= 8; ++step) {
      CAPTURE(step);
      PmemManager manager;
      manager.compose();
      manager.adopt();
      REQUIRE(manager.carve("pmem:lease-0", granule).ok());
      write_to(*manager.backend, "pmem:lease-0", "a neighbour's");
      bool carved = false, died = false;
      manager.machine.fault_at(step, fault);
      try {
        carved = manager.carve("pmem:lease-1", granule).ok();
        (void)manager.end("pmem:lease-1", granule);
      } catch (const Died&) {
        died = true;
      }
      manager.machine.no_faults();
      // Allocated, named, enabled; disabled, enabled to be erased, disabled, removed.
      CHECK(died == (step <= 7));
      manager.restart();
      const auto listed = manager.backend->list();
      REQUIRE(listed.ok());
      for (const ObservedObject& object : *listed) {
        if (object.name == "pmem:lease-0") continue;
        CHECK(manager.backend->fence(object.name).ok());
        if (carved) CHECK(manager.backend->erase(object.name, PmemManager::extents(granule), 0, granule).ok());
        CHECK(manager.backend->scrub(object.name).ok());
      }
      CHECK(manager.machine.namespaces().size() == 1);
      CHECK(read_from(*manager.backend, "pmem:lease-0", 13) == "a neighbour's");
    }
  }
}

TEST_CASE("pmem: a fence or scrub that the kernel does not do is an error, whatever it returned") {
  for (const StepFault fault : {StepFault::fails, StepFault::lies}) {
    PmemManager manager;
    manager.compose();
    manager.adopt();
    REQUIRE(manager.carve("pmem:lease-1", granule).ok());
    manager.machine.fault_at(1, fault);
    CHECK(!manager.backend->fence("pmem:lease-1").ok());
    manager.machine.no_faults();
    REQUIRE(manager.backend->fence("pmem:lease-1").ok());
    manager.machine.fault_at(1, fault);
    (void)manager.backend->scrub("pmem:lease-1");
    manager.machine.fault_at(2, fault);
    (void)manager.backend->scrub("pmem:lease-1");
    manager.machine.no_faults();
    CHECK(manager.backend->scrub("pmem:lease-1").ok());
    CHECK(manager.machine.namespaces().empty());
  }
}

TEST_CASE("pmem: a region that is not adopted is only looked at, and what is on it is told") {
  PmemManager manager;
  manager.compose();
  manager.machine.add_foreign(32 * mib, "database");
  manager.machine.add_foreign(32 * mib, "");
  manager.machine.user = "process 12 (vllm)";
  manager.machine.fault_at(1000, StepFault::none);
  manager.restart();
  CHECK(manager.backend->list()->empty());
  REQUIRE(manager.backend->discover().size() == 1);
  CHECK(says(manager.backend->discover()[0].contents, "2 namespaces of somebody else's"));
  CHECK(manager.machine.user_looks == 0);  // at every process: only when somebody asks
  REQUIRE(manager.backend->inspect().size() == 1);
  CHECK(manager.machine.user_looks != 0);
  CHECK(says(manager.backend->inspect()[0].contents, "process 12 (vllm)"));
  CHECK(manager.machine.steps() == 0);
}

TEST_CASE("pmem: taking a region over removes what was on it, but not from under its users") {
  PmemManager manager;
  manager.compose();
  manager.machine.add_foreign(32 * mib, "database");
  manager.machine.user = "mounted at /srv";
  manager.machine.fault_at(1000, StepFault::none);
  const Status busy = manager.backend->take_over(serial);
  REQUIRE(!busy.ok());
  CHECK(busy.error().code == ErrorCode::busy);
  CHECK(says(busy.error().detail, "mounted at /srv"));
  CHECK(manager.machine.steps() == 0);
  manager.machine.user.clear();
  manager.adopt();
  CHECK(manager.machine.namespaces().empty());
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  REQUIRE(manager.backend->take_over(serial).ok());  // again, while it is in use
  CHECK(manager.machine.namespaces().size() == 1);
}

TEST_CASE("pmem: namespaces that nobody granted on an adopted region are orphans, whatever their labels") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  manager.machine.add_foreign(32 * mib, "");
  manager.machine.add_foreign(32 * mib, "database");
  manager.machine.add_foreign(32 * mib, "pmem:lease-1");  // a forgery
  manager.restart();
  const auto listed = manager.backend->list();
  REQUIRE(listed.ok());
  CHECK(listed->size() == 4);
  manager.machine.user = "mounted at /srv";  // an adoption that was cut off must cost nobody his data
  for (const ObservedObject& object : *listed) {
    if (object.name == "pmem:lease-1") continue;
    for (const Status& status :
         {manager.backend->fence(object.name), Status(manager.backend->scrub(object.name).error())}) {
      REQUIRE(!status.ok());
      CHECK(status.error().code == ErrorCode::busy);
      CHECK(says(status.error().detail, "mounted at /srv"));
    }
  }
  CHECK(manager.machine.namespaces().size() == 4);
  manager.machine.user.clear();
  for (const ObservedObject& object : *listed) {
    if (object.name == "pmem:lease-1") continue;
    CHECK(object.name.starts_with("pmem:stray-"));
    CHECK(manager.backend->fence(object.name).ok());
    CHECK(manager.backend->scrub(object.name).ok());
  }
  REQUIRE(manager.machine.namespaces().size() == 1);
  CHECK(manager.machine.namespaces()[0].bytes == 18 * mib);
}

TEST_CASE("pmem: what cannot be looked at is neither gone, nor fenced, nor erased") {
  for (const bool half : {false, true}) {
    CAPTURE(half);
    PmemManager manager;
    manager.compose();
    manager.adopt();
    REQUIRE(manager.carve("pmem:lease-1", granule).ok());
    write_to(*manager.backend, "pmem:lease-1", "kept");
    (half ? manager.machine.half_blind : manager.machine.blind) = true;
    manager.machine.fault_at(1000, StepFault::none);
    for (const Status& status :
         {manager.backend->refresh(), manager.backend->fence("pmem:lease-1"),
          manager.backend->erase("pmem:lease-1", PmemManager::extents(granule), 0, granule),
          Status(manager.backend->scrub("pmem:lease-1").error()), Status(manager.backend->list().error()),
          manager.backend->take_over(serial), manager.backend->destroy_region(serial)}) {
      REQUIRE(!status.ok());
      CHECK((status.error().os_errno == EMFILE || status.error().os_errno == EAGAIN));
    }
    CHECK(manager.machine.steps() == 0);
    REQUIRE(manager.backend->discover().size() == 1);
    CHECK(manager.backend->discover()[0].capacity_bytes == 448 * mib);
    manager.machine.blind = manager.machine.half_blind = false;
    CHECK(manager.backend->refresh().ok());
    CHECK(read_from(*manager.backend, "pmem:lease-1", 4) == "kept");
    CHECK(manager.backend->fence("pmem:lease-1").ok());
  }
}

TEST_CASE("pmem: a region whose driver takes its time holds up nobody's fence") {
  FakeCxlMachine machine;
  for (const char* memdev : {"0xc0", "0xc1"}) {
    machine.add_memdev(memdev);
    machine.add_window({{memdev}});
  }
  PmemBackend backend(machine.pmem(), machine.cxl(), RegionRecords(""), PmemOptions{.look_ns = 0});
  REQUIRE(backend.create_region({{"0xc0"}, 0, 0}).ok());
  backend.know_devices({{DeviceId{1}, serial, "pmem", 448 * mib, granule}});
  REQUIRE(backend.take_over(serial).ok());
  REQUIRE(backend.carve("pmem:lease-1", granule, PmemManager::extents(granule)).ok());
  machine.driver_looks = 12;
  std::atomic<bool> made{false};
  std::thread maker([&] {
    const auto created = backend.create_region({{"0xc1"}, 0, 0});
    CHECK(created.ok());
    made = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  CHECK(backend.fence("pmem:lease-1").ok());
  CHECK(backend.refresh().ok());  // which does not take the unfinished one apart
  CHECK(!made);
  maker.join();
  CHECK(machine.regions() == 2);
  CHECK(!backend.open("pmem:lease-1", ObjectAccess::read_only).ok());
}

TEST_CASE("pmem: a device that is not in /dev yet is told at once, and not waited for") {
  PmemNamespace space;
  space.name = "namespace0.0";
  space.device = "/dev/dax-that-is-not-there";
  const auto kernel = make_pmem_kernel();
  const auto begin = std::chrono::steady_clock::now();
  const auto fd = kernel->open(space, O_RDONLY);
  const auto took = std::chrono::steady_clock::now() - begin;
  REQUIRE(!fd.ok());
  CHECK(fd.error().code == ErrorCode::unavailable);
  CHECK(took < std::chrono::milliseconds(50));  // it was 100: the event loop's
}

TEST_CASE("pmem: a lease's namespace that somebody disabled is enabled again") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  write_to(*manager.backend, "pmem:lease-1", "kept");
  REQUIRE(manager.machine.pmem().disable(manager.machine.namespaces()[0].uuid).ok());
  manager.restart();
  CHECK(manager.backend->list()->at(0).bytes == granule);
  CHECK(read_from(*manager.backend, "pmem:lease-1", 4) == "kept");
}
