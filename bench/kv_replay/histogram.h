// SPDX-License-Identifier: Apache-2.0
// Latencies of one worker, in memory that outlives it: sixteen steps to a doubling, so a percentile is right to
// within 6 %. One writer at a time.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace terrace::bench {

class Histogram {
 public:
  void add(uint64_t ns) {
    std::atomic<uint64_t>& count = counts_[index_of(ns)];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  uint64_t count(size_t index) const { return counts_[index].load(std::memory_order_relaxed); }

  static constexpr size_t steps = 16 * 44;
  static size_t index_of(uint64_t ns) {
    if (ns < 16) return ns;
    const int doublings = static_cast<int>(std::bit_width(ns)) - 5;
    const size_t index = (static_cast<size_t>(doublings) + 1) * 16 + ((ns >> doublings) & 15);
    return index < steps ? index : steps - 1;
  }
  static double middle_ns(size_t index) {
    if (index < 16) return static_cast<double>(index);
    const double step = static_cast<double>(uint64_t{1} << (index / 16 - 1));
    return (static_cast<double>(index % 16 + 16) + 0.5) * step;
  }

 private:
  std::array<std::atomic<uint64_t>, steps> counts_{};
};

}  // namespace terrace::bench
