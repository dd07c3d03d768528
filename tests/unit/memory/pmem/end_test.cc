// SPDX-License-Identifier: Apache-2.0
// How leases of the pmem backend end, and are handed over and copied.
#include <doctest/doctest.h>

#include "tests/unit/memory/pmem/manager.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("pmem: a fenced lease cannot be opened, and fencing, erasing and scrubbing can be done again") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  for (int i = 0; i < 2; ++i) REQUIRE(manager.backend->fence("pmem:lease-1").ok());
  CHECK(manager.backend->list()->at(0).name == "pmem:lease-1");
  CHECK(!manager.machine.namespaces().empty());
  for (int i = 0; i < 2; ++i)
    REQUIRE(manager.backend->erase("pmem:lease-1", PmemManager::extents(granule), 0, granule).ok());
  for (int i = 0; i < 2; ++i) REQUIRE(manager.backend->scrub("pmem:lease-1").ok());
  CHECK(manager.machine.namespaces().empty());
  CHECK(manager.backend->fence("pmem:lease-1").ok());
  CHECK(!manager.backend->open("pmem:lease-1", ObjectAccess::read_only).ok());
}

TEST_CASE("pmem: what is erased of a large lease can be granted before the rest is") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  constexpr uint64_t large = 24 * granule;
  REQUIRE(manager.carve("pmem:lease-1", large).ok());
  CHECK(!manager.carve("pmem:lease-2", 10 * granule).ok());
  REQUIRE(manager.backend->fence("pmem:lease-1").ok());
  REQUIRE(manager.backend->erase("pmem:lease-1", PmemManager::extents(large), 8 * granule, 16 * granule).ok());
  REQUIRE(manager.carve("pmem:lease-2", 16 * granule).ok());
  const auto fd = manager.backend->open("pmem:lease-2", ObjectAccess::read_only);
  REQUIRE(fd.ok());
  CHECK(zeros(fd->get(), 16 * granule));
  REQUIRE(manager.backend->erase("pmem:lease-1", PmemManager::extents(large), 0, 8 * granule).ok());
  REQUIRE(manager.backend->scrub("pmem:lease-1").ok());
  CHECK(manager.machine.namespaces().size() == 1);
}

TEST_CASE("pmem: bytes on a region that is not there are not reported as erased") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  write_to(*manager.backend, "pmem:lease-1", "secret");
  manager.machine.unplug("0xc0");
  CHECK(manager.backend->refresh().ok());
  REQUIRE(manager.backend->discover().size() == 1);
  CHECK(manager.backend->discover()[0].capacity_bytes == 0);
  CHECK(says(manager.backend->discover()[0].detail, "cannot be made again now: there is no memdev 0xc0"));
  CHECK(manager.backend->fence("pmem:lease-1").ok());
  CHECK(manager.backend->erase("pmem:lease-1", PmemManager::extents(granule), 0, granule).error().code ==
        ErrorCode::io_error);
  CHECK(manager.backend->scrub("pmem:lease-1").error().code == ErrorCode::io_error);
  manager.machine.plug("0xc0");
  CHECK(manager.backend->refresh().ok());
  CHECK(manager.backend->discover()[0].capacity_bytes != 0);
  CHECK(manager.end("pmem:lease-1", granule).ok());
}

TEST_CASE("pmem: a hand-over gives the bytes a new name, from any step on which it was cut off") {
  for (unsigned step = 0; step <= 8; ++step) {
    CAPTURE(step);
    PmemManager manager;
    manager.compose();
    manager.adopt();
    REQUIRE(manager.carve("pmem:lease-1", granule).ok());
    write_to(*manager.backend, "pmem:lease-1", "handed over");
    if (step != 0) {
      manager.machine.fault_at((step + 1) / 2, step % 2 == 0 ? StepFault::dies_after : StepFault::dies_before);
      try {
        (void)manager.backend->rebind("pmem:lease-1", "pmem:lease-1.2", granule, PmemManager::extents(granule));
      } catch (const Died&) {
      }
      manager.machine.no_faults();
      manager.restart();
    }
    REQUIRE(
        manager.backend->rebind("pmem:lease-1", "pmem:lease-1.2", granule, PmemManager::extents(granule)).ok());
    CHECK(read_from(*manager.backend, "pmem:lease-1.2", 11) == "handed over");
    CHECK(!manager.backend->open("pmem:lease-1", ObjectAccess::read_only).ok());
    CHECK(manager.machine.namespaces().size() == 1);
  }
}

TEST_CASE("pmem: a hand-over of what is nowhere is corrupt") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  const Status lost =
      manager.backend->rebind("pmem:lease-1", "pmem:lease-2", granule, PmemManager::extents(granule));
  REQUIRE(!lost.ok());
  CHECK(lost.error().code == ErrorCode::corrupt);
}

TEST_CASE("pmem: a copy has all bytes") {
  PmemManager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  REQUIRE(manager.carve("pmem:lease-2", granule).ok());
  write_to(*manager.backend, "pmem:lease-1", "moved");
  REQUIRE(manager.backend->copy("pmem:lease-1", "pmem:lease-2", granule).ok());
  CHECK(read_from(*manager.backend, "pmem:lease-2", 5) == "moved");
}
