// SPDX-License-Identifier: Apache-2.0
// How long something took, counted by bounds that are fixed, so that histograms of several managers can be added.
//
// Pure. Threads: one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/units.h"

namespace terrace::daemon {

class LatencyHistogram {
 public:
  // Upper bounds, inclusive. From a commit in memory to a fence that waits for another host.
  static constexpr std::array<uint64_t, 18> bounds_ns = {
      20'000,          50'000,          100'000,          250'000,          500'000,        1 * ns_per_ms,
      2'500'000,       5 * ns_per_ms,   10 * ns_per_ms,   25 * ns_per_ms,   50 * ns_per_ms, 100 * ns_per_ms,
      250 * ns_per_ms, 500 * ns_per_ms, 1000 * ns_per_ms, 2500 * ns_per_ms, 10 * ns_per_s,  60 * ns_per_s};

  void add(uint64_t took_ns) {
    const auto bound = std::lower_bound(bounds_ns.begin(), bounds_ns.end(), took_ns);
    ++counts_[static_cast<size_t>(bound - bounds_ns.begin())];
    sum_ns_ += took_ns;
  }

  // Of those above the bound before; the last: above all bounds.
  const std::array<uint64_t, bounds_ns.size() + 1>& counts() const { return counts_; }
  uint64_t sum_ns() const { return sum_ns_; }

 private:
  std::array<uint64_t, bounds_ns.size() + 1> counts_ = {};
  uint64_t sum_ns_ = 0;
};

}  // namespace terrace::daemon
