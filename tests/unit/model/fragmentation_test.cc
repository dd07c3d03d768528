// SPDX-License-Identifier: Apache-2.0
// How whole free memory stays: the rule that ExtentMap cuts by, against others, under random grants and
// releases.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "daemon/model/extent_map.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

enum class Rule { ours, best, first, random };

std::optional<GranuleRun> choose(const ExtentMap& map, uint64_t granules, Rule rule, Prng& prng) {
  std::vector<GranuleRun> fitting;
  for (const auto& [first, count] : map.runs())
    if (count >= granules) fitting.push_back({first, count});
  if (fitting.empty()) return std::nullopt;
  GranuleRun chosen = fitting.front();
  if (rule == Rule::ours) chosen = *map.find_fit(granules);
  if (rule == Rule::random) chosen = fitting[prng.below(fitting.size())];
  if (rule == Rule::best) {
    for (const GranuleRun& run : fitting)
      if (run.count < chosen.count) chosen = run;
  }
  return GranuleRun{chosen.first, granules};
}

enum class Mix { even_orders, small_and_large, powers_of_two };

uint64_t draw(Mix mix, Prng& prng) {
  switch (mix) {
    case Mix::even_orders:
      return static_cast<uint64_t>(std::exp2(static_cast<double>(prng.below(1000)) * 0.009));
    case Mix::small_and_large: return prng.chance(1, 10) ? prng.between(64, 512) : prng.between(1, 8);
    case Mix::powers_of_two: break;
  }
  return uint64_t{1} << prng.below(9);
}

struct Outcome {
  double longest_of_free = 0;  // mean of the longest free run over what is free
  double split = 0;            // of all grants, those that found no single run
};

Outcome churn(Rule rule, Mix mix, uint64_t percent) {
  constexpr uint64_t total = 8192;
  constexpr uint64_t grants = 4000;
  Outcome outcome;
  uint64_t samples = 0, counted = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Prng prng(seed);
    ExtentMap map(total);
    std::vector<std::vector<GranuleRun>> leases;
    for (uint64_t i = 0; i < grants; ++i) {
      const uint64_t granules = draw(mix, prng);
      while (!leases.empty() && total - map.free_granules() + granules > total * percent / 100) {
        std::swap(leases[prng.below(leases.size())], leases.back());
        for (const GranuleRun& run : leases.back()) REQUIRE(map.give(run));
        leases.pop_back();
      }
      std::vector<GranuleRun> lease;
      const bool warm = i >= grants / 4;
      if (const auto run = choose(map, granules, rule, prng)) {
        REQUIRE(map.take_exact(*run));
        lease.push_back(*run);
      } else {
        for (uint64_t left = granules; left > 0; left -= lease.back().count)
          lease.push_back(*map.take_longest(left));
        outcome.split += warm ? 1 : 0;
      }
      leases.push_back(std::move(lease));
      if (!warm) continue;
      ++counted;
      if (i % 20 != 0) continue;
      outcome.longest_of_free +=
          static_cast<double>(map.largest_run()) / static_cast<double>(map.free_granules());
      ++samples;
    }
  }
  outcome.longest_of_free /= static_cast<double>(samples);
  outcome.split /= static_cast<double>(counted);
  return outcome;
}

}  // namespace

TEST_CASE("ExtentMap: under churn long free runs stay at least as long as by best, first or random fit") {
  double ours = 0, best = 0, first = 0, random = 0, ours_split = 0, best_split = 0, first_split = 0;
  for (const Mix mix : {Mix::even_orders, Mix::small_and_large, Mix::powers_of_two}) {
    for (const uint64_t percent : {50, 75, 90}) {
      const Outcome a = churn(Rule::ours, mix, percent), b = churn(Rule::best, mix, percent),
                    c = churn(Rule::first, mix, percent), d = churn(Rule::random, mix, percent);
      MESSAGE("mix " << static_cast<int>(mix) << ", " << percent << " % leased: longest/free ours "
                     << a.longest_of_free << " best " << b.longest_of_free << " first " << c.longest_of_free
                     << " random " << d.longest_of_free << "; split ours " << a.split << " best " << b.split
                     << " first " << c.split << " random " << d.split);
      CHECK(a.longest_of_free > 1.2 * d.longest_of_free);
      ours += a.longest_of_free;
      best += b.longest_of_free;
      first += c.longest_of_free;
      random += d.longest_of_free;
      ours_split += a.split;
      best_split += b.split;
      first_split += c.split;
    }
  }
  CHECK(ours > best);
  CHECK(ours > first);
  CHECK(ours > 2 * random);
  CHECK(ours_split < best_split);
  CHECK(ours_split < first_split);
}
