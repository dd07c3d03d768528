// SPDX-License-Identifier: Apache-2.0
// layer_pass_over_bound: weights twice as large as DDR, read layer by layer, forward and then backward.
#include "bench/tensor/passes.h"
#include "core/base/kernel_clock.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

uint64_t sum_of(std::span<const uint64_t> words) {
  uint64_t sums[4] = {};
  for (size_t i = 0; i + 3 < words.size(); i += 4)
    for (size_t k = 0; k < 4; ++k) sums[k] += words[i + k];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

void measure_layer_pass(const Sizes& wanted, nlohmann::json& out) {
  const PassSizes sizes = pass_sizes(wanted);
  PassPool pool(sizes);
  if (const std::string why = pool.pool->statistics().reason; !why.empty()) {
    missing("layer_pass_over_bound", why, out);
    return;
  }
  std::vector<std::shared_ptr<Tensor>> layers;
  std::vector<uint64_t> sums;
  for (uint32_t i = 0; i < sizes.layers; ++i) {
    layers.push_back(pool.tensor("layer." + std::to_string(i), sizes.layer_bytes, TensorHint::weights));
    auto guard = must(layers.back()->write(), "write");
    uint64_t value = i;
    for (uint64_t& word : guard.as<uint64_t>()) word = value++ * 0x9e3779b97f4a7c15u;
    sums.push_back(sum_of(guard.as<uint64_t>()));
  }
  pool.pool->step();
  const double copy_bytes_per_s = measure_copy_bytes_per_s(pool, std::span(layers).first(sizes.layers / 4));
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < sizes.layers; ++i) order.push_back(i);
  for (uint32_t i = sizes.layers; i-- > 0;) order.push_back(i);
  std::vector<placement::Use> cycle;
  for (const uint32_t i : order) cycle.push_back(use_of(pool, *layers[i]));
  const auto step = [&](double seconds) {
    for (const uint32_t i : order) {
      auto guard = must(layers[i]->read(), "read");
      const uint64_t begin = monotonic_ns();
      if (sum_of(guard.as<uint64_t>()) != sums[i]) die("layer " + std::to_string(i) + " has other bytes");
      work_until(begin, seconds);
    }
    pool.pool->step();
  };
  measure_passes("layer_pass_over_bound", sizes, pool, cycle, static_cast<uint32_t>(order.size()),
                 copy_bytes_per_s, step, out);
}

}  // namespace terrace::bench
