// SPDX-License-Identifier: Apache-2.0
// Leases of the devdax backend: carved, fenced, erased, handed over, copied.
#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>

#include "tests/unit/memory/devdax/manager.h"

namespace terrace::daemon {

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a region that nobody adopted is shown with what is on it, and not touched") {
  bus.held = {{.pid = 12, .command = "vllm", .device = "dax0.0"}};
  DevdaxManager manager(bus);
  CHECK(bus.holder_looks == 0);  // at every process: only when somebody asks
  CHECK(manager.backend->discover()[0].contents == "1 dax device: dax0.0 (32 MiB)");
  const auto seen = manager.backend->inspect();
  CHECK(bus.holder_looks == 1);
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].serial == serial);
  CHECK(seen[0].capacity_bytes == capacity);
  CHECK(seen[0].granule_bytes == granule);
  CHECK(seen[0].contents.find("dax0.0 (32 MiB, held by process 12 (vllm))") != std::string::npos);
  CHECK(manager.backend->list()->empty());
  CHECK(bus.done.empty());
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: taking over a device that a process has is refused by its name, changing nothing") {
  bus.held = {{.pid = 12, .command = "vllm", .device = "dax0.0"}};
  DevdaxManager manager(bus);
  manager.know();
  const Status status = manager.backend->take_over(serial);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::busy);
  CHECK(status.error().detail.find("process 12 (vllm)") != std::string::npos);
  CHECK(bus.done.empty());
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: memory that the kernel uses itself is not taken over") {
  bus.find("dax0.0")->driver = DaxDriver::kmem;
  DevdaxManager manager(bus);
  manager.know();
  const Status status = manager.backend->take_over(serial);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::busy);
  CHECK(manager.backend->discover()[0].detail.find("system-ram") != std::string::npos);
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: taking over empties the first device, and again spares what is leased") {
  DevdaxManager manager(bus);
  manager.adopt();
  CHECK(bus.find("dax0.0")->bytes == 0);
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(3, 1)}).ok());
  const std::string device = bus.done.back().device;
  REQUIRE(manager.backend->take_over(serial).ok());
  REQUIRE(bus.find(device) != nullptr);
  CHECK(bus.find(device)->driver == DaxDriver::device_dax);
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: an object is one device with its extents as ranges, in their order, and zeros") {
  bus.fill(base, capacity, 0xa5);
  DevdaxManager manager(bus);
  manager.adopt();
  REQUIRE(manager.backend
              ->carve("devdax:lease-1", 3 * granule, {DevdaxManager::extent(9, 1), DevdaxManager::extent(2, 2)})
              .ok());
  const DaxDevice* device = bus.find("dax0.1");
  REQUIRE(device != nullptr);
  CHECK(device->ranges ==
        std::vector<DaxRange>{{base + 9 * granule, granule}, {base + 2 * granule, 2 * granule}});
  CHECK(device->driver == DaxDriver::device_dax);
  CHECK(all_zero(bus.read(base + 9 * granule, granule)));
  CHECK(all_zero(bus.read(base + 2 * granule, 2 * granule)));
  CHECK(bus.read(base + 4 * granule, 1)[0] == std::byte{0xa5});  // nobody's yet
  CHECK(manager.backend->usage("devdax:lease-1")->bytes == 3 * granule);
  CHECK(manager.backend->open("devdax:lease-1", ObjectAccess::read_write).ok());
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: memory that was erased once is not erased again at a grant") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  bus.fill(base, granule, 0x77);  // behind the manager's back: to see whether it looks
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(0, 1)}).ok());
  CHECK(bus.read(base, 1)[0] == std::byte{0x77});
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: a step of a carve that fails leaves no device, whichever it is") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  for (int step = 1; step <= 4; ++step) {  // create, two ranges, enable
    CAPTURE(step);
    bus.fail_step(step, EIO);
    const Status status = manager.backend->carve("devdax:lease-1", 2 * granule,
                                                 {DevdaxManager::extent(0, 1), DevdaxManager::extent(4, 1)});
    REQUIRE_FALSE(status.ok());
    CHECK(bus.devices(serial) == 1);
    CHECK(manager.backend->list()->empty());
  }
  CHECK(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(0, 1)}).ok());
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a fence disables, empties and destroys, in this order, and again is no error") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(0, 1)}).ok());
  bus.done.clear();
  REQUIRE(manager.backend->fence("devdax:lease-1").ok());
  REQUIRE(bus.done.size() == 3);
  CHECK(bus.done[0].verb == "disable");
  CHECK(bus.done[1].verb == "release");
  CHECK(bus.done[2].verb == "destroy");
  CHECK(manager.backend->fence("devdax:lease-1").ok());
  CHECK(bus.done.size() == 3);
  CHECK_FALSE(manager.backend->open("devdax:lease-1", ObjectAccess::read_only).ok());
  CHECK(manager.backend->fence("devdax:lease-1000").ok());
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a fence that a step fails is finished by the next one, and revives nothing") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  for (int step = 1; step <= 3; ++step) {
    CAPTURE(step);
    REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(0, 1)}).ok());
    bus.fail_step(step, EIO);
    CHECK_FALSE(manager.backend->fence("devdax:lease-1").ok());
    CHECK_FALSE(manager.backend->scrub("devdax:lease-1").ok());
    REQUIRE(manager.backend->fence("devdax:lease-1").ok());
    CHECK(bus.devices(serial) == 1);
    REQUIRE(manager.backend->scrub("devdax:lease-1").ok());
  }
  CHECK(bus.revived.empty());
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: erasing a piece zeroes that piece only and leaves no device behind") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{DevdaxManager::extent(8, 2), DevdaxManager::extent(1, 2)};
  REQUIRE(manager.backend->carve("devdax:lease-1", 4 * granule, extents).ok());
  bus.fill(base, capacity, 0x5a);
  REQUIRE(manager.backend->fence("devdax:lease-1").ok());
  // The third granule of the object: the first of its second extent.
  REQUIRE(manager.backend->erase("devdax:lease-1", extents, 2 * granule, granule).ok());
  CHECK(all_zero(bus.read(base + 1 * granule, granule)));
  CHECK(bus.read(base + 2 * granule, 1)[0] == std::byte{0x5a});
  CHECK(bus.read(base + 9 * granule, 1)[0] == std::byte{0x5a});
  CHECK(bus.devices(serial) == 1);
  // Over the border of both extents.
  REQUIRE(manager.backend->erase("devdax:lease-1", extents, granule, 3 * granule).ok());
  CHECK(all_zero(bus.read(base + 9 * granule, granule)));
  CHECK(all_zero(bus.read(base + 1 * granule, 2 * granule)));
  CHECK(bus.read(base + 8 * granule, 1)[0] == std::byte{0x5a});
  CHECK(manager.backend->scrub("devdax:lease-1").value() == 4 * granule);
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: what a killed litmus run wrote is erased before a grant") {
  const std::string records = scratch_directory();
  DevdaxManager manager(bus, records);
  manager.adopt_erased();
  const std::vector<Extent> extents{DevdaxManager::extent(0, 1)};
  REQUIRE(manager.backend->carve("devdax:litmus-1", granule, extents).ok());
  bus.fill(base, granule, 0x5a);
  REQUIRE(manager.backend->fence("devdax:litmus-1").ok());
  (void)manager.start({}, true);  // it was killed before it erased
  CHECK(bus.read(base, 1)[0] == std::byte{0x5a});
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, extents).ok());
  CHECK(all_zero(bus.read(base, granule)));
  std::filesystem::remove_all(records);
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a hand-over keeps the bytes in a device that the old holder never had") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{DevdaxManager::extent(3, 2)};
  REQUIRE(manager.backend->carve("devdax:lease-1", 2 * granule, extents).ok());
  const dev_t old = bus.find("dax0.1")->number;
  bus.fill(base + 3 * granule, 2 * granule, 0x42);
  REQUIRE(manager.backend->rebind("devdax:lease-1", "devdax:lease-2", 2 * granule, extents).ok());
  CHECK(bus.find("dax0.1")->number != old);
  CHECK(bus.revived.empty());
  CHECK(bus.read(base + 4 * granule, 1)[0] == std::byte{0x42});
  CHECK_FALSE(manager.backend->usage("devdax:lease-1").ok());
  CHECK(manager.backend->usage("devdax:lease-2")->bytes == 2 * granule);
  CHECK(manager.backend->rebind("devdax:lease-1", "devdax:lease-2", 2 * granule, extents).ok());
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: copying takes all bytes of one object to another") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(3, 1)}).ok());
  REQUIRE(manager.backend->carve("devdax:lease-2", granule, {DevdaxManager::extent(7, 1)}).ok());
  bus.fill(base + 3 * granule, granule, 0x42);
  REQUIRE(manager.backend->copy("devdax:lease-1", "devdax:lease-2", granule).ok());
  CHECK(bus.read(base + 7 * granule, granule) == bus.read(base + 3 * granule, granule));
  CHECK(manager.backend->copy("devdax:lease-1", "devdax:lease-2", 2 * granule).error().code ==
        ErrorCode::corrupt);
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: a size is not changed, and the answer says what to do instead") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const Status status = manager.backend->resize("devdax:lease-1", granule, 2 * granule, {});
  CHECK(status.error().code == ErrorCode::unsupported);
  CHECK(status.error().detail.find("lease") != std::string::npos);
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: extents on two regions are refused in words") {
  bus.add_region("dax:hmem@0x900000000", 0x900000000, capacity);
  DevdaxManager manager(bus);
  manager.backend->know_devices({{DeviceId{1}, serial, "devdax", capacity, granule},
                                 {DeviceId{2}, "dax:hmem@0x900000000", "devdax", capacity, granule}});
  const Status status =
      manager.backend->carve("devdax:lease-1", 2 * granule, {{DeviceId{1}, 0, 1}, {DeviceId{2}, 0, 1}});
  CHECK(status.error().code == ErrorCode::unsupported);
  CHECK(
      manager.backend->carve("devdax:lease-1", granule, {{DeviceId{1}, capacity / granule, 1}}).error().code ==
      ErrorCode::invalid_argument);
}

}  // namespace terrace::daemon
