// SPDX-License-Identifier: Apache-2.0
// LIRS: kept is what was used twice within a short distance, whatever its recency. The stack S holds objects in the
// order of their last use, also some that are not in the cache, down to the last one of short distance (LIR); the queue
// Q holds those in the cache that are not LIR, which are put out in its order.
#include <algorithm>
#include <vector>

#include "tiering/sim/lists.h"
#include "tiering/sim/rivals.h"

namespace terrace::tiering {
namespace {

class Lirs final : public Cache {
 public:
  Lirs(uint32_t objects, uint64_t room)
      : stack_(objects, 1),
        queue_(objects, 1),
        lir_(objects),
        room_(room),
        lir_max_(room - std::max<uint64_t>(room / 100, 1)) {}

  bool use(uint32_t object) override {
    const bool hit = lir_[object] || queue_.where(object) != 0;
    if (!hit) {
      ++brought_in_;
      if (lir_count_ + queue_.size(1) == room_) {
        queue_.pop_oldest(1);
        ++put_out_;
      }
    }
    if (!lir_[object]) place(object);
    stack_.push(1, object);
    while (stack_.size(1) > 0 && !lir_[stack_.oldest(1)]) stack_.pop_oldest(1);
    return hit;
  }

 private:
  // In the stack: used again sooner than the LIR object at its bottom has been, whose place it takes.
  void place(uint32_t object) {
    const bool free = lir_count_ < lir_max_;
    if (!free && stack_.where(object) == 0) {
      queue_.push(1, object);
      return;
    }
    if (queue_.where(object) != 0) queue_.remove(object);
    if (!free) {
      const uint32_t bottom = stack_.pop_oldest(1);
      lir_[bottom] = false;
      --lir_count_;
      queue_.push(1, bottom);
    }
    lir_[object] = true;
    ++lir_count_;
  }

  Lists stack_, queue_;
  std::vector<bool> lir_;
  uint64_t room_, lir_max_;
  uint64_t lir_count_ = 0;
};

}  // namespace

std::unique_ptr<Cache> make_lirs(uint32_t objects, uint64_t room) {
  return std::make_unique<Lirs>(objects, room);
}

}  // namespace terrace::tiering
