// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/free_space.h"

#include <doctest/doctest.h>

#include <map>

#include "core/base/prng.h"

using terrace::Prng;
using terrace::coherence::FreeSpace;

TEST_CASE("FreeSpace: the smallest hole that fits is taken, neighbours are joined") {
  FreeSpace space(1024);
  CHECK(space.take(256) == 0);
  CHECK(space.take(128) == 256);
  CHECK(space.take(256) == 384);
  space.give(0, 256);
  CHECK(space.take(64) == 0);  // not from the 384 bytes at the end
  space.give(256, 128);
  CHECK(space.largest_bytes() == 384);
  space.give(0, 64);
  CHECK(space.largest_bytes() == 384);
  space.give(384, 256);
  CHECK(space.largest_bytes() == 1024);
  CHECK(space.take(1088) == std::nullopt);
}

TEST_CASE("FreeSpace: a range is taken where it is free, and only there") {
  FreeSpace space(1024);
  CHECK(space.take_at(128, 64));
  CHECK_FALSE(space.take_at(64, 128));
  CHECK_FALSE(space.take_at(960, 128));
  CHECK(space.take_at(192, 832));
  CHECK(space.free_bytes() == 128);
  CHECK_FALSE(space.take_at(1024, 64));
}

TEST_CASE("FreeSpace: random use never gives a byte twice") {
  Prng prng(3);
  FreeSpace space(64 * 256);
  std::map<uint64_t, uint64_t> taken;
  for (int round = 0; round < 20'000; ++round) {
    if (prng.chance(1, 2) && !taken.empty()) {
      auto victim = taken.begin();
      std::advance(victim, static_cast<long>(prng.below(taken.size())));
      space.give(victim->first, victim->second);
      taken.erase(victim);
    } else if (const uint64_t bytes = 64 * prng.between(1, 20); const auto offset = space.take(bytes)) {
      const auto [at, fresh] = taken.emplace(*offset, bytes);
      REQUIRE(fresh);
      if (at != taken.begin()) REQUIRE(std::prev(at)->first + std::prev(at)->second <= *offset);
      if (std::next(at) != taken.end()) REQUIRE(*offset + bytes <= std::next(at)->first);
      REQUIRE(*offset + bytes <= 64 * 256);
    }
  }
  for (const auto& [offset, bytes] : taken) space.give(offset, bytes);
  CHECK(space.largest_bytes() == 64 * 256);
}
