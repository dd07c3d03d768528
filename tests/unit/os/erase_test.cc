// SPDX-License-Identifier: Apache-2.0
// Erasing in place: every byte of the range and none beside it, by each kind of store; and a check that finds
// what is left.
#include "core/os/erase.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/base/units.h"
#include "core/os/memory_map.h"
#include "tests/support/skip.h"

using namespace terrace;
using namespace terrace::os;

namespace {

constexpr EraseStores every_kind[] = {EraseStores::best, EraseStores::avx512, EraseStores::avx2,
                                      EraseStores::sse2, EraseStores::plain};

MemoryMap memory(uint64_t bytes) {
  auto map = MemoryMap::anonymous(bytes, 2 * mib);
  REQUIRE(map.ok());
  std::memset(map->data(), 0xa5, bytes);
  return std::move(map).value();
}

bool all(std::span<const std::byte> range, std::byte value) {
  return std::all_of(range.begin(), range.end(), [value](std::byte b) { return b == value; });
}

}  // namespace

TEST_CASE("erase: every alignment and length, nothing beside the range") {
  const MemoryMap map = memory(16 * kib);
  const auto bytes = map.bytes().first(8 * kib);
  for (const EraseStores stores : every_kind) {
    if (!can_erase_with(stores)) {
      TERRACE_SKIP_IN_PART(cpu_kinds, "this processor lacks kind " << int(stores));
      continue;
    }
    for (uint64_t start = 0; start < 130; start += start < 66 ? 1 : 9) {
      for (uint64_t length = 0; length < 400; length += length < 200 ? 1 : 23) {
        std::memset(bytes.data(), 0xa5, 600);
        const auto erased = erase(bytes.subspan(start, length), {.seed = start, .stores = stores});
        REQUIRE(erased.ok());
        REQUIRE(erased->bytes == length);
        REQUIRE(erased->checked_bytes <= length);
        REQUIRE(all(bytes.subspan(start, length), std::byte{0}));
        REQUIRE(all(bytes.first(start), std::byte{0xa5}));
        REQUIRE(all(bytes.subspan(start + length, 600 - start - length), std::byte{0xa5}));
      }
    }
  }
}

TEST_CASE("erase: several threads share a range that is no multiple of anything") {
  const uint64_t size = 9 * mib;
  MemoryMap map = memory(10 * mib);
  for (const unsigned threads : {0u, 1u, 2u, 3u, 16u}) {
    std::memset(map.data(), 0xa5, map.size_bytes());
    const auto erased = erase(map.bytes().subspan(77, size + 13), {.threads = threads, .seed = threads});
    REQUIRE(erased.ok());
    CHECK(erased->bytes == size + 13);
    CHECK(erased->bytes_per_s > 0);
    CHECK(erased->checked_bytes >= size / 4096 * 60);
    CHECK(all(map.bytes().subspan(77, size + 13), std::byte{0}));
    CHECK(all(map.bytes().first(77), std::byte{0xa5}));
    CHECK(all(map.bytes().subspan(77 + size + 13), std::byte{0xa5}));
  }
}

TEST_CASE("erase: the bandwidth bound holds over all threads") {
  MemoryMap map = memory(8 * mib);
  for (const unsigned threads : {1u, 2u}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto erased = erase(map.bytes(), {.threads = threads, .bytes_per_s = 80 * mib, .seed = 1});
    REQUIRE(erased.ok());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    CHECK(took.count() >= 0.099);
    CHECK(erased->bytes_per_s <= 81.0 * mib);
  }
}

TEST_CASE("erase: the check finds what is left at either end, and in any page of rubbish") {
  MemoryMap map = memory(64 * kib);
  const auto range = map.bytes().subspan(5, 40 * kib);
  REQUIRE(erase(range, {.seed = 3}).ok());
  REQUIRE(check_erased(range, 7).ok());
  for (const uint64_t at : {uint64_t{0}, uint64_t{1}, uint64_t(range.size() - 1), uint64_t(range.size() - 2)}) {
    range[at] = std::byte{1};
    const auto found = check_erased(range, 7);
    REQUIRE(!found.ok());
    CHECK(found.error().code == ErrorCode::io_error);
    range[at] = std::byte{0};
  }
  // A whole page that was missed is seen whatever the seed is.
  for (uint64_t seed = 0; seed < 64; ++seed) {
    const uint64_t page = 4096 - 5 + seed % 8 * 4096;
    std::memset(&range[page], 1, 4096);
    CHECK(!check_erased(range, seed).ok());
    std::memset(&range[page], 0, 4096);
    CHECK(check_erased(range, seed).ok());
  }
}

TEST_CASE("erase: every line is looked at by some seed") {
  MemoryMap map = memory(64 * kib);
  const auto range = map.bytes().first(16 * kib);
  REQUIRE(erase(range, {.seed = 3}).ok());
  for (uint64_t line = 0; line < range.size(); line += 64) {
    range[line + line / 64 % 64] = std::byte{0x80};
    uint64_t seed = 0;
    while (seed < 5000 && check_erased(range, seed).ok()) ++seed;
    CHECK(seed < 5000);
    range[line + line / 64 % 64] = std::byte{0};
  }
}

TEST_CASE("erase: what lies beside the range is not held against it") {
  MemoryMap map = memory(16 * kib);
  const auto range = map.bytes().subspan(4096 + 3, 100);
  REQUIRE(erase(range, {}).ok());
  for (uint64_t seed = 0; seed < 100; ++seed) CHECK(check_erased(range, seed).ok());
}
