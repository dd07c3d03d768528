// SPDX-License-Identifier: Apache-2.0
// GranuleAllocator: cases, and random commands against a bitmap.
#include "libclient/arena/granule_allocator.h"

#include <doctest/doctest.h>

#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "core/base/prng.h"

using terrace::Prng;
using terrace::client::GranuleAllocator;

TEST_CASE("GranuleAllocator: neighbours merge in every order of giving back") {
  for (const std::vector<uint64_t>& order :
       {std::vector<uint64_t>{0, 10, 20}, {20, 10, 0}, {10, 0, 20}, {0, 20, 10}}) {
    GranuleAllocator allocator(30);
    for (const uint64_t expected : {0u, 10u, 20u}) CHECK(allocator.take(10) == expected);
    CHECK_FALSE(allocator.take(1).has_value());
    for (const uint64_t start : order) {
      CHECK(allocator.give(start) == 10);
      CHECK(allocator.check() == "");
    }
    CHECK(allocator.largest_free_units() == 30);
    CHECK(allocator.taken_runs() == 0);
  }
}

TEST_CASE("GranuleAllocator: the smallest run that fits is used") {
  GranuleAllocator allocator(100);
  REQUIRE(allocator.take(40) == 0);
  REQUIRE(allocator.take(10) == 40);
  REQUIRE(allocator.take(10) == 50);
  REQUIRE(allocator.take(10) == 60);
  allocator.give(0);   // 40 free at 0
  allocator.give(50);  // 10 free at 50, 30 free at 70
  CHECK(allocator.take(9) == 50);
  CHECK(allocator.take(25) == 70);
  CHECK(allocator.take(31) == 0);
  CHECK(allocator.check() == "");
}

TEST_CASE("GranuleAllocator: alignment counts from the base, and the lead stays free") {
  GranuleAllocator allocator(64, 5);
  CHECK(allocator.take(4, 8) == 3);  // 5 + 3 = 8
  CHECK(allocator.free_units() == 60);
  CHECK(allocator.take(3) == 0);  // the lead
  CHECK(allocator.take(1, 64) == 59);
  CHECK_FALSE(allocator.take(1, 128).has_value());
  CHECK(allocator.check() == "");
}

TEST_CASE("GranuleAllocator: what was not taken cannot be given back") {
  GranuleAllocator allocator(16);
  REQUIRE(allocator.take(4) == 0);
  CHECK_FALSE(allocator.give(1).has_value());
  CHECK_FALSE(allocator.give(4).has_value());
  CHECK_FALSE(allocator.give(400).has_value());
  CHECK(allocator.length_at(0) == 4);
  CHECK(allocator.give(0) == 4);
  CHECK_FALSE(allocator.give(0).has_value());
  GranuleAllocator nothing(0);
  CHECK_FALSE(nothing.take(1).has_value());
  CHECK(nothing.check() == "");
}

TEST_CASE("GranuleAllocator: random commands agree with a bitmap") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const uint64_t units = prng.between(1, 300);
    const uint64_t base = prng.below(64);
    GranuleAllocator allocator(units, base);
    std::vector<bool> taken(units);
    std::map<uint64_t, uint64_t> live;
    for (int step = 0; step < 500; ++step) {
      if (live.empty() || prng.chance(55, 100)) {
        const uint64_t wanted = prng.chance(1, 10) ? prng.between(1, units + 2) : prng.between(1, 12);
        const uint64_t alignment = uint64_t{1} << prng.below(6);
        bool possible = false;
        for (uint64_t start = 0; start + wanted <= units && !possible; ++start) {
          if ((base + start) % alignment != 0) continue;
          possible = true;
          for (uint64_t unit = start; unit < start + wanted; ++unit) possible = possible && !taken[unit];
        }
        const auto start = allocator.take(wanted, alignment);
        REQUIRE(start.has_value() == possible);
        if (!start.has_value()) continue;
        REQUIRE((base + *start) % alignment == 0);
        for (uint64_t unit = *start; unit < *start + wanted; ++unit) {
          REQUIRE_FALSE(taken.at(unit));
          taken[unit] = true;
        }
        live[*start] = wanted;
      } else {
        auto victim = live.begin();
        std::advance(victim, static_cast<long>(prng.below(live.size())));
        REQUIRE(allocator.give(victim->first) == victim->second);
        for (uint64_t unit = victim->first; unit < victim->first + victim->second; ++unit) taken[unit] = false;
        live.erase(victim);
      }
      REQUIRE(allocator.check() == "");
    }
  }
}
