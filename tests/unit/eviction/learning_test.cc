// SPDX-License-Identifier: Apache-2.0
// What is learned: loops, scans, popular blocks, last blocks of prompts. Bounds are loose; bench_tiersim measures.
#include <doctest/doctest.h>

#include <unordered_map>
#include <vector>

#include "core/base/prng.h"
#include "tiering/eviction/block_order.h"

namespace terrace::eviction {
namespace {

// A cache of blocks of one size.
class Store {
 public:
  explicit Store(uint32_t room) {
    for (uint32_t id = 0; id < room; ++id) free_.push_back(id);
    key_of_.resize(room);
  }
  bool use(uint64_t key, uint64_t parent = 0) {
    if (const auto found = id_of_.find(key); found != id_of_.end()) {
      order_.use(found->second);
      return true;
    }
    if (free_.empty()) {
      const uint32_t victim = order_.victim().value();
      order_.erase(victim, true);
      id_of_.erase(key_of_[victim]);
      free_.push_back(victim);
    }
    const uint32_t id = free_.back();
    free_.pop_back();
    order_.insert(id, {.key = key, .parent = parent});
    id_of_[key] = id;
    key_of_[id] = key;
    return false;
  }
  bool contains(uint64_t key) const { return id_of_.contains(key); }

 private:
  BlockOrder order_;
  std::unordered_map<uint64_t, uint32_t> id_of_;
  std::vector<uint64_t> key_of_;
  std::vector<uint32_t> free_;
};

TEST_CASE("BlockOrder: of a loop ten times as long as the cache nearly as much as fits is hit") {
  Store store(500);
  int hits = 0;
  for (int use = 0; use < 200'000; ++use) {
    const bool hit = store.use(static_cast<uint64_t>(use % 5000) + 1);
    if (use >= 100'000 && hit) ++hits;
  }
  CHECK(hits > 8'000);  // 10 % of 100,000 is the most; LRU has none
}

TEST_CASE("BlockOrder: a scan does not push out what is used often") {
  Store store(1000);
  Prng prng(7);
  uint64_t scanned = 1'000'000;
  int hits = 0;
  for (int use = 0; use < 100'000; ++use) {
    store.use(++scanned);
    store.use(++scanned);
    store.use(++scanned);
    const bool hit = store.use(1 + prng.below(900));
    if (use >= 50'000 && hit) ++hits;
  }
  CHECK(hits > 42'500);  // LRU keeps a quarter of the cache for them: 12,000
}

TEST_CASE(
    "BlockOrder: once learned, the last block of a prompt, which nobody uses again, goes before the prompt") {
  Store store(2000);
  Prng prng(3);
  std::vector<uint64_t> prompts;  // first keys
  uint64_t next_key = 1, turns = 0;
  for (int request = 0; request < 20'000; ++request) {
    // A prompt of eight blocks, of the last hundred or a new one; then a block of its own.
    const bool again = prompts.size() > 100 && prng.chance(1, 2);
    if (!again) prompts.push_back(next_key), next_key += 8;
    const uint64_t first = again ? prompts[prompts.size() - 1 - prng.below(100)] : prompts.back();
    for (uint64_t block = 0; block < 8; ++block) store.use(first + block, block == 0 ? 0 : first + block - 1);
    store.use((uint64_t{1} << 40) + turns++, first + 7);
  }
  int tails = 0;
  for (uint64_t turn = turns - 1000; turn < turns; ++turn)
    tails += store.contains((uint64_t{1} << 40) + turn) ? 1 : 0;
  CHECK(tails < 100);
}

TEST_CASE("BlockOrder: what is left of prompts is always a beginning") {
  Store store(300);
  Prng prng(5);
  for (int request = 0; request < 3000; ++request) {
    const uint64_t prompt = prng.below(60) * 100;
    const uint64_t length = 1 + prng.below(40);
    bool beginning = true;
    for (uint64_t block = 1; block <= length; ++block) {
      const bool hit = store.use(prompt + block, block == 1 ? 0 : prompt + block - 1);
      CHECK((beginning || !hit));
      beginning = beginning && hit;
    }
  }
}

}  // namespace
}  // namespace terrace::eviction
