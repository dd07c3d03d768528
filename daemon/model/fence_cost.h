// SPDX-License-Identifier: Apache-2.0
// What it takes to shut the holders of a host's memory objects out: an estimate from what was measured, by kind of
// memory. From it an agent's margin follows (host_lease.h), and what cannot be fenced in time.
//
//   one object takes   object_ns + bytes * gib_ns / GiB      means, which follow what is measured
//   all take           twice the sum over what works side by side, and the slowest hiccup seen, once
//
// Twice, as the means are of one object at a time on a host that may have been idle. A hiccup is by how much one
// object took longer than its mean; it is counted once, as it is not each object's. With every ten minutes without a
// measurement the means are half as far from what was believed at first: where nothing may be leased any more nothing
// would be measured, either, and quick ones of yesterday say little.
//
// Attacked  tests/unit/memory/fence_cost_test.cc
#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace::daemon {

struct FenceLoad {
  uint64_t objects = 0;
  uint64_t bytes = 0;
};

// Of one kind of memory.
class FenceCost {
 public:
  struct Parts {
    uint64_t object_ns = 0, gib_ns = 0;
  };

  // What is believed until something was measured, and the least that it will ever be taken to be.
  constexpr FenceCost(Parts belief, Parts floor)
      : belief_{std::max(belief.object_ns, floor.object_ns), std::max(belief.gib_ns, floor.gib_ns)},
        floor_(floor),
        mean_(belief_) {}

  static constexpr uint64_t half_life_ns = 600'000'000'000;
  static constexpr uint64_t small_bytes = 64ull
                                          << 20;  // up to here a measurement is of the object, not of its bytes

  // One object of that size was fenced in `took_ns`.
  constexpr void observe(uint64_t bytes, uint64_t took_ns, uint64_t now_ns) {
    age(now_ns);
    aged_ns_ = now_ns;
    const uint64_t expected_ns = of_one(bytes);
    hiccup_ns_ = std::max(hiccup_ns_ - hiccup_ns_ / 4, took_ns > expected_ns ? took_ns - expected_ns : 0);
    if (bytes <= small_bytes) {
      mean_.object_ns = std::max(floor_.object_ns, towards(mean_.object_ns, less(took_ns, of_bytes(bytes))));
    } else {
      const uint64_t for_bytes_ns = less(took_ns, mean_.object_ns);
      const auto seen = static_cast<uint64_t>(static_cast<double>(for_bytes_ns) / gib_of(bytes));
      mean_.gib_ns = std::max(floor_.gib_ns, towards(mean_.gib_ns, seen));
    }
  }
  // All of them one after the other, without hiccups.
  constexpr uint64_t of(const FenceLoad& load, uint64_t now_ns) {
    age(now_ns);
    const double ns = static_cast<double>(load.objects) * static_cast<double>(mean_.object_ns) +
                      gib_of(load.bytes) * static_cast<double>(mean_.gib_ns);
    return ns < 1e18 ? static_cast<uint64_t>(ns) : static_cast<uint64_t>(1e18);
  }
  constexpr uint64_t hiccup_ns() const { return hiccup_ns_; }

 private:
  static constexpr double gib_of(uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(1ull << 30);
  }
  static constexpr uint64_t less(uint64_t from, uint64_t by) { return from > by ? from - by : 0; }
  // Up by an eighth of the difference, down by a sixteenth.
  static constexpr uint64_t towards(uint64_t mean, uint64_t seen) {
    return seen > mean ? mean + (seen - mean) / 8 : mean - (mean - seen) / 16;
  }
  static constexpr uint64_t half_way(uint64_t mean, uint64_t to) {
    return mean > to ? to + (mean - to) / 2 : to - (to - mean) / 2;
  }
  constexpr uint64_t of_bytes(uint64_t bytes) const {
    return static_cast<uint64_t>(gib_of(bytes) * static_cast<double>(mean_.gib_ns));
  }
  constexpr uint64_t of_one(uint64_t bytes) const { return mean_.object_ns + of_bytes(bytes); }
  constexpr void age(uint64_t now_ns) {
    if (aged_ns_ == 0) aged_ns_ = now_ns;  // nothing was measured yet
    for (int halvings = 0; now_ns > aged_ns_ && now_ns - aged_ns_ >= half_life_ns && halvings < 64;
         ++halvings) {
      aged_ns_ += half_life_ns;
      mean_.object_ns = half_way(mean_.object_ns, belief_.object_ns);
      mean_.gib_ns = half_way(mean_.gib_ns, belief_.gib_ns);
      hiccup_ns_ /= 2;
    }
  }

  Parts belief_, floor_, mean_;
  uint64_t hiccup_ns_ = 0;
  uint64_t aged_ns_ = 0;
};

// With `parallel` objects at a time: kinds' sums and the largest hiccup of any.
constexpr uint64_t fence_ns_of(uint64_t sum_ns, uint64_t hiccup_ns, uint32_t parallel) {
  return std::min<uint64_t>(sum_ns, 1'000'000'000'000'000'000) * 2 / std::max<uint32_t>(parallel, 1) +
         hiccup_ns;
}

}  // namespace terrace::daemon
