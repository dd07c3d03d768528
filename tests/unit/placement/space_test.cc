// SPDX-License-Identifier: Apache-2.0
// Who lies where in a pool's range, and what a place in DDR is worth.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/base/units.h"
#include "libclient/placement/cost.h"
#include "libclient/placement/granule_space.h"

using namespace terrace;
using namespace terrace::placement;

namespace {

constexpr uint64_t granule = 2 * mib;
const auto anywhere = [](uint32_t) { return true; };

}  // namespace

TEST_CASE("GranuleSpace: small tensors of one heat share granules, of another they do not") {
  GranuleSpace space(512, granule);
  const auto a = space.take(1000, 3, anywhere), b = space.take(1000, 3, anywhere),
             c = space.take(1000, 0, anywhere);
  REQUIRE((a && b && c));
  CHECK(a->offset / granule == b->offset / granule);
  CHECK(a->offset % 64 == 0);
  CHECK(b->offset % 64 == 0);
  CHECK(a->offset / granule != c->offset / granule);
  CHECK(space.free_granules() == 512 - 8);
  space.give(*a);
  space.give(*b);
  space.give(*c);
  CHECK(space.free_granules() == 512);
  CHECK(space.longest_free_run() == 512);
}

TEST_CASE("GranuleSpace: big tensors begin where they should, as far as there is room") {
  GranuleSpace space(64, granule);
  const auto upper = [](uint32_t at) { return at >= 32; };
  CHECK(space.take(8 * granule, 0, upper)->offset >= 32 * granule);
  CHECK(space.take(24 * granule, 0, upper)->offset >= 32 * granule);
  CHECK(space.take(8 * granule, 0, upper)->offset < 32 * granule);  // no more there
  CHECK_FALSE(space.take(25 * granule, 0, upper).has_value());
  CHECK(space.take(24 * granule, 0, upper).has_value());
  CHECK(space.free_granules() == 0);
}

TEST_CASE("GranuleSpace: whatever comes and goes, no two places have a byte in common and nothing is lost") {
  GranuleSpace space(256, granule);
  std::mt19937_64 random(7);
  std::vector<Place> places;
  for (int i = 0; i < 4000; ++i) {
    if (random() % 2 == 0 || places.empty()) {
      const uint64_t bytes = random() % 3 == 0 ? random() % (20 * mib) + 1 : random() % 100'000 + 1;
      const auto place = space.take(bytes, static_cast<uint32_t>(random() % heat_classes),
                                    [&](uint32_t at) { return at % 2 == 0; });
      if (place) places.push_back(*place);
    } else {
      std::swap(places[random() % places.size()], places.back());
      space.give(places.back());
      places.pop_back();
    }
    if (i % 100 != 0) continue;
    std::vector<Place> sorted = places;
    std::sort(sorted.begin(), sorted.end(), [](const Place& a, const Place& b) { return a.offset < b.offset; });
    for (size_t k = 1; k < sorted.size(); ++k) {
      REQUIRE(sorted[k - 1].offset + sorted[k - 1].bytes <= sorted[k].offset);
      if (!sorted[k].shared || !sorted[k - 1].shared)
        REQUIRE((sorted[k - 1].offset + sorted[k - 1].bytes - 1) / granule < sorted[k].offset / granule);
    }
  }
  for (const Place& place : places) space.give(place);
  CHECK(space.longest_free_run() == 256);
}

TEST_CASE("cost: what is used more is worth more, what is streamed once is not") {
  const Costs costs;
  const UseFacts weights{.hint = TensorHint::weights}, state{.hint = TensorHint::optimizer_state};
  const UseFacts unused{.hint = TensorHint::weights, .uses_per_step = 0};
  const UseFacts streamed{.hint = TensorHint::none, .flags = TensorFlags::streaming};
  CHECK(saved_ns_per_byte(costs, weights) > saved_ns_per_byte(costs, state));
  CHECK(saved_ns_per_byte(costs, unused) == 0);
  CHECK(saved_ns_per_byte(costs, streamed) < saved_ns_per_byte(costs, state));
  CHECK(may_fill_ddr(costs, weights) == 1);
  CHECK(may_fill_ddr(costs, state) < 1);
  CHECK(may_fill_ddr(costs, streamed) == 0);
  CHECK(is_streamed(streamed));
  CHECK_FALSE(is_streamed(weights));
  CHECK_FALSE(is_streamed({.flags = TensorFlags::streaming, .passes = 2}));
  CHECK(may_fill_ddr(costs, unused) <= 0.5);
  CHECK(heat_class(costs, weights) > heat_class(costs, unused));
}

TEST_CASE("cost: a use waits for a copy only where it reads the bytes often enough") {
  const Costs costs{.ddr = {100, 80e9}, .cxl = {250, 20e9}, .copy_bytes_per_s = 4e9};
  CHECK_FALSE(pays_to_wait(costs, {.passes = 1}));
  CHECK(pays_to_wait(costs, {.passes = 10}));
  const Costs same{.ddr = {100, 20e9}, .cxl = {100, 20e9}, .copy_bytes_per_s = 4e9};
  CHECK_FALSE(pays_to_wait(same, {.passes = 1000}));
}
