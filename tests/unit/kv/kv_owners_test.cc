// SPDX-License-Identifier: Apache-2.0
// KV spaces: holders that die, leave, stop or want room; and hostile bytes.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "core/base/prng.h"
#include "core/layout/kv_space.h"
#include "core/layout/tensor_space.h"
#include "tests/unit/kv/kv_fixture.h"

namespace terrace {
namespace {

int there(KvSpace& space, const KvNamespace& name_space, const char* prefix, int count) {
  int found = 0;
  for (int index = 0; index < count; ++index) {
    const int one = kv_check(space, name_space, prefix + std::to_string(index));
    CHECK(one != -1);
    found += one;
  }
  return found;
}

TEST_CASE("the blocks of the dead stay, are found, and make room when it is needed") {
  KvFixture scene;
  auto victim = scene.attach();
  for (int index = 0; index < 3000; ++index)
    REQUIRE(kv_put(*victim, scene.name_space, "dead " + std::to_string(index)).ok());
  auto half = victim->begin_put(scene.name_space, "half", 4096, {});
  REQUIRE(half.ok());
  KvFixture::kept_for_ever().push_back(std::make_shared<KvWrite>(std::move(*half)));  // it never ends
  const int before = there(*victim, scene.name_space, "dead ", 3000);
  CHECK(before > 500);
  scene.die(std::move(victim));

  const auto heir = scene.attach();
  CHECK(there(*heir, scene.name_space, "dead ", 3000) == before);
  CHECK(kv_check(*heir, scene.name_space, "half") == 0);
  // Its first put takes the dead one's part over; all it has is still there but what made room.
  REQUIRE(kv_put(*heir, scene.name_space, "new").ok());
  CHECK(there(*heir, scene.name_space, "dead ", 3000) >= before - 8);
  for (int index = 0; index < 3000; ++index)
    REQUIRE(kv_put(*heir, scene.name_space, "heir " + std::to_string(index)).ok());
  CHECK(there(*heir, scene.name_space, "heir ", 3000) > before - 64);
}

TEST_CASE("room of a part that nobody owns is taken from it") {
  KvFixture scene;
  auto victim = scene.attach();
  const auto other = scene.attach();
  REQUIRE(kv_put(*other, scene.name_space, "own").ok());  // a part of its own
  for (int index = 0; index < 3000; ++index)
    REQUIRE(kv_put(*victim, scene.name_space, "dead " + std::to_string(index)).ok());
  SUBCASE("its owner died") {
    scene.die(std::move(victim));
  }
  SUBCASE("its owner left") {
    victim.reset();
  }
  for (int index = 0; index < 3000; ++index)
    REQUIRE(kv_put(*other, scene.name_space, "mine " + std::to_string(index)).ok());
  CHECK(other->counters().parts_adopted >= 1);
  CHECK(there(*other, scene.name_space, "mine ", 3000) > 700);
  CHECK(there(*other, scene.name_space, "dead ", 3000) < 200);
}

TEST_CASE("who has more than its share gives room to who asks") {
  KvFixture scene;
  const auto rich = scene.attach(true), poor = scene.attach();
  for (int index = 0; index < 3000; ++index)
    REQUIRE(kv_put(*rich, scene.name_space, "rich " + std::to_string(index)).ok());
  for (int index = 0; index < 600; ++index)
    REQUIRE(kv_put(*poor, scene.name_space, "poor " + std::to_string(index), 4096, {.wait_ns = 5'000'000'000})
                .ok());
  CHECK(rich->counters().chunks_given > 2);
  CHECK(there(*poor, scene.name_space, "poor ", 600) > 300);
  CHECK(there(*rich, scene.name_space, "rich ", 3000) > 200);
}

TEST_CASE("who puts all the time gives room, too") {
  KvFixture scene;
  const auto rich = scene.attach(true), poor = scene.attach(true);
  for (int index = 0; index < 2000; ++index)
    REQUIRE(kv_put(*rich, scene.name_space, "rich " + std::to_string(index)).ok());
  std::atomic<bool> ends = false;
  std::thread puts([&] {
    for (int index = 2000; !ends; ++index)
      (void)kv_put(*rich, scene.name_space, "rich " + std::to_string(index));
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  uint64_t share = 0;
  for (int index = 0; share < (1 << 20) && std::chrono::steady_clock::now() < deadline; ++index) {
    (void)kv_put(*poor, scene.name_space, "poor " + std::to_string(index), 4096, {.wait_ns = 1'000'000'000});
    if (poor->part()) share = poor->stat()->parts[*poor->part()].chunk_bytes;
  }
  ends = true;
  puts.join();
  CHECK(share >= (1 << 20));  // of some 3.5 MiB
  CHECK(rich->counters().chunks_given > 4);
}

TEST_CASE("who gave a chunk does not take it back before the asker can") {
  KvFixture scene;
  const auto rich = scene.attach(), poor = scene.attach();
  for (int index = 0; index < 2000; ++index)
    REQUIRE(kv_put(*rich, scene.name_space, "rich " + std::to_string(index)).ok());
  const auto chunks = [&] { return rich->stat()->parts[*rich->part()].chunk_bytes; };
  std::thread asks([&] {
    for (int index = 0; index < 40; ++index)
      (void)kv_put(*poor, scene.name_space, "poor " + std::to_string(index), 60'000, {.wait_ns = 500'000'000});
  });
  int given = 0;
  for (int times = 0; times < 400 && given < 5; ++times) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const uint64_t before = chunks(), had = rich->counters().chunks_given;
    rich->tend();
    if (rich->counters().chunks_given == had) continue;
    for (int index = 0; index < 40; ++index)
      (void)kv_put(*rich, scene.name_space, "more " + std::to_string(given * 40 + index));
    CHECK(chunks() < before);
    ++given;
  }
  asks.join();
  CHECK(given == 5);
}

TEST_CASE("threads that put and erase leave no block that cannot be evicted") {
  KvFixture scene;
  const auto space = scene.attach(true);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (int index = 0; index < 4000; ++index) {
        const std::string key = std::to_string(index % 50 * 4 + thread);
        (void)kv_put(*space, scene.name_space, key);
        (void)space->erase(scene.name_space, std::to_string((index * 7) % 200), 0);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int index = 0; index < 20000; ++index)
    REQUIRE(kv_put(*space, scene.name_space, "later " + std::to_string(index)).ok());
  int left = 0;
  for (int index = 0; index < 200; ++index)
    left += kv_check(*space, scene.name_space, std::to_string(index)) == 1 ? 1 : 0;
  CHECK(left == 0);  // 80 MiB came after them
}

TEST_CASE("who stopped gives nothing, and holds up nobody for long") {
  KvFixture scene;
  const auto stopped = scene.attach(), poor = scene.attach();
  for (int index = 0; index < 3000; ++index)
    REQUIRE(kv_put(*stopped, scene.name_space, "rich " + std::to_string(index)).ok());
  const auto begin = std::chrono::steady_clock::now();
  for (int index = 0; index < 100; ++index)
    CHECK(kv_put(*poor, scene.name_space, "poor " + std::to_string(index), 4096, {.wait_ns = 50'000'000})
              .error()
              .code == ErrorCode::capacity_exhausted);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  CHECK(poor->counters().puts_refused == 100);
}

TEST_CASE("a child of a fork does nothing to its parent's space") {
  KvFixture scene;
  auto parent = scene.attach(true);
  REQUIRE(kv_put(*parent, scene.name_space, "k").ok());
  // The parent's thread waits by now, which a child's destructors must not wait for.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = kv_put(*parent, scene.name_space, "x").error().code == ErrorCode::unavailable &&
                         parent->view(scene.name_space, "k").error().code == ErrorCode::unavailable &&
                         parent->erase(scene.name_space, "k").error().code == ErrorCode::unavailable &&
                         kv_check(*parent, scene.name_space, "k") == 1;
    ::alarm(20);
    parent.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(kv_check(*parent, scene.name_space, "k") == 1);
  CHECK(parent->stat()->parts[*parent->part()].state == "owned");
}

TEST_CASE("whatever a hostile holder leaves, nobody leaves the space or gets a wrong block") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    KvFixture scene;
    auto hostile = scene.attach();
    const auto honest = scene.attach();
    for (int index = 0; index < 100; ++index) {
      REQUIRE(kv_put(*hostile, scene.name_space, "bad " + std::to_string(index), 100 + index * 40).ok());
      REQUIRE(kv_put(*honest, scene.name_space, "good " + std::to_string(index)).ok());
    }
    const uint32_t part = *hostile->part();
    layout::SpaceHeader header;
    std::memcpy(&header, scene.memory.span().data(), sizeof header);
    std::byte* const begin = scene.memory.span().data() + header.parts_offset + part * header.part_bytes;
    Prng prng(seed);
    // Records with one bit, one word or one line of another; and their checksums as they were.
    for (int times = 0; times < 400; ++times) {
      const uint64_t at = prng.below(header.part_bytes - 128) & ~uint64_t{7};
      if (at < 64) continue;
      uint64_t word = 0;
      std::memcpy(&word, begin + at, sizeof word);
      if (prng.below(3) == 0)
        std::memcpy(begin + (at & ~uint64_t{63}), begin + (prng.below(header.part_bytes - 64) & ~uint64_t{63}),
                    64);
      else if (prng.below(2) == 0)
        word ^= uint64_t{1} << prng.below(64);
      else
        word = prng.next();
      std::memcpy(begin + at, &word, sizeof word);
    }
    CHECK(honest->stat().ok());
    CHECK(honest->verify().ok());
    CHECK(honest->list([](const KvBlockInfo&) { return true; }).ok());
    for (int index = 0; index < 100; ++index) {
      CHECK(kv_check(*honest, scene.name_space, "good " + std::to_string(index)) == 1);
      std::vector<std::byte> into(8192);
      (void)honest->get(scene.name_space, {.key = "bad " + std::to_string(index), .into = into});
    }
    scene.die(std::move(hostile));
    const auto heir = scene.attach();
    for (int index = 0; index < 1500; ++index)
      (void)kv_put(*heir, scene.name_space, "heir " + std::to_string(index));
    CHECK(there(*honest, scene.name_space, "heir ", 1500) > 0);
    there(*honest, scene.name_space, "good ", 100);
  }
}

TEST_CASE("threads of several holders, under pressure, get right blocks only") {
  KvFixture scene(KvFixture::small(), 2 << 20);
  std::vector<std::unique_ptr<KvSpace>> spaces;
  for (int index = 0; index < 3; ++index) spaces.push_back(scene.attach(true));
  std::atomic<int> wrong = 0, right = 0;
  std::vector<std::thread> threads;
  for (uint64_t index = 0; index < 6; ++index)
    threads.emplace_back([&, index] {
      Prng prng(index);
      KvSpace& space = *spaces[index % spaces.size()];
      for (int times = 0; times < 3000; ++times) {
        const uint64_t number = prng.below(900);
        const std::string key = "k" + std::to_string(number);
        const size_t bytes = 512 + number * 5;
        const uint64_t what = prng.below(16);
        if (what < 6) {
          (void)kv_put(space, scene.name_space, key, bytes, {.wait_ns = 1'000'000});
        } else if (what < 12) {
          const int one = kv_check(space, scene.name_space, key, bytes);
          (one == -1 ? wrong : right) += one == 0 ? 0 : 1;
        } else if (what < 15) {
          const auto view = space.view(scene.name_space, key);
          if (!view.ok()) continue;
          const auto expected = kv_bytes(key, bytes);
          const bool same =
              std::equal(view->bytes().begin(), view->bytes().end(), expected.begin(), expected.end());
          (same ? right : wrong) += 1;
        } else {
          (void)space.erase(scene.name_space, key, 100'000);
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(right > 500);
}

TEST_CASE("a batch waits for others' room once, not once a block") {
  constexpr uint64_t wait_ns = 1'000'000'000;
  constexpr int gifts = 6;
  // Blocks of a chunk each: every one needs another gift.
  KvFixture scene({.parts = 2, .seats = 2, .block_bytes = 64 << 10, .max_block_bytes = 64 << 10, .pins = 16});
  const auto has_all = scene.attach(), wants = scene.attach();
  const uint64_t bytes = 64 << 10;
  for (int index = 0; has_all->counters().evicted == 0; ++index)
    REQUIRE(kv_put(*has_all, scene.name_space, "old " + std::to_string(index), bytes).ok());
  std::atomic<bool> ended = false;
  std::thread gives([&] {
    while (!ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      has_all->tend();
    }
  });
  CHECK(kv_put(*wants, scene.name_space, "first", bytes, {.wait_ns = 60 * wait_ns}).ok());  // gifts come
  const uint64_t before = has_all->counters().chunks_given;
  std::vector<std::string> keys;
  std::vector<KvPut> puts;
  const std::vector<std::byte> made = kv_bytes("new", bytes);
  for (int index = 0; index < gifts; ++index) keys.push_back("new " + std::to_string(index));
  for (const std::string& key : keys)
    puts.push_back({.key = key, .bytes = made, .options = {.wait_ns = wait_ns}});
  (void)wants->put_many(scene.name_space, puts);
  const uint64_t given = has_all->counters().chunks_given - before;
  ended = true;
  gives.join();
  CHECK(before >= 1);
  CHECK(given < gifts);  // one each 700 ms at most, and a second in all
}

}  // namespace
}  // namespace terrace
