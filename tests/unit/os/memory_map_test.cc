// SPDX-License-Identifier: Apache-2.0
// MemoryMap and the calls that fill a reserved range.
#include "core/os/memory_map.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <string>

#include "core/base/units.h"

using terrace::ErrorCode;
using terrace::mib;
using terrace::os::MemoryMap;

namespace {

// The permissions column of /proc/self/maps for `address`; empty when nothing is mapped there.
std::string permissions_at(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    size_t dash = 0;
    const uintptr_t first = std::stoull(line, &dash, 16);
    size_t length = 0;
    const uintptr_t last = std::stoull(line.substr(dash + 1), &length, 16);
    if (wanted >= first && wanted < last) return line.substr(dash + 1 + length + 1, 4);
  }
  return {};
}

}  // namespace

TEST_CASE("MemoryMap: a reservation is aligned, inaccessible and given back") {
  const std::byte* start = nullptr;
  {
    auto map = MemoryMap::reserve(64 * mib, 2 * mib);
    REQUIRE(map.ok());
    start = map->data();
    CHECK(reinterpret_cast<uintptr_t>(start) % (2 * mib) == 0);
    CHECK(map->size_bytes() == 64 * mib);
    CHECK(permissions_at(start) == "---p");
    CHECK(permissions_at(start + 64 * mib - 1) == "---p");
    CHECK(map->contains(start + 64 * mib - 1));
    CHECK_FALSE(map->contains(start + 64 * mib));
  }
  CHECK(permissions_at(start).empty());
}

TEST_CASE("MemoryMap: what is no range is refused") {
  CHECK(MemoryMap::reserve(0, 4096).error().code == ErrorCode::invalid_argument);
  CHECK(MemoryMap::reserve(4097, 4096).error().code == ErrorCode::invalid_argument);
  CHECK(MemoryMap::reserve(mib, 12288).error().code == ErrorCode::invalid_argument);
  CHECK(MemoryMap::reserve(mib, 8).error().code == ErrorCode::invalid_argument);
  CHECK(MemoryMap::reserve(~uint64_t{4095}, 2 * mib).error().code == ErrorCode::invalid_argument);
  CHECK(MemoryMap::reserve(uint64_t{1} << 62, 2 * mib).error().code == ErrorCode::out_of_memory);
}

TEST_CASE("MemoryMap: a moved-from map owns nothing") {
  auto first = MemoryMap::anonymous(2 * mib, 4096);
  REQUIRE(first.ok());
  MemoryMap second = std::move(*first);
  CHECK(first->empty());
  second.data()[0] = std::byte{7};
  MemoryMap third;
  third = std::move(second);
  CHECK(third.data()[0] == std::byte{7});
}

TEST_CASE("memory_map: parts of a reservation are filled, emptied and filled again") {
  auto range = MemoryMap::reserve(8 * mib, 2 * mib);
  REQUIRE(range.ok());
  REQUIRE(terrace::os::map_anonymous_at(range->bytes(), 2 * mib, 2 * mib).ok());
  CHECK(permissions_at(range->data()) == "---p");
  CHECK(permissions_at(range->data() + 2 * mib) == "rw-p");
  std::memset(range->data() + 2 * mib, 0xab, 2 * mib);

  REQUIRE(terrace::os::unmap_at(range->bytes(), 2 * mib, 2 * mib).ok());
  CHECK(permissions_at(range->data() + 2 * mib) == "---p");
  REQUIRE(terrace::os::map_anonymous_at(range->bytes(), 2 * mib, 2 * mib).ok());
  CHECK(range->data()[2 * mib] == std::byte{0});

  CHECK(terrace::os::map_anonymous_at(range->bytes(), 6 * mib, 4 * mib).error().code ==
        ErrorCode::invalid_argument);
  CHECK(terrace::os::unmap_at(range->bytes(), 100, 4096).error().code == ErrorCode::invalid_argument);
  CHECK(terrace::os::unmap_at(range->bytes(), 0, 0).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("memory_map: a memory file mapped twice is one memory, and it cannot shrink") {
  auto file = terrace::os::make_memory_file("unit_os", 2 * mib);
  REQUIRE(file.ok());
  auto range = MemoryMap::reserve(4 * mib, 2 * mib);
  REQUIRE(range.ok());
  using terrace::os::Protection;
  REQUIRE(terrace::os::map_file_at(range->bytes(), 0, 2 * mib, file->get(), 0, Protection::read_write).ok());
  REQUIRE(terrace::os::map_file_at(range->bytes(), 2 * mib, mib, file->get(), mib, Protection::read_only).ok());
  range->data()[mib + 5] = std::byte{42};
  CHECK(range->data()[2 * mib + 5] == std::byte{42});
  CHECK(permissions_at(range->data() + 2 * mib) == "r--s");
  CHECK(::ftruncate(file->get(), 0) == -1);
}

TEST_CASE("memory_map: discarded pages read as zeros, private and shared") {
  auto file = terrace::os::make_memory_file("unit_os", 2 * mib);
  REQUIRE(file.ok());
  auto range = MemoryMap::reserve(4 * mib, 2 * mib);
  REQUIRE(range.ok());
  REQUIRE(terrace::os::map_anonymous_at(range->bytes(), 0, 2 * mib).ok());
  REQUIRE(terrace::os::map_file_at(range->bytes(), 2 * mib, 2 * mib, file->get(), 0,
                                   terrace::os::Protection::read_write)
              .ok());
  std::memset(range->data(), 0x33, 4 * mib);
  for (const uint64_t offset : {uint64_t{0}, 2 * mib}) {
    REQUIRE(terrace::os::discard_at(range->bytes(), offset + mib, 4096).ok());
    CHECK(range->data()[offset + mib] == std::byte{0});
    CHECK(range->data()[offset + mib - 1] == std::byte{0x33});
    CHECK(range->data()[offset + mib + 4096] == std::byte{0x33});
  }
}
