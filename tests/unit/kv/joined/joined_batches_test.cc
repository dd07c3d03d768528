// SPDX-License-Identifier: Apache-2.0
// Calls of many keys over several members: each answer at its key's place, and one wait for a whole call.
#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/clock.h"
#include "tests/unit/kv/joined/joined_fixture.h"

using namespace terrace;

namespace {

std::unique_ptr<KvSpace> member_alone(JoinedScene& scene, const std::string& where) {
  const auto memory = scene.open(where);
  REQUIRE(memory.ok());
  auto space = KvSpace::attach(memory->bytes, {.ownership = memory->ownership, .tends_itself = false});
  REQUIRE_MESSAGE(space.ok(), space.error().to_string());
  return std::move(*space);
}

}  // namespace

TEST_CASE("JoinedKvSpace: exists answers each key at its place, whichever member has it") {
  constexpr int keys = 500;
  JoinedScene scene;
  scene.grow_to(4);
  const auto space = scene.attach();
  // One of three is where it prefers to be, one in a member by chance, and one nowhere.
  REQUIRE(put_keys(*space, scene.name_space, 1) == 1);
  for (int index = 0; index < keys; index += 3)
    REQUIRE(kv_put(*space, scene.name_space, "own" + std::to_string(index), 64).ok());
  for (int member = 0; member < 4; ++member) {
    const auto alone = member_alone(scene, std::string(1, static_cast<char>('a' + member)));
    for (int index = 1; index < keys; index += 3)
      if (index / 3 % 4 == member)
        REQUIRE(kv_put(*alone, scene.name_space, "own" + std::to_string(index), 64).ok());
  }
  std::vector<std::string> names;
  std::vector<bool> expected;
  for (int index = 0; index < keys; ++index) {
    names.push_back("own" + std::to_string(index));
    expected.push_back(index % 3 != 2);
    if (index % 7 != 0) continue;
    names.push_back(index % 2 == 0 ? "key0" : "never put");  // again and again
    expected.push_back(index % 2 == 0);
  }
  const std::vector<std::string_view> asked(names.begin(), names.end());
  const auto found = std::make_unique<bool[]>(asked.size());
  const auto check = [&](KvSpace& by, const std::vector<bool>& right) {
    std::fill_n(found.get(), asked.size(), true);
    REQUIRE(by.exists(scene.name_space, asked, {found.get(), asked.size()}).ok());
    for (size_t index = 0; index < asked.size(); ++index)
      CHECK_MESSAGE(found[index] == right[index], names[index]);
  };
  check(*space, expected);
  CHECK(space->exists(scene.name_space, {}, {}).ok());

  const std::string_view bad[] = {"own0", ""};
  bool answers[2];
  CHECK(space->exists(scene.name_space, bad, answers).error().code == ErrorCode::invalid_argument);

  // A holder that cannot open one of them misses what is there alone.
  scene.at("c").opens = false;
  const auto without = scene.attach();
  int missed = 0;
  REQUIRE(without->exists(scene.name_space, asked, {found.get(), asked.size()}).ok());
  for (size_t index = 0; index < asked.size(); ++index) {
    CHECK_MESSAGE((!found[index] || expected[index]), names[index]);
    missed += expected[index] && !found[index] ? 1 : 0;
    if (names[index].starts_with("own")) {
      const int number = std::stoi(names[index].substr(3));
      if (number % 3 == 1) CHECK_MESSAGE(found[index] == (number / 3 % 4 != 2), names[index]);
    }
  }
  CHECK(missed >= 41);
}

TEST_CASE("JoinedKvSpace: put_many waits for room once, not once a block or a member") {
  constexpr uint64_t wait_ns = 1'500'000'000, twice_ns = 2 * wait_ns;
  constexpr int members = 4, blocks = 8;
  JoinedScene scene;
  scene.grow_to(members);
  const auto space = scene.attach();
  REQUIRE(put_keys(*space, scene.name_space, 60) == 60);
  REQUIRE(space->flush({}).ok());  // it has parts still
  // It has all the room and gives none, as it does not tend.
  const auto full = scene.attach();
  for (int index = 0; index < 5000; ++index)
    (void)kv_put(*full, scene.name_space, "full" + std::to_string(index), 4096, {.wait_ns = 0});
  // What it has room for by itself is read in place, so that nothing can go for a block.
  std::vector<KvView> views;
  for (int index = 0; index < 40; ++index) {
    const std::string key = "mine" + std::to_string(index);
    if (!kv_put(*space, scene.name_space, key, 4096 * 15, {.wait_ns = 0}).ok()) continue;
    auto view = space->view(scene.name_space, key);
    REQUIRE(view.ok());
    views.push_back(std::move(*view));
  }
  std::vector<std::string> names;
  std::vector<KvPut> puts;
  const std::vector<std::byte> bytes(4096 * 15);
  for (int index = 0; index < blocks; ++index) names.push_back("new" + std::to_string(index));
  for (const std::string& name : names)
    puts.push_back({.key = name, .bytes = bytes, .options = {.wait_ns = wait_ns}});
  // A busy machine may hold one call up, not all of them; one wait more is one too many each time.
  uint64_t least_ns = UINT64_MAX;
  for (int attempt = 0; attempt < 3 && least_ns >= twice_ns; ++attempt) {
    if (attempt != 0) std::this_thread::sleep_for(std::chrono::seconds(1));  // it asks nobody for so long
    const SystemClock clock;
    const uint64_t begin_ns = clock.now_ns();
    for (const Status& put : space->put_many(scene.name_space, puts)) {
      REQUIRE_FALSE(put.ok());
      CHECK(put.error().code == ErrorCode::capacity_exhausted);
    }
    const uint64_t took_ns = clock.now_ns() - begin_ns;
    CHECK(took_ns >= wait_ns);
    least_ns = std::min(least_ns, took_ns);
  }
  CHECK(least_ns < twice_ns);
}
