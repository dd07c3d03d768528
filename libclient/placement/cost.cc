// SPDX-License-Identifier: Apache-2.0
#include "libclient/placement/cost.h"

#include <algorithm>
#include <array>

namespace terrace::placement {
namespace {

constexpr double line_bytes = 64;
// Loads that a processor has under way at once where the order is not known to its prefetchers.
constexpr double loads_at_once = 10;
constexpr double usual_uses = 2;  // a weight: forward and backward

double ns_per_byte(const TierSpeed& tier, bool in_order) {
  const double by_bandwidth = 1e9 / tier.bytes_per_s;
  return in_order ? by_bandwidth : std::max(by_bandwidth, tier.latency_ns / line_bytes / loads_at_once);
}

double gain_of_a_pass(const Costs& costs, uint8_t flags) {
  const bool in_order = (flags & TensorFlags::streaming) != 0;
  return std::max(0.0, ns_per_byte(costs.cxl, in_order) - ns_per_byte(costs.ddr, in_order));
}

double uses_of(const UseFacts& facts) {
  return facts.uses_per_step >= 0 ? facts.uses_per_step : usual_uses_per_step(facts.hint);
}

// Beside a weight's that is used as weights are.
double relative_gain(const Costs& costs, const UseFacts& facts) {
  const double usual = gain_of_a_pass(costs, 0) * usual_uses;
  return usual <= 0 ? 0 : saved_ns_per_byte(costs, facts) / usual;
}

}  // namespace

double usual_uses_per_step(TensorHint hint) {
  switch (hint) {
    case TensorHint::weights: return usual_uses;
    case TensorHint::activations: return 2;  // written forward, read backward
    case TensorHint::gradients: return 2;    // accumulated, then applied
    case TensorHint::optimizer_state: return 1;
    case TensorHint::kv_cache: return 1;
    case TensorHint::none: return 1;
  }
  return 1;
}

double saved_ns_per_byte(const Costs& costs, const UseFacts& facts) {
  return uses_of(facts) * std::max(0.0, facts.passes) * gain_of_a_pass(costs, facts.flags);
}

bool is_streamed(const UseFacts& facts) {
  return (facts.flags & TensorFlags::streaming) != 0 && facts.passes <= 1;
}

bool pays_to_wait(const Costs& costs, const UseFacts& facts) {
  return facts.passes * gain_of_a_pass(costs, facts.flags) > 1e9 / costs.copy_bytes_per_s;
}

double may_fill_ddr(const Costs& costs, const UseFacts& facts) {
  if (is_streamed(facts)) return 0;
  const double gain = relative_gain(costs, facts);
  if (gain >= 0.75) return 1;
  return gain >= 0.25 ? 0.75 : 0.5;
}

uint32_t heat_class(const Costs& costs, const UseFacts& facts) {
  constexpr std::array<double, heat_classes - 1> from = {0.25, 0.75, 2};
  const double gain = relative_gain(costs, facts);
  return static_cast<uint32_t>(std::upper_bound(from.begin(), from.end(), gain) - from.begin());
}

}  // namespace terrace::placement
