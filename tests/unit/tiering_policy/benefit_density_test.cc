// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <set>

#include "tests/unit/tiering_policy/sampled_range.h"

namespace terrace::tiering {
namespace {

constexpr uint64_t second_ns = 1'000'000'000;

// A range whose granules were all used equally, some time ago.
SampledRange quiet_range(size_t granules, uint64_t ddr) {
  SampledRange range(granules, ddr, "benefit-density");
  range.now_ns = 100 * second_ns;
  for (Granule& granule : range.granules) note_access(granule, *range.memory, range.now_ns, 1);
  range.now_ns += 20 * second_ns;
  return range;
}

std::set<uint32_t> going(const std::vector<Move>& moves, Residency to) {
  std::set<uint32_t> granules;
  for (const Move& move : moves)
    if (move.to == to) granules.insert(move.granule);
  return granules;
}

TEST_CASE("benefit-density: announced granules are brought up earliest first, as far as the budget goes") {
  SampledRange range = quiet_range(100, 20);
  for (uint32_t index = 40; index < 60; ++index)
    range.granules[index].next_use_ns = range.now_ns + (60 - index) * second_ns / 10;
  range.moves_max = 10;  // five swaps
  const std::vector<Move> moves = range.plan();
  CHECK(going(moves, Residency::ddr) == std::set<uint32_t>{55, 56, 57, 58, 59});
  CHECK(moves.size() == 10);
  CHECK(moves[1].granule == 59);
}

TEST_CASE("benefit-density: what is announced soon is never demoted, what is announced later goes first") {
  SampledRange range = quiet_range(100, 20);
  for (uint32_t index = 0; index < 10; ++index)
    range.granules[index].next_use_ns = range.now_ns + 5 * second_ns;
  for (uint32_t index = 40; index < 80; ++index) range.granules[index].next_use_ns = range.now_ns + second_ns;
  const std::vector<Move> moves = range.plan();
  CHECK(going(moves, Residency::ddr).size() == 10);
  for (const uint32_t index : going(moves, Residency::cxl)) CHECK(index >= 10);
}

TEST_CASE("benefit-density: of two announced granules the one used later makes room for the sooner") {
  SampledRange range = quiet_range(4, 2);
  range.granules[0].next_use_ns = range.now_ns + 20 * second_ns;   // soon enough to stay
  range.granules[1].next_use_ns = range.now_ns + 300 * second_ns;  // not so
  range.granules[2].next_use_ns = range.now_ns + second_ns;
  const std::vector<Move> moves = range.plan();
  REQUIRE(moves.size() == 2);
  CHECK(moves[0].granule == 1);
  CHECK(moves[1].granule == 2);
}

TEST_CASE("benefit-density: an announcement whose time has passed long ago no longer holds DDR") {
  SampledRange range = quiet_range(100, 20);
  for (uint32_t index = 0; index < 20; ++index)
    range.granules[index].next_use_ns = range.now_ns - 15 * second_ns;
  range.granules[50].next_use_ns = range.now_ns + second_ns;
  CHECK(going(range.plan(), Residency::ddr) == std::set<uint32_t>{50});
}

TEST_CASE("benefit-density: a use clears its announcement, a later announcement stays") {
  SampledRange range = quiet_range(4, 2);
  range.granules[0].next_use_ns = range.now_ns;
  range.granules[1].next_use_ns = range.now_ns + second_ns;
  note_access(range.granules[0], *range.memory, range.now_ns, 1);
  note_access(range.granules[1], *range.memory, range.now_ns, 1);
  CHECK(range.granules[0].next_use_ns == 0);
  CHECK(range.granules[1].next_use_ns == range.now_ns + second_ns);
}

TEST_CASE("benefit-density: with CXL saturated only what repays its copy many times goes up") {
  const auto moves_at = [](float bandwidth_use) {
    SampledRange range(1024, 102, "benefit-density", 9);
    range.costs.access_bytes = 4096;
    range.cxl_bandwidth_use = bandwidth_use;
    range.interval_ns = range.sweep_ns;  // counts of one: little to gain from each granule
    range.heat_up(512, 102, 500, 0.9);
    size_t moves = 0;
    for (int round = 0; round < 5; ++round) moves += range.round();
    return moves;
  };
  CHECK(moves_at(0) > 150);
  CHECK(moves_at(1) < moves_at(0) / 4);
}

TEST_CASE("benefit-density: a smaller share of DDR is given back at once, the least worthy first") {
  SampledRange range(200, 100, "benefit-density", 2);
  range.heat_up(50, 50, 3000, 0.99);
  for (int round = 0; round < 10; ++round) range.round();
  range.ddr_max = 60;
  range.sweep();
  const std::vector<Move> moves = range.plan();
  CHECK(range.carry_out(moves));
  CHECK(range.in_ddr() <= 60);
  CHECK(range.share_in_ddr(50, 50) >= 0.96);
}

TEST_CASE("benefit-density: where new bytes keep coming, DDR is kept free for them") {
  SampledRange range(4000, 400, "benefit-density", 2);
  for (Granule& granule : range.granules) granule.residency = Residency::none;
  uint32_t next = 0;
  size_t found_no_room = 0;
  for (int round = 0; round < 100; ++round) {
    range.now_ns += second_ns;
    for (int born = 0; born < 20; ++born) {
      Granule& granule = range.granules[next++];
      const bool room = range.in_ddr() < range.ddr_max;
      granule.residency = room ? Residency::ddr : Residency::cxl;
      if (round > 40) found_no_room += room ? 0 : 1;
      note_access(granule, *range.memory, range.now_ns, 1);
    }
    CHECK(range.carry_out(range.plan()));
  }
  CHECK(found_no_room == 0);
}

TEST_CASE("benefit-density: moves that were refused are not counted as made") {
  SampledRange range = quiet_range(100, 20);
  for (uint32_t index = 40; index < 50; ++index) range.granules[index].next_use_ns = range.now_ns + second_ns;
  const std::vector<Move> moves = range.plan();
  REQUIRE(moves.size() == 20);
  report_outcome(*range.memory, 0, 20);
  CHECK(range.memory->moves_failed == 20);
  range.now_ns += second_ns / 2;
  CHECK(going(range.plan(), Residency::ddr) == going(moves, Residency::ddr));  // asked for again
}

}  // namespace
}  // namespace terrace::tiering
