// SPDX-License-Identifier: Apache-2.0
#include "daemon/inventory/serials.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "daemon/state/names.h"

using namespace terrace;
using namespace terrace::inventory;

TEST_CASE("serials: a memdev is its serial, one without is where it sits") {
  CHECK(memdev_serial(0x1234abcd, "mem0", "0000:35:00.0") == "0x1234abcd");
  CHECK(memdev_serial(0, "mem0", "0000:35:00.0") == "mem0@0000:35:00.0");
  CHECK(memdev_serial(UINT64_MAX, "mem1", "0000:36:00.0") == "mem1@0000:36:00.0");
}

TEST_CASE("serials: soft-reserved memory is named by its address") {
  CHECK(hmem_serial(0x100000000) == "dax:hmem@0x100000000");
}

TEST_CASE("serials: a region is named by its kind and its memdevs in their order") {
  const std::vector<std::string> one{"0xc0"}, two{"0xc0", "0xc1"}, swapped{"0xc1", "0xc0"};
  CHECK(region_serial(RegionKind::pmem, one) == "pmem:0xc0");
  CHECK(region_serial(RegionKind::pmem, two) == "pmem:0xc0.0xc1");
  CHECK(region_serial(RegionKind::ram, two) == "dax:0xc0.0xc1");
  CHECK(region_serial(RegionKind::ram, swapped) == "dax:0xc1.0xc0");
}

TEST_CASE("serials: regions over the same memdevs are told apart by where they begin") {
  const std::vector<std::string> one{"0xc0"}, many(8, "0xfedcba9876543210");
  CHECK(region_serial(RegionKind::pmem, one, 0x10000000) == "pmem:0xc0@0x10000000");
  CHECK(region_serial(RegionKind::ram, many, 1) == "dax:0xfedcba9876543210.8-way.a32738157525c8e9@0x1");
  for (const uint64_t position : {uint64_t{0}, uint64_t{1} << 28, UINT64_MAX}) {
    CHECK(daemon::valid_name(region_serial(RegionKind::pmem, one, position)));
    CHECK(daemon::valid_name(region_serial(RegionKind::pmem, many, position)));
  }
  CHECK(region_serial(RegionKind::pmem, many, 1) != region_serial(RegionKind::pmem, many, 2));
}

TEST_CASE("serials: every region's serial is a valid device name, and as many as there are regions") {
  std::set<std::string> seen;
  size_t made = 0;
  for (const size_t ways : {1, 2, 3, 4, 6, 8, 12, 16}) {
    for (uint64_t base = 0xf000000000000000; base < 0xf000000000000010; ++base) {
      std::vector<std::string> memdevs;
      for (size_t i = 0; i < ways; ++i)
        memdevs.push_back(memdev_serial(base + 0x100 * i, "mem" + std::to_string(i), ""));
      for (const RegionKind kind : {RegionKind::ram, RegionKind::pmem}) {
        const std::string serial = region_serial(kind, memdevs);
        CHECK_MESSAGE(daemon::valid_name(serial), serial);
        seen.insert(serial);
        ++made;
      }
    }
  }
  CHECK(seen.size() == made);
}

TEST_CASE("serials: a name too long is shortened the same way for ever, whatever it is made of") {
  const std::vector<std::string> many(8, "0xfedcba9876543210");
  CHECK(region_serial(RegionKind::pmem, many) == "pmem:0xfedcba9876543210.8-way.a32738157525c8e9");
  const std::vector<std::string> odd(2, std::string(100, 'x'));
  CHECK(daemon::valid_name(region_serial(RegionKind::ram, odd)));
}
