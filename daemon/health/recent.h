// SPDX-License-Identifier: Apache-2.0
// What counters did lately.
//
// Place     daemon/health. Pure.
// Threads   One.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

namespace terrace::daemon {

// How much a counter grew within a window, which may be a part (of 64) shorter. The counter began at 0, before the first note().
class Recent {
 public:
  explicit Recent(uint64_t window_ns) : window_ns_(window_ns) {}

  // Returns   how much it grew within the window that ends now. A counter that fell has begun again.
  uint64_t note(uint64_t value, uint64_t now_ns) {
    if (value < samples_.back().second) samples_ = {{now_ns, value}};
    // Bounded: what came within a part of the window counts as of the beginning of that part.
    if (samples_.size() > 1 && now_ns - samples_.back().first < window_ns_ / parts) {
      samples_.back().second = value;
    } else {
      samples_.emplace_back(now_ns, value);
    }
    while (samples_.size() > 1 && now_ns - samples_[1].first >= window_ns_) samples_.pop_front();
    return value - samples_.front().second;
  }

 private:
  static constexpr uint64_t parts = 64;
  const uint64_t window_ns_;
  std::deque<std::pair<uint64_t, uint64_t>> samples_{{0, 0}};  // the first: at the window's begin or before
};

// Whether work that is done in the order of its arrival is behind: what had arrived at the begin of the window is
// not all done at its end.
class Backlog {
 public:
  explicit Backlog(uint64_t window_ns) : window_ns_(window_ns) {}

  bool note(uint64_t done, uint64_t left, uint64_t now_ns) {
    const uint64_t arrived = done + left;
    if (!samples_.empty() && arrived < samples_.back().second) samples_.clear();  // work was forgotten
    if (samples_.size() < 2 || now_ns - samples_.back().first >= window_ns_ / parts)
      samples_.emplace_back(now_ns, arrived);
    while (samples_.size() > 1 && now_ns - samples_[1].first >= window_ns_) samples_.pop_front();
    return now_ns - samples_.front().first >= window_ns_ && done < samples_.front().second;
  }

 private:
  static constexpr uint64_t parts = 64;
  const uint64_t window_ns_;
  std::deque<std::pair<uint64_t, uint64_t>> samples_;
};

}  // namespace terrace::daemon
