// SPDX-License-Identifier: Apache-2.0
// Decayed LFU: out goes the object with the least count of uses, where a use counts half after so many uses of others.
//
// All counts decay alike, so their order changes only with a use. They are kept as logarithms, scaled to one time for
// all: log2(count) + time / half-life never has to be touched again until the next use.
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "tiering/sim/rivals.h"

namespace terrace::tiering {
namespace {

class DecayedLfu final : public Cache {
 public:
  DecayedLfu(uint32_t objects, uint64_t room)
      : counts_(objects, never), inside_(objects), room_(room), half_life_(8 * static_cast<double>(room)) {}

  bool use(uint32_t object) override {
    const bool hit = inside_[object];
    if (hit) order_.erase({counts_[object], object});
    if (!hit) {
      ++brought_in_;
      if (order_.size() == room_) evict();
      inside_[object] = true;
    }
    const double now = static_cast<double>(uses_++) / half_life_;
    counts_[object] = counts_[object] == never ? now : now + std::log2(1 + std::exp2(counts_[object] - now));
    order_.insert({counts_[object], object});
    return hit;
  }

 private:
  static constexpr double never = -1;

  void evict() {
    inside_[order_.begin()->second] = false;
    order_.erase(order_.begin());
    ++put_out_;
  }

  std::vector<double> counts_;
  std::vector<bool> inside_;
  std::set<std::pair<double, uint32_t>> order_;
  uint64_t room_;
  double half_life_;  // in uses
  uint64_t uses_ = 0;
};

}  // namespace

std::unique_ptr<Cache> make_decayed_lfu(uint32_t objects, uint64_t room) {
  return std::make_unique<DecayedLfu>(objects, room);
}

}  // namespace terrace::tiering
