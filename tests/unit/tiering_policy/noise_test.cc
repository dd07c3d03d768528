// SPDX-License-Identifier: Apache-2.0
// benefit-density under a sampler that sees only "touched" or "not touched" in an interval of each sweep.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/unit/tiering_policy/sampled_range.h"

namespace terrace::tiering {
namespace {

// The rate at which a granule is touched in an interval with this probability.
double rate_of(double touched, const SampledRange& range) {
  return -std::log(1 - touched) / (static_cast<double>(range.interval_ns) * 1e-9);
}

TEST_CASE(
    "benefit-density: uniform random access stops moving within ten rounds, however much of it the sampler "
    "sees") {
  for (const double touched : {0.05, 0.2, 0.5, 0.8, 0.9, 0.99}) {
    for (const uint64_t seed : {1, 2, 3, 4, 5}) {
      CAPTURE(touched);
      CAPTURE(seed);
      SampledRange range(1024, 512, "benefit-density", seed);
      std::fill(range.rates.begin(), range.rates.end(), rate_of(touched, range));
      for (int round = 0; round < 10; ++round) range.round();
      size_t moves = 0;
      constexpr size_t rounds = 60;
      for (size_t round = 0; round < rounds; ++round) moves += range.round();
      CHECK(moves <= rounds * range.moves_max / 100);
      CHECK(range.carried_out);
    }
  }
}

TEST_CASE("benefit-density: a hot tenth is in DDR after five rounds, and again after it jumps") {
  for (const double touched : {0.9, 0.95, 0.99}) {
    for (const uint64_t seed : {1, 2, 3, 4, 5}) {
      CAPTURE(touched);
      CAPTURE(seed);
      SampledRange range(1024, 153, "benefit-density", seed);
      const double all = rate_of(touched, range) * 102 / 0.9;
      range.heat_up(512, 102, all, 0.9);
      for (int round = 0; round < 5; ++round) range.round();
      CHECK(range.share_in_ddr(512, 102) >= 0.95);
      for (int round = 0; round < 5; ++round) range.round();
      CHECK(range.share_in_ddr(512, 102) >= 0.95);
      range.heat_up(100, 102, all, 0.9);
      for (int round = 0; round < 5; ++round) range.round();
      CHECK(range.share_in_ddr(100, 102) >= 0.95);
      CHECK(range.carried_out);
    }
  }
}

// Found with a back-off without bound: after quiet minutes nothing could follow the jump.
TEST_CASE("benefit-density: a hot tenth that jumps after two quiet minutes is followed within ten rounds") {
  for (const double touched : {0.9, 0.95, 0.99, 0.9999}) {
    CAPTURE(touched);
    SampledRange range(1024, 153, "benefit-density", 6);
    const double all = rate_of(touched, range) * 102 / 0.9;
    range.heat_up(512, 102, all, 0.9);
    for (int round = 0; round < 120; ++round) range.round();
    CHECK(range.share_in_ddr(512, 102) >= 0.95);
    range.heat_up(100, 102, all, 0.9);
    for (int round = 0; round < 10; ++round) range.round();
    CHECK(range.share_in_ddr(100, 102) >= 0.95);
  }
}

}  // namespace
}  // namespace terrace::tiering
