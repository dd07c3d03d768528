// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "tiering/policy/policy.h"

namespace terrace::tiering {
namespace {

constexpr uint64_t now_ns = 100'000'000'000;

// Ranges of granules of a given heat; share() divides.
struct Ranges {
  void add(size_t granules, float accesses_per_s, uint32_t weight = 1) {
    auto range = std::make_unique<std::vector<Granule>>(granules);
    for (Granule& granule : *range)
      granule = {.last_access_ns = accesses_per_s > 0 ? now_ns : 0,
                 .heat = accesses_per_s,
                 .residency = Residency::cxl};
    shares.push_back({.granules = *range, .memory = &memory, .weight = weight});
    ranges.push_back(std::move(range));
  }
  std::vector<uint64_t> share(uint64_t ddr) {
    share_ddr(shares, ddr, now_ns);
    std::vector<uint64_t> gets;
    for (const RangeShare& share : shares) gets.push_back(share.ddr_granules_max);
    CHECK(std::accumulate(gets.begin(), gets.end(), uint64_t{0}) <= ddr);
    return gets;
  }
  PolicyMemory memory;
  std::vector<std::unique_ptr<std::vector<Granule>>> ranges;
  std::vector<RangeShare> shares;
};

TEST_CASE("share_ddr: the hotter range gets more, the colder one no less than half of its fair part") {
  Ranges ranges;
  ranges.add(1000, 100);
  ranges.add(1000, 1);
  const std::vector<uint64_t> gets = ranges.share(400);
  CHECK(gets[1] >= 100);
  CHECK(gets[1] <= 102);
  CHECK(gets[0] >= 298);
}

TEST_CASE("share_ddr: a range without use for DDR leaves it to the others, and gets what nobody wants") {
  Ranges ranges;
  ranges.add(1000, 5);
  ranges.add(1000, 0);
  CHECK(ranges.share(400)[0] == 400);
  Ranges idle;
  idle.add(1000, 0);
  idle.add(1000, 0, 3);
  CHECK(idle.share(400) == std::vector<uint64_t>{100, 300});
  Ranges small;
  small.add(50, 5);
  small.add(1000, 0);
  CHECK(small.share(400)[0] >= 50);
}

TEST_CASE("share_ddr: equal ranges share by equal parts, and weights move the fair part") {
  Ranges equal;
  equal.add(1000, 5);
  equal.add(1000, 5);
  CHECK(equal.share(400) == std::vector<uint64_t>{200, 200});
  Ranges weighted;
  weighted.add(1000, 1, 3);
  weighted.add(1000, 100, 1);
  CHECK(weighted.share(400)[0] >= 150);
}

TEST_CASE("share_ddr: small changes change nothing, a smaller DDR does") {
  Ranges ranges;
  ranges.add(1000, 100);
  ranges.add(1000, 1);
  const std::vector<uint64_t> first = ranges.share(400);
  ranges.shares[0].ddr_granules_max -= 5;
  ranges.shares[1].ddr_granules_max += 5;
  CHECK(ranges.share(400)[0] == first[0] - 5);
  const std::vector<uint64_t> less = ranges.share(200);
  CHECK(less[0] + less[1] <= 200);
  CHECK(less[1] >= 50);
}

TEST_CASE("share_ddr: nobody to share with, one range, and no DDR") {
  share_ddr({}, 100, now_ns);
  Ranges one;
  one.add(10, 1);
  CHECK(one.share(100)[0] == 100);
  CHECK(one.share(0)[0] == 0);
}

}  // namespace
}  // namespace terrace::tiering
