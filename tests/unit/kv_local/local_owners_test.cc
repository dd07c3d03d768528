// SPDX-License-Identifier: Apache-2.0
// Local copies while owners are told of uses, die and are replaced, while threads replace blocks, and in forked children.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "core/base/prng.h"
#include "tests/support/eventually.h"
#include "tests/unit/kv_local/local_fixture.h"

namespace terrace {
namespace {

TEST_CASE("a block that is read from its copy alone is not what its owner evicts") {
  LocalFixture scene;
  const auto owner = scene.attach(nullptr);
  const auto reader = scene.attach(LocalFixture::open(), false);
  REQUIRE(kv_put(*owner, scene.names, "hot").ok());
  scene.warm(*reader, "hot");
  for (int index = 0; index < 6000; ++index) {
    REQUIRE(kv_put(*owner, scene.names, "cold " + std::to_string(index)).ok());
    if (index % 50 != 0) continue;
    REQUIRE(scene.is_local(*reader, "hot"));
    owner->tend();
  }
  CHECK(owner->counters().evicted > 4000);
  CHECK(scene.is_local(*reader, "hot"));
}

TEST_CASE("copies of a dead owner's blocks hold until its successor removes them") {
  for (const SpaceCoherence coherence : both_coherences) {
    LocalFixture scene(coherence);
    auto victim = scene.scene.attach();
    const auto reader = scene.attach(LocalFixture::open(), false);
    REQUIRE(kv_put(*victim, scene.names, "stays").ok());
    REQUIRE(kv_put(*victim, scene.names, "goes").ok());
    scene.warm(*reader, "stays");
    scene.warm(*reader, "goes");
    scene.scene.die(std::move(victim));
    CHECK(scene.is_local(*reader, "stays"));
    CHECK(scene.is_local(*reader, "goes"));
    const auto heir = scene.scene.attach(true);
    REQUIRE(kv_put(*heir, scene.names, "new").ok());  // takes the part over
    CHECK(scene.is_local(*reader, "stays"));
    REQUIRE(heir->erase(scene.names, "goes").ok());
    CHECK(kv_check(*reader, scene.names, "goes") == 0);
    REQUIRE(scene.put_other(*heir, "goes").ok());
    CHECK(scene.has_other(*reader, "goes"));
    CHECK(scene.is_local(*reader, "stays"));
  }
}

// Each block's words are its number and its generation. A generation that was erased before a read began must not come
// from anywhere.
TEST_CASE("threads that replace blocks never meet an older one, nor a torn one") {
  constexpr size_t keys = 40, words = 512;
  for (const SpaceCoherence coherence : both_coherences) {
    LocalFixture scene(coherence);
    const auto local = LocalFixture::open();  // no room for all
    const auto owner = scene.attach(local, true, true);
    const auto reader = scene.attach(local, false);
    const auto key = [](size_t number) { return "k" + std::to_string(number); };
    std::array<std::atomic<uint64_t>, keys> least{};
    std::array<std::atomic<bool>, keys> busy{};
    std::atomic<uint64_t> wrong = 0, stale = 0, right = 0;
    std::vector<std::thread> threads;
    for (uint64_t index = 0; index < 4; ++index)
      threads.emplace_back([&, index] {
        Prng prng(index);
        std::vector<uint64_t> content(words);
        for (int times = 0; times < 6000; ++times) {
          const size_t number = prng.below(2) == 0 ? prng.below(8) : prng.below(keys);
          KvSpace& space = prng.below(2) == 0 ? *owner : *reader;
          const uint64_t what = prng.below(16);
          if (what == 0 && !busy[number].exchange(true)) {
            (void)owner->erase(scene.names, key(number), 20'000'000);
            const uint64_t next = least[number] + 1;
            content.assign(words, next << 8 | number);
            // Of the one before nothing is left once this one could be put: a key has one block here.
            if (owner->put(scene.names, {.key = key(number), .bytes = std::as_bytes(std::span(content))}).ok())
              least[number] = next;
            busy[number] = false;
            continue;
          }
          const uint64_t before = least[number];
          KvView view;
          std::span<const std::byte> bytes = std::as_bytes(std::span(content));
          if (what < 8) {
            const auto got = space.get(
                scene.names, {.key = key(number), .into = std::as_writable_bytes(std::span(content))});
            if (!got.ok()) continue;
          } else {
            auto made = space.view(scene.names, key(number));
            if (!made.ok()) continue;
            view = std::move(*made);
            bytes = view.bytes();
          }
          uint64_t first = 0;
          std::memcpy(&first, bytes.data(), sizeof first);
          bool whole = bytes.size() == words * sizeof first && (first & 255) == number;
          for (size_t at = 0; whole && at < words; ++at)
            whole = std::memcmp(bytes.data() + at * sizeof first, &first, sizeof first) == 0;
          wrong += whole ? 0 : 1;
          stale += whole && first >> 8 < before ? 1 : 0;
          right += whole ? 1 : 0;
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(stale == 0);
    CHECK(right > 2000);
    CHECK(owner->counters().local_hits + reader->counters().local_hits > 500);
    CHECK(owner->counters().local_stale + reader->counters().local_stale > 20);
  }
}

TEST_CASE("a forked child reads without copies, and does not wait for a lock that was held") {
  LocalFixture scene;
  const auto space = scene.attach(LocalFixture::open());
  for (int index = 0; index < 50; ++index) {
    REQUIRE(kv_put(*space, scene.names, "k" + std::to_string(index)).ok());
    scene.warm(*space, "k" + std::to_string(index));
  }
  std::atomic<bool> ends = false;
  std::thread busy([&] {
    Prng prng(1);
    while (!ends) (void)kv_check(*space, scene.names, "k" + std::to_string(prng.below(50)));
  });
  auto view = space->view(scene.names, "k7");
  REQUIRE(view.ok());
  for (int times = 0; times < 20; ++times) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      bool good = LocalFixture::has_bytes(*view, "k7");
      view->reset();
      const uint64_t hits = space->counters().local_hits;
      std::vector<std::byte> into(4096);
      for (const char* const key : {"k1", "k2", "k3"}) {
        const auto got = space->get(scene.names, {.key = key, .into = into});
        good = good && got.ok() && into == kv_bytes(key, 4096);
      }
      good = good && space->counters().local_hits == hits &&
             space->view(scene.names, "k1").error().code == ErrorCode::unavailable;
      ::_exit(good ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  ends = true;
  busy.join();
  CHECK(LocalFixture::has_bytes(*view, "k7"));
  CHECK(scene.is_local(*space, "k7"));
}

}  // namespace
}  // namespace terrace
