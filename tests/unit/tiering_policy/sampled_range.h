// SPDX-License-Identifier: Apache-2.0
// A range of granules under a program of made-up access rates, seen as the sampler sees it: once a sweep, and
// only whether a granule was touched within the sampling interval. Moves are carried out at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/base/prng.h"
#include "core/base/units.h"
#include "tiering/policy/policy.h"

namespace terrace::tiering {

struct SampledRange {
  SampledRange(size_t granule_count, uint64_t ddr_granules_max, const char* policy_name, uint64_t seed = 1)
      : granules(granule_count),
        rates(granule_count),
        scratch(granule_count),
        memory(std::make_unique<PolicyMemory>()),
        policy(find_policy(policy_name)),
        prng(seed),
        ddr_max(ddr_granules_max) {
    for (size_t index = 0; index < granule_count; ++index)
      granules[index].residency = index < ddr_granules_max ? Residency::ddr : Residency::cxl;
  }

  uint64_t in_ddr() const {
    return static_cast<uint64_t>(std::count_if(granules.begin(), granules.end(),
                                               [](const Granule& g) { return g.residency == Residency::ddr; }));
  }

  PlanInput input() {
    return {.now_ns = now_ns,
            .granules = granules,
            .granule_bytes = 2 * mib,
            .ddr_granules = in_ddr(),
            .ddr_granules_max = ddr_max,
            .cxl_free_granules = cxl_free,
            .moves_max = moves_max,
            .costs = costs,
            .cxl_bandwidth_use = cxl_bandwidth_use};
  }

  void sweep() {
    now_ns += sweep_ns;
    const double interval_s = static_cast<double>(interval_ns) * 1e-9;
    const auto count = static_cast<float>(sweep_ns) / static_cast<float>(interval_ns);
    for (size_t index = 0; index < granules.size(); ++index) {
      const double touched = 1 - std::exp(-rates[index] * interval_s);
      if (static_cast<double>(prng.below(1u << 30)) < touched * (1u << 30))
        note_access(granules[index], *memory, now_ns, count);
    }
  }

  // Returns the moves planned; all are carried out, and asserted to be possible, by carry_out().
  std::vector<Move> plan() {
    std::vector<Move> moves(moves_max);
    moves.resize(policy->plan(input(), *memory, scratch, moves));
    return moves;
  }

  // False when a move could not have been carried out.
  bool carry_out(const std::vector<Move>& moves) {
    bool possible = true;
    for (const Move& move : moves) {
      Granule& granule = granules[move.granule];
      possible =
          possible && granule.residency != Residency::none && granule.residency != move.to && granule.busy == 0;
      granule.residency = move.to;
      possible = possible && (move.to == Residency::cxl || in_ddr() <= ddr_max);
    }
    report_outcome(*memory, static_cast<uint32_t>(moves.size()), 0);
    return possible;
  }

  // One round; returns how many moves it took.
  size_t round() {
    sweep();
    const std::vector<Move> moves = plan();
    carried_out = carry_out(moves) && carried_out;
    return moves.size();
  }

  double share_in_ddr(size_t first, size_t count) const {
    size_t there = 0;
    for (size_t index = first; index < first + count; ++index)
      there += granules[index % granules.size()].residency == Residency::ddr ? 1 : 0;
    return static_cast<double>(there) / static_cast<double>(count);
  }

  // `share` of all accesses go to granules [first, first + count).
  void heat_up(size_t first, size_t count, double accesses_per_s, double share) {
    const double cold = accesses_per_s * (1 - share) / static_cast<double>(granules.size() - count);
    std::fill(rates.begin(), rates.end(), cold);
    for (size_t index = first; index < first + count; ++index)
      rates[index % rates.size()] = accesses_per_s * share / static_cast<double>(count);
  }

  std::vector<Granule> granules;
  std::vector<double> rates;  // accesses a second of each granule
  std::vector<uint32_t> scratch;
  std::unique_ptr<PolicyMemory> memory;
  const PolicyEntry* policy;
  Prng prng;
  TierCosts costs;
  uint64_t now_ns = 1'000'000'000;
  uint64_t sweep_ns = 1'000'000'000;
  uint64_t interval_ns = 100'000'000;
  uint64_t ddr_max;
  uint64_t cxl_free = 1 << 20;
  uint64_t moves_max = 512;
  float cxl_bandwidth_use = 0;
  bool carried_out = true;
};

}  // namespace terrace::tiering
