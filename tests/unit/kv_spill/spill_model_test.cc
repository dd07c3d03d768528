// SPDX-License-Identifier: Apache-2.0
// Random calls against a model: what may be there, and what must not.
#include <cstdlib>
#include <map>
#include <random>

#include "tests/unit/kv_spill/spill_fixture.h"

namespace terrace {
namespace {

// A cache may lose blocks. It must not have those that were erased, or that nobody put.
struct Model {
  std::map<std::string, bool> put;  // by namespace and key: since the last erase
};

void run_model(uint64_t seed, int steps) {
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  SpillFolderFixture scene;
  KvSpillOptions options = SpillFolderFixture::small();
  options.direct = random() % 2 == 0;
  options.io_uring = random() % 2 == 0;
  const std::vector<KvNamespace> spaces = {*KvNamespace::of("one"), *KvNamespace::of("two")};
  std::vector<std::shared_ptr<KvSpill>> spills = {scene.open(options), scene.open(options)};
  Model model;
  uint64_t hits = 0;
  for (int step = 0; step < steps; ++step) {
    const KvNamespace& space = spaces[random() % 2];
    const std::string key = std::to_string(random() % 300), name = space.name() + key;
    const size_t bytes = spill_length(name, 30'000);
    KvSpill& spill = *spills[random() % 2];
    switch (random() % 1024) {
      case 0:
      case 1:
      case 2: spills[random() % 2].reset(); break;
      case 3:
        REQUIRE(spill.flush(space).ok());
        for (auto& [known, there] : model.put) there = there && known.substr(0, 3) != space.name();
        break;
      default:
        if (const uint64_t what = random() % 32; what < 2) {
          (void)spill.erase(space, key);
          model.put[name] = false;
        } else if (what == 2) {
          REQUIRE(spill.drain().ok());
        } else if (what == 3) {
          const std::array<std::string_view, 1> keys = {key};
          (void)spill.prefetch(space, keys);
        } else if (what % 2 == 0) {
          std::vector<std::byte> made = spill_bytes(name, bytes);
          if (spill.put(space, {.key = key, .bytes = made}).ok()) model.put[name] = true;
        } else {
          std::vector<std::byte> into(bytes);
          const auto got = spill.get(space, {.key = key, .into = into});
          if (got.ok()) {
            ++hits;
            CHECK_MESSAGE(model.put[name], name << " was erased");
            CHECK(*got == bytes);
            CHECK(into == spill_bytes(name, bytes));
          } else {
            CHECK(got.error().code == ErrorCode::not_found);
          }
        }
    }
    for (auto& one : spills)
      if (one == nullptr) one = scene.open(options);
  }
  CHECK(hits > static_cast<uint64_t>(steps) / 20);
  for (const auto& one : spills) CHECK(one->counters().wrong == 0);
}

TEST_CASE("random calls of two users of a folder never meet what was erased, nor other bytes") {
  const char* const more = std::getenv("TERRACE_SPILL_SEEDS");
  for (int seed = 1; seed <= (more != nullptr ? std::atoi(more) : 4); ++seed) run_model(seed, 2500);
}

}  // namespace
}  // namespace terrace
