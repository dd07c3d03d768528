// SPDX-License-Identifier: Apache-2.0
// Which blocks have local copies: room, budgets, what is worth one.
#include "core/base/prng.h"
#include "tests/unit/kv_local/local_fixture.h"

namespace terrace {
namespace {

constexpr size_t block = 16 << 10;

void fill(LocalFixture& scene, KvSpace& space, int from, int to) {
  for (int index = from; index < to; ++index)
    REQUIRE(kv_put(space, scene.names, "k" + std::to_string(index), block).ok());
}

TEST_CASE("copies keep to their room, and what is read more stays") {
  LocalFixture scene(SpaceCoherence::coherent, 16 << 20);
  const auto space = scene.attach(LocalFixture::open());
  fill(scene, *space, 0, 400);
  Prng prng(3);
  for (int times = 0; times < 8'000; ++times) {
    const uint64_t number = times % 4 == 0 ? prng.below(400) : prng.below(20);
    CHECK(kv_check(*space, scene.names, "k" + std::to_string(number), block) == 1);
  }
  const KvStat stat = *space->stat();
  CHECK(stat.local_bytes <= 1 << 20);
  CHECK(stat.local_blocks >= 40);  // of 62
  const KvCounters counted = space->counters();
  CHECK(counted.local_evicted > 20);
  CHECK(counted.local_hits > 4'500);  // of 6,000 uses of the few
  CHECK(counted.local_stale == 0);
}

TEST_CASE("where copies are of no use few are made") {
  LocalFixture scene(SpaceCoherence::coherent, 16 << 20);
  const auto space = scene.attach(LocalFixture::open());
  fill(scene, *space, 0, 600);
  for (int round = 0; round < 16; ++round)
    for (int index = 0; index < 600; ++index)
      CHECK(kv_check(*space, scene.names, "k" + std::to_string(index), block) == 1);
  const uint64_t copied = space->counters().local_copied;
  CHECK(copied > 62);
  CHECK(copied < 4'800);  // of 9,600 reads
  // The same copies are of use again once the same blocks are asked for.
  for (int round = 0; round < 200; ++round)
    for (int index = 0; index < 20; ++index)
      CHECK(kv_check(*space, scene.names, "k" + std::to_string(index), block) == 1);
  int local = 0;
  for (int index = 0; index < 20; ++index)
    local += scene.is_local(*space, "k" + std::to_string(index), block) ? 1 : 0;
  CHECK(local >= 10);
}

TEST_CASE("budgets bound the copies of namespaces") {
  LocalFixture scene(SpaceCoherence::coherent, 16 << 20);
  const auto space = scene.attach(LocalFixture::open(
      {.bytes = 1 << 20, .budgets = {{"team-a", 10 * (block + 64)}, {"team-b/large", 100}}}));
  const KvNamespace a = *KvNamespace::of("team-a/llama"), b = *KvNamespace::of("team-b/large"),
                    c = *KvNamespace::of("team-c");
  for (const KvNamespace& names : {a, b, c})
    for (int index = 0; index < 30; ++index) {
      const std::string key = "k" + std::to_string(index);
      REQUIRE(kv_put(*space, names, key, block).ok());
      for (int time = 0; time < 2; ++time) CHECK(kv_check(*space, names, key, block) == 1);
    }
  const auto local_of = [&](const KvNamespace& names) {
    const uint64_t before = space->counters().local_hits;
    for (int index = 0; index < 30; ++index)
      CHECK(kv_check(*space, names, "k" + std::to_string(index), block) == 1);
    return space->counters().local_hits - before;
  };
  CHECK(local_of(c) == 30);
  CHECK(local_of(a) <= 10);
  CHECK(local_of(b) == 0);
  CHECK(local_of(c) == 30);
  CHECK(space->stat()->local_blocks <= 40);
}

TEST_CASE("a copy that is read in place stays, and makes no room") {
  LocalFixture scene(SpaceCoherence::coherent, 16 << 20);
  const auto space = scene.attach(LocalFixture::open());
  fill(scene, *space, 0, 200);
  std::vector<KvView> views;
  for (int index = 0; index < 200; ++index) {
    const std::string key = "k" + std::to_string(index);
    for (int time = 0; time < 2; ++time) CHECK(kv_check(*space, scene.names, key, block) == 1);
    if (!scene.is_local(*space, key, block)) continue;
    auto view = space->view(scene.names, key);
    REQUIRE(view.ok());
    views.push_back(std::move(*view));
  }
  CHECK(views.size() == 63);  // all the room there is, names with them
  CHECK(space->counters().local_evicted == 0);
  for (size_t index = 0; index < views.size(); ++index)
    CHECK(LocalFixture::has_bytes(views[index], "k" + std::to_string(index), block));
  views.clear();
  for (int time = 0; time < 2; ++time) CHECK(kv_check(*space, scene.names, "k199", block) == 1);
  CHECK(scene.is_local(*space, "k199", block));
}

TEST_CASE("blocks of other lengths find room among each other; too long ones get no copy") {
  LocalFixture scene(SpaceCoherence::coherent, 16 << 20);
  const auto space = scene.attach(LocalFixture::open({.bytes = 1 << 20, .max_block_bytes = 60 << 10}));
  const auto bytes_of = [](uint64_t number) { return size_t{1} << (6 + number % 10); };  // up to 32 KiB
  for (uint64_t number = 0; number < 300; ++number)
    REQUIRE(kv_put(*space, scene.names, "k" + std::to_string(number), bytes_of(number)).ok());
  REQUIRE(kv_put(*space, scene.names, "long", 64 << 10).ok());
  REQUIRE(kv_put(*space, scene.names, "empty", 0).ok());
  Prng prng(5);
  for (int times = 0; times < 5'000; ++times) {
    const uint64_t number = prng.below(300);
    CHECK(kv_check(*space, scene.names, "k" + std::to_string(number), bytes_of(number)) == 1);
    if (times % 100 == 0) CHECK_FALSE(scene.is_local(*space, "long", 64 << 10));
  }
  scene.warm(*space, "empty", 0);
  CHECK(scene.is_local(*space, "empty", 0));
  CHECK(space->counters().local_hits > 1000);
  CHECK(space->counters().local_evicted > 100);
  CHECK(space->stat()->local_bytes <= 1 << 20);
}

}  // namespace
}  // namespace terrace
