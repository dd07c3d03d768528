// SPDX-License-Identifier: Apache-2.0
// A KV space above a spill folder.
#include <ctime>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/unit/kv/kv_fixture.h"
#include "tests/unit/kv_spill/spill_fixture.h"

namespace terrace {
namespace {

struct SpilledSpace {
  explicit SpilledSpace(SpaceCoherence coherence = SpaceCoherence::coherent)
      : space_scene(options(coherence), 2 << 20) {}
  static KvFormatOptions options(SpaceCoherence coherence) {
    KvFormatOptions made = KvFixture::small();
    made.coherence = coherence;
    return made;
  }
  static KvSpillOptions spill_options() {
    return {.bytes = 16 << 20, .block_bytes = 4096, .max_block_bytes = 64 << 10};
  }
  std::unique_ptr<KvSpace> attach(std::shared_ptr<KvSpill> spill) {
    auto space = KvSpace::attach(space_scene.memory.span(),
                                 {.ownership = std::make_shared<KvTestOwnership>(space_scene.book),
                                  .tends_itself = false,
                                  .spill = std::move(spill)});
    REQUIRE_MESSAGE(space.ok(), space.error().to_string());
    return std::move(*space);
  }
  // More than the space has room for; some of the first ones are in the folder alone.
  void fill(KvSpace& space, KvSpill& spill, int blocks = 600, KvPutOptions put = {}) {
    for (int block = 0; block < blocks; ++block) {
      REQUIRE(kv_put(space, names, key(block), 8000, put).ok());
      if (block % 50 == 0) REQUIRE(spill.drain().ok());
    }
    REQUIRE(spill.drain().ok());
  }
  static std::string key(int block) { return "block " + std::to_string(block); }

  KvFixture space_scene;
  SpillFolderFixture folder;
  KvNamespace names = *KvNamespace::of("test");
};

TEST_CASE("what a space evicts is found in its spill, and comes back when it is asked for again") {
  for (const SpaceCoherence coherence : {SpaceCoherence::coherent, SpaceCoherence::noncoherent}) {
    SpilledSpace scene(coherence);
    const auto spill = scene.folder.open(SpilledSpace::spill_options());
    const auto space = scene.attach(spill);
    const auto bare = scene.space_scene.attach(false, false);
    scene.fill(*space, *spill);
    CHECK(space->counters().spilled > 300);
    CHECK(space->counters().spill_dropped == 0);
    std::vector<std::string> names;
    for (int block = 0; block < 601; ++block) names.push_back(SpilledSpace::key(block));
    const std::vector<std::string_view> keys(names.begin(), names.end());
    CHECK(*space->prefix(scene.names, keys) == 600);
    CHECK(*bare->prefix(scene.names, keys) == 0);
    CHECK(*space->length(scene.names, names[0]) == 8000);
    for (int time = 0; time < 3; ++time) {
      CHECK(kv_check(*space, scene.names, names[0], 8000) == 1);
      CHECK(kv_check(*bare, scene.names, names[0], 8000) == (time == 0 ? 0 : 1));
    }
    CHECK(space->counters().spill_hits == 2);
    CHECK(kv_put(*space, scene.names, names[2], 8000).error().code ==
          ErrorCode::already_exists);  // in the folder
    const auto view = space->view(scene.names, names[1]);
    REQUIRE(view.ok());
    const auto expected = kv_bytes(names[1], 8000);
    CHECK(std::equal(view->bytes().begin(), view->bytes().end(), expected.begin(), expected.end()));
    CHECK(kv_check(*bare, scene.names, names[1], 8000) == 1);
    CHECK(space->view(scene.names, "never put").error().code == ErrorCode::not_found);
    CHECK(kv_check(*space, scene.names, "never put", 8000) == 0);
    // What comes back and goes again is not written a second time.
    const uint64_t written = spill->counters().written;
    for (int block = 0; block < 600; ++block) CHECK(kv_check(*space, scene.names, names[block], 8000) == 1);
    for (int block = 0; block < 600; ++block) CHECK(space->view(scene.names, names[block]).ok());
    REQUIRE(spill->drain().ok());
    CHECK(spill->counters().written <= 600);
    CHECK(spill->counters().written >= written);
    // Many at once are read ahead.
    std::vector<std::vector<std::byte>> buffers(20, std::vector<std::byte>(8000));
    std::vector<KvGet> gets;
    for (int block = 0; block < 20; ++block) gets.push_back({.key = names[block], .into = buffers[block]});
    for (const auto& got : space->get_many(scene.names, gets)) CHECK(got.ok());
    CHECK(spill->counters().prefetch_hits > 10);
    for (int block = 0; block < 20; ++block) CHECK(buffers[block] == kv_bytes(names[block], 8000));
  }
}

TEST_CASE("times, parents and lengths of blocks are the same after they were in a spill") {
  SpilledSpace scene;
  const auto spill = scene.folder.open(SpilledSpace::spill_options());
  const auto space = scene.attach(spill);
  const uint64_t before = static_cast<uint64_t>(std::time(nullptr));
  REQUIRE(kv_put(*space, scene.names, "lasting", 5000, {.parent = "before it", .ttl_s = 3600}).ok());
  REQUIRE(kv_put(*space, scene.names, "short", 5000, {.ttl_s = 4}).ok());
  scene.fill(*space, *spill);
  REQUIRE(spill->length(scene.names, "lasting").ok());
  REQUIRE(space->view(scene.names, "lasting").ok());
  bool seen = false;
  REQUIRE(space
              ->list([&](const KvBlockInfo& info) {
                if (info.key != "lasting") return true;
                seen = true;
                CHECK(info.bytes == 5000);
                CHECK(info.has_parent);
                CHECK(info.expires_unix_s >= before + 3600);
                CHECK(info.expires_unix_s <= before + 3660);
                return true;
              })
              .ok());
  CHECK(seen);
  CHECK(test::eventually([&] { return kv_check(*space, scene.names, "short", 5000) == 0; }));
  CHECK(space->view(scene.names, "short").error().code == ErrorCode::not_found);
}

TEST_CASE("erase and flush reach the spill; what they, an evict or its time took away is not spilled") {
  SpilledSpace scene;
  const auto spill = scene.folder.open(SpilledSpace::spill_options());
  const auto space = scene.attach(spill);
  scene.fill(*space, *spill);
  CHECK(space->erase(scene.names, SpilledSpace::key(0)).ok());  // in the folder alone
  CHECK(space->erase(scene.names, SpilledSpace::key(0)).error().code == ErrorCode::not_found);
  REQUIRE(space->view(scene.names, SpilledSpace::key(1)).ok());  // in both
  CHECK(space->erase(scene.names, SpilledSpace::key(1)).ok());
  CHECK(space->erase(scene.names, SpilledSpace::key(599)).ok());  // in the space alone
  for (const int block : {0, 1, 599}) CHECK(kv_check(*space, scene.names, SpilledSpace::key(block), 8000) == 0);
  const uint64_t spilled = space->counters().spilled;
  REQUIRE(space->evict(100'000).ok());
  CHECK(space->counters().spilled == spilled);
  CHECK(*space->flush(scene.names) >= 500);
  for (int block = 0; block < 600; ++block)
    CHECK(kv_check(*space, scene.names, SpilledSpace::key(block), 8000) == 0);
  REQUIRE(spill->drain().ok());
  CHECK(spill->stat()->blocks == 0);
  CHECK(space->counters().spilled == spilled);
}

TEST_CASE("a space goes on without its spill once that is closed or was cut off") {
  SpilledSpace scene;
  const auto spill = scene.folder.open(SpilledSpace::spill_options());
  const auto space = scene.attach(spill);
  scene.fill(*space, *spill);
  spill->close();
  for (int block = 600; block < 900; ++block)
    REQUIRE(kv_put(*space, scene.names, SpilledSpace::key(block), 8000).ok());
  CHECK(kv_check(*space, scene.names, SpilledSpace::key(0), 8000) == 0);
  CHECK(kv_check(*space, scene.names, SpilledSpace::key(899), 8000) == 1);
  CHECK(space->view(scene.names, SpilledSpace::key(0)).error().code == ErrorCode::not_found);
  CHECK(space->erase(scene.names, SpilledSpace::key(899)).ok());
  CHECK(space->flush(std::nullopt).ok());
}

TEST_CASE("threads that put, get and erase under pressure never find what was erased, nor other bytes") {
  SpilledSpace scene;
  const auto spill = scene.folder.open(SpilledSpace::spill_options());
  const auto one = scene.attach(spill), other = scene.attach(spill);
  std::atomic<int> wrong = 0, risen = 0, hits = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      KvSpace& mine = thread % 2 == 0 ? *one : *other;
      uint64_t state = thread + 1;
      const auto next = [&](uint64_t most) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (state >> 33) % most;
      };
      for (int step = 0; step < 1200; ++step) {
        const std::string shared = SpilledSpace::key(static_cast<int>(next(500)));
        (void)kv_put(mine, scene.names, shared, 8000, {.wait_ns = 0});
        const std::string asked = SpilledSpace::key(static_cast<int>(next(500)));
        const int check = kv_check(next(2) == 0 ? *one : *other, scene.names, asked, 8000);
        wrong += check < 0 ? 1 : 0;
        hits += check > 0 ? 1 : 0;
        if (step % 20 != 0) continue;
        // A key that only this thread puts and erases, while all threads read it.
        const std::string own = "of " + std::to_string(thread) + "/" + std::to_string(step);
        if (!kv_put(mine, scene.names, own, 8000, {.wait_ns = 0}).ok()) continue;
        for (int filler = 0; filler < static_cast<int>(next(40)); ++filler)
          (void)kv_put(mine, scene.names, own + "/" + std::to_string(filler), 8000, {.wait_ns = 0});
        for (int time = 0; time < 3; ++time) (void)kv_check(*one, scene.names, own, 8000);
        const Status erased = mine.erase(scene.names, own, 10'000'000'000);
        if (!erased.ok() && erased.error().code != ErrorCode::not_found) continue;
        for (KvSpace* const space : {one.get(), other.get()})
          risen += kv_check(*space, scene.names, own, 8000) != 0 ? 1 : 0;
      }
    });
  std::atomic<bool> ends = false;
  std::thread tender([&] {
    while (!ends) {
      one->tend();
      other->tend();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (std::thread& thread : threads) thread.join();
  ends = true;
  tender.join();
  CHECK(wrong == 0);
  CHECK(risen == 0);
  CHECK(hits > 100);
  CHECK(spill->counters().wrong == 0);
}

}  // namespace
}  // namespace terrace
