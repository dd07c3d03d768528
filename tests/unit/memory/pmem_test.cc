#include "daemon/memory/pmem/pmem.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <set>
#include <thread>

#include "core/base/prng.h"
#include "core/base/units.h"
#include "daemon/memory/pmem/dax_memory.h"
#include "tests/unit/memory/fake_cxl_machine.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::Died;
using terrace::test::FakeCxlMachine;
using terrace::test::StepFault;

namespace {

constexpr uint64_t granule = 16 * mib;
const std::string serial = "pmem:0xc0";

bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// One memdev of 512 MiB with a manager, which can be started again on the same machine, or after a reboot.
class Manager {
 public:
  explicit Manager(uint64_t bytes = 512 * mib) : machine(bytes) {
    machine.add_memdev("0xc0");
    machine.add_window({{"0xc0"}});
    char name[] = "/tmp/t-pmem-XXXXXX";
    directory_ = ::mkdtemp(name);
    restart();
  }
  ~Manager() {
    for (const char* file : {"/state-regions.toml", "/state-regions.toml.new"})
      ::unlink((directory_ + file).c_str());
    ::rmdir(directory_.c_str());
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  void restart() {
    backend = std::make_unique<PmemBackend>(machine.pmem(), machine.cxl(),
                                            RegionRecords(directory_ + "/state-regions.toml"),
                                            PmemOptions{.look_ns = 0, .measured = measured});
    backend->know_devices(known_);
    backend->know_objects(objects_);
    CHECK(backend->refresh().ok());
  }
  void compose() {
    const auto made = backend->create_region({{"0xc0"}, 0, 0});
    REQUIRE(made.ok());
    CHECK(*made == serial);
  }
  void adopt() {
    const auto seen = backend->discover();
    REQUIRE(seen.size() == 1);
    known_ = {{DeviceId{1}, serial, "pmem", seen[0].capacity_bytes, seen[0].granule_bytes}};
    backend->know_devices(known_);
    REQUIRE(backend->take_over(serial).ok());
  }
  // Also on record, as the rows would be.
  Status carve(const std::string& name, uint64_t bytes) {
    const Status status = backend->carve(name, bytes, extents(bytes));
    if (status.ok()) objects_.push_back({name, bytes, extents(bytes)});
    return status;
  }
  void forget(const std::string& name) {
    std::erase_if(objects_, [&](const KnownObject& one) { return one.name == name; });
  }
  Status end(const std::string& name, uint64_t bytes) {
    forget(name);
    TERRACE_RETURN_IF_ERROR(backend->fence(name));
    TERRACE_RETURN_IF_ERROR(backend->erase(name, extents(bytes), 0, bytes));
    const auto scrubbed = backend->scrub(name);
    return scrubbed.ok() ? Status() : Status(scrubbed.error());
  }
  static std::vector<Extent> extents(uint64_t bytes) { return {{DeviceId{1}, 0, bytes / granule}}; }

  FakeCxlMachine machine;
  std::unique_ptr<PmemBackend> backend;
  MeasuredRecord* measured = nullptr;  // from the next restart() on

 private:
  std::string directory_;
  std::vector<KnownDevice> known_;
  std::vector<KnownObject> objects_;
};

uint64_t size_of(int fd) {
  struct stat status {};
  ::fstat(fd, &status);
  return static_cast<uint64_t>(status.st_size);
}

bool zeros(int fd, uint64_t bytes) {
  const auto mapping = DaxMapping::map(fd, 0, bytes, false);
  REQUIRE(mapping.ok());
  return std::all_of(mapping->bytes().begin(), mapping->bytes().end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

void write_to(PmemBackend& backend, const std::string& name, const std::string& text) {
  const auto fd = backend.open(name, ObjectAccess::read_write);
  REQUIRE(fd.ok());
  REQUIRE(::pwrite(fd->get(), text.data(), text.size(), 4096) == static_cast<ssize_t>(text.size()));
}

std::string read_from(PmemBackend& backend, const std::string& name, size_t length) {
  const auto fd = backend.open(name, ObjectAccess::read_only);
  REQUIRE(fd.ok());
  std::string text(length, '\0');
  REQUIRE(::pread(fd->get(), text.data(), length, 4096) == static_cast<ssize_t>(length));
  return text;
}

}  // namespace

// --- sizes --------------------------------------------------------------------------------------------------

TEST_CASE("pmem: however the capacity is split into leases, the region has room for all of them") {
  Prng prng(7);
  for (const unsigned ways : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u}) {
    for (const uint64_t share : {256 * mib, 512 * mib, 2 * gib, 64 * gib}) {
      const uint64_t region = share * ways;
      const uint64_t unit = pmem_unit_bytes(ways), smallest = pmem_granule_bytes(region);
      const uint64_t capacity = pmem_capacity_bytes(region, ways);
      CHECK(unit % pmem_align_bytes == 0);
      CHECK(unit % ways == 0);
      CHECK(is_power_of_two(unit / ways));
      CHECK(capacity % smallest == 0);
      CHECK(capacity >= region * 8 / 10);
      for (int round = 0; round < 20; ++round) {
        uint64_t left = capacity, taken = 0;
        while (left > 0) {
          const uint64_t bytes = prng.between(1, left / smallest) * smallest;
          const uint64_t space = pmem_namespace_bytes(bytes, unit);
          CHECK(space % unit == 0);
          CHECK(space - pmem_align_bytes >= bytes);
          taken += space;
          left -= bytes;
        }
        CHECK(taken <= region);
      }
    }
  }
}

TEST_CASE("ErasedRanges: agrees with a map of bytes over random changes") {
  Prng prng(11);
  ErasedRanges ranges;
  std::array<bool, 200> model{};
  for (int round = 0; round < 3000; ++round) {
    const uint64_t begin = prng.below(model.size()), end = prng.between(begin, model.size());
    const bool add = prng.chance(1, 2);
    add ? ranges.add({begin, end}) : ranges.remove({begin, end});
    for (uint64_t at = begin; at < end; ++at) model[at] = add;
    const uint64_t from = prng.below(model.size()), to = prng.between(from, model.size());
    std::vector<bool> missing(model.size());
    uint64_t last = 0;
    for (const ByteRange& part : ranges.missing({from, to})) {
      CHECK(part.begin < part.end);
      CHECK(part.begin >= std::max(last, from));
      CHECK(part.end <= to);
      last = part.end;
      for (uint64_t at = part.begin; at < part.end; ++at) missing[at] = true;
    }
    for (uint64_t at = from; at < to; ++at) CHECK(missing[at] == !model[at]);
  }
}

// --- leases -------------------------------------------------------------------------------------------------

TEST_CASE("pmem: a device says what can be leased, and what it costs, before anything is adopted") {
  Manager manager;
  manager.compose();
  const auto seen = manager.backend->discover();
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].serial == serial);
  CHECK(seen[0].granule_bytes == granule);
  CHECK(seen[0].capacity_bytes == 448 * mib);
  CHECK(says(seen[0].detail, "448 MiB can be leased, as each lease takes 2 MiB more for metadata"));
  CHECK(seen[0].contents.empty());
}

TEST_CASE("pmem: a lease is a namespace of its name, has all of its bytes, and reads as zeros") {
  Manager manager;
  manager.compose();
  manager.machine.fill(0, 64 * mib, 0xa5);
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", 2 * granule).ok());
  const auto spaces = manager.machine.namespaces();
  REQUIRE(spaces.size() == 1);
  CHECK(spaces[0].label == "pmem:lease-1");
  CHECK(spaces[0].bytes == 34 * mib);
  const auto fd = manager.backend->open("pmem:lease-1", ObjectAccess::read_write);
  REQUIRE(fd.ok());
  CHECK(size_of(fd->get()) >= 2 * granule);
  CHECK(zeros(fd->get(), 2 * granule));
  const auto reader = manager.backend->open("pmem:lease-1", ObjectAccess::read_only);
  REQUIRE(reader.ok());
  CHECK(!DaxMapping::map(reader->get(), 0, granule, true).ok());
  CHECK(manager.backend->usage("pmem:lease-1")->bytes == 2 * granule);
  const Status again = manager.carve("pmem:lease-1", granule);
  REQUIRE(!again.ok());
  CHECK(again.error().code == ErrorCode::already_exists);
  CHECK(manager.backend->attributes(serial).persistent);
  CHECK(manager.backend->attributes(serial).isolation == Isolation::namespace_);
}

TEST_CASE("pmem: what no table says is measured at the adoption, and again only when it is adopted again") {
  Manager manager;
  MeasuredRecord record;
  manager.measured = &record;
  manager.restart();
  manager.compose();
  CHECK(manager.backend->attributes(serial).source == AttributesSource::none);
  manager.adopt();
  const TierAttributes told = manager.backend->attributes(serial);
  CHECK(told.source == AttributesSource::measured);
  CHECK(told.latency_ns > 0);
  CHECK(told.bandwidth_bytes_per_s > 0);
  CHECK(manager.machine.namespaces().empty());  // nothing of it is left
  record.set(serial, 512 * mib, {.latency_ns = 7, .bandwidth_bytes_per_s = 8});
  manager.restart();
  CHECK(manager.backend->attributes(serial).latency_ns == 7);
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  manager.adopt();  // while a lease has some of it
  CHECK(manager.backend->attributes(serial).latency_ns == 7);
  REQUIRE(manager.end("pmem:lease-1", granule).ok());
  CHECK(manager.backend->attributes(serial).latency_ns == 7);
  manager.adopt();
  CHECK(manager.backend->attributes(serial).latency_ns != 7);
}

TEST_CASE("pmem: a device that nobody measured is, on memory that was just erased") {
  Manager manager;
  manager.compose();
  manager.adopt();
  MeasuredRecord record;
  manager.measured = &record;
  manager.restart();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  CHECK(manager.backend->attributes(serial).source == AttributesSource::none);  // never what a lease holds
  REQUIRE(manager.end("pmem:lease-1", granule).ok());
  CHECK(manager.backend->attributes(serial).source == AttributesSource::measured);
}

TEST_CASE(
    "pmem: the next lease of the same place sees nothing of the one before, nor of the kernel's metadata") {
  Manager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  REQUIRE(manager.carve("pmem:lease-2", granule).ok());
  write_to(*manager.backend, "pmem:lease-1", "the first tenant's");
  write_to(*manager.backend, "pmem:lease-2", "the second tenant's");
  REQUIRE(manager.end("pmem:lease-1", granule).ok());
  REQUIRE(manager.end("pmem:lease-2", granule).ok());
  CHECK(manager.machine.namespaces().empty());
  REQUIRE(manager.carve("pmem:lease-3", 2 * granule).ok());  // over both, and the metadata of the second
  const auto fd = manager.backend->open("pmem:lease-3", ObjectAccess::read_only);
  REQUIRE(fd.ok());
  CHECK(zeros(fd->get(), 2 * granule));
}

TEST_CASE("pmem: every granule of the capacity can be a lease of its own, in any order of ending") {
  Manager manager;
  manager.compose();
  manager.adopt();
  const uint64_t count = manager.backend->discover()[0].capacity_bytes / granule;
  for (uint64_t i = 0; i < count; ++i) REQUIRE(manager.carve("pmem:lease-" + std::to_string(i), granule).ok());
  const Status more = manager.carve("pmem:lease-more", granule);
  REQUIRE(!more.ok());
  CHECK(more.error().code == ErrorCode::capacity_exhausted);
  for (uint64_t i = 0; i < count; i += 2) REQUIRE(manager.end("pmem:lease-" + std::to_string(i), granule).ok());
  const Status broken_up = manager.carve("pmem:lease-wide", 2 * granule);
  REQUIRE(!broken_up.ok());
  CHECK(broken_up.error().code == ErrorCode::capacity_exhausted);
  CHECK(says(broken_up.error().detail,
             "no 34 MiB in one piece for 32 MiB and its metadata: the largest free run is"));
  for (uint64_t i = 0; i < count; i += 2)
    REQUIRE(manager.carve("pmem:lease-a" + std::to_string(i), granule).ok());
}

TEST_CASE("pmem: extents on several regions, or on none, are no namespace") {
  Manager manager;
  manager.compose();
  manager.adopt();
  const Status none = manager.backend->carve("pmem:lease-1", granule, {{DeviceId{9}, 0, 1}});
  REQUIRE(!none.ok());
  CHECK(none.error().code == ErrorCode::invalid_argument);
  const Status two =
      manager.backend->carve("pmem:lease-1", 2 * granule, {{DeviceId{1}, 0, 1}, {DeviceId{9}, 0, 1}});
  REQUIRE(!two.ok());
  CHECK(two.error().code == ErrorCode::capacity_exhausted);
  CHECK(manager.machine.namespaces().empty());
}

TEST_CASE(
    "pmem: a kernel that keeps its unit gives larger namespaces, and leases have their bytes all the same") {
  Manager manager;
  manager.machine.unit_fixed = true;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  CHECK(manager.machine.namespaces()[0].bytes == 32 * mib);
  CHECK(manager.backend->usage("pmem:lease-1")->bytes == granule);
  CHECK(manager.backend->list()->at(0).bytes == granule);
  REQUIRE(manager.end("pmem:lease-1", granule).ok());
}

TEST_CASE("pmem: a size is fixed, and is refused in words") {
  Manager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  const Status longer =
      manager.backend->resize("pmem:lease-1", granule, 2 * granule, Manager::extents(2 * granule));
  REQUIRE(!longer.ok());
  CHECK(longer.error().code == ErrorCode::unsupported);
  CHECK(manager.backend->resize("pmem:lease-1", granule, granule, Manager::extents(granule)).ok());
}

// --- taken back ---------------------------------------------------------------------------------------------

TEST_CASE("pmem: a fenced lease cannot be opened, and fencing, erasing and scrubbing can be done again") {
  Manager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  for (int i = 0; i < 2; ++i) REQUIRE(manager.backend->fence("pmem:lease-1").ok());
  CHECK(manager.backend->list()->at(0).name == "pmem:lease-1");
  CHECK(!manager.machine.namespaces().empty());
  for (int i = 0; i < 2; ++i)
    REQUIRE(manager.backend->erase("pmem:lease-1", Manager::extents(granule), 0, granule).ok());
  for (int i = 0; i < 2; ++i) REQUIRE(manager.backend->scrub("pmem:lease-1").ok());
  CHECK(manager.machine.namespaces().empty());
  CHECK(manager.backend->fence("pmem:lease-1").ok());
  CHECK(!manager.backend->open("pmem:lease-1", ObjectAccess::read_only).ok());
}

TEST_CASE("pmem: what is erased of a large lease can be granted before the rest is") {
  Manager manager;
  manager.compose();
  manager.adopt();
  constexpr uint64_t large = 24 * granule;
  REQUIRE(manager.carve("pmem:lease-1", large).ok());
  CHECK(!manager.carve("pmem:lease-2", 10 * granule).ok());
  REQUIRE(manager.backend->fence("pmem:lease-1").ok());
  REQUIRE(manager.backend->erase("pmem:lease-1", Manager::extents(large), 8 * granule, 16 * granule).ok());
  REQUIRE(manager.carve("pmem:lease-2", 16 * granule).ok());
  const auto fd = manager.backend->open("pmem:lease-2", ObjectAccess::read_only);
  REQUIRE(fd.ok());
  CHECK(zeros(fd->get(), 16 * granule));
  REQUIRE(manager.backend->erase("pmem:lease-1", Manager::extents(large), 0, 8 * granule).ok());
  REQUIRE(manager.backend->scrub("pmem:lease-1").ok());
  CHECK(manager.machine.namespaces().size() == 1);
}

TEST_CASE("pmem: bytes on a region that is not there are not reported as erased") {
  Manager manager;
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
  CHECK(manager.backend->erase("pmem:lease-1", Manager::extents(granule), 0, granule).error().code ==
        ErrorCode::io_error);
  CHECK(manager.backend->scrub("pmem:lease-1").error().code == ErrorCode::io_error);
  manager.machine.plug("0xc0");
  CHECK(manager.backend->refresh().ok());
  CHECK(manager.backend->discover()[0].capacity_bytes != 0);
  CHECK(manager.end("pmem:lease-1", granule).ok());
}

// --- handed over, moved -------------------------------------------------------------------------------------

TEST_CASE("pmem: a hand-over gives the bytes a new name, from any step on which it was cut off") {
  for (unsigned step = 0; step <= 8; ++step) {
    CAPTURE(step);
    Manager manager;
    manager.compose();
    manager.adopt();
    REQUIRE(manager.carve("pmem:lease-1", granule).ok());
    write_to(*manager.backend, "pmem:lease-1", "handed over");
    if (step != 0) {
      manager.machine.fault_at((step + 1) / 2, step % 2 == 0 ? StepFault::dies_after : StepFault::dies_before);
      try {
        (void)manager.backend->rebind("pmem:lease-1", "pmem:lease-1.2", granule, Manager::extents(granule));
      } catch (const Died&) {
      }
      manager.machine.no_faults();
      manager.restart();
    }
    REQUIRE(manager.backend->rebind("pmem:lease-1", "pmem:lease-1.2", granule, Manager::extents(granule)).ok());
    CHECK(read_from(*manager.backend, "pmem:lease-1.2", 11) == "handed over");
    CHECK(!manager.backend->open("pmem:lease-1", ObjectAccess::read_only).ok());
    CHECK(manager.machine.namespaces().size() == 1);
  }
}

TEST_CASE("pmem: a hand-over of what is nowhere is corrupt") {
  Manager manager;
  manager.compose();
  manager.adopt();
  const Status lost =
      manager.backend->rebind("pmem:lease-1", "pmem:lease-2", granule, Manager::extents(granule));
  REQUIRE(!lost.ok());
  CHECK(lost.error().code == ErrorCode::corrupt);
}

TEST_CASE("pmem: a copy has all bytes") {
  Manager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  REQUIRE(manager.carve("pmem:lease-2", granule).ok());
  write_to(*manager.backend, "pmem:lease-1", "moved");
  REQUIRE(manager.backend->copy("pmem:lease-1", "pmem:lease-2", granule).ok());
  CHECK(read_from(*manager.backend, "pmem:lease-2", 5) == "moved");
}

// --- faults -------------------------------------------------------------------------------------------------

TEST_CASE("pmem: whatever step of a grant fails or lies, nothing stays of it") {
  for (const StepFault fault : {StepFault::fails, StepFault::fails_late, StepFault::lies}) {
    for (unsigned step = 1; step <= 3; ++step) {
      CAPTURE(step);
      CAPTURE(static_cast<int>(fault));
      Manager manager;
      manager.compose();
      manager.adopt();
      manager.machine.fault_at(step, fault);
      const Status carved = manager.backend->carve("pmem:lease-1", granule, Manager::extents(granule));
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
      CHECK(manager.backend->carve("pmem:lease-1", granule, Manager::extents(granule)).ok());
    }
  }
}

TEST_CASE(
    "pmem: killed at any step of a lease's life, the next start finds it or an orphan, and can end both") {
  for (const StepFault fault : {StepFault::dies_before, StepFault::dies_after}) {
    for (unsigned step = 1; step <= 8; ++step) {
      CAPTURE(step);
      Manager manager;
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
        if (carved) CHECK(manager.backend->erase(object.name, Manager::extents(granule), 0, granule).ok());
        CHECK(manager.backend->scrub(object.name).ok());
      }
      CHECK(manager.machine.namespaces().size() == 1);
      CHECK(read_from(*manager.backend, "pmem:lease-0", 13) == "a neighbour's");
    }
  }
}

TEST_CASE("pmem: a fence or scrub that the kernel does not do is an error, whatever it returned") {
  for (const StepFault fault : {StepFault::fails, StepFault::lies}) {
    Manager manager;
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

// --- other people's -----------------------------------------------------------------------------------------

TEST_CASE("pmem: a region that is not adopted is only looked at, and what is on it is told") {
  Manager manager;
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
  Manager manager;
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
  Manager manager;
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
    Manager manager;
    manager.compose();
    manager.adopt();
    REQUIRE(manager.carve("pmem:lease-1", granule).ok());
    write_to(*manager.backend, "pmem:lease-1", "kept");
    (half ? manager.machine.half_blind : manager.machine.blind) = true;
    manager.machine.fault_at(1000, StepFault::none);
    for (const Status& status :
         {manager.backend->refresh(), manager.backend->fence("pmem:lease-1"),
          manager.backend->erase("pmem:lease-1", Manager::extents(granule), 0, granule),
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
  REQUIRE(backend.carve("pmem:lease-1", granule, Manager::extents(granule)).ok());
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
  Manager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  write_to(*manager.backend, "pmem:lease-1", "kept");
  REQUIRE(manager.machine.pmem().disable(manager.machine.namespaces()[0].uuid).ok());
  manager.restart();
  CHECK(manager.backend->list()->at(0).bytes == granule);
  CHECK(read_from(*manager.backend, "pmem:lease-1", 4) == "kept");
}

// --- regions ------------------------------------------------------------------------------------------------

TEST_CASE("pmem: a region that forgets what is written to it is refused with the reason, and taken apart") {
  Manager manager;
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
  Manager manager;
  manager.compose();
  CHECK(manager.machine.namespaces().empty());
  manager.machine.fill(2 * mib, 4096, 0x77);
  REQUIRE(manager.backend->destroy_region(serial).ok());
  CHECK(manager.machine.regions() == 0);
  manager.compose();
  CHECK(manager.machine.byte_at(2 * mib) == 0x77);
}

TEST_CASE("pmem: after a reboot regions are made again, and leases are there with their bytes") {
  Manager manager;
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
  Manager manager;
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
    Manager manager;
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
  Manager manager;
  manager.compose();
  manager.adopt();
  manager.machine.reboot();
  manager.machine.silent_zeros = true;
  manager.restart();
  CHECK(manager.machine.regions() == 0);
  CHECK(says(manager.backend->discover()[0].detail, "reads back as zeros"));
}

TEST_CASE("pmem: a region is not taken apart under somebody's feet") {
  Manager manager;
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
  Manager manager;
  manager.compose();
  manager.machine.add_foreign(32 * mib, "pmem:lease-1");
  manager.backend->know_objects({{"pmem:lease-1", granule, {{DeviceId{7}, 0, 1}}}});  // of another region
  CHECK(manager.backend->refresh().ok());
  CHECK(!manager.backend->discover()[0].contents.empty());
  manager.adopt();
  CHECK(manager.machine.namespaces().empty());
}
