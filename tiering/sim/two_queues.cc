// SPDX-License-Identifier: Apache-2.0
// 2Q: new objects pass through a queue (A1in) in the order of arrival and are remembered for a time after it (A1out).
// Only what is used again while it is remembered goes to the main list (Am), an LRU.
#include <algorithm>

#include "tiering/sim/lists.h"
#include "tiering/sim/rivals.h"

namespace terrace::tiering {
namespace {

class TwoQueues final : public Cache {
 public:
  TwoQueues(uint32_t objects, uint64_t room)
      : lists_(objects, a1_out),
        room_(room),
        in_max_(std::max<uint64_t>(room / 4, 1)),
        out_max_(std::max<uint64_t>(room / 2, 1)) {}

  bool use(uint32_t object) override {
    const uint8_t from = lists_.where(object);
    if (from == am) lists_.push(am, object);
    if (from == am || from == a1_in) return true;
    ++brought_in_;
    make_room();
    lists_.push(from == a1_out ? am : a1_in, object);
    return false;
  }

 private:
  static constexpr uint8_t a1_in = 1, am = 2, a1_out = 3;

  void make_room() {
    if (lists_.size(a1_in) + lists_.size(am) < room_) return;
    ++put_out_;
    if (lists_.size(a1_in) <= in_max_ && lists_.size(am) > 0) {
      lists_.pop_oldest(am);
      return;
    }
    lists_.push(a1_out, lists_.oldest(a1_in));
    if (lists_.size(a1_out) > out_max_) lists_.pop_oldest(a1_out);
  }

  Lists lists_;
  uint64_t room_, in_max_, out_max_;
};

}  // namespace

std::unique_ptr<Cache> make_two_queues(uint32_t objects, uint64_t room) {
  return std::make_unique<TwoQueues>(objects, room);
}

}  // namespace terrace::tiering
