// SPDX-License-Identifier: Apache-2.0
// SIEVE: one queue in the order of arrival. A hit only marks; a hand walks from the oldest to the newest, clears marks,
// and puts out the first object without one. What stays keeps its place, unlike in CLOCK.
#include <vector>

#include "tiering/sim/lists.h"
#include "tiering/sim/rivals.h"

namespace terrace::tiering {
namespace {

class Sieve final : public Cache {
 public:
  Sieve(uint32_t objects, uint64_t room) : lists_(objects, 1), marked_(objects), room_(room) {}

  bool use(uint32_t object) override {
    if (lists_.where(object) != 0) {
      marked_[object] = true;
      return true;
    }
    ++brought_in_;
    if (lists_.size(1) == room_) evict();
    lists_.push(1, object);
    marked_[object] = false;
    return false;
  }

 private:
  void evict() {
    uint32_t at = hand_ == nobody ? lists_.oldest(1) : hand_;
    while (marked_[at]) {
      marked_[at] = false;
      at = lists_.newer_than(at);
      if (at == nobody) at = lists_.oldest(1);
    }
    hand_ = lists_.newer_than(at);
    lists_.remove(at);
    ++put_out_;
  }

  Lists lists_;
  std::vector<bool> marked_;
  uint64_t room_;
  uint32_t hand_ = nobody;  // nobody: at the oldest
};

}  // namespace

std::unique_ptr<Cache> make_sieve(uint32_t objects, uint64_t room) {
  return std::make_unique<Sieve>(objects, room);
}

}  // namespace terrace::tiering
