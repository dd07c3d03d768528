// SPDX-License-Identifier: Apache-2.0
// What is measured of a device, and the record of what is unerased.
#include <doctest/doctest.h>

#include <filesystem>

#include "daemon/memory/devdax/dax_memory_record.h"
#include "tests/unit/memory/devdax/manager.h"

namespace terrace::daemon {

TEST_CASE("devdax: what no table says is measured at the adoption, once, and nothing of that is left") {
  FakeDaxBus bus;
  bus.add_region(serial, base, capacity);
  MeasuredRecord record;
  DevdaxManager manager(bus);
  manager.measured = &record;
  manager.start({});
  CHECK(manager.backend->attributes(serial).source == AttributesSource::none);
  CHECK(manager.backend->attributes(serial).isolation == Isolation::device);
  manager.adopt();
  const TierAttributes told = manager.backend->attributes(serial);
  CHECK(told.source == AttributesSource::measured);
  CHECK(told.latency_ns > 0);
  CHECK(told.bandwidth_bytes_per_s > 0);
  CHECK(manager.start({}, true).empty());
  record.set(serial, capacity, {.latency_ns = 7, .bandwidth_bytes_per_s = 8});
  CHECK(manager.backend->attributes(serial).latency_ns == 7);
  REQUIRE(manager.backend->carve("devdax:lease-1", 2 * granule, {DevdaxManager::extent(0, 2)}).ok());
  REQUIRE(manager.backend->take_over(serial).ok());  // again, while somebody's lease is on it
  CHECK(manager.backend->attributes(serial).latency_ns == 7);
  manager.backend->know_devices({});  // removed
  CHECK(manager.backend->attributes(serial).source == AttributesSource::none);
}

TEST_CASE("devdax: a device that nobody measured is, on memory that was just erased") {
  FakeDaxBus bus;
  bus.add_region(serial, base, capacity);
  DevdaxManager manager(bus);
  manager.adopt();
  MeasuredRecord record;
  manager.measured = &record;
  const std::vector<Extent> extents{DevdaxManager::extent(0, 2)};
  manager.start({}, true);
  REQUIRE(manager.backend->carve("devdax:lease-1", 2 * granule, extents).ok());
  CHECK(manager.backend->attributes(serial).source == AttributesSource::none);  // never what a lease holds
  REQUIRE(manager.backend->fence("devdax:lease-1").ok());
  REQUIRE(manager.backend->erase("devdax:lease-1", extents, 0, 2 * granule).ok());
  CHECK(manager.backend->attributes(serial).source == AttributesSource::measured);
}

TEST_CASE("dax record: what is unerased holds for one boot and one place, and everything is without a record") {
  const std::string directory = scratch_directory() + "/dax";
  const DaxRange device{base, capacity};
  {
    DaxMemoryRecord record(directory, "boot-1");
    record.track("d", device);
    CHECK_FALSE(record.had_hand_over("d"));
    REQUIRE(record.begin_hand_over("d").ok());
    CHECK(record.unerased("d", {{base, granule}}) == std::vector<DaxRange>{{base, granule}});
    record.mark_erased("d", {{base, 4 * granule}});
    REQUIRE(record.mark_unerased("d", {{base + granule, granule}}).ok());
  }
  DaxMemoryRecord again(directory, "boot-1");
  again.track("d", device);
  CHECK(again.had_hand_over("d"));
  CHECK(again.unerased("d", {{base, 5 * granule}}) ==
        std::vector<DaxRange>{{base + granule, granule}, {base + 4 * granule, granule}});
  DaxMemoryRecord moved(directory, "boot-1");
  moved.track("d", {base + granule, capacity});
  CHECK_FALSE(moved.had_hand_over("d"));
  DaxMemoryRecord rebooted(directory, "boot-2");
  rebooted.track("d", device);
  CHECK_FALSE(rebooted.had_hand_over("d"));
  CHECK(rebooted.unerased("d", {device}) == std::vector<DaxRange>{device});
  std::filesystem::remove_all(std::filesystem::path(directory).parent_path());
}

TEST_CASE("dax record: ranges join, split and are found in parts") {
  RangeSet set;
  set.add({10, 10});
  set.add({30, 10});
  set.add({20, 10});
  CHECK(set.all() == std::vector<DaxRange>{{10, 30}});
  set.remove({15, 10});
  CHECK(set.all() == std::vector<DaxRange>{{10, 5}, {25, 15}});
  CHECK(set.within({0, 30}) == std::vector<DaxRange>{{10, 5}, {25, 5}});
  CHECK(set.within({15, 10}).empty());
  set.add({0, 100});
  CHECK(set.all() == std::vector<DaxRange>{{0, 100}});
}

}  // namespace terrace::daemon
