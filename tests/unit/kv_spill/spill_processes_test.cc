// SPDX-License-Identifier: Apache-2.0
// Several processes in one spill folder: what one puts all find, what the dead leave, who has how much.
#include <sys/wait.h>

#include <random>

#include "tests/support/eventually.h"
#include "tests/unit/kv_spill/spill_fixture.h"

namespace terrace {
namespace {

constexpr size_t longest = 20'000;

// Puts and gets of keys of a common range, until it is killed; returns 1 where a block is wrong.
int work(const SpillFolderFixture& scene, uint64_t seed, int steps, int tells = -1) {
  const auto opened = KvSpill::open(scene.folder, SpillFolderFixture::small());
  if (!opened.ok()) return 2;
  KvSpill& spill = **opened;
  std::mt19937_64 random(seed);
  int wrong = 0;
  for (int step = 0; steps == 0 || step < steps; ++step) {
    const std::string key = std::to_string(random() % 500);
    const size_t bytes = spill_length(key, longest);
    if (random() % 3 != 0)
      (void)spill_put(spill, scene.name_space, key, bytes);
    else
      wrong += spill_check(spill, scene.name_space, key, bytes) < 0 ? 1 : 0;
    if (random() % 200 == 0) (void)spill.erase(scene.name_space, key);
    if (step == 100 && tells >= 0 && ::write(tells, "x", 1) != 1) return 3;
  }
  return wrong != 0 || spill.counters().wrong != 0 ? 1 : 0;
}

int count_right(KvSpill& spill, const KvNamespace& name_space) {
  int right = 0;
  for (int block = 0; block < 500; ++block) {
    const std::string key = std::to_string(block);
    const int check = spill_check(spill, name_space, key, spill_length(key, longest));
    CHECK_MESSAGE(check >= 0, key);
    right += check > 0 ? 1 : 0;
  }
  return right;
}

TEST_CASE("a process that is killed at any moment leaves its blocks, whole, to the next one") {
  const char* const more = std::getenv("TERRACE_SPILL_KILLS");
  const int kills = more != nullptr ? std::atoi(more) : 25;
  std::mt19937_64 random(11);
  SpillFolderFixture scene;
  for (int round = 0; round < kills; ++round) {
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    {
      SpillChild child([&] { return work(scene, round + 1, 0, pipe[1]); });
      char told = 0;
      REQUIRE(::read(pipe[0], &told, 1) == 1);
      ::usleep(static_cast<useconds_t>(random() % 20'000));
      child.kill();
    }
    ::close(pipe[0]);
    ::close(pipe[1]);
    const auto spill = scene.open();
    CHECK(test::eventually([&] { return spill->stat()->slot.has_value(); }));
    CHECK(spill->stat()->slots == 1);  // adopted
    if (round != 0) CHECK(count_right(*spill, scene.name_space) > 0);
  }
}

TEST_CASE("two and eight processes at once, some of them killed, never read a wrong block") {
  for (const int processes : {2, 8}) {
    SpillFolderFixture scene;
    std::vector<std::unique_ptr<SpillChild>> children;
    for (int child = 0; child < processes; ++child)
      children.push_back(std::make_unique<SpillChild>([&, child] { return work(scene, child + 1, 1200); }));
    {
      SpillChild killed([&] { return work(scene, 99, 0); });
      ::usleep(200'000);
      killed.kill();
    }
    for (const auto& child : children) CHECK(child->wait() == 0);
    const auto spill = scene.open();
    CHECK(count_right(*spill, scene.name_space) > 50);
    const auto stat = spill->stat();
    REQUIRE(stat.ok());
    CHECK(stat->slots <= static_cast<uint32_t>(processes) + 1);
    CHECK(std::filesystem::file_size(scene.file("kv-spill.data")) <= 4 << 20);
  }
}

TEST_CASE("what a process puts another one finds, and its erase and flush reach it") {
  SpillFolderFixture scene;
  const auto one = scene.open(), other = scene.open();
  CHECK(one->stat()->slot != other->stat()->slot);
  for (int block = 0; block < 50; ++block)
    REQUIRE(spill_put(*one, scene.name_space, std::to_string(block)).ok());
  REQUIRE(one->drain().ok());
  for (int block = 0; block < 50; ++block)
    CHECK(spill_check(*other, scene.name_space, std::to_string(block)) == 1);
  REQUIRE(spill_put(*other, scene.name_space, "7").ok());
  CHECK(other->counters().there_already == 1);
  CHECK(other->erase(scene.name_space, "7").ok());
  CHECK(spill_check(*one, scene.name_space, "7") == 0);
  CHECK(*other->flush(scene.name_space) == 49);
  CHECK(spill_check(*one, scene.name_space, "8") == 0);
}

TEST_CASE("who comes late gets its share, from the dead and from those that have more") {
  SpillFolderFixture scene;
  const auto fill = [&](KvSpill& spill, const std::string& name, int blocks) {
    for (int block = 0; block < blocks; ++block) {
      (void)spill_put(spill, scene.name_space, name + std::to_string(block), 16'000);
      if (block % 20 == 0) (void)spill.drain();
    }
    REQUIRE(spill.drain().ok());
  };
  auto first = scene.open();
  fill(*first, "first ", 400);
  const uint64_t segments = first->stat()->segments;
  CHECK(first->stat()->slot_segments == segments);
  auto second = scene.open();
  int rounds = 0;
  CHECK(test::eventually([&] {
    fill(*second, "second " + std::to_string(rounds++) + " ", 20);
    return second->stat()->slot_segments >= segments / 2 - 1;
  }));
  CHECK(first->counters().segments_given >= segments / 2 - 1);
  CHECK(first->stat()->slot_segments <= segments / 2 + 1);
  CHECK(spill_check(*first, scene.name_space, "first 399", 16'000) == 1);
  // One that left: nobody asks for its blocks to stay.
  first.reset();
  CHECK(test::eventually([&] {
    fill(*second, "after " + std::to_string(rounds++) + " ", 100);
    return second->stat()->slot_segments == segments;
  }));
  CHECK(second->counters().segments_taken > 0);
}

TEST_CASE("without a free slot a process reads, and writes once one is free") {
  SpillFolderFixture scene;
  KvSpillOptions options = SpillFolderFixture::small();
  options.io_uring = false;
  options.queue_depth = 1;
  std::vector<std::shared_ptr<KvSpill>> all;
  for (int slot = 0; slot < 64; ++slot) all.push_back(scene.open(options));
  REQUIRE(spill_put(*all[0], scene.name_space, "k").ok());
  REQUIRE(all[0]->drain().ok());
  const auto late = scene.open(options);
  CHECK(!late->stat()->slot);
  CHECK(spill_check(*late, scene.name_space, "k") == 1);
  CHECK(spill_put(*late, scene.name_space, "mine").error().code == ErrorCode::busy);
  all[5].reset();
  CHECK(test::eventually([&] { return late->stat()->slot.has_value(); }));
  CHECK(spill_put(*late, scene.name_space, "mine").ok());
}

}  // namespace
}  // namespace terrace
