// SPDX-License-Identifier: Apache-2.0
// The cache of replicas by itself: known answers, and its invariants over random calls.
#include "libclient/cache/replica_cache.h"

#include <doctest/doctest.h>

#include <random>

using namespace terrace;

namespace {

struct Block : CachedReplica<Block, std::shared_ptr<int>> {
  explicit Block(uint64_t of) : id(of) {}
  uint64_t key() const { return id; }
  const uint64_t id;
};

using Cache = ReplicaCache<uint64_t, Block>;

std::shared_ptr<Block> put(Cache& cache, uint64_t id, uint64_t bytes = 100) {
  auto entry = std::make_shared<Block>(id);
  entry->bytes = bytes;
  entry->buffer = std::make_shared<int>(0);
  cache.insert(entry);
  return entry;
}

struct Stats {
  uint64_t budget_bytes, resident_bytes, pinned_bytes, modified_bytes, replicas, evicted, evicted_bytes;
};

Stats stats(const Cache& cache) {
  Stats stats = {};
  cache.add_to(stats);
  return stats;
}

}  // namespace

TEST_CASE("ReplicaCache: what was used least recently makes room, and no more than is needed") {
  Cache cache(300);
  Cache::Freed freed;
  for (const uint64_t id : {1, 2, 3}) put(cache, id);
  cache.use(*cache.find(1));
  CHECK(cache.make_room(50, freed) == 0);
  CHECK(cache.find(2) == nullptr);
  CHECK(cache.find(3) != nullptr);
  CHECK(cache.find(1) != nullptr);
  CHECK(stats(cache).replicas == 2);
  CHECK(stats(cache).evicted == 1);
  CHECK(stats(cache).evicted_bytes == 100);
  CHECK(stats(cache).resident_bytes == 200);
}

TEST_CASE("ReplicaCache: what is short counts what cannot go, and nothing goes for it") {
  Cache cache(300);
  Cache::Freed freed;
  for (const uint64_t id : {1, 2, 3}) put(cache, id);
  cache.pin(*cache.find(1));
  cache.set_modified(*cache.find(2), true);
  CHECK(cache.make_room(120, freed) == 20);
  CHECK(stats(cache).replicas == 3);
  CHECK(cache.make_room(100, freed, [](const Block& block) { return block.id == 3; }) == 100);
  CHECK(cache.sum().no_room_text("ddr", 120, 20) ==
        "needs 120 bytes in tier ddr, 20 short: of a budget of 300 bytes 300 are in use (pinned 100, modified "
        "100, "
        "being copied 0); let replicas go, write modified ones back, or raise the budget");
}

TEST_CASE("ReplicaCache: what is pinned, modified, copied or written back stays, and goes once it is not") {
  Cache cache(100);
  Cache::Freed freed;
  const auto entry = put(cache, 1);
  const auto stays = [&] { return !cache.evict_one(freed) && cache.make_room(1, freed) == 1; };
  cache.pin(*entry);
  CHECK(stays());
  cache.set_copying(*entry, true);
  cache.unpin(*entry, freed);
  CHECK(stays());
  CHECK(cache.sum().moving == 100);
  cache.set_copying(*entry, false);
  cache.set_modified(*entry, true);
  CHECK(stays());
  cache.set_writing(*entry, true);
  cache.set_modified(*entry, false);
  CHECK(stays());
  cache.set_writing(*entry, false);
  CHECK(cache.sum().moving == 0);
  CHECK(cache.evict_one(freed));
  CHECK(entry->buffer == nullptr);
  CHECK(cache.sum().resident == 0);
}

TEST_CASE("ReplicaCache: a smaller budget evicts at once what can go, and the rest when it is let go") {
  Cache cache(300);
  Cache::Freed freed;
  for (const uint64_t id : {1, 2, 3}) put(cache, id);
  const auto pinned = cache.find(1), copied = cache.find(2);
  cache.pin(*pinned);
  cache.set_copying(*copied, true);
  cache.set_budget(50, freed);
  CHECK(cache.sum().resident == 200);
  cache.unpin(*pinned, freed);
  CHECK(cache.sum().resident == 100);
  cache.set_copying(*copied, false);
  cache.settle(*copied, freed);
  CHECK(cache.sum().resident == 0);
  CHECK(stats(cache).evicted == 3);
}

TEST_CASE("ReplicaCache: what is unlisted keeps its buffer until its last pin, copy and write-back") {
  std::vector<uint64_t> told;
  Cache cache(300, [&](Block& block) { told.push_back(block.id); });
  Cache::Freed freed;
  const auto entry = put(cache, 1);
  cache.pin(*entry);
  cache.set_modified(*entry, true);
  cache.set_writing(*entry, true);
  cache.unlist(*entry, freed);
  CHECK(told == std::vector<uint64_t>{1});
  CHECK(cache.find(1) == nullptr);
  CHECK(cache.sum().modified == 0);
  CHECK(cache.sum().resident == 100);
  put(cache, 1);  // another one of its key meanwhile
  cache.unpin(*entry, freed);
  CHECK(entry->buffer != nullptr);
  cache.set_writing(*entry, false);
  cache.settle(*entry, freed);
  CHECK(entry->buffer == nullptr);
  CHECK(cache.sum().resident == 100);
  cache.clear(freed);
  CHECK(told == std::vector<uint64_t>{1, 1});
  CHECK(cache.sum().resident == 0);
  CHECK(stats(cache).evicted == 0);
}

TEST_CASE("ReplicaCache: a freed buffer is used again where its size is the same, and nobody else has it") {
  Cache cache(300);
  Cache::Freed freed;
  const auto users = put(cache, 1)->buffer;
  int* const lone = put(cache, 2)->buffer.get();
  cache.clear(freed);
  CHECK(freed.take(99) == nullptr);
  CHECK(freed.take(100).get() == lone);
  CHECK(freed.take(100) == nullptr);
  CHECK(users.use_count() == 2);
  freed.clear();
  CHECK(users.use_count() == 1);
}

// K1 to K3, and the sums, against what the entries themselves say.
TEST_CASE("ReplicaCache: the sums add up and what is in use stays, over random calls") {
  std::mt19937_64 random(1);
  const auto upto = [&](uint64_t limit) { return random() % limit; };
  Cache cache(1000);
  std::vector<std::shared_ptr<Block>> all;
  for (int step = 0; step < 20000; ++step) {
    Cache::Freed freed;
    const uint64_t id = upto(12);
    auto entry = cache.find(id);
    if (entry == nullptr && upto(3) == 0) {
      const uint64_t bytes = 1 + upto(200);
      if (cache.make_room(bytes, freed) == 0) {
        all.push_back(put(cache, id, bytes));
        REQUIRE(cache.sum().resident <= cache.sum().budget);
      }
    }
    if (all.empty()) continue;
    Block& any = *all[upto(all.size())];  // listed or not
    switch (upto(8)) {
      case 0:
        if (any.buffer != nullptr && any.listed) cache.pin(any);
        break;
      case 1:
        if (any.pins > 0) cache.unpin(any, freed);
        break;
      case 2:
        if (any.listed) cache.set_modified(any, upto(2) == 0);
        break;
      case 3:
        if (any.listed) cache.set_copying(any, true);
        break;
      case 4:
        if (any.listed) cache.set_writing(any, true);
        break;
      case 5: cache.set_copying(any, false), cache.set_writing(any, false), cache.settle(any, freed); break;
      case 6:
        if (any.listed && upto(4) == 0) cache.unlist(any, freed);
        break;
      default:
        if (any.listed) cache.use(any);
        break;
    }
    if (upto(500) == 0) {
      cache.set_budget(1000, freed);
    } else if (upto(500) == 0) {
      cache.set_budget(400, freed);
    }
    uint64_t resident = 0, pinned = 0, modified = 0, listed = 0;
    for (const auto& one : all) {
      const bool used = one->pins != 0 || one->copying || one->writing;
      REQUIRE((one->buffer != nullptr) == (one->listed || used));
      REQUIRE((one->listed || !one->modified));
      REQUIRE((cache.find(one->id) == one) == one->listed);
      if (one->buffer != nullptr) resident += one->bytes;
      if (one->pins != 0) pinned += one->bytes;
      if (one->modified) modified += one->bytes;
      if (one->listed) ++listed;
    }
    REQUIRE(cache.sum().resident == resident);
    REQUIRE(cache.sum().pinned == pinned);
    REQUIRE(cache.sum().modified == modified);
    REQUIRE(stats(cache).replicas == listed);
    std::erase_if(all, [](const auto& one) { return one->buffer == nullptr; });
  }
  CHECK(stats(cache).evicted > 100);
}
