// SPDX-License-Identifier: Apache-2.0
// Rounds, bounds, requests: with a policy of the test's own that moves what it is told to.
#include "tiering/engine/engine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/skip.h"
#include "tests/unit/tiering/two_files.h"

using namespace terrace;
using namespace terrace::test;
using layout::TierRange;
using layout::TierState;
using tiering::Residency;

namespace {

std::vector<tiering::Move> wanted;  // what the policy of the test plans next, once

size_t plan_wanted(const tiering::PlanInput& input, tiering::PolicyMemory&, std::span<uint32_t>,
                   std::span<tiering::Move> moves) {
  const size_t count = std::min({wanted.size(), moves.size(), static_cast<size_t>(input.moves_max)});
  std::copy_n(wanted.begin(), count, moves.begin());
  wanted.clear();
  return count;
}

constexpr tiering::PolicyEntry told = {.name = "told", .what = "does what the test says", .plan = plan_wanted};

struct Running {
  explicit Running(uint32_t granules, uint32_t ddr, uint32_t slots = 0, tiering::RangeHooks hooks = {},
                   bool publish = false, bool access_events = false)
      : files(granules, 64 * kib, slots) {
    wanted.clear();
    REQUIRE(files.memory.map(0, ddr, Residency::ddr) == 0);
    REQUIRE(files.memory.map(ddr, granules - ddr, Residency::cxl) == 0);
    for (uint32_t granule = 0; granule < granules; ++granule) files.fill(granule, granule);
    tiering::EngineOptions options;
    options.round_ns = 0;
    options.publish = publish;
    options.access_events = access_events;
    moves = engine.open(options) == 0;
    tiering::RangeOptions range;
    range.name = "test";
    range.policy = &told;
    range.ddr_granules_max = ddr;
    range.hooks = hooks;
    REQUIRE(engine.add_range(&files.memory, range, &index) == 0);
    if (!moves) TERRACE_SKIP(userfaultfd, "no userfaultfd for this process");
    ::usleep(20'000);  // the copy budget begins at nothing
    round();
    ::usleep(20'000);
  }
  ~Running() {
    engine.close();
    CHECK(files.memory.check_all() == nullptr);
    for (uint32_t granule = 0; granule < files.memory.granule_count(); ++granule)
      CHECK(files.holds(granule, granule));
  }
  void round() { engine.round(); }
  const TierRange& page() { return engine.statistics(index); }

  TwoFiles files;
  tiering::Engine engine;
  uint32_t index = 0;
  bool moves = false;
};

}  // namespace

TEST_CASE("Engine: granules trade places where neither tier has room, and DDR keeps its bound") {
  Running run(8, 3, 5);
  if (!run.moves) return;
  CHECK(run.files.memory.free_slots() == 0);
  wanted = {{0, Residency::cxl}, {5, Residency::ddr}, {1, Residency::cxl}, {6, Residency::ddr}};
  run.round();
  CHECK(run.files.memory.residency(0) == Residency::cxl);
  CHECK(run.files.memory.residency(5) == Residency::ddr);
  CHECK(run.files.memory.residency(6) == Residency::ddr);
  CHECK(run.files.memory.ddr_granules() == 3);
  CHECK(run.page().promotions == 2);
  CHECK(run.page().demotions == 2);
  CHECK(run.page().stalled_ns > 0);
}

TEST_CASE("Engine: promotions beyond DDR's bound are not begun, and a trade whose victim is held is undone") {
  Running run(8, 3, 5);
  if (!run.moves) return;
  wanted = {{5, Residency::ddr}, {6, Residency::ddr}};
  run.round();
  CHECK(run.files.memory.ddr_granules() == 3);
  CHECK(run.page().promotions == 0);
  run.files.memory.hold(0, 1);
  wanted = {{0, Residency::cxl}, {5, Residency::ddr}};
  run.round();
  CHECK(run.files.memory.residency(0) == Residency::ddr);
  CHECK(run.files.memory.residency(5) == Residency::cxl);
  CHECK(run.files.memory.ddr_granules() == 3);
  CHECK(run.page().skipped_busy >= 1);
  run.files.memory.unhold(0, 1);
}

TEST_CASE("Engine: DDR is asked for before a granule rises and given back when one sinks") {
  struct Account {
    int left = 1, taken = 0, given = 0;
  } account;
  tiering::RangeHooks hooks;
  hooks.owner = &account;
  hooks.take_ddr = [](void* owner, uint32_t granules) {
    auto* mine = static_cast<Account*>(owner);
    if (mine->left < static_cast<int>(granules)) return false;
    mine->left -= static_cast<int>(granules);
    mine->taken += static_cast<int>(granules);
    return true;
  };
  hooks.give_ddr = [](void* owner, uint32_t granules) {
    auto* mine = static_cast<Account*>(owner);
    mine->left += static_cast<int>(granules);
    mine->given += static_cast<int>(granules);
  };
  Running run(8, 4, 0, hooks);
  if (!run.moves) return;
  wanted = {{0, Residency::cxl}};
  run.round();
  CHECK(account.left == 2);
  wanted = {{6, Residency::ddr}, {7, Residency::ddr}};
  run.round();
  CHECK(run.files.memory.ddr_granules() == 4);
  CHECK(account.left + account.taken - account.given == 1);
  CHECK(account.left == 1);
}

TEST_CASE("Engine: a paused range stays as it is until it is resumed, and one given up stays so for good") {
  Running run(4, 2);
  if (!run.moves) return;
  run.engine.set_paused(run.index, true);
  wanted = {{0, Residency::cxl}};
  run.round();
  CHECK(run.page().demotions == 0);
  run.engine.set_paused(run.index, false);
  run.round();
  CHECK(run.page().demotions == 1);
  run.engine.give_up(run.index, TierState::stopped, "the test says so");
  run.engine.set_paused(run.index, false);
  wanted = {{1, Residency::cxl}};
  run.round();
  CHECK(run.page().demotions == 1);
  CHECK(std::string(run.page().reason) == "the test says so");
}

TEST_CASE("Engine: a range whose owner says stop is not moved again") {
  const char* why = nullptr;
  tiering::RangeHooks hooks;
  hooks.owner = &why;
  hooks.why_stop = [](void* owner) { return *static_cast<const char**>(owner); };
  Running run(4, 2, 0, hooks);
  if (!run.moves) return;
  why = "its lease is gone";
  wanted = {{0, Residency::cxl}};
  run.round();
  CHECK(run.page().state == static_cast<uint32_t>(TierState::stopped));
  CHECK(run.page().demotions == 0);
}

TEST_CASE("Engine: announcements reach the granules, from many threads, and too many are dropped") {
  Running run(4, 2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 5000; ++n)
        run.engine.announce(run.index, static_cast<uint32_t>(n) % 4, 1, 3'600'000'000'000);
    });
  for (std::thread& thread : threads) thread.join();
  run.engine.announce(run.index, 3, 4'000'000'000, 1);  // beyond the end
  run.engine.announce(77, 0, 1, 1);                     // no such range
  run.round();
  CHECK(run.page().announced > 1000);
  CHECK(run.page().announced < 20'000);
  const uint64_t before = run.page().announced;
  run.engine.announce(run.index, 1, 2, 3'600'000'000'000);
  run.round();
  CHECK(run.page().announced == before + 2);
  CHECK(run.files.memory.granules()[2].next_use_ns > tiering::monotonic_ns());
  run.engine.note_access(run.index, 0, 1, 12);
  const uint32_t accesses = run.files.memory.granules()[0].accesses;
  run.round();
  CHECK(run.files.memory.granules()[0].accesses > accesses);
}

TEST_CASE("Engine: the copy budget bounds what moves in a second") {
  Running run(64, 32, 64);
  if (!run.moves) return;
  run.engine.set_copy_budget(mib);  // 16 granules a second
  const uint64_t begin_ns = tiering::monotonic_ns();
  const uint64_t before = run.page().promoted_bytes + run.page().demoted_bytes;
  while (tiering::monotonic_ns() < begin_ns + 1'000'000'000) {
    for (uint32_t granule = 0; granule < 32; ++granule)
      wanted.push_back(
          {granule, run.files.memory.residency(granule) == Residency::ddr ? Residency::cxl : Residency::ddr});
    run.round();
    ::usleep(5000);
  }
  const uint64_t moved = run.page().promoted_bytes + run.page().demoted_bytes - before;
  CHECK(moved >= 512 * kib);
  CHECK(moved <= 2 * mib + 256 * kib);  // a second, what a tenth had saved up at the old budget, one batch
}

TEST_CASE(
    "Engine: what `terrace tier` asks for in the tier page is done, answered, and hostile values are refused") {
  Running run(4, 2, 0, {}, true);
  const std::string path =
      layout::tier_page_directory + std::to_string(::geteuid()) + "/" + std::to_string(::getpid());
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(file.valid());
  const size_t bytes = layout::tier_cells_offset + layout::tier_cells_max;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  REQUIRE(at != MAP_FAILED);
  auto* shown = reinterpret_cast<TierRange*>(static_cast<char*>(at) + layout::tier_ranges_offset) + run.index;
  CHECK(static_cast<layout::TierPage*>(at)->magic == layout::tier_page_magic);
  CHECK(std::string(shown->name) == "test");
  run.round();
  CHECK(shown->ddr_bytes == 2 * 64 * kib);
  const auto* cells = static_cast<uint8_t*>(at) + shown->cells_offset;
  CHECK(shown->cell_count == 4);
  CHECK((cells[0] >> layout::cell_residency_shift) == 1);
  CHECK((cells[3] >> layout::cell_residency_shift) == 2);
  auto ask = [&](const char* policy, uint64_t ddr, uint32_t paused) {
    std::memset(shown->wanted_policy, 0, sizeof(shown->wanted_policy));
    std::memcpy(shown->wanted_policy, policy, std::min(std::strlen(policy), sizeof(shown->wanted_policy)));
    shown->wanted_ddr_bytes_max = ddr;
    shown->wanted_copy_bytes_per_s_max = UINT64_MAX;
    shown->wanted_paused = paused;
    std::atomic_ref<uint32_t>(shown->request).fetch_add(1, std::memory_order_release);
    run.round();
    CHECK(shown->applied == shown->request);
    return static_cast<layout::TierAnswer>(shown->answer);
  };
  if (run.moves) {
    CHECK(ask("", UINT64_MAX, 1) == layout::TierAnswer::done);
    CHECK(run.page().state == static_cast<uint32_t>(TierState::paused));
    CHECK(ask("static", 64 * kib, 0) == layout::TierAnswer::done);
    CHECK(std::string(shown->policy) == "static");
    CHECK(shown->ddr_bytes_max == 64 * kib);
    CHECK(run.page().state == static_cast<uint32_t>(TierState::running));
    CHECK(ask("no such policy, and a name that fills its place whole", UINT64_MAX, 0) ==
          layout::TierAnswer::unknown_policy);
    CHECK(ask("", UINT64_MAX - 1, 0) == layout::TierAnswer::bad_value);
  }
  run.engine.give_up(run.index, TierState::stopped, "over");
  CHECK(ask("", UINT64_MAX, 0) == layout::TierAnswer::refused);
  ::munmap(at, bytes);
  run.engine.close();
  CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE(
    "Engine: with access events its sweeps' faults are drained, what is refused is told, and it moves as "
    "ever") {
  Running run(8, 3, 8, {}, false, true);
  const tiering::AccessEvents& events = run.engine.access_events();
  if (!events.opened(tiering::EventSource::minor_faults))
    MESSAGE("minor faults refused: " << std::string(events.why(tiering::EventSource::minor_faults)));
  if (!events.opened(tiering::EventSource::memory_samples)) {
    MESSAGE("memory samples refused: " << std::string(events.why(tiering::EventSource::memory_samples)));
    if (run.moves) CHECK(std::string(run.page().reason).find("no ") == 0);
  }
  if (!run.moves) return;  // nor does it look then
  const uint64_t sweeps = run.page().sweeps;
  CHECK(eventually(
      [&] {
        run.round();
        for (uint32_t granule = 0; granule < 8; granule += 2)
          run.files.at(granule)[0] = run.files.at(granule)[0];
        return run.page().sweeps > sweeps + 3;
      },
      std::chrono::seconds(60)));
  if (events.opened(tiering::EventSource::minor_faults)) CHECK(events.counts().seen > 0);
  CHECK(events.counts().damaged == 0);
  wanted = {{0, Residency::cxl}, {5, Residency::ddr}};
  run.round();
  CHECK(run.files.memory.residency(0) == Residency::cxl);
  CHECK(run.files.memory.residency(5) == Residency::ddr);
}
