// SPDX-License-Identifier: Apache-2.0
// What all policies have in common, and heat.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "tests/unit/tiering_policy/sampled_range.h"
#include "tiering/policy/numbers.h"

namespace terrace::tiering {
namespace {

TEST_CASE("policies: benefit-density is first, the others are found by name, and no others") {
  CHECK(std::string(policies().front().name) == "benefit-density");
  for (const char* name : {"static", "watermark-lru", "benefit-density"}) {
    REQUIRE(find_policy(name) != nullptr);
    CHECK(std::string(find_policy(name)->name) == name);
  }
  CHECK(find_policy("fastest") == nullptr);
  CHECK(find_policy("") == nullptr);
}

TEST_CASE(
    "policies: every plan can be carried out in order, within budget and rooms, and leaves busy ones alone") {
  for (const PolicyEntry& entry : policies()) {
    CAPTURE(entry.name);
    SampledRange range(300, 90, entry.name, 11);
    Prng chaos(5);
    for (int round = 0; round < 120; ++round) {
      range.heat_up(chaos.below(300), 1 + chaos.below(100), 3000, 0.9);
      range.moves_max = chaos.below(64);
      range.ddr_max = 40 + chaos.below(100);
      range.cxl_free = chaos.below(20);
      range.cxl_bandwidth_use = static_cast<float>(chaos.below(5)) / 4;
      for (int times = 0; times < 20; ++times) {
        Granule& granule = range.granules[chaos.below(300)];
        granule.busy = static_cast<uint8_t>(chaos.below(2));
        granule.next_use_ns = chaos.chance(1, 3) ? range.now_ns + chaos.below(60'000'000'000) : 0;
      }
      range.sweep();
      const uint64_t before = range.in_ddr(), cxl_free = range.cxl_free;
      const std::vector<Move> moves = range.plan();
      CHECK(moves.size() <= range.moves_max);
      uint64_t in_ddr = before, free = cxl_free;
      for (const Move& move : moves) {
        Granule& granule = range.granules[move.granule];
        CHECK(granule.busy == 0);
        CHECK(granule.residency != Residency::none);
        CHECK(granule.residency != move.to);
        granule.residency = move.to;
        if (move.to == Residency::ddr) {
          CHECK(in_ddr < range.ddr_max);
          ++in_ddr;
          ++free;
        } else {
          REQUIRE(free > 0);
          --in_ddr;
          --free;
        }
      }
      report_outcome(*range.memory, static_cast<uint32_t>(moves.size()), 0);
    }
  }
}

TEST_CASE("policies: the same facts give the same plan") {
  for (const PolicyEntry& entry : policies()) {
    CAPTURE(entry.name);
    SampledRange one(200, 50, entry.name, 3), other(200, 50, entry.name, 3);
    for (SampledRange* range : {&one, &other}) range->heat_up(100, 40, 2000, 0.9);
    for (int round = 0; round < 20; ++round) {
      CHECK(one.round() == other.round());
      for (size_t index = 0; index < 200; ++index)
        REQUIRE(one.granules[index].residency == other.granules[index].residency);
    }
  }
}

TEST_CASE("policies: an empty range, a granule without memory and a DDR of nothing are no trouble") {
  for (const PolicyEntry& entry : policies()) {
    CAPTURE(entry.name);
    SampledRange empty(0, 0, entry.name);
    CHECK(empty.round() == 0);
    SampledRange bare(16, 0, entry.name);
    for (Granule& granule : bare.granules) granule.residency = Residency::none;
    std::fill(bare.rates.begin(), bare.rates.end(), 100);
    CHECK(bare.round() == 0);
    for (Granule& granule : bare.granules) granule.residency = Residency::cxl;
    for (int round = 0; round < 5; ++round) CHECK(bare.round() == 0);
  }
}

TEST_CASE("static: nothing moves, however hot") {
  SampledRange range(100, 10, "static");
  range.heat_up(50, 10, 10'000, 1);
  for (int round = 0; round < 10; ++round) CHECK(range.round() == 0);
}

TEST_CASE("heat: halves in a half-life, and settles at the rate of accesses") {
  PolicyMemory memory;
  Granule granule{.residency = Residency::ddr};
  uint64_t now_ns = 0;
  for (int second = 1; second <= 200; ++second) {
    now_ns += 1'000'000'000;
    note_access(granule, memory, now_ns, 50);
  }
  CHECK(heat_at(granule, memory, now_ns) == doctest::Approx(50).epsilon(0.05));
  const float at_first = heat_at(granule, memory, now_ns);
  CHECK(heat_at(granule, memory, now_ns + memory.options.half_life_ns) ==
        doctest::Approx(at_first / 2).epsilon(1e-4));
  CHECK(heat_at(granule, memory, now_ns + 100 * memory.options.half_life_ns) ==
        doctest::Approx(0).epsilon(1e-6));
  CHECK(granule.accesses == 200);
}

TEST_CASE("heat: a clock that steps back and a count of nonsense leave numbers that are numbers") {
  PolicyMemory memory;
  Granule granule{.residency = Residency::cxl};
  note_access(granule, memory, 5'000'000'000, 1);
  note_access(granule, memory, 1'000'000'000, std::nanf(""));
  note_access(granule, memory, UINT64_MAX, 1e30f);
  CHECK(std::isfinite(granule.heat));
  CHECK(granule.last_access_ns == UINT64_MAX);
  memory.options.half_life_ns = 0;
  CHECK(std::isfinite(heat_at(granule, memory, UINT64_MAX)));
}

TEST_CASE("numbers: powers of two and roots are those of the mathematics library within a few millionths") {
  for (float x = -60; x < 60; x += 0.0173f) CHECK(exp2_of(x) == doctest::Approx(std::exp2(x)).epsilon(1e-5));
  CHECK(exp2_of(-1000) == 0);
  CHECK(std::isfinite(exp2_of(1000)));
  for (float x = 1e-6f; x < 1e9f; x *= 1.37f) CHECK(root_of(x) == doctest::Approx(std::sqrt(x)).epsilon(1e-5));
  CHECK(root_of(-1) == 0);
}

}  // namespace
}  // namespace terrace::tiering
