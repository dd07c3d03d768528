// SPDX-License-Identifier: Apache-2.0
// Whose devices they are, and what a start of the manager finds.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "tests/unit/memory/devdax/manager.h"

namespace terrace::daemon {

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a region that another store's manager adopted in this boot is nobody else's") {
  const std::string records = "/tmp/terrace-devdax-claim-" + std::to_string(::getpid());
  const StoreClaim own{.store = {1, 2}, .owner = "state file /a b.db", .remedy = "--state"};
  StoreClaim other{.store = {3, 4}, .owner = "state file /b.db", .remedy = "--state", .is_new = true};
  {
    DevdaxManager manager(bus, records);
    REQUIRE(manager.backend->claim(own).ok());
    manager.adopt();
    REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(0, 1)}).ok());
    // Its next start has the same store.
    manager.start({{"devdax:lease-1", granule, {DevdaxManager::extent(0, 1)}}}, true);
    CHECK(manager.backend->claim(own).ok());
  }
  {
    DevdaxManager empty(bus, records);  // has adopted nothing: there is nothing that it could destroy
    REQUIRE(empty.backend->claim(other).ok());
    const Status refused = empty.backend->may_take_over(serial);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::invalid_argument);
    for (const std::string& word : {serial, store_id_text(own.store), own.owner, store_id_text(other.store)})
      CHECK_MESSAGE(refused.error().detail.find(word) != std::string::npos, word);
    empty.know();
    CHECK_FALSE(empty.backend->take_over(serial).ok());
  }
  {
    DevdaxManager copy(bus, records);  // another store that has adopted it once, too
    copy.start({}, true);
    CHECK_FALSE(copy.backend->claim(other).ok());
    CHECK(bus.find("dax0.1") != nullptr);
    other.take_over = true;
    CHECK(copy.backend->claim(other).ok());
    copy.start({}, true);
    CHECK_FALSE(copy.backend->claim(own).ok());
  }
  {
    DevdaxManager rebooted(bus, records);
    rebooted.boot = "boot-2";
    rebooted.start({}, true);
    CHECK(rebooted.backend->claim(own).ok());
  }
  std::filesystem::remove_all(records);
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a restart finds an object by where it lies, and calls everything else an orphan") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{DevdaxManager::extent(0, 1), DevdaxManager::extent(5, 1)};
  REQUIRE(manager.backend->carve("devdax:lease-1", 2 * granule, extents).ok());
  REQUIRE(manager.backend->carve("devdax:lease-2", granule, {DevdaxManager::extent(8, 1)}).ok());
  const auto listed = manager.start({{"devdax:lease-1", 2 * granule, extents}}, true);
  REQUIRE(listed.size() == 2);
  CHECK(listed[0].name == "devdax:lease-1");
  CHECK(listed[0].bytes == 2 * granule);
  CHECK(listed[1].name == "devdax:orphan-dax0.2");
  REQUIRE(manager.backend->fence(listed[1].name).ok());
  REQUIRE(manager.backend->scrub(listed[1].name).ok());
  CHECK(bus.find("dax0.2") == nullptr);
  CHECK(manager.backend->open("devdax:lease-1", ObjectAccess::read_only).ok());
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: after a reboot no lease is found, not even one that had all of the region") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const std::vector<KnownObject> rows{{"devdax:lease-1", capacity, DevdaxManager::whole()}};
  REQUIRE(manager.backend->carve("devdax:lease-1", capacity, DevdaxManager::whole()).ok());
  bus.remove_region(serial);
  bus.add_region(serial, base, capacity);  // its first device has exactly the lease's bytes
  manager.boot = "boot-2";
  const auto listed = manager.start(rows, true);
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].name.starts_with("devdax:orphan-"));
  REQUIRE(manager.backend->fence(listed[0].name).ok());
  CHECK(manager.backend->fence("devdax:lease-1").ok());
  CHECK(manager.backend->erase("devdax:lease-1", DevdaxManager::whole(), 0, capacity).ok());
  CHECK(manager.backend->scrub("devdax:lease-1").ok());
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: what a stranger's device lay on is erased before it is granted") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const DaxRegion region = bus.regions()->front();
  const std::string stranger = *bus.create(region);
  REQUIRE(bus.add_range(stranger, {base + 2 * granule, granule}).ok());
  REQUIRE(bus.enable(stranger).ok());
  bus.fill(base + 2 * granule, granule, 0x66);
  const auto listed = manager.backend->list();
  const std::string orphan = listed->front().name;
  bus.held = {{.pid = 12,
               .command = "vllm",
               .device = stranger}};  // an adoption that was cut off must cost nobody his memory
  const Status used = manager.backend->fence(orphan);
  REQUIRE_FALSE(used.ok());
  CHECK(used.error().code == ErrorCode::busy);
  CHECK(bus.find(stranger) != nullptr);
  bus.held.clear();
  REQUIRE(manager.backend->fence(orphan).ok());
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(2, 1)}).ok());
  CHECK(all_zero(bus.read(base + 2 * granule, granule)));
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: the empty device of a fence that was cut off goes, though its holder has it open") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{DevdaxManager::extent(2, 1)};
  const std::vector<KnownObject> rows{{"devdax:lease-1", granule, extents}};
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, extents).ok());
  const std::string device = bus.regions()->front().devices.back().name;
  bus.held = {{.pid = 12, .command = "vllm", .device = device}};
  bus.fail_step(2, 0);  // it dies between the device's having no memory and its being gone
  CHECK_THROWS_AS((void)manager.backend->fence("devdax:lease-1"), FakeCrash);
  REQUIRE(bus.find(device) != nullptr);
  REQUIRE(bus.find(device)->bytes == 0);
  for (const ObservedObject& object : manager.start(rows, true))
    CHECK(manager.backend->fence(object.name).ok());
  CHECK(manager.backend->fence("devdax:lease-1").ok());
  CHECK(bus.find(device) == nullptr);
  CHECK(manager.backend->list()->empty());
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a stranger's device in the way of a grant is named while somebody has it") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const std::string stranger = *bus.create(bus.regions()->front());
  REQUIRE(bus.add_range(stranger, {base + 2 * granule, granule}).ok());
  bus.held = {{.pid = 4, .command = "db", .device = stranger}};
  const Status status = manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(2, 1)});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().detail.find("process 4 (db)") != std::string::npos);
  bus.held.clear();
  CHECK(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(2, 1)}).ok());
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a region that vanishes and comes back is fenced, and erased before it is granted") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(0, 1)}).ok());
  bus.remove_region(serial);
  CHECK(manager.backend->refresh().ok());
  CHECK(manager.backend->discover().empty());
  CHECK(manager.backend->fence("devdax:lease-1").ok());
  CHECK(manager.backend->erase("devdax:lease-1", {DevdaxManager::extent(0, 1)}, 0, granule).error().code ==
        ErrorCode::unavailable);
  bus.add_region(serial, base, capacity);
  bus.fill(base, capacity, 0x11);
  CHECK(manager.backend->refresh().ok());
  REQUIRE(manager.backend->carve("devdax:lease-2", granule, {DevdaxManager::extent(4, 1)}).ok());
  CHECK(all_zero(bus.read(base + 4 * granule, granule)));
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: what cannot be looked at is neither gone, nor fenced, nor unused") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {DevdaxManager::extent(0, 1)}).ok());
  REQUIRE(manager.backend->fence("devdax:lease-1").ok());
  REQUIRE(manager.backend->carve("devdax:lease-2", granule, {DevdaxManager::extent(1, 1)}).ok());
  bus.find("dax0.1")->ranges.clear();  // what it is called now must be looked for
  bus.done.clear();
  bus.blind = true;
  const Status looked = manager.backend->refresh();
  REQUIRE_FALSE(looked.ok());
  CHECK(looked.error().os_errno == EMFILE);
  CHECK(manager.backend->discover().size() == 1);
  CHECK(manager.backend->inspect().size() == 1);
  for (const Status& status :
       {manager.backend->fence("devdax:lease-2"), manager.backend->fence("devdax:orphan-dax0.1"),
        manager.backend->take_over(serial), Status(manager.backend->list().error())}) {
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().os_errno == EMFILE);
  }
  CHECK(bus.done.empty());
}

TEST_CASE_FIXTURE(DevdaxFixture, "devdax: an object of a region that shows up late is shut out all the same") {
  DevdaxManager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{DevdaxManager::extent(3, 1)};
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, extents).ok());
  FakeDaxBus late;  // the start sees nothing of it
  DevdaxManager restarted(late);
  restarted.know();
  restarted.backend->know_objects({{"devdax:lease-1", granule, extents}});
  CHECK(restarted.backend->discover().empty());
  late.add_region(serial, base, capacity);
  REQUIRE(late.disable("dax0.0").ok());
  REQUIRE(late.release_ranges("dax0.0").ok());
  REQUIRE(late.add_range(*late.create(late.regions()->front()), {base + 3 * granule, granule}).ok());
  REQUIRE(late.enable("dax0.1").ok());
  CHECK(restarted.backend->refresh().ok());
  REQUIRE(restarted.backend->fence("devdax:lease-1").ok());
  CHECK(late.find("dax0.1") == nullptr);
}

// Every step of a life is the last one once; then a new process takes over what the rows say.
TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a crash after any step leaves nothing that the next start does not fix") {
  const std::string records = scratch_directory();
  const std::vector<Extent> extents{DevdaxManager::extent(0, 2), DevdaxManager::extent(6, 1)};
  const uint64_t bytes = 3 * granule;
  enum class Act { carve, fence, erase, rebind };
  for (const Act act : {Act::carve, Act::fence, Act::erase, Act::rebind}) {
    for (int step = 1; step < 20; ++step) {
      CAPTURE(static_cast<int>(act));
      CAPTURE(step);
      FakeDaxBus kernel;
      kernel.add_region(serial, base, capacity);
      DevdaxManager manager(kernel, records);
      manager.boot = "boot-" + std::to_string(static_cast<int>(act)) + "-" + std::to_string(step);
      manager.start({});
      manager.adopt_erased();
      if (act != Act::carve) REQUIRE(manager.backend->carve("devdax:lease-1", bytes, extents).ok());
      kernel.fill(base, 3 * granule, 0x5a);
      if (act == Act::erase) REQUIRE(manager.backend->fence("devdax:lease-1").ok());
      bool crashed = false;
      kernel.fail_step(step, 0);
      try {
        if (act == Act::carve) (void)manager.backend->carve("devdax:lease-1", bytes, extents);
        if (act == Act::fence) (void)manager.backend->fence("devdax:lease-1");
        if (act == Act::erase) (void)manager.backend->erase("devdax:lease-1", extents, 0, bytes);
        if (act == Act::rebind)
          (void)manager.backend->rebind("devdax:lease-1", "devdax:lease-2", bytes, extents);
      } catch (const FakeCrash&) {
        crashed = true;
      }
      kernel.fail_step(0, 0);
      if (!crashed) {
        CHECK(step > 3);  // every act has at least that many
        break;
      }
      std::vector<KnownObject> rows;
      if (act != Act::carve) rows.push_back({"devdax:lease-1", bytes, extents});
      if (act == Act::rebind) rows.push_back({"devdax:lease-2", bytes, extents});
      const auto listed = manager.start(rows, true);
      for (const ObservedObject& object : listed) {
        if (!object.name.starts_with("devdax:orphan-")) continue;
        REQUIRE(manager.backend->fence(object.name).ok());
        REQUIRE(manager.backend->scrub(object.name).ok());
      }
      if (act == Act::rebind) {
        const bool found = std::any_of(listed.begin(), listed.end(), [&](const ObservedObject& one) {
          return one.name == "devdax:lease-1" || one.name == "devdax:lease-2";
        });
        CHECK(found);
        REQUIRE(manager.backend->rebind("devdax:lease-1", "devdax:lease-2", bytes, extents).ok());
        CHECK(kernel.read(base, 1)[0] == std::byte{0x5a});
        CHECK(manager.backend->fence("devdax:lease-2").ok());
        CHECK(manager.backend->scrub("devdax:lease-2").ok());
      }
      if (act == Act::fence || act == Act::erase) {
        REQUIRE(manager.backend->fence("devdax:lease-1").ok());
        REQUIRE(manager.backend->erase("devdax:lease-1", extents, 0, bytes).ok());
        REQUIRE(manager.backend->scrub("devdax:lease-1").ok());
        CHECK(all_zero(kernel.read(base, granule)));
      }
      CHECK(kernel.devices(serial) == 1);
      CHECK(kernel.find("dax0.0")->bytes == 0);
      CHECK(kernel.revived.empty());
    }
  }
  std::filesystem::remove_all(records);
}

TEST_CASE_FIXTURE(DevdaxFixture,
                  "devdax: a hand-over that a reboot cut off is not taken for one that goes on") {
  const std::string records = scratch_directory();
  DevdaxManager manager(bus, records);
  manager.adopt_erased();
  const std::vector<Extent> extents{DevdaxManager::extent(0, 2)};
  REQUIRE(manager.backend->carve("devdax:lease-1", 2 * granule, extents).ok());
  bus.fail_step(3, 0);  // the old device is gone
  CHECK_THROWS_AS((void)manager.backend->rebind("devdax:lease-1", "devdax:lease-2", 2 * granule, extents),
                  FakeCrash);
  const std::vector<KnownObject> rows{{"devdax:lease-1", 2 * granule, extents},
                                      {"devdax:lease-2", 2 * granule, extents}};
  CHECK(manager.start(rows, true).size() == 1);
  bus.remove_region(serial);
  bus.add_region(serial, base, capacity);
  manager.boot = "boot-2";
  for (int attempt = 0; attempt < 2; ++attempt)  // the first one may have died before its findings were durable
    for (const ObservedObject& object : manager.start(rows, true))
      CHECK(object.name.starts_with("devdax:orphan-"));
  std::filesystem::remove_all(records);
}

}  // namespace terrace::daemon
