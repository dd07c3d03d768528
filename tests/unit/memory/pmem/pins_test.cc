// SPDX-License-Identifier: Apache-2.0
// The pmem backend and pages that somebody holds beyond a fence, over a machine that is made up;
// tests/guest/pins_test.py is the same with a real kernel.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>

#include "daemon/memory/pmem/pmem.h"
#include "tests/unit/memory/fake_page_pins.h"
#include "tests/unit/memory/pmem/fake_cxl_machine.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t lease_bytes = 32 * mib;
const std::string region_serial = "pmem:0xc0", first_lease = "pmem:lease-1";

struct PmemPins {
  test::FakeCxlMachine machine{512 * mib};
  test::FakePagePins pins;
  std::string directory;
  std::unique_ptr<PmemBackend> backend;
  std::vector<KnownDevice> devices;
  std::vector<KnownObject> objects;
  std::string boot_id = "boot-1";
  const std::vector<Extent> memory{{DeviceId{1}, 0, 2}};

  PmemPins() {
    char path[] = "/tmp/t-pmem-pins-XXXXXX";
    REQUIRE(::mkdtemp(path) != nullptr);
    directory = path;
    machine.add_memdev("0xc0");
    machine.add_window({{"0xc0"}});
    start();
    REQUIRE(backend->create_region({{"0xc0"}, 0, 0}).ok());
    adopt();
  }
  ~PmemPins() { std::filesystem::remove_all(directory); }
  PmemPins(const PmemPins&) = delete;
  PmemPins& operator=(const PmemPins&) = delete;

  // As the daemon's start: devices, objects, a look, and what is there.
  void start() {
    backend = std::make_unique<PmemBackend>(
        machine.pmem(), machine.cxl(), RegionRecords(directory + "/regions.toml"),
        PmemOptions{.look_ns = 0, .record_directory = directory + "/dax", .boot_id = boot_id, .pins = &pins});
    backend->know_devices(devices);
    backend->know_objects(objects);
    REQUIRE(backend->refresh().ok());
    REQUIRE(backend->list().ok());
  }
  void adopt() {
    const auto seen = backend->discover();
    REQUIRE(seen.size() == 1);
    devices = {{DeviceId{1}, region_serial, "pmem", seen[0].capacity_bytes, seen[0].granule_bytes}};
    backend->know_devices(devices);
    REQUIRE(backend->take_over(region_serial).ok());
  }
  void carve(const std::string& name) {
    REQUIRE(backend->carve(name, lease_bytes, memory).ok());
    objects.push_back({name, lease_bytes, memory});
  }
  // Of a namespace of that label: a page of its data.
  uint64_t page_of(const std::string& label) const {
    for (const PmemNamespace& space : machine.namespaces())
      if (space.label == label) return space.start + pmem_align_bytes + 4 * mib;
    REQUIRE_MESSAGE(false, label);
    return 0;
  }
  Status erase(const std::string& name) { return backend->erase(name, memory, 0, lease_bytes); }
  Kept kept(const std::string& name) { return backend->kept(name, memory); }
  std::string detail() const { return backend->discover().at(0).detail; }
  Fence fence() const { return backend->attributes(backend->discover().at(0).serial).fence; }
};

bool speaks_of(const std::string& text, const char* words) {
  return text.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE_FIXTURE(PmemPins, "pmem pins: memory of which nobody holds a page is erased and free as ever") {
  CHECK(pins.learned == 1);
  CHECK(speaks_of(detail(), "pages pinned beyond a fence are counted"));
  CHECK(fence() == Fence::verified);
  CHECK(machine.namespaces().empty());  // what it was learned by is gone
  carve(first_lease);
  REQUIRE(backend->fence(first_lease).ok());
  CHECK(kept(first_lease) == Kept::no);
  CHECK(erase(first_lease).ok());
  CHECK(backend->scrub(first_lease).ok());
  CHECK(machine.namespaces().empty());
}

TEST_CASE_FIXTURE(PmemPins,
                  "pmem pins: a pinned page keeps a namespace from being erased and removed until it ends") {
  carve(first_lease);
  const uint64_t page = page_of(first_lease);
  pins.pin(page);
  pins.pin(page);
  REQUIRE(backend->fence(first_lease).ok());
  CHECK_FALSE(backend->open(first_lease, ObjectAccess::read_write).ok());
  const Status refused = erase(first_lease);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(speaks_of(refused.error().detail, "2 of 2 pages"));
  const auto stays = backend->scrub(first_lease);
  REQUIRE_FALSE(stays.ok());
  CHECK(stays.error().code == ErrorCode::busy);
  REQUIRE(machine.namespaces().size() == 1);
  CHECK(machine.namespaces()[0].enabled);  // with pages in which the pins can end
  CHECK(kept(first_lease) == Kept::yes);
  pins.unpin(page);
  CHECK(kept(first_lease) == Kept::yes);
  CHECK(speaks_of(erase(first_lease).error().detail, "1 of 2 pages"));
  pins.unpin(page);
  CHECK(kept(first_lease) == Kept::ended);
  CHECK(erase(first_lease).ok());
  CHECK(kept(first_lease) == Kept::no);
  CHECK(backend->scrub(first_lease).ok());
  CHECK(machine.namespaces().empty());
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: a second fence leaves what is kept alone") {
  carve(first_lease);
  pins.pin(page_of(first_lease));
  REQUIRE(backend->fence(first_lease).ok());
  REQUIRE(backend->fence(first_lease).ok());
  CHECK(kept(first_lease) == Kept::yes);
  CHECK_FALSE(erase(first_lease).ok());
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: other memory of the region is granted and erased meanwhile") {
  carve(first_lease);
  const uint64_t page = page_of(first_lease);
  pins.pin(page);
  REQUIRE(backend->fence(first_lease).ok());
  carve("pmem:lease-2");
  CHECK(page_of("pmem:lease-2") > page);
  REQUIRE(backend->fence("pmem:lease-2").ok());
  CHECK(erase("pmem:lease-2").ok());
  CHECK(backend->scrub("pmem:lease-2").ok());
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: it stays so over a restart, shows no bytes, and is let go then") {
  carve(first_lease);
  const uint64_t page = page_of(first_lease);
  pins.pin(page);
  REQUIRE(backend->fence(first_lease).ok());
  start();
  const auto listed = backend->list();
  REQUIRE(listed.ok());
  REQUIRE(listed->size() == 1);
  CHECK(listed->at(0).bytes == 0);  // as one that was fenced
  CHECK_FALSE(backend->open(first_lease, ObjectAccess::read_write).ok());
  REQUIRE(backend->fence(first_lease).ok());  // as a start does it
  CHECK(kept(first_lease) == Kept::yes);
  pins.unpin(page);
  CHECK(kept(first_lease) == Kept::ended);
  CHECK(erase(first_lease).ok());
  CHECK(backend->scrub(first_lease).ok());
}

TEST_CASE_FIXTURE(PmemPins,
                  "pmem pins: what nobody counted to the end is kept for this boot, and for no other") {
  carve(first_lease);
  pins.uncounted = true;
  REQUIRE(backend->fence(first_lease).ok());
  CHECK(speaks_of(erase(first_lease).error().detail, "until the machine is restarted"));
  start();
  CHECK_FALSE(machine.namespaces().at(0).enabled);
  CHECK(kept(first_lease) == Kept::yes);
  machine.reboot();
  boot_id = "boot-2";
  pins.uncounted = false;
  start();
  REQUIRE(backend->fence(first_lease).ok());
  CHECK(kept(first_lease) == Kept::no);
  CHECK(erase(first_lease).ok());
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: what is counted is known before the first fence of a boot") {
  carve(first_lease);
  machine.reboot();
  boot_id = "boot-2";
  start();
  CHECK(pins.learned == 2);
  pins.pin(page_of(first_lease));
  REQUIRE(backend->fence(first_lease).ok());
  CHECK(kept(first_lease) == Kept::yes);
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: a manager that is killed in the middle of a fence forgets no pin") {
  int crashes = 0;
  for (unsigned step = 1; step <= 4; ++step) {
    for (const test::StepFault fault : {test::StepFault::dies_before, test::StepFault::dies_after}) {
      CAPTURE(step);
      const std::string name = "pmem:lease-" + std::to_string(step) + (crashes % 2 == 0 ? "0" : "5");
      carve(name);
      pins.pin(page_of(name));
      machine.fault_at(step, fault);
      bool died = false;
      try {
        (void)backend->fence(name);
      } catch (const test::Died&) {
        died = true;
        ++crashes;
      }
      machine.no_faults();
      start();
      REQUIRE(backend->fence(name).ok());
      CHECK_FALSE(backend->open(name, ObjectAccess::read_write).ok());
      CHECK_FALSE(erase(name).ok());
      CHECK_FALSE(backend->scrub(name).ok());
      CHECK(kept(name) == Kept::yes);
      if (!died) step = 5;  // it has fewer steps
    }
  }
  CHECK(crashes == 4);  // before and after the device went, before and after it was made anew
}

TEST_CASE_FIXTURE(PmemPins,
                  "pmem pins: a manager that is killed before the keeper is there makes it at its start") {
  carve(first_lease);
  const uint64_t page = page_of(first_lease);
  pins.pin(page);
  machine.fault_at(2, test::StepFault::dies_before);
  CHECK_THROWS_AS((void)backend->fence(first_lease), test::Died);
  machine.no_faults();
  start();
  CHECK(machine.namespaces().at(0).enabled);
  CHECK(kept(first_lease) == Kept::yes);
  pins.unpin(page);
  CHECK(kept(first_lease) == Kept::ended);
}

TEST_CASE_FIXTURE(PmemPins,
                  "pmem pins: a manager that is killed while it lets memory go still knows that it may") {
  for (const unsigned step : {1u, 2u}) {
    for (const test::StepFault fault : {test::StepFault::dies_before, test::StepFault::dies_after}) {
      CAPTURE(step);
      carve(first_lease);
      const uint64_t page = page_of(first_lease);
      pins.pin(page);
      REQUIRE(backend->fence(first_lease).ok());
      pins.unpin(page);
      machine.fault_at(step, fault);  // the keeper goes, and the device to erase by comes
      CHECK_THROWS_AS((void)erase(first_lease), test::Died);
      machine.no_faults();
      pins.renew();
      start();
      REQUIRE(backend->fence(first_lease).ok());
      CHECK(kept(first_lease) != Kept::yes);
      CHECK(erase(first_lease).ok());
      CHECK(backend->scrub(first_lease).ok());
      CHECK(machine.namespaces().empty());
      objects.clear();
    }
  }
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: a keeper that cannot be made keeps the memory for this boot") {
  carve(first_lease);
  pins.pin(page_of(first_lease));
  machine.fault_at(2, test::StepFault::fails);
  REQUIRE(backend->fence(first_lease).ok());
  machine.no_faults();
  CHECK(speaks_of(erase(first_lease).error().detail, "until the machine is restarted"));
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: a fence that the kernel refused keeps nothing, and can be done again") {
  carve(first_lease);
  machine.fault_at(1, test::StepFault::fails);
  CHECK_FALSE(backend->fence(first_lease).ok());
  machine.no_faults();
  CHECK(kept(first_lease) == Kept::no);
  CHECK(backend->fence(first_lease).ok());
  CHECK(erase(first_lease).ok());
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: a hand-over gives nobody memory of which the one before holds a page") {
  carve(first_lease);
  const uint64_t page = page_of(first_lease);
  pins.pin(page);
  const std::string next = "pmem:lease-1-2";
  const Status refused = backend->rebind(first_lease, next, lease_bytes, memory);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK_FALSE(backend->open(next, ObjectAccess::read_write).ok());
  CHECK_FALSE(backend->open(first_lease, ObjectAccess::read_write).ok());
  CHECK(kept(first_lease) == Kept::yes);
  objects.push_back({next, lease_bytes, memory});
  start();
  CHECK_FALSE(backend->rebind(first_lease, next, lease_bytes, memory).ok());  // a start goes on with it
  pins.unpin(page);
  REQUIRE(backend->rebind(first_lease, next, lease_bytes, memory).ok());
  CHECK(backend->open(next, ObjectAccess::read_write).ok());
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: it survives that the region is given up and adopted again") {
  carve(first_lease);
  const uint64_t page = page_of(first_lease);
  pins.pin(page);
  REQUIRE(backend->fence(first_lease).ok());
  devices.clear();
  objects.clear();
  backend->know_devices({});
  backend->know_objects({});
  REQUIRE(backend->refresh().ok());
  const Status in_use = backend->destroy_region(region_serial);
  REQUIRE_FALSE(in_use.ok());
  CHECK(in_use.error().code == ErrorCode::busy);
  CHECK(machine.regions() == 1);
  adopt();
  REQUIRE(machine.namespaces().size() == 1);  // it stays, and its room with it
  CHECK(backend->carve(first_lease, lease_bytes, memory).error().code == ErrorCode::already_exists);
  REQUIRE(backend->carve("pmem:lease-9", lease_bytes, memory).ok());
  CHECK(page_of("pmem:lease-9") > page);
  pins.unpin(page);
  REQUIRE(backend->carve("pmem:lease-10", lease_bytes, memory).ok());  // its end was seen
  CHECK(page_of("pmem:lease-10") == page);
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: a store that does not know the lease cannot destroy what is kept") {
  carve(first_lease);
  const uint64_t page = page_of(first_lease);
  pins.pin(page);
  REQUIRE(backend->fence(first_lease).ok());
  objects.clear();
  start();
  const auto listed = backend->list();
  REQUIRE(listed.ok());
  REQUIRE(listed->size() == 1);  // by its name, so that no lease is given it
  CHECK(listed->at(0).name == first_lease);
  CHECK(backend->fence(first_lease).ok());
  CHECK_FALSE(backend->scrub(first_lease).ok());
  pins.unpin(page);
  CHECK(backend->scrub(first_lease).ok());
  CHECK(machine.namespaces().empty());
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: it survives that the region goes and comes back") {
  carve(first_lease);
  pins.pin(page_of(first_lease));
  REQUIRE(backend->fence(first_lease).ok());
  machine.unplug("0xc0");
  for (int look = 0; look < 3; ++look) REQUIRE(backend->refresh().ok());
  CHECK(kept(first_lease) == Kept::yes);
  machine.plug("0xc0");
  REQUIRE(backend->refresh().ok());
  REQUIRE(backend->refresh().ok());
  CHECK(kept(first_lease) == Kept::yes);
  CHECK_FALSE(erase(first_lease).ok());
}

TEST_CASE_FIXTURE(PmemPins,
                  "pmem pins: pages of what somebody else left on a region are counted when it is adopted") {
  backend->know_devices({});
  devices.clear();
  REQUIRE_FALSE(machine.add_foreign(64 * mib, "precious").empty());
  const uint64_t page = page_of("precious");
  pins.pin(page);
  REQUIRE(backend->refresh().ok());
  adopt();
  REQUIRE(machine.namespaces().size() == 1);
  carve(first_lease);
  CHECK(page_of(first_lease) > page);
  pins.unpin(page);
  carve("pmem:lease-2");
  CHECK(machine.namespaces().size() == 2);  // and not the stranger's
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: what a kernel does not let be learned is tried once, and told") {
  pins.unlearnable = true;
  std::filesystem::remove_all(directory + "/dax");
  start();
  const int learned = pins.learned;
  REQUIRE(backend->refresh().ok());
  CHECK(pins.learned == learned);
  CHECK(speaks_of(detail(), "for tenants who trust each other: planted"));
  CHECK(fence() == Fence::trusting);
  carve(first_lease);
  pins.pin(page_of(first_lease));
  REQUIRE(backend->fence(first_lease).ok());
  CHECK(erase(first_lease).ok());
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: a region without room to learn in says so, until it has some") {
  const std::vector<Extent> all{{DeviceId{1}, 0, 31}};
  REQUIRE(backend->carve(first_lease, 31 * 16 * mib, all).ok());
  objects = {{first_lease, 31 * 16 * mib, all}};
  machine.reboot();
  boot_id = "boot-2";
  start();
  CHECK(pins.learned == 1);
  CHECK(speaks_of(detail(), "for tenants who trust each other: pinned pages are counted once"));
  CHECK(fence() == Fence::trusting);
  REQUIRE(backend->fence(first_lease).ok());
  REQUIRE(backend->erase(first_lease, all, 0, 31 * 16 * mib).ok());
  REQUIRE(backend->scrub(first_lease).ok());
  REQUIRE(backend->refresh().ok());
  CHECK(pins.learned == 2);
  CHECK(speaks_of(detail(), "are counted"));
  CHECK(fence() == Fence::verified);
}

TEST_CASE_FIXTURE(PmemPins, "pmem pins: where pins cannot be seen memory is free once it is erased") {
  pins.blind = true;
  carve(first_lease);
  pins.pin(page_of(first_lease));
  REQUIRE(backend->fence(first_lease).ok());
  CHECK(erase(first_lease).ok());
  CHECK(speaks_of(detail(), "for tenants who trust each other"));
}

}  // namespace terrace::daemon
