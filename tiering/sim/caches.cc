// SPDX-License-Identifier: Apache-2.0
// LRU, ARC and S3-FIFO, and the table of all caches.
#include "tiering/sim/caches.h"

#include <algorithm>

#include "tiering/sim/belady.h"
#include "tiering/sim/lists.h"
#include "tiering/sim/prefix_order.h"
#include "tiering/sim/rivals.h"

namespace terrace::tiering {
namespace {

class Lru final : public Cache {
 public:
  Lru(uint32_t objects, uint64_t room) : lists_(objects, 1), room_(room) {}

  bool use(uint32_t object) override {
    const bool hit = lists_.where(object) != 0;
    lists_.push(1, object);
    if (hit) return true;
    ++brought_in_;
    if (lists_.size(1) > room_) {
      lists_.pop_oldest(1);
      ++put_out_;
    }
    return false;
  }

 private:
  Lists lists_;
  uint64_t room_;
};

// T1: used once lately, T2: more often; B1 and B2 remember what left them, and move the target size of T1.
class Arc final : public Cache {
 public:
  Arc(uint32_t objects, uint64_t room) : lists_(objects, b2), room_(room) {}

  bool use(uint32_t object) override {
    const uint8_t from = lists_.where(object);
    if (from == t1 || from == t2) {
      lists_.push(t2, object);
      return true;
    }
    ++brought_in_;
    if (from == b1 || from == b2) {
      const uint64_t here = lists_.size(from), there = lists_.size(from == b1 ? b2 : b1);
      const uint64_t step = std::max<uint64_t>(there / here, 1);
      target_ = from == b1 ? std::min(room_, target_ + step) : target_ - std::min(target_, step);
      replace(from == b2);
      lists_.push(t2, object);
      return false;
    }
    make_room_for_new();
    lists_.push(t1, object);
    return false;
  }

 private:
  static constexpr uint8_t t1 = 1, t2 = 2, b1 = 3, b2 = 4;

  void make_room_for_new() {
    const uint64_t recent = lists_.size(t1) + lists_.size(b1);
    const uint64_t all = recent + lists_.size(t2) + lists_.size(b2);
    if (recent == room_) {
      if (lists_.size(t1) < room_) {
        lists_.pop_oldest(b1);
        replace(false);
      } else {
        lists_.pop_oldest(t1);
        ++put_out_;
      }
    } else if (all >= room_) {
      if (all == 2 * room_) lists_.pop_oldest(b2);
      replace(false);
    }
  }

  void replace(bool wanted_by_b2) {
    if (lists_.size(t1) + lists_.size(t2) < room_) return;
    const uint64_t recent = lists_.size(t1);
    const bool from_recent = recent > 0 && (recent > target_ || (wanted_by_b2 && recent == target_));
    const uint8_t from = from_recent || lists_.size(t2) == 0 ? t1 : t2;
    lists_.push(from == t1 ? b1 : b2, lists_.oldest(from));
    ++put_out_;
  }

  Lists lists_;
  uint64_t room_;
  uint64_t target_ = 0;
};

// A small queue that new objects pass through, a main queue for those used again there, and a ghost queue that
// sends what comes back straight to the main one.
class S3Fifo final : public Cache {
 public:
  S3Fifo(uint32_t objects, uint64_t room)
      : lists_(objects, ghost), often_(objects), room_(room), small_max_(std::max<uint64_t>(room / 10, 1)) {}

  bool use(uint32_t object) override {
    const uint8_t from = lists_.where(object);
    if (from == small || from == main) {
      often_[object] = static_cast<uint8_t>(std::min(often_[object] + 1, 3));
      return true;
    }
    ++brought_in_;
    while (lists_.size(small) + lists_.size(main) >= room_) evict();
    lists_.push(lists_.where(object) == ghost ? main : small, object);
    often_[object] = 0;
    return false;
  }

 private:
  static constexpr uint8_t small = 1, main = 2, ghost = 3;

  void evict() {
    if (lists_.size(small) >= small_max_ || lists_.size(main) == 0) {
      evict_small();
    } else {
      evict_main();
    }
  }

  void evict_small() {
    while (lists_.size(small) > 0) {
      const uint32_t object = lists_.oldest(small);
      if (often_[object] > 1) {
        lists_.push(main, object);
        often_[object] = 0;
        continue;
      }
      lists_.push(ghost, object);
      ++put_out_;
      if (lists_.size(ghost) > room_ - std::min(room_ - 1, small_max_)) lists_.pop_oldest(ghost);
      return;
    }
  }

  void evict_main() {
    while (lists_.size(main) > 0) {
      const uint32_t object = lists_.oldest(main);
      if (often_[object] > 0) {
        --often_[object];
        lists_.push(main, object);
        continue;
      }
      lists_.remove(object);
      ++put_out_;
      return;
    }
  }

  Lists lists_;
  std::vector<uint8_t> often_;
  uint64_t room_;
  uint64_t small_max_;
};

}  // namespace

std::unique_ptr<Cache> make_cache(std::string_view name, const Trace& trace, uint64_t objects_max) {
  if (name == "lru") return std::make_unique<Lru>(trace.objects, objects_max);
  if (name == "arc") return std::make_unique<Arc>(trace.objects, objects_max);
  if (name == "s3-fifo") return std::make_unique<S3Fifo>(trace.objects, objects_max);
  if (name == "lirs") return make_lirs(trace.objects, objects_max);
  if (name == "w-tinylfu") return make_tiny_lfu(trace.objects, objects_max);
  if (name == "sieve") return make_sieve(trace.objects, objects_max);
  if (name == "2q") return make_two_queues(trace.objects, objects_max);
  if (name == "decayed-lfu") return make_decayed_lfu(trace.objects, objects_max);
  if (name == "prefix-order") return std::make_unique<PrefixOrder>(trace, objects_max);
  if (name == "belady") return std::make_unique<Belady>(trace, objects_max);
  return nullptr;
}

std::vector<std::string_view> cache_names() {
  return {"lru", "arc", "s3-fifo", "lirs", "w-tinylfu", "sieve", "2q", "decayed-lfu", "prefix-order", "belady"};
}

}  // namespace terrace::tiering
