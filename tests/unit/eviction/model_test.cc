// SPDX-License-Identifier: Apache-2.0
// Random calls against a model that knows who is there and who follows whom.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <vector>

#include "core/base/prng.h"
#include "tiering/eviction/block_order.h"

namespace terrace::eviction {
namespace {

constexpr uint32_t ids = 200;

class Model {
 public:
  explicit Model(uint64_t seed) : prng_(seed) {}

  void step() {
    switch (prng_.below(8)) {
      case 0:
      case 1:
      case 2: insert(); break;
      case 3:
      case 4: use(); break;
      case 5:
      case 6: evict(); break;
      default: prng_.chance(1, 2) ? drop() : skip();
    }
    CHECK(order_.size() == there_.size());
  }

  void drain() {
    std::set<uint32_t> offered;
    while (const auto victim = order_.victim()) {
      check_victim(*victim);
      CHECK(offered.insert(*victim).second);
      remove(*victim, true);
    }
    CHECK(there_.empty());
  }

 private:
  struct Known {
    uint64_t key = 0;
    uint32_t parent = nobody;  // an id, while that block is there
    std::set<uint32_t> children;
  };

  uint32_t any() {
    auto at = there_.begin();
    std::advance(at, static_cast<long>(prng_.below(there_.size())));
    return at->first;
  }

  void insert() {
    const auto id = static_cast<uint32_t>(prng_.below(ids));
    if (there_.contains(id)) return;
    Known block{.key = 1 + prng_.below(1000), .parent = nobody, .children = {}};
    for (const auto& [other, known] : there_)
      if (known.key == block.key) return;  // a store has a key once
    uint64_t parent_key = prng_.chance(1, 3) ? 1 + prng_.below(1000) : 0;
    if (!there_.empty() && prng_.chance(1, 2)) parent_key = there_[any()].key;
    if (parent_key == block.key) parent_key = 0;
    for (auto& [other, known] : there_)
      if (parent_key != 0 && known.key == parent_key) block.parent = other;
    order_.insert(id, {.key = block.key, .parent = parent_key, .bytes = 1 + prng_.below(1 << 20)});
    if (block.parent != nobody) there_[block.parent].children.insert(id);
    there_[id] = block;
    last_ = id;
  }

  void use() {
    if (there_.empty()) return;
    last_ = any();
    order_.use(last_);
    skipped_.erase(last_);
  }

  void evict() {
    const auto victim = order_.victim();
    REQUIRE(victim.has_value() == !there_.empty());
    if (!victim) return;
    check_victim(*victim);
    CHECK(order_.victim() == victim);
    remove(*victim, true);
  }

  void drop() {
    if (!there_.empty()) remove(any(), false);
  }

  void skip() {
    const auto victim = order_.victim();
    if (!victim) return;
    order_.skip(*victim);
    const auto next = order_.victim();
    REQUIRE(next.has_value());
    check_victim(*next);
    skipped_.insert(*victim);
    for (const auto& [id, known] :
         there_)  // who could go instead: no children, not just used, not skipped either
      if (known.children.empty() && id != last_ && !skipped_.contains(id)) CHECK(*next != *victim);
  }

  void check_victim(uint32_t id) {
    REQUIRE(there_.contains(id));
    CHECK(there_[id].children.empty());
    CHECK(order_.contains(id));
  }

  void remove(uint32_t id, bool evicted) {
    order_.erase(id, evicted);
    skipped_.erase(id);
    const Known block = there_[id];
    there_.erase(id);
    if (block.parent != nobody) there_[block.parent].children.erase(id);
    for (const uint32_t child : block.children) there_[child].parent = nobody;
    CHECK(!order_.contains(id));
  }

  Prng prng_;
  BlockOrder order_;
  std::map<uint32_t, Known> there_;
  std::set<uint32_t> skipped_;  // at least those that still are
  uint32_t last_ = nobody;
};

TEST_CASE("BlockOrder: whatever is called, every block is offered while it is there, and none with children") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Model model(seed);
    for (int round = 0; round < 3; ++round) {
      for (int step = 0; step < 3000; ++step) model.step();
      model.drain();
    }
  }
}

TEST_CASE("BlockOrder: a million blocks have their bytes") {
  constexpr uint32_t blocks = 1'000'000;
  BlockOrder order(blocks);
  uint64_t key = 0;
  const auto insert = [&](uint32_t id) {
    ++key;
    order.insert(id, {.key = key, .parent = key % 24 == 0 ? 0 : key - 1, .bytes = 1 << 20});
  };
  for (uint32_t id = 0; id < blocks; ++id) insert(id);
  for (uint32_t at = 0; at < blocks / 4; ++at) {
    const uint32_t victim = order.victim().value();
    order.erase(victim, true);
    insert(victim);
  }
  CHECK(order.size() == blocks);
  CHECK(order.memory_bytes() <= uint64_t{64} * blocks);
}

}  // namespace
}  // namespace terrace::eviction
