// The devdax backend over a kernel that is made up (tests/support/fake_dax_bus.h); tests/guest/devdax_test.py
// is the same with the real one.
#include "daemon/memory/devdax/devdax.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "daemon/memory/devdax/dax_memory_record.h"
#include "tests/support/fake_dax_bus.h"

namespace terrace::daemon {
namespace {

using test::FakeCrash;
using test::FakeDaxBus;

constexpr uint64_t granule = 2 * mib;
constexpr uint64_t base = 4 * gib;
constexpr uint64_t capacity = 32 * mib;
const std::string serial = "dax:hmem@0x100000000";

struct Manager {
  FakeDaxBus& bus;
  std::unique_ptr<DevdaxBackend> backend;
  std::string directory;
  std::string boot = "boot-1";
  MeasuredRecord* measured = nullptr;

  explicit Manager(FakeDaxBus& kernel, std::string records = "") : bus(kernel), directory(std::move(records)) {
    start({});
  }

  // As a daemon's start does it; what list() says.
  std::vector<ObservedObject> start(const std::vector<KnownObject>& objects, bool adopted = false) {
    backend = std::make_unique<DevdaxBackend>(
        bus, DevdaxOptions{
                 .record_directory = directory, .boot_id = boot, .erase_threads = 1, .measured = measured});
    if (adopted) know();
    backend->know_objects(objects);
    CHECK(backend->refresh().ok());
    auto listed = backend->list();
    REQUIRE(listed.ok());
    return *listed;
  }
  void know() { backend->know_devices({{DeviceId{1}, serial, "devdax", capacity, granule}}); }
  void adopt() {
    know();
    REQUIRE(backend->take_over(serial).ok());
  }
  void adopt_erased() {
    adopt();
    REQUIRE(backend->carve("devdax:lease-99", capacity, whole()).ok());
    REQUIRE(backend->fence("devdax:lease-99").ok());
    REQUIRE(backend->scrub("devdax:lease-99").ok());
    bus.done.clear();
  }
  static std::vector<Extent> whole() { return {extent(0, capacity / granule)}; }
  static Extent extent(uint64_t first, uint64_t granules) { return {DeviceId{1}, first, granules}; }
};

bool all_zero(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == std::byte{0}; });
}

std::string scratch_directory() {
  char path[] = "/tmp/t-devdax-XXXXXX";
  REQUIRE(::mkdtemp(path) != nullptr);
  return path;
}

struct Fixture {
  FakeDaxBus bus;
  Fixture() { bus.add_region(serial, base, capacity); }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "devdax: a region that nobody adopted is shown with what is on it, and not touched") {
  bus.held = {{.pid = 12, .command = "vllm", .device = "dax0.0"}};
  Manager manager(bus);
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

TEST_CASE_FIXTURE(Fixture,
                  "devdax: taking over a device that a process has is refused by its name, changing nothing") {
  bus.held = {{.pid = 12, .command = "vllm", .device = "dax0.0"}};
  Manager manager(bus);
  manager.know();
  const Status status = manager.backend->take_over(serial);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::busy);
  CHECK(status.error().detail.find("process 12 (vllm)") != std::string::npos);
  CHECK(bus.done.empty());
}

TEST_CASE_FIXTURE(Fixture, "devdax: memory that the kernel uses itself is not taken over") {
  bus.find("dax0.0")->driver = DaxDriver::kmem;
  Manager manager(bus);
  manager.know();
  const Status status = manager.backend->take_over(serial);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::busy);
  CHECK(manager.backend->discover()[0].detail.find("system-ram") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "devdax: taking over empties the first device, and again spares what is leased") {
  Manager manager(bus);
  manager.adopt();
  CHECK(bus.find("dax0.0")->bytes == 0);
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(3, 1)}).ok());
  const std::string device = bus.done.back().device;
  REQUIRE(manager.backend->take_over(serial).ok());
  REQUIRE(bus.find(device) != nullptr);
  CHECK(bus.find(device)->driver == DaxDriver::device_dax);
}

TEST_CASE_FIXTURE(Fixture,
                  "devdax: an object is one device with its extents as ranges, in their order, and zeros") {
  bus.fill(base, capacity, 0xa5);
  Manager manager(bus);
  manager.adopt();
  REQUIRE(manager.backend->carve("devdax:lease-1", 3 * granule, {Manager::extent(9, 1), Manager::extent(2, 2)})
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

TEST_CASE_FIXTURE(Fixture, "devdax: memory that was erased once is not erased again at a grant") {
  Manager manager(bus);
  manager.adopt_erased();
  bus.fill(base, granule, 0x77);  // behind the manager's back: to see whether it looks
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(0, 1)}).ok());
  CHECK(bus.read(base, 1)[0] == std::byte{0x77});
}

TEST_CASE_FIXTURE(Fixture, "devdax: a step of a carve that fails leaves no device, whichever it is") {
  Manager manager(bus);
  manager.adopt_erased();
  for (int step = 1; step <= 4; ++step) {  // create, two ranges, enable
    CAPTURE(step);
    bus.fail_step(step, EIO);
    const Status status =
        manager.backend->carve("devdax:lease-1", 2 * granule, {Manager::extent(0, 1), Manager::extent(4, 1)});
    REQUIRE_FALSE(status.ok());
    CHECK(bus.devices(serial) == 1);
    CHECK(manager.backend->list()->empty());
  }
  CHECK(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(0, 1)}).ok());
}

TEST_CASE_FIXTURE(Fixture,
                  "devdax: a fence disables, empties and destroys, in this order, and again is no error") {
  Manager manager(bus);
  manager.adopt_erased();
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(0, 1)}).ok());
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

TEST_CASE_FIXTURE(Fixture,
                  "devdax: a fence that a step fails is finished by the next one, and revives nothing") {
  Manager manager(bus);
  manager.adopt_erased();
  for (int step = 1; step <= 3; ++step) {
    CAPTURE(step);
    REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(0, 1)}).ok());
    bus.fail_step(step, EIO);
    CHECK_FALSE(manager.backend->fence("devdax:lease-1").ok());
    CHECK_FALSE(manager.backend->scrub("devdax:lease-1").ok());
    REQUIRE(manager.backend->fence("devdax:lease-1").ok());
    CHECK(bus.devices(serial) == 1);
    REQUIRE(manager.backend->scrub("devdax:lease-1").ok());
  }
  CHECK(bus.revived.empty());
}

TEST_CASE_FIXTURE(Fixture, "devdax: erasing a piece zeroes that piece only and leaves no device behind") {
  Manager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{Manager::extent(8, 2), Manager::extent(1, 2)};
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

TEST_CASE_FIXTURE(Fixture, "devdax: what a killed litmus run wrote is erased before a grant") {
  const std::string records = scratch_directory();
  Manager manager(bus, records);
  manager.adopt_erased();
  const std::vector<Extent> extents{Manager::extent(0, 1)};
  REQUIRE(manager.backend->carve("devdax:litmus-1", granule, extents).ok());
  bus.fill(base, granule, 0x5a);
  REQUIRE(manager.backend->fence("devdax:litmus-1").ok());
  (void)manager.start({}, true);  // it was killed before it erased
  CHECK(bus.read(base, 1)[0] == std::byte{0x5a});
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, extents).ok());
  CHECK(all_zero(bus.read(base, granule)));
  std::filesystem::remove_all(records);
}

TEST_CASE_FIXTURE(Fixture, "devdax: a hand-over keeps the bytes in a device that the old holder never had") {
  Manager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{Manager::extent(3, 2)};
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

TEST_CASE_FIXTURE(Fixture, "devdax: copying takes all bytes of one object to another") {
  Manager manager(bus);
  manager.adopt_erased();
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(3, 1)}).ok());
  REQUIRE(manager.backend->carve("devdax:lease-2", granule, {Manager::extent(7, 1)}).ok());
  bus.fill(base + 3 * granule, granule, 0x42);
  REQUIRE(manager.backend->copy("devdax:lease-1", "devdax:lease-2", granule).ok());
  CHECK(bus.read(base + 7 * granule, granule) == bus.read(base + 3 * granule, granule));
  CHECK(manager.backend->copy("devdax:lease-1", "devdax:lease-2", 2 * granule).error().code ==
        ErrorCode::corrupt);
}

TEST_CASE_FIXTURE(Fixture, "devdax: a size is not changed, and the answer says what to do instead") {
  Manager manager(bus);
  manager.adopt_erased();
  const Status status = manager.backend->resize("devdax:lease-1", granule, 2 * granule, {});
  CHECK(status.error().code == ErrorCode::unsupported);
  CHECK(status.error().detail.find("lease") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "devdax: extents on two regions are refused in words") {
  bus.add_region("dax:hmem@0x900000000", 0x900000000, capacity);
  Manager manager(bus);
  manager.backend->know_devices({{DeviceId{1}, serial, "devdax", capacity, granule},
                                 {DeviceId{2}, "dax:hmem@0x900000000", "devdax", capacity, granule}});
  const Status status =
      manager.backend->carve("devdax:lease-1", 2 * granule, {{DeviceId{1}, 0, 1}, {DeviceId{2}, 0, 1}});
  CHECK(status.error().code == ErrorCode::unsupported);
  CHECK(
      manager.backend->carve("devdax:lease-1", granule, {{DeviceId{1}, capacity / granule, 1}}).error().code ==
      ErrorCode::invalid_argument);
}

// --- whose it is ------------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(Fixture,
                  "devdax: a region that another store's manager adopted in this boot is nobody else's") {
  const std::string records = "/tmp/terrace-devdax-claim-" + std::to_string(::getpid());
  const StoreClaim own{.store = {1, 2}, .owner = "state file /a b.db", .remedy = "--state"};
  StoreClaim other{.store = {3, 4}, .owner = "state file /b.db", .remedy = "--state", .is_new = true};
  {
    Manager manager(bus, records);
    REQUIRE(manager.backend->claim(own).ok());
    manager.adopt();
    REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(0, 1)}).ok());
    // Its next start has the same store.
    manager.start({{"devdax:lease-1", granule, {Manager::extent(0, 1)}}}, true);
    CHECK(manager.backend->claim(own).ok());
  }
  {
    Manager empty(bus, records);  // has adopted nothing: there is nothing that it could destroy
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
    Manager copy(bus, records);  // another store that has adopted it once, too
    copy.start({}, true);
    CHECK_FALSE(copy.backend->claim(other).ok());
    CHECK(bus.find("dax0.1") != nullptr);
    other.take_over = true;
    CHECK(copy.backend->claim(other).ok());
    copy.start({}, true);
    CHECK_FALSE(copy.backend->claim(own).ok());
  }
  {
    Manager rebooted(bus, records);
    rebooted.boot = "boot-2";
    rebooted.start({}, true);
    CHECK(rebooted.backend->claim(own).ok());
  }
  std::filesystem::remove_all(records);
}

// --- after a restart --------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(Fixture,
                  "devdax: a restart finds an object by where it lies, and calls everything else an orphan") {
  Manager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{Manager::extent(0, 1), Manager::extent(5, 1)};
  REQUIRE(manager.backend->carve("devdax:lease-1", 2 * granule, extents).ok());
  REQUIRE(manager.backend->carve("devdax:lease-2", granule, {Manager::extent(8, 1)}).ok());
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

TEST_CASE_FIXTURE(Fixture,
                  "devdax: after a reboot no lease is found, not even one that had all of the region") {
  Manager manager(bus);
  manager.adopt_erased();
  const std::vector<KnownObject> rows{{"devdax:lease-1", capacity, Manager::whole()}};
  REQUIRE(manager.backend->carve("devdax:lease-1", capacity, Manager::whole()).ok());
  bus.remove_region(serial);
  bus.add_region(serial, base, capacity);  // its first device has exactly the lease's bytes
  manager.boot = "boot-2";
  const auto listed = manager.start(rows, true);
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].name.starts_with("devdax:orphan-"));
  REQUIRE(manager.backend->fence(listed[0].name).ok());
  CHECK(manager.backend->fence("devdax:lease-1").ok());
  CHECK(manager.backend->erase("devdax:lease-1", Manager::whole(), 0, capacity).ok());
  CHECK(manager.backend->scrub("devdax:lease-1").ok());
}

TEST_CASE_FIXTURE(Fixture, "devdax: what a stranger's device lay on is erased before it is granted") {
  Manager manager(bus);
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
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(2, 1)}).ok());
  CHECK(all_zero(bus.read(base + 2 * granule, granule)));
}

TEST_CASE_FIXTURE(Fixture,
                  "devdax: the empty device of a fence that was cut off goes, though its holder has it open") {
  Manager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{Manager::extent(2, 1)};
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

TEST_CASE_FIXTURE(Fixture, "devdax: a stranger's device in the way of a grant is named while somebody has it") {
  Manager manager(bus);
  manager.adopt_erased();
  const std::string stranger = *bus.create(bus.regions()->front());
  REQUIRE(bus.add_range(stranger, {base + 2 * granule, granule}).ok());
  bus.held = {{.pid = 4, .command = "db", .device = stranger}};
  const Status status = manager.backend->carve("devdax:lease-1", granule, {Manager::extent(2, 1)});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().detail.find("process 4 (db)") != std::string::npos);
  bus.held.clear();
  CHECK(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(2, 1)}).ok());
}

TEST_CASE_FIXTURE(Fixture,
                  "devdax: a region that vanishes and comes back is fenced, and erased before it is granted") {
  Manager manager(bus);
  manager.adopt_erased();
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(0, 1)}).ok());
  bus.remove_region(serial);
  CHECK(manager.backend->refresh().ok());
  CHECK(manager.backend->discover().empty());
  CHECK(manager.backend->fence("devdax:lease-1").ok());
  CHECK(manager.backend->erase("devdax:lease-1", {Manager::extent(0, 1)}, 0, granule).error().code ==
        ErrorCode::unavailable);
  bus.add_region(serial, base, capacity);
  bus.fill(base, capacity, 0x11);
  CHECK(manager.backend->refresh().ok());
  REQUIRE(manager.backend->carve("devdax:lease-2", granule, {Manager::extent(4, 1)}).ok());
  CHECK(all_zero(bus.read(base + 4 * granule, granule)));
}

TEST_CASE_FIXTURE(Fixture, "devdax: what cannot be looked at is neither gone, nor fenced, nor unused") {
  Manager manager(bus);
  manager.adopt_erased();
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, {Manager::extent(0, 1)}).ok());
  REQUIRE(manager.backend->fence("devdax:lease-1").ok());
  REQUIRE(manager.backend->carve("devdax:lease-2", granule, {Manager::extent(1, 1)}).ok());
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

TEST_CASE_FIXTURE(Fixture, "devdax: an object of a region that shows up late is shut out all the same") {
  Manager manager(bus);
  manager.adopt_erased();
  const std::vector<Extent> extents{Manager::extent(3, 1)};
  REQUIRE(manager.backend->carve("devdax:lease-1", granule, extents).ok());
  FakeDaxBus late;  // the start sees nothing of it
  Manager restarted(late);
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
TEST_CASE_FIXTURE(Fixture, "devdax: a crash after any step leaves nothing that the next start does not fix") {
  const std::string records = scratch_directory();
  const std::vector<Extent> extents{Manager::extent(0, 2), Manager::extent(6, 1)};
  const uint64_t bytes = 3 * granule;
  enum class Act { carve, fence, erase, rebind };
  for (const Act act : {Act::carve, Act::fence, Act::erase, Act::rebind}) {
    for (int step = 1; step < 20; ++step) {
      CAPTURE(static_cast<int>(act));
      CAPTURE(step);
      FakeDaxBus kernel;
      kernel.add_region(serial, base, capacity);
      Manager manager(kernel, records);
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

TEST_CASE_FIXTURE(Fixture, "devdax: a hand-over that a reboot cut off is not taken for one that goes on") {
  const std::string records = scratch_directory();
  Manager manager(bus, records);
  manager.adopt_erased();
  const std::vector<Extent> extents{Manager::extent(0, 2)};
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

// --- how fast it is ---------------------------------------------------------------------------------------

TEST_CASE("devdax: what no table says is measured at the adoption, once, and nothing of that is left") {
  FakeDaxBus bus;
  bus.add_region(serial, base, capacity);
  MeasuredRecord record;
  Manager manager(bus);
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
  REQUIRE(manager.backend->carve("devdax:lease-1", 2 * granule, {Manager::extent(0, 2)}).ok());
  REQUIRE(manager.backend->take_over(serial).ok());  // again, while somebody's lease is on it
  CHECK(manager.backend->attributes(serial).latency_ns == 7);
  manager.backend->know_devices({});  // removed
  CHECK(manager.backend->attributes(serial).source == AttributesSource::none);
}

TEST_CASE("devdax: a device that nobody measured is, on memory that was just erased") {
  FakeDaxBus bus;
  bus.add_region(serial, base, capacity);
  Manager manager(bus);
  manager.adopt();
  MeasuredRecord record;
  manager.measured = &record;
  const std::vector<Extent> extents{Manager::extent(0, 2)};
  manager.start({}, true);
  REQUIRE(manager.backend->carve("devdax:lease-1", 2 * granule, extents).ok());
  CHECK(manager.backend->attributes(serial).source == AttributesSource::none);  // never what a lease holds
  REQUIRE(manager.backend->fence("devdax:lease-1").ok());
  REQUIRE(manager.backend->erase("devdax:lease-1", extents, 0, 2 * granule).ok());
  CHECK(manager.backend->attributes(serial).source == AttributesSource::measured);
}

// --- the record -------------------------------------------------------------------------------------------

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
