// SPDX-License-Identifier: Apache-2.0
// A spill folder as one process sees it.
#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/unit/kv_spill/spill_fixture.h"

namespace terrace {
namespace {

TEST_CASE("what is put is found, before it is written and after, also by the next process") {
  SpillFolderFixture scene;
  auto spill = scene.open();
  const std::array<size_t, 6> lengths = {0, 1, 63, 4096, 4097, 65536};
  for (const size_t bytes : lengths) {
    const std::string key = "block " + std::to_string(bytes);
    CHECK(spill_check(*spill, scene.name_space, key, bytes) == 0);
    REQUIRE(spill_put(*spill, scene.name_space, key, bytes).ok());
    CHECK(spill_check(*spill, scene.name_space, key, bytes) == 1);
  }
  REQUIRE(spill->drain().ok());
  CHECK(spill->counters().written == lengths.size());
  for (int again = 0; again < 2; ++again) {
    for (const size_t bytes : lengths) {
      const std::string key = "block " + std::to_string(bytes);
      CHECK(spill_check(*spill, scene.name_space, key, bytes) == 1);
      CHECK(*spill->length(scene.name_space, key) == bytes);
      CHECK(spill_check(*spill, *KvNamespace::of("other"), key, bytes) == 0);
    }
    CHECK(spill->stat()->blocks == lengths.size());
    CHECK(spill->stat()->slot == 0);
    spill.reset();
    spill = scene.open({});  // what the folder has
  }
  CHECK(spill->stat()->budget_bytes == 4 << 20);
  REQUIRE(spill_put(*spill, scene.name_space, "block 1", 1).ok());
  CHECK(spill->counters().there_already == 1);
  std::vector<std::byte> into(10);
  const auto refused = spill->get(scene.name_space, {.key = "block 63", .into = into});
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(refused.error().detail.find("63 bytes") != std::string::npos);
}

TEST_CASE("both ways to the disk and both ways to ask for it give the same blocks") {
  for (const bool direct : {true, false})
    for (const bool io_uring : {true, false}) {
      SpillFolderFixture scene;
      KvSpillOptions options = SpillFolderFixture::small();
      options.direct = direct;
      options.io_uring = io_uring;
      const auto spill = scene.open(options);
      for (int block = 0; block < 40; ++block)
        REQUIRE(spill_put(*spill, scene.name_space, std::to_string(block), 10'000).ok());
      REQUIRE(spill->drain().ok());
      for (int block = 0; block < 40; ++block)
        CHECK(spill_check(*spill, scene.name_space, std::to_string(block), 10'000) == 1);
      const auto stat = spill->stat();
      REQUIRE(stat.ok());
      CHECK(stat->direct == stat->direct_reason.empty());
      CHECK(stat->io_uring == stat->io_uring_reason.empty());
      if (!direct) CHECK(!stat->direct);
      if (!io_uring) CHECK(!stat->io_uring);
    }
}

TEST_CASE("a block that expires is not found from then on") {
  SpillFolderFixture scene;
  const auto spill = scene.open();
  const auto now = static_cast<uint64_t>(std::time(nullptr));
  REQUIRE(spill_put(*spill, scene.name_space, "soon", 4096, now + 2).ok());
  REQUIRE(spill_put(*spill, scene.name_space, "later", 4096, now + 3600).ok());
  REQUIRE(spill_put(*spill, scene.name_space, "gone", 4096, now - 1).ok());
  REQUIRE(spill->drain().ok());
  CHECK(spill_check(*spill, scene.name_space, "gone") == 0);
  CHECK(test::eventually([&] { return spill_check(*spill, scene.name_space, "soon") == 0; }));
  CHECK(static_cast<uint64_t>(std::time(nullptr)) >= now + 2);
  CHECK(spill_check(*spill, scene.name_space, "later") == 1);
  CHECK(spill->stat()->blocks == 1);
  // Its key is free.
  REQUIRE(spill_put(*spill, scene.name_space, "soon", 4096).ok());
  REQUIRE(spill->drain().ok());
  CHECK(spill_check(*spill, scene.name_space, "soon") == 1);
}

TEST_CASE("erase and flush take blocks away, also those that are queued and read ahead") {
  SpillFolderFixture scene;
  const auto spill = scene.open();
  const auto other = *KvNamespace::of("other");
  for (int block = 0; block < 20; ++block) {
    REQUIRE(spill_put(*spill, scene.name_space, std::to_string(block)).ok());
    REQUIRE(spill_put(*spill, other, std::to_string(block)).ok());
  }
  CHECK(spill->erase(scene.name_space, "3").ok());  // written or not
  CHECK(spill_check(*spill, scene.name_space, "3") == 0);
  REQUIRE(spill->drain().ok());
  CHECK(spill_check(*spill, scene.name_space, "3") == 0);
  CHECK(spill->erase(scene.name_space, "3").error().code == ErrorCode::not_found);
  CHECK(spill_check(*spill, other, "3") == 1);
  const std::array<std::string_view, 2> ahead = {"4", "5"};
  CHECK(*spill->prefetch(scene.name_space, ahead) == 2);
  CHECK(spill->erase(scene.name_space, "4").ok());
  CHECK(spill_check(*spill, scene.name_space, "4") == 0);
  CHECK(spill_check(*spill, scene.name_space, "5") == 1);
  CHECK(spill->counters().prefetch_hits == 1);
  REQUIRE(spill->flush(scene.name_space).ok());
  for (int block = 0; block < 20; ++block) {
    CHECK(spill_check(*spill, scene.name_space, std::to_string(block)) == 0);
    CHECK(spill_check(*spill, other, std::to_string(block)) == 1);
  }
  for (int block = 20; block < 40; ++block) REQUIRE(spill_put(*spill, other, std::to_string(block)).ok());
  CHECK(*spill->flush(std::nullopt) == 40);
  REQUIRE(spill->drain().ok());
  for (int block = 0; block < 40; ++block) CHECK(spill_check(*spill, other, std::to_string(block)) == 0);
  CHECK(spill->stat()->blocks == 0);
}

TEST_CASE("exists says by the index what is there") {
  SpillFolderFixture scene;
  const auto spill = scene.open();
  std::vector<std::string> names;
  for (int block = 0; block < 200; ++block) names.push_back("key " + std::to_string(block));
  for (size_t block = 0; block < names.size(); block += 3)
    REQUIRE(spill_put(*spill, scene.name_space, names[block]).ok());
  REQUIRE(spill->drain().ok());
  const std::vector<std::string_view> keys(names.begin(), names.end());
  bool found[200];
  REQUIRE(spill->exists(scene.name_space, keys, found).ok());
  for (size_t block = 0; block < names.size(); ++block) CHECK(found[block] == (block % 3 == 0));
  CHECK(spill->exists(scene.name_space, keys, std::span(found, 3)).error().code == ErrorCode::invalid_argument);
  const std::array<std::string_view, 1> empty = {""};
  CHECK(spill->exists(scene.name_space, empty, std::span(found, 1)).error().code ==
        ErrorCode::invalid_argument);
}

TEST_CASE("a chain that is read ahead hits, within its bound of memory") {
  SpillFolderFixture scene;
  KvSpillOptions options = SpillFolderFixture::small();
  options.prefetch_bytes = 10 * (16 << 10);
  const auto spill = scene.open(options);
  std::vector<std::string> names;
  for (int block = 0; block < 30; ++block) names.push_back("chain " + std::to_string(block));
  for (const std::string& name : names) REQUIRE(spill_put(*spill, scene.name_space, name, 12'000).ok());
  REQUIRE(spill->drain().ok());
  const std::vector<std::string_view> keys(names.begin(), names.end());
  CHECK(*spill->prefetch(scene.name_space, keys) == 13);  // of 12 KiB
  for (const std::string& name : names) CHECK(spill_check(*spill, scene.name_space, name, 12'000) == 1);
  CHECK(spill->counters().prefetch_hits == 13);
  CHECK(spill->counters().hits == 30);
  // What nobody asked for makes room.
  for (int part = 0; part < 3; ++part) {
    const auto some = std::span(keys).subspan(part * 10, 10);
    CHECK(test::eventually([&] { return *spill->prefetch(scene.name_space, some) == 10; }));
  }
}

TEST_CASE("the budget holds, the oldest blocks go, and those that were read stay") {
  SpillFolderFixture scene;
  const auto spill = scene.open();
  REQUIRE(spill_put(*spill, scene.name_space, "loved", 4096).ok());
  REQUIRE(spill->drain().ok());
  for (int block = 0; block < 2000; ++block) {
    if (block % 100 == 0) {
      REQUIRE(spill->drain().ok());
      CHECK(spill_check(*spill, scene.name_space, "loved") == 1);
    }
    const Status put = spill_put(*spill, scene.name_space, "passing " + std::to_string(block), 10'000);
    REQUIRE_MESSAGE(put.ok(), put.error().to_string());
    if (block % 50 == 0) REQUIRE(spill->drain().ok());
  }
  REQUIRE(spill->drain().ok());
  CHECK(spill_check(*spill, scene.name_space, "loved") == 1);
  CHECK(spill_check(*spill, scene.name_space, "passing 0", 10'000) == 0);
  CHECK(spill_check(*spill, scene.name_space, "passing 1999", 10'000) == 1);
  const auto counters = spill->counters();
  CHECK(counters.segments_reused > 50);
  CHECK(counters.kept > 0);
  CHECK(counters.dropped == 0);
  CHECK(counters.wrong == 0);
  const auto stat = spill->stat();
  REQUIRE(stat.ok());
  CHECK(stat->block_bytes <= 4 << 20);
  CHECK(stat->block_bytes > 2 << 20);
  CHECK(std::filesystem::file_size(scene.file("kv-spill.data")) <= 4 << 20);
}

TEST_CASE("a queue that is full drops, and what is too long is refused") {
  SpillFolderFixture scene;
  KvSpillOptions options = SpillFolderFixture::small();
  options.queue_bytes = 128 << 10;
  const auto spill = scene.open(options);
  uint64_t refused = 0;
  for (int block = 0; block < 1000; ++block) {
    const Status put = spill_put(*spill, scene.name_space, std::to_string(block), 60'000);
    if (put.ok()) continue;
    CHECK(put.error().code == ErrorCode::busy);
    ++refused;
  }
  CHECK(spill->counters().dropped == refused);
  CHECK(refused > 0);
  CHECK(spill_put(*spill, scene.name_space, "long", (64 << 10) + 1).error().code == ErrorCode::limit_exceeded);
  REQUIRE(spill->drain().ok());
  CHECK(spill_put(*spill, scene.name_space, "after").ok());
}

TEST_CASE("after its end, and in a forked child, it answers that it is not there") {
  SpillFolderFixture scene;
  const auto spill = scene.open();
  REQUIRE(spill_put(*spill, scene.name_space, "k").ok());
#if !defined(__SANITIZE_THREAD__)
  SpillChild child([&] {
    std::vector<std::byte> into(4096);
    const auto got = spill->get(scene.name_space, {.key = "k", .into = into});
    return !got.ok() && got.error().code == ErrorCode::unavailable && !spill->drain().ok() &&
                   !spill_put(*spill, scene.name_space, "of the child").ok()
               ? 0
               : 1;
  });
  CHECK(child.wait() == 0);
#endif
  CHECK(spill_check(*spill, scene.name_space, "k") == 1);
  spill->close();
  spill->close();
  CHECK(spill_put(*spill, scene.name_space, "k").error().code == ErrorCode::unavailable);
  CHECK(spill->stat().error().code == ErrorCode::unavailable);
  CHECK(spill_check(*scene.open(), scene.name_space, "k") == 1);  // close() has written it
}

TEST_CASE("many threads put, get, erase and read ahead at once") {
  SpillFolderFixture scene;
  const auto spill = scene.open();
  std::atomic<int> wrong = 0, right = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      uint64_t state = thread + 1;
      for (int step = 0; step < 800; ++step) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const std::string key = "key " + std::to_string((state >> 33) % 400);
        const size_t bytes = spill_length(key, 20'000);
        const std::array<std::string_view, 1> keys = {key};
        switch ((state >> 20) % 8) {
          case 0: (void)spill->erase(scene.name_space, key); break;
          case 1: (void)spill->prefetch(scene.name_space, keys); break;
          case 2:
          case 3:
          case 4: (void)spill_put(*spill, scene.name_space, key, bytes); break;
          default: {
            const int check = spill_check(*spill, scene.name_space, key, bytes);
            wrong += check < 0 ? 1 : 0;
            right += check > 0 ? 1 : 0;
          }
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(right > 0);
  CHECK(spill->counters().wrong == 0);
}

}  // namespace
}  // namespace terrace
