// SPDX-License-Identifier: Apache-2.0
// The parts that BlockOrder is made of.
#include <doctest/doctest.h>

#include <unordered_map>
#include <vector>

#include "core/base/prng.h"
#include "tiering/eviction/ghosts.h"
#include "tiering/eviction/key_index.h"
#include "tiering/eviction/reuse_rates.h"

namespace terrace::eviction {
namespace {

// `hashes`: how many different ones; few make long clusters of slots.
void compare_with_map(uint64_t hashes, uint32_t ids) {
  KeyIndex index;
  Prng prng(hashes);
  std::vector<uint32_t> hash_of(ids);
  std::unordered_map<uint32_t, uint32_t> known;  // id by hash
  const auto of = [&](uint32_t id) { return hash_of[id]; };
  std::vector<bool> there(ids);
  for (int step = 0; step < 20'000; ++step) {
    const auto id = static_cast<uint32_t>(prng.below(ids));
    const auto hash = static_cast<uint32_t>(prng.below(hashes)) * 64;
    if (there[id]) {
      index.remove(hash_of[id], id, of);
      known.erase(hash_of[id]);
      there[id] = false;
    } else if (!known.contains(hash)) {
      hash_of[id] = hash;
      index.add(hash, id, of);
      known[hash] = id;
      there[id] = true;
    }
    const auto asked = static_cast<uint32_t>(prng.below(hashes)) * 64;
    const auto found = known.find(asked);
    CHECK(index.find(asked, of) == (found == known.end() ? nobody : found->second));
  }
}

TEST_CASE("KeyIndex: finds what a map finds, also where hundreds of hashes ask for one slot") {
  compare_with_map(1u << 20, 1000);
  compare_with_map(3000, 2000);  // multiples of 64: far more than 255 slots from home
  compare_with_map(10, 5);
}

TEST_CASE("Ghosts: one is given back once, with what was known of it") {
  Ghosts ghosts;
  CHECK(!ghosts.take(77));
  ghosts.add(77, {.last_use = 5, .block_class = 3, .uses = 9}, 100, 10);
  CHECK(!ghosts.take(78));
  const auto ghost = ghosts.take(77);
  REQUIRE(ghost);
  CHECK(ghost->last_use == 5);
  CHECK(ghost->block_class == 3);
  CHECK(ghost->uses == 9);
  CHECK(!ghosts.take(77));
}

TEST_CASE("Ghosts: most are forgotten after as many more as there are blocks, some after much longer") {
  constexpr uint32_t blocks = 4000;
  Ghosts ghosts;
  for (uint32_t key = 1; key <= 12 * blocks; ++key)
    ghosts.add(hash_key(key), {.last_use = key, .block_class = 0, .uses = 1}, blocks, key + 1);
  const auto remembered = [&](uint32_t first, uint32_t count) {
    uint32_t found = 0;
    for (uint32_t key = first; key < first + count; ++key) found += ghosts.take(hash_key(key)) ? 1 : 0;
    return found;
  };
  CHECK(remembered(12 * blocks - blocks / 4, blocks / 4) > blocks / 4 * 9 / 10);
  const uint32_t old = remembered(1, blocks);
  CHECK(old > blocks / 32);
  CHECK(old < blocks / 8);
}

TEST_CASE("ReuseRates: before anything is known, what was used longer ago is worth less, whatever its class") {
  const ReuseRates rates;
  for (uint8_t block_class = 0; block_class < block_classes; ++block_class) {
    CHECK(rates.worth(block_class, 100) < rates.worth(block_class, 10));
    CHECK(rates.worth(block_class, 100) == rates.worth(0, 100));
    CHECK(rates.worth(block_class, UINT32_MAX) > 0);
  }
}

TEST_CASE("ReuseRates: a class that is used again is worth more than one that is not") {
  ReuseRates rates;
  for (int count = 0; count < 1000; ++count) {
    rates.count_reuse(1, 100);
    for (const uint32_t age : {1u, 50u, 100u, 500u}) {
      rates.count_waiting(1, age, 100);
      rates.count_waiting(2, age, 100);
    }
  }
  rates.refresh(100);
  CHECK(rates.worth(1, 50) > 10 * rates.worth(2, 50));
}

TEST_CASE("ReuseRates: shortly before a loop comes round a block is worth more than long before") {
  ReuseRates rates;
  for (int count = 0; count < 1000; ++count) {
    rates.count_reuse(0, 1000);
    for (uint32_t age = 1; age < 1000; ++age) rates.count_waiting(0, age, 1);
  }
  rates.refresh(100);
  CHECK(rates.worth(0, 900) > rates.worth(0, 400));
  CHECK(rates.worth(0, 400) > rates.worth(0, 10));
  CHECK(rates.worth(0, 5000) < rates.worth(0, 10));
}

}  // namespace
}  // namespace terrace::eviction
