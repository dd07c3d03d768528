// SPDX-License-Identifier: Apache-2.0
// W-TinyLFU: new objects enter a small LRU, the window. What leaves it must have been used more, lately, than what would
// leave the main part for it; else it is put out itself. The main part is a segmented LRU: an object is on probation
// until it is used there, then protected.
#include <algorithm>
#include <vector>

#include "tiering/sim/lists.h"
#include "tiering/sim/rivals.h"

namespace terrace::tiering {
namespace {

class TinyLfu final : public Cache {
 public:
  TinyLfu(uint32_t objects, uint64_t room)
      : lists_(objects, is_protected),
        counts_(objects),
        window_max_(std::max<uint64_t>(room / 100, 1)),
        main_max_(room - window_max_),
        protected_max_(main_max_ * 4 / 5),
        sample_(10 * room) {}

  bool use(uint32_t object) override {
    count(object);
    const uint8_t from = lists_.where(object);
    if (from == window) lists_.push(window, object);
    if (from == on_probation || from == is_protected) protect(object);
    if (from != 0) return true;
    ++brought_in_;
    lists_.push(window, object);
    if (lists_.size(window) > window_max_) admit(lists_.oldest(window));
    return false;
  }

 private:
  static constexpr uint8_t window = 1, on_probation = 2, is_protected = 3;
  static constexpr uint8_t count_max = 15;

  void count(uint32_t object) {
    if (counts_[object] < count_max) ++counts_[object];
    if (++counted_ < sample_) return;
    for (uint8_t& one : counts_) one /= 2;
    counted_ /= 2;
  }

  void protect(uint32_t object) {
    lists_.push(is_protected, object);
    if (lists_.size(is_protected) > protected_max_) lists_.push(on_probation, lists_.oldest(is_protected));
  }

  void admit(uint32_t candidate) {
    if (lists_.size(on_probation) + lists_.size(is_protected) < main_max_) {
      lists_.push(on_probation, candidate);
      return;
    }
    ++put_out_;
    const uint32_t victim =
        lists_.size(on_probation) > 0 ? lists_.oldest(on_probation) : lists_.oldest(is_protected);
    if (victim == nobody || counts_[candidate] <= counts_[victim]) {
      lists_.remove(candidate);
      return;
    }
    lists_.remove(victim);
    lists_.push(on_probation, candidate);
  }

  Lists lists_;
  std::vector<uint8_t> counts_;
  uint64_t window_max_, main_max_, protected_max_;
  uint64_t sample_;  // uses after which counts are halved
  uint64_t counted_ = 0;
};

}  // namespace

std::unique_ptr<Cache> make_tiny_lfu(uint32_t objects, uint64_t room) {
  return std::make_unique<TinyLfu>(objects, room);
}

}  // namespace terrace::tiering
