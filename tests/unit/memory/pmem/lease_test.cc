// SPDX-License-Identifier: Apache-2.0
// Leases of the pmem backend: sizes, namespaces, extents.
#include <doctest/doctest.h>

#include "core/base/prng.h"
#include "daemon/memory/pmem/dax_memory.h"
#include "tests/unit/memory/pmem/manager.h"

using namespace terrace;
using namespace terrace::test;

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

TEST_CASE("pmem: a device says what can be leased, and what it costs, before anything is adopted") {
  PmemManager manager;
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
  PmemManager manager;
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
  PmemManager manager;
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
  PmemManager manager;
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
  PmemManager manager;
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
  PmemManager manager;
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
  PmemManager manager;
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
  PmemManager manager;
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
  PmemManager manager;
  manager.compose();
  manager.adopt();
  REQUIRE(manager.carve("pmem:lease-1", granule).ok());
  const Status longer =
      manager.backend->resize("pmem:lease-1", granule, 2 * granule, PmemManager::extents(2 * granule));
  REQUIRE(!longer.ok());
  CHECK(longer.error().code == ErrorCode::unsupported);
  CHECK(manager.backend->resize("pmem:lease-1", granule, granule, PmemManager::extents(granule)).ok());
}
