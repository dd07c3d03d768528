// SPDX-License-Identifier: Apache-2.0
// What waits for one thread, in the order of shares: whoever had least of the thread's time comes first. A thousand
// items of one owner delay another's first item by one of them, not by a thousand.
//
// Start-time fair queueing. Each owner has a count of the time that it took. One that comes anew, or again after a
// while, begins with the count of whoever was served last: it owes nothing, and saved nothing up for a flood.
//
// Place     Messages of connections (daemon/rpc/connection/turns.h), jobs of a worker (worker.cc).
// Threads   None of its own: its owner says which.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace terrace::daemon {

// Whose share: a peer's key (daemon/rpc/peer_limits.h), a tenant's hash. Those of one key have one share.
using ShareKey = uint64_t;

template <typename Item>
class Shares {
 public:
  struct Taken {
    ShareKey key;
    Item item;
  };

  bool empty() const { return order_.empty(); }
  size_t owners_known() const { return owners_.size(); }

  // Behind all of the same key.
  void add(ShareKey key, Item item) {
    Owner& owner = owners_[key];
    owner.items.push_back(std::move(item));
    if (owner.items.size() > 1) return;
    owner.used = std::max(owner.used, served_);
    enter(key, owner);
  }

  // The first item of the key that had least; where two had as little, of the one that has waited for longer.
  std::optional<Taken> take() {
    if (order_.empty()) return std::nullopt;
    const ShareKey key = std::get<2>(*order_.begin());
    order_.erase(order_.begin());
    Owner& owner = owners_[key];
    served_ = std::max(served_, owner.used);
    Taken taken{key, std::move(owner.items.front())};
    owner.items.pop_front();
    if (!owner.items.empty()) enter(key, owner);
    return taken;
  }

  // Time that an owner took, known once its item was dealt with. What it took while nobody waited it took from nobody.
  void charge(ShareKey key, uint64_t time) {
    Owner& owner = owners_[key];
    owner.used = std::max(owner.used, served_);
    if (!owner.items.empty()) order_.erase({owner.used_in_order, owner.arrival, key});
    owner.used += time;
    if (!owner.items.empty()) enter(key, owner);
    if (order_.empty()) served_ = owner.used;
    if (owners_.size() > 2 * order_.size() + owners_kept) forget();
  }

 private:
  static constexpr size_t owners_kept = 64;

  struct Owner {
    uint64_t used = 0;
    uint64_t used_in_order = 0, arrival = 0;  // its place, while it has items
    std::deque<Item> items;
  };

  void enter(ShareKey key, Owner& owner) {
    owner.used_in_order = owner.used;
    owner.arrival = ++arrivals_;
    order_.emplace(owner.used_in_order, owner.arrival, key);
  }

  // Those who have nothing here and would begin anew at the same count.
  void forget() {
    std::erase_if(owners_,
                  [this](const auto& one) { return one.second.items.empty() && one.second.used <= served_; });
  }

  std::unordered_map<ShareKey, Owner> owners_;
  std::set<std::tuple<uint64_t, uint64_t, ShareKey>> order_;  // of those with items: used, arrival, key
  uint64_t served_ = 0;                                       // the count of whoever was served last
  uint64_t arrivals_ = 0;
};

}  // namespace terrace::daemon
