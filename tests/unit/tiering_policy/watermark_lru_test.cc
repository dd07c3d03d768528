// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/unit/tiering_policy/sampled_range.h"

namespace terrace::tiering {
namespace {

TEST_CASE("watermark-lru: what was used since the last plan goes up, and the longest unused make room") {
  SampledRange range(100, 20, "watermark-lru");
  for (uint32_t index = 0; index < 20; ++index) range.granules[index].last_access_ns = 100 + index;
  range.memory->last_plan_ns = 1000;
  for (const uint32_t index : {50u, 60u, 70u}) range.granules[index].last_access_ns = 2000 + index;
  range.now_ns = 3000;
  const std::vector<Move> moves = range.plan();
  CHECK(range.carry_out(moves));
  for (const uint32_t index : {50u, 60u, 70u}) CHECK(range.granules[index].residency == Residency::ddr);
  CHECK(range.granules[0].residency == Residency::cxl);
  CHECK(range.granules[19].residency == Residency::ddr);
  CHECK(range.in_ddr() <= 18);  // the low watermark, and no further below than the high one makes it
  CHECK(range.in_ddr() >= 17);
}

TEST_CASE("watermark-lru: below the high watermark nothing goes down") {
  SampledRange range(100, 50, "watermark-lru");
  for (uint32_t index = 40; index < 50; ++index) range.granules[index].residency = Residency::cxl;
  for (Granule& granule : range.granules) granule.last_access_ns = 10;
  range.memory->last_plan_ns = 20;
  range.now_ns = 30;
  CHECK(range.plan().empty());
}

TEST_CASE("watermark-lru: follows a hot set and a jump of it") {
  SampledRange range(1024, 153, "watermark-lru");
  range.heat_up(500, 102, 3000, 0.99);
  for (int round = 0; round < 10; ++round) range.round();
  CHECK(range.share_in_ddr(500, 102) > 0.9);
  range.heat_up(100, 102, 3000, 0.99);
  for (int round = 0; round < 10; ++round) range.round();
  CHECK(range.share_in_ddr(100, 102) > 0.9);
  CHECK(range.carried_out);
}

}  // namespace
}  // namespace terrace::tiering
