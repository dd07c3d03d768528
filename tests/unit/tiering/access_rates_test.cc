// SPDX-License-Identifier: Apache-2.0
#include "tiering/hotness/access_rates.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/base/prng.h"

using namespace terrace;
using tiering::Granule;
using tiering::Residency;

namespace {

struct Looked {
  explicit Looked(size_t granules) : estimates(granules), facts(granules) { rates.open(estimates); }
  // A granule of this many uses a second is looked at.
  void look(uint32_t granule, double uses, double exposed_s, bool sharp = false) {
    const double chance = 1 - std::exp(-uses * exposed_s);
    const bool touched = static_cast<double>(prng.below(1u << 30)) < chance * (1u << 30);
    if (sharp)
      rates.sharpen(granule, touched, static_cast<float>(exposed_s));
    else
      rates.note(granule, touched, static_cast<float>(exposed_s));
  }
  double rate(uint32_t granule) const { return static_cast<double>(rates.expected(granule, 1)); }
  std::vector<tiering::RateEstimate> estimates;
  std::vector<Granule> facts;
  tiering::AccessRates rates;
  Prng prng{5};
};

}  // namespace

TEST_CASE("AccessRates: the share that DDR serves comes out within five points, the hot always being touched") {
  Looked looked(100);
  for (uint32_t granule = 0; granule < 100; ++granule)
    looked.facts[granule].residency = granule < 15 ? Residency::ddr : Residency::cxl;
  // Ten hot ones, nine tenths of the uses: always touched in 100 us, half of the time in 7.
  auto uses = [](uint32_t granule) { return (granule < 10 ? 90'000.0 : 0.0) + 1'000.0; };
  for (int sweep = 0; sweep < 150; ++sweep)
    for (uint32_t granule = 0; granule < 100; ++granule) {
      looked.look(granule, uses(granule), 100e-6);
      if (granule < 10) looked.look(granule, uses(granule), 7e-6, true);
    }
  const double truth = (10 * 91'000.0 + 5 * 1'000.0) / (10 * 91'000.0 + 90 * 1'000.0);
  CHECK(std::abs(looked.rates.ddr_share(looked.facts) - truth) < 0.05);
}

TEST_CASE("AccessRates: a granule that is used otherwise than it was is known after some looks, both ways") {
  Looked looked(64);
  for (int sweep = 0; sweep < 200; ++sweep) {
    looked.look(0, 50'000, 50e-6);
    looked.look(1, 500, 50e-6);
  }
  CHECK(looked.rate(0) > 10 * looked.rate(1));
  for (int sweep = 0; sweep < 25; ++sweep) {
    looked.look(0, 500, 50e-6);
    looked.look(1, 50'000, 50e-6);
  }
  CHECK(looked.rate(1) > 5 * looked.rate(0));
}

TEST_CASE(
    "AccessRates: one very long look, as after a pause, is not the mean of the next hundred; what is forgotten "
    "is unknown") {
  Looked looked(64);
  for (int sweep = 0; sweep < 100; ++sweep) looked.look(0, 500, 2e-3);
  looked.rates.note(0, true, 3600);
  for (int sweep = 0; sweep < 20; ++sweep) looked.look(0, 500, 2e-3);
  CHECK(looked.rate(0) > 500.0 / 3);
  CHECK(looked.rate(0) < 500.0 * 3);
  CHECK(looked.estimates[0].exposed_s / looked.estimates[0].looks < 0.02f);
  looked.rates.forget(0);
  CHECK(looked.rate(0) == 0);
}

TEST_CASE("AccessRates: nothing looked at is nothing known, and nonsense does no harm") {
  Looked looked(2);
  CHECK(looked.rates.ddr_share(looked.facts) < 0);
  looked.rates.note(0, true, 0);
  looked.rates.note(0, true, -1);
  looked.rates.note(0, true, NAN);
  CHECK(looked.rate(0) == 0);
  looked.rates.note(0, true, 1e-30f);
  looked.rates.note(0, true, 1e30f);
  looked.rates.note(0, false, 1e30f);
  CHECK(std::isfinite(looked.rate(0)));
}
