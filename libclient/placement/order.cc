// SPDX-License-Identifier: Apache-2.0
#include "libclient/placement/order.h"

#include <algorithm>

namespace terrace::placement {
namespace {

bool same_order(const std::vector<Use>& a, const std::vector<Use>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Use& left, const Use& right) { return left.same_place(right); });
}

}  // namespace

uint64_t OrderLearner::opened(uint32_t first, uint32_t count) {
  const Use use{.first = first, .count = count};
  const bool again = !current_.empty() && current_.back().same_place(use);
  if (!again && current_.size() >= options_.uses_max) overflowed_ = true;
  if (!again && !overflowed_) {
    current_.push_back(use);
    open_.push_back(0);
    if (known()) follow(use);
  }
  if (!open_.empty()) ++open_.back();
  return uint64_t{step_number_} << 32 | (current_.size() - 1);
}

void OrderLearner::closed(uint64_t ticket) {
  const auto index = static_cast<uint32_t>(ticket);
  // Of an earlier step: it was closed with that step, as far as an order goes.
  if (ticket >> 32 != step_number_ || index >= current_.size()) return;
  if (open_[index] > 0) --open_[index];
  current_[index].positions =
      std::max(current_[index].positions, static_cast<uint32_t>(current_.size()) - index);
}

void OrderLearner::follow(const Use& use) {
  const auto end = static_cast<uint32_t>(cycle_.size());
  const uint32_t last = std::min(end, position_ + 1 + options_.look_ahead);
  for (uint32_t at = position_; at < last; ++at) {
    if (!cycle_[at].same_place(use)) continue;
    for (uint32_t skipped = position_; skipped < at; ++skipped) skipped_.push_back(skipped);
    deviations_ += at - position_;
    position_ = at + 1;
    return;
  }
  // Late, not new: two threads that changed places.
  const auto late =
      std::find_if(skipped_.begin(), skipped_.end(), [&](uint32_t at) { return cycle_[at].same_place(use); });
  if (late != skipped_.end()) {
    skipped_.erase(late);
    return;
  }
  ++deviations_;
}

bool OrderLearner::too_many() const {
  const uint64_t share = cycle_.size() * options_.deviations_permille / 1000;
  return deviations_ > std::max<uint64_t>(options_.deviations_min, share);
}

OrderLearner::Step OrderLearner::step() {
  Step result = Step::observing;
  // Guards that are open still: until the step's end at least.
  for (size_t i = 0; i < current_.size(); ++i)
    if (open_[i] > 0) current_[i].positions = static_cast<uint32_t>(current_.size() - i);
  const bool whole = !overflowed_ && !current_.empty();
  if (known()) {
    deviations_ += static_cast<uint32_t>(cycle_.size()) - position_;
    deviations_total_ += deviations_;
    result = Step::following;
  }
  const bool repeated = whole && previous_whole_ && same_order(current_, previous_);
  if (repeated && !same_order(current_, cycle_)) {
    cycle_ = current_;
    result = Step::learned;
  } else if (known() && (too_many() || overflowed_)) {
    cycle_.clear();
    result = Step::forgotten;
  }
  previous_ = std::move(current_);
  previous_whole_ = whole;
  current_.clear();
  open_.clear();
  skipped_.clear();
  ++step_number_;
  position_ = 0;
  deviations_ = 0;
  overflowed_ = false;
  return result;
}

void OrderLearner::forget() {
  cycle_.clear();
  previous_.clear();
  previous_whole_ = false;
  current_.clear();
  open_.clear();
  skipped_.clear();
  position_ = 0;
  deviations_ = 0;
  ++step_number_;
}

}  // namespace terrace::placement
