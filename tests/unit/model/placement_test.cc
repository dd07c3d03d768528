// SPDX-License-Identifier: Apache-2.0
// The three placements over several devices, alone and over random free runs.
#include "daemon/model/placement.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "core/base/prng.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

constexpr size_t pieces_max = 8;

struct Pool {
  explicit Pool(const std::vector<uint64_t>& granules) {
    for (const uint64_t count : granules) maps.emplace_back(count);
  }
  ExtentMaps devices() {
    ExtentMaps all;
    for (ExtentMap& map : maps) all.push_back(&map);
    return all;
  }
  uint64_t free() const {
    uint64_t sum = 0;
    for (const ExtentMap& map : maps) sum += map.free_granules();
    return sum;
  }
  std::vector<ExtentMap> maps;
};

using List = std::vector<Piece>;

}  // namespace

TEST_CASE("placement: linear takes a close run on any device before it cuts a long one") {
  Pool pool({20, 20, 20});
  REQUIRE(pool.maps[0].take_exact({15, 1}));  // 0-14, 16-19
  REQUIRE(pool.maps[1].take_exact({5, 1}));   // 0-4, 6-19
  CHECK(*place_linear(pool.devices(), 4, pieces_max) == List{{0, {16, 4}}});
  CHECK(*place_linear(pool.devices(), 4, pieces_max) == List{{1, {0, 4}}});
  CHECK(*place_linear(pool.devices(), 4, pieces_max) == List{{0, {0, 4}}});
  CHECK(*place_linear(pool.devices(), 20, pieces_max) == List{{2, {0, 20}}});
  CHECK(*place_linear(pool.devices(), 20, pieces_max) == List{{1, {6, 14}}, {0, {4, 6}}});
}

TEST_CASE("placement: stripes go round the devices from the emptiest, contiguous on each") {
  Pool pool({20, 30, 20});
  CHECK(*place_striped(pool.devices(), 7, 1, pieces_max) ==
        List{{1, {0, 1}}, {0, {0, 1}}, {2, {0, 1}}, {1, {1, 1}}, {0, {1, 1}}, {2, {1, 1}}, {1, {2, 1}}});
  CHECK(*place_striped(pool.devices(), 7, 3, pieces_max) == List{{1, {3, 3}}, {0, {2, 3}}, {2, {2, 1}}});
}

TEST_CASE("placement: stripes are widened by a multiple until the pieces are few enough") {
  Pool pool({100, 100});
  const Pieces pieces = place_striped(pool.devices(), 40, 2, pieces_max);  // 20 stripes of 2: 7 of 6
  REQUIRE(pieces.has_value());
  CHECK(pieces->size() == 7);
  for (size_t i = 0; i < 6; ++i) {
    CHECK((*pieces)[i].device == i % 2);
    CHECK((*pieces)[i].run.count == 6);
  }
  CHECK(pieces->back().run.count == 4);
}

TEST_CASE("placement: stripes on one device are one piece; a full device is passed over") {
  Pool one({50});
  CHECK(*place_striped(one.devices(), 40, 1, pieces_max) == List{{0, {0, 40}}});
  Pool pool({10, 3});
  const Pieces pieces = place_striped(pool.devices(), 12, 2, pieces_max);
  CHECK(*pieces == List{{0, {0, 2}}, {1, {0, 2}}, {0, {2, 8}}});
  CHECK_FALSE(place_striped(pool.devices(), 2, 2, pieces_max).has_value());
  CHECK(place_striped(pool.devices(), 1, 2, pieces_max).has_value());
}

TEST_CASE("placement: spread takes the emptiest device with a run, else the fewest devices") {
  Pool pool({10, 30, 20});
  CHECK(*place_spread(pool.devices(), 12, pieces_max) == List{{1, {0, 12}}});
  CHECK(*place_spread(pool.devices(), 12, pieces_max) == List{{2, {0, 12}}});
  CHECK(*place_spread(pool.devices(), 25, pieces_max) == List{{1, {12, 18}}, {0, {0, 7}}});
  CHECK_FALSE(place_spread(pool.devices(), 12, pieces_max).has_value());
  CHECK(pool.free() == 11);
}

TEST_CASE("placement: over random free runs all give what was asked for, or nothing and change nothing") {
  Prng prng(7);
  uint64_t refused = 0, in_pieces = 0;
  for (int round = 0; round < 4000; ++round) {
    Pool pool({prng.between(1, 40), prng.between(1, 40), prng.between(1, 40)});
    for (ExtentMap& map : pool.maps)
      for (uint64_t i = prng.below(map.total_granules()); i > 0; --i)
        map.take_exact({prng.below(map.total_granules()), 1});
    const uint64_t granules = prng.between(1, 60);
    const uint64_t stripe = prng.between(1, 4);
    std::vector<std::map<uint64_t, uint64_t>> before;
    for (const ExtentMap& map : pool.maps) before.push_back(map.runs());
    const uint64_t free = pool.free();
    const ExtentMaps devices = pool.devices();
    const uint64_t kind = prng.below(3);
    const Pieces pieces = kind == 0   ? place_linear(devices, granules, pieces_max)
                          : kind == 1 ? place_striped(devices, granules, stripe, pieces_max)
                                      : place_spread(devices, granules, pieces_max);
    CAPTURE(round);
    if (!pieces.has_value()) {
      ++refused;
      for (size_t i = 0; i < before.size(); ++i) REQUIRE(pool.maps[i].runs() == before[i]);
      // Refused only where even the longest runs of all devices are too short together.
      std::vector<uint64_t> lengths;
      for (const auto& runs : before)
        for (const auto& [first, count] : runs) lengths.push_back(count);
      std::sort(lengths.rbegin(), lengths.rend());
      lengths.resize(std::min(lengths.size(), pieces_max));
      uint64_t reachable = 0;
      for (const uint64_t length : lengths) reachable += length;
      REQUIRE(reachable < granules);
      continue;
    }
    REQUIRE(pieces->size() <= pieces_max);
    in_pieces += pieces->size() > 1 ? 1 : 0;
    REQUIRE(pool.free() == free - granules);
    uint64_t sum = 0;
    for (const Piece& piece : *pieces) {
      REQUIRE(pool.maps[piece.device].give(piece.run));
      sum += piece.run.count;
    }
    REQUIRE(sum == granules);
    for (size_t i = 0; i < before.size(); ++i) REQUIRE(pool.maps[i].runs() == before[i]);
  }
  CHECK(refused > 100);
  CHECK(in_pieces > 100);
}
