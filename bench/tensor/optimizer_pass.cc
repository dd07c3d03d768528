// SPDX-License-Identifier: Apache-2.0
// optimizer_pass_over_bound: a layer's parameter, gradient and two moments, read and written one layer after
// the other, as the optimizer of a sharded training does; all together twice as large as DDR.
#include <array>

#include "bench/tensor/passes.h"
#include "core/base/kernel_clock.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

constexpr size_t parameter = 0, gradient = 1, first_moment = 2, second_moment = 3;
using Layer = std::array<std::shared_ptr<Tensor>, 4>;

constexpr uint64_t gradient_of(uint64_t layer, uint64_t word) {
  return layer * 1000 + word % 97 + 1;
}

// Integers in the place of floats, so that the result is known: each step adds.
void update(const Layer& layer, double seconds) {
  auto p = must(layer[parameter]->write(), "write");
  auto g = must(layer[gradient]->write(), "write");
  auto m = must(layer[first_moment]->write(), "write");
  auto v = must(layer[second_moment]->write(), "write");
  const uint64_t begin = monotonic_ns();
  const auto ps = p.as<uint64_t>(), gs = g.as<uint64_t>(), ms = m.as<uint64_t>(), vs = v.as<uint64_t>();
  for (size_t i = 0; i < ps.size(); ++i) {
    ms[i] += gs[i];
    vs[i] += 3 * gs[i];
    ps[i] += ms[i] + vs[i];
  }
  work_until(begin, seconds);
}

void check(const std::vector<Layer>& layers, uint64_t steps) {
  for (uint64_t layer = 0; layer < layers.size(); ++layer) {
    const auto p = must(layers[layer][parameter]->read({.wait = GuardWait::never}), "read");
    const auto v = must(layers[layer][second_moment]->read({.wait = GuardWait::never}), "read");
    for (size_t i = 0; i < p.as<uint64_t>().size(); ++i) {
      const uint64_t g = gradient_of(layer, i);
      if (p.as<uint64_t>()[i] != 4 * g * (steps * (steps + 1) / 2) || v.as<uint64_t>()[i] != 3 * g * steps)
        die("layer " + std::to_string(layer) + " lost an update");
    }
  }
}

}  // namespace

void measure_optimizer_pass(const Sizes& wanted, nlohmann::json& out) {
  const PassSizes sizes = pass_sizes(wanted);
  PassPool pool(sizes);
  if (const std::string why = pool.pool->statistics().reason; !why.empty()) {
    missing("optimizer_pass_over_bound", why, out);
    return;
  }
  constexpr std::array<const char*, 4> names = {"p.", "g.", "m.", "v."};
  constexpr std::array<TensorHint, 4> hints = {TensorHint::weights, TensorHint::gradients,
                                               TensorHint::optimizer_state, TensorHint::optimizer_state};
  std::vector<Layer> layers(sizes.layers);
  std::vector<placement::Use> cycle;
  for (uint32_t i = 0; i < sizes.layers; ++i)
    for (size_t k = 0; k < 4; ++k) {
      layers[i][k] = pool.tensor(names[k] + std::to_string(i), sizes.layer_bytes / 4, hints[k]);
      auto guard = must(layers[i][k]->write(), "write");
      const auto words = guard.as<uint64_t>();
      for (size_t word = 0; word < words.size(); ++word) words[word] = k == gradient ? gradient_of(i, word) : 0;
      cycle.push_back(use_of(pool, *layers[i][k]));
    }
  pool.pool->step();
  std::vector<std::shared_ptr<Tensor>> some;
  for (uint32_t i = 0; i < sizes.layers / 4; ++i) some.insert(some.end(), layers[i].begin(), layers[i].end());
  const double copy_bytes_per_s = measure_copy_bytes_per_s(pool, some);
  uint64_t steps = 0;
  const auto step = [&](double seconds) {
    for (const Layer& layer : layers) update(layer, seconds);
    ++steps;
    pool.pool->step();
  };
  measure_passes("optimizer_pass_over_bound", sizes, pool, cycle, sizes.layers, copy_bytes_per_s, step, out);
  check(layers, steps);
}

}  // namespace terrace::bench
