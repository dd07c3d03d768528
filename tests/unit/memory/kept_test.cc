// SPDX-License-Identifier: Apache-2.0
// The devdax backend and pages that somebody holds beyond a fence, over a kernel that is made up;
// tests/guest/pins_test.py is the same with the real one.
#include <doctest/doctest.h>
#include <unistd.h>

#include <memory>

#include "daemon/memory/devdax/devdax.h"
#include "tests/support/fake_dax_bus.h"
#include "tests/unit/memory/fake_page_pins.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t granule = 2 * mib, region_start = 4 * gib, region_bytes = 32 * mib;
const std::string region_serial = "dax:hmem@0x100000000";

Extent extent(uint64_t first, uint64_t granules) {
  return {DeviceId{1}, first, granules};
}

struct KeptFixture {
  test::FakeDaxBus bus;
  test::FakePagePins pins;
  std::string directory;
  std::unique_ptr<DevdaxBackend> backend;
  const std::vector<Extent> memory{extent(2, 2)};
  const uint64_t address = region_start + 2 * granule;

  KeptFixture() {
    char path[] = "/tmp/t-kept-XXXXXX";
    REQUIRE(::mkdtemp(path) != nullptr);
    directory = path;
    bus.add_region(region_serial, region_start, region_bytes);
    start({});
    REQUIRE(backend->take_over(region_serial).ok());
  }
  void start(const std::vector<KnownObject>& objects) {
    backend = std::make_unique<DevdaxBackend>(
        bus,
        DevdaxOptions{.record_directory = directory, .boot_id = "boot-1", .erase_threads = 1, .pins = &pins});
    backend->know_devices({{DeviceId{1}, region_serial, "devdax", region_bytes, granule}});
    backend->know_objects(objects);
    REQUIRE(backend->refresh().ok());
  }
  void carve(const std::string& name) { REQUIRE(backend->carve(name, 2 * granule, memory).ok()); }
  Status erase(const std::string& name) { return backend->erase(name, memory, 0, 2 * granule); }
};

}  // namespace

TEST_CASE_FIXTURE(KeptFixture, "kept: memory of which nobody holds a page is erased and free as ever") {
  carve("devdax:lease-1");
  CHECK(pins.learned == 1);
  CHECK(backend->attributes(region_serial).fence == Fence::verified);
  REQUIRE(backend->fence("devdax:lease-1").ok());
  CHECK(erase("devdax:lease-1").ok());
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::no);
  CHECK(bus.devices(region_serial) == 1);
}

TEST_CASE_FIXTURE(KeptFixture,
                  "kept: a pinned page keeps the memory from being erased and granted until it ends") {
  carve("devdax:lease-1");
  pins.pin(address);
  pins.pin(address);
  REQUIRE(backend->fence("devdax:lease-1").ok());  // the mappings are dead all the same
  CHECK(bus.revived.empty());
  const Status refused = erase("devdax:lease-1");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(refused.error().detail.find("2 of 2 pages") != std::string::npos);
  CHECK_FALSE(backend->carve("devdax:lease-2", granule, {extent(3, 1)}).ok());
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::yes);
  pins.unpin(address);
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::yes);
  pins.unpin(address);
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::ended);
  CHECK(erase("devdax:lease-1").ok());
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::no);
  CHECK(backend->carve("devdax:lease-2", granule, {extent(3, 1)}).ok());
}

TEST_CASE_FIXTURE(KeptFixture, "kept: other memory of the device is granted and erased meanwhile") {
  carve("devdax:lease-1");
  pins.pin(address);
  REQUIRE(backend->fence("devdax:lease-1").ok());
  REQUIRE(backend->carve("devdax:lease-2", granule, {extent(4, 1)}).ok());
  REQUIRE(backend->fence("devdax:lease-2").ok());
  CHECK(backend->erase("devdax:lease-2", {extent(4, 1)}, 0, granule).ok());
}

TEST_CASE_FIXTURE(KeptFixture, "kept: it stays so over a restart, shows as no object, and is let go then") {
  carve("devdax:lease-1");
  pins.pin(address);
  REQUIRE(backend->fence("devdax:lease-1").ok());
  start({{"devdax:lease-1", 2 * granule, memory}});
  CHECK(backend->list()->empty());
  REQUIRE(backend->fence("devdax:lease-1").ok());  // as a start does it
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::yes);
  CHECK(bus.devices(region_serial) == 2);
  pins.unpin(address);
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::ended);
  CHECK(erase("devdax:lease-1").ok());
}

TEST_CASE_FIXTURE(KeptFixture, "kept: what nobody counted to the end is kept for this boot") {
  carve("devdax:lease-1");
  pins.uncounted = true;
  REQUIRE(backend->fence("devdax:lease-1").ok());
  const Status refused = erase("devdax:lease-1");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().detail.find("until the machine is restarted") != std::string::npos);
  start({{"devdax:lease-1", 2 * granule, memory}});
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::yes);
}

TEST_CASE_FIXTURE(KeptFixture, "kept: a manager that is killed in the middle of a fence forgets no pin") {
  for (int step = 1; step <= 6; ++step) {
    CAPTURE(step);
    const std::string name = "devdax:lease-" + std::to_string(step);
    const std::vector<Extent> there{extent(static_cast<uint64_t>(step), 1)};
    REQUIRE(backend->carve(name, granule, there).ok());
    pins.pin(region_start + static_cast<uint64_t>(step) * granule);
    bus.fail_step(step, 0);
    bool crashed = false;
    try {
      (void)backend->fence(name);
    } catch (const test::FakeCrash&) {
      crashed = true;
    }
    bus.fail_step(0, 0);
    start({{name, granule, there}});
    CHECK(backend->list().ok());
    REQUIRE(backend->fence(name).ok());
    CHECK_FALSE(backend->erase(name, there, 0, granule).ok());
    CHECK(backend->kept(name, there) == Kept::yes);
    if (!crashed) break;  // it has fewer steps
  }
}

TEST_CASE_FIXTURE(KeptFixture, "kept: a hand-over gives nobody memory of which the one before holds a page") {
  carve("devdax:lease-1");
  pins.pin(address);
  const Status refused = backend->rebind("devdax:lease-1", "devdax:lease-1.2", 2 * granule, memory);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK_FALSE(backend->open("devdax:lease-1.2", ObjectAccess::read_write).ok());
}

TEST_CASE_FIXTURE(KeptFixture, "kept: it survives that the device is given up and adopted again") {
  carve("devdax:lease-1");
  pins.pin(address);
  REQUIRE(backend->fence("devdax:lease-1").ok());
  backend->know_devices({});
  backend->know_objects({});
  backend->know_devices({{DeviceId{1}, region_serial, "devdax", region_bytes, granule}});
  REQUIRE(backend->take_over(region_serial).ok());
  CHECK_FALSE(backend->carve("devdax:lease-9", 2 * granule, memory).ok());
  CHECK(backend->carve("devdax:lease-10", granule, {extent(8, 1)}).ok());
}

TEST_CASE_FIXTURE(KeptFixture, "kept: it survives that the device goes and comes back") {
  carve("devdax:lease-1");
  pins.pin(address);
  REQUIRE(backend->fence("devdax:lease-1").ok());
  bus.remove_region(region_serial);
  for (int look = 0; look < 3; ++look) REQUIRE(backend->refresh().ok());  // once a second, while it is away
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::yes);
  bus.add_region(region_serial, region_start, region_bytes);
  REQUIRE(backend->refresh().ok());
  CHECK(backend->kept("devdax:lease-1", memory) == Kept::yes);
  CHECK_FALSE(erase("devdax:lease-1").ok());
  CHECK_FALSE(backend->carve("devdax:lease-2", 2 * granule, memory).ok());
}

TEST_CASE_FIXTURE(KeptFixture, "kept: what a kernel does not let be learned is tried once") {
  pins.unlearnable = true;
  bus.add_region("dax:other", region_start + region_bytes, region_bytes);
  backend->know_devices({{DeviceId{2}, "dax:other", "devdax", region_bytes, granule}});
  REQUIRE(backend->take_over("dax:other").ok());
  const int learned = pins.learned;
  for (const uint64_t first : {0, 1, 2}) {
    const std::string name = "devdax:lease-" + std::to_string(first);
    REQUIRE(backend->carve(name, granule, {{DeviceId{2}, first, 1}}).ok());
  }
  CHECK(pins.learned == learned);
  CHECK(backend->attributes("dax:other").fence == Fence::trusting);
  for (const SeenDevice& seen : backend->discover())
    if (seen.serial == "dax:other")
      CHECK(seen.detail.find("for tenants who trust each other") != std::string::npos);
}

TEST_CASE_FIXTURE(KeptFixture, "kept: where pins cannot be seen memory is free once it is erased") {
  pins.blind = true;
  REQUIRE(backend->refresh().ok());
  CHECK(backend->attributes(region_serial).fence == Fence::trusting);
  carve("devdax:lease-1");
  pins.pin(address);
  REQUIRE(backend->fence("devdax:lease-1").ok());
  CHECK(erase("devdax:lease-1").ok());
}

}  // namespace terrace::daemon
