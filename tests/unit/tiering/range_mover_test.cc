// SPDX-License-Identifier: Apache-2.0
// Moves of one range by themselves: no engine, no thread, no page.
#include "tiering/engine/range_mover.h"

#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/unit/tiering/two_files.h"

using namespace terrace;
using namespace terrace::test;
using layout::TierState;
using tiering::Move;
using tiering::MoveResult;
using tiering::Outcome;
using tiering::Residency;

namespace {

struct Moved {
  // Of `granules`, the first `ddr` lie in DDR, which may have no more.
  Moved(uint32_t granules, uint32_t ddr, uint32_t slots, uint64_t bytes_per_s = 0)
      : files(granules, 64 * kib, slots) {
    mover.open(4 * 64 * kib, bytes_per_s, {});
    can_move = mover.mover().start(-1, 8 * mib) == 0;
    REQUIRE(files.memory.map(0, ddr, Residency::ddr) == 0);
    REQUIRE(files.memory.map(ddr, granules - ddr, Residency::cxl) == 0);
    for (uint32_t granule = 0; granule < granules; ++granule) files.fill(granule, granule);
    range.memory = &files.memory;
    range.options.ddr_granules_max = ddr;
    range.set_state(TierState::running);
    if (!can_move) TERRACE_SKIP(userfaultfd, "no userfaultfd for this process");
  }
  ~Moved() {
    mover.mover().stop();
    CHECK(files.memory.check_all() == nullptr);
    for (uint32_t granule = 0; granule < files.memory.granule_count(); ++granule)
      CHECK(files.holds(granule, granule));
  }
  Outcome carry_out(const std::vector<Move>& moves) { return mover.carry_out(range, moves); }

  TwoFiles files;
  tiering::RangeMover mover;
  tiering::RangeState range;
  bool can_move = false;
};

}  // namespace

TEST_CASE("RangeMover: with room nowhere, granules trade places by batches, and each is counted") {
  Moved moved(16, 6, 10);
  if (!moved.can_move) return;
  std::vector<Move> moves;
  for (uint32_t i = 0; i < 6; ++i) moves.push_back({i, Residency::cxl});
  for (uint32_t i = 15; i > 9; --i) moves.push_back({i, Residency::ddr});
  const Outcome outcome = moved.carry_out(moves);
  CHECK(outcome.done == 12);
  CHECK(outcome.failed == 0);
  CHECK(moved.files.memory.ddr_granules() == 6);
  CHECK(moved.range.page.promotions == 6);
  CHECK(moved.range.page.demotions == 6);
  CHECK(moved.range.copied_bytes == 12 * 64 * kib);
}

TEST_CASE("RangeMover: it learns what moves cost, and a spent budget ends the plan") {
  Moved moved(16, 8, 16, 64 * kib);
  if (!moved.can_move) return;
  const float speed = moved.mover.costs().copy_bytes_per_s;
  std::vector<Move> moves;
  for (uint32_t i = 0; i < 8; ++i) moves.push_back({i, Residency::cxl});
  // A second's allowance at most is there at the beginning: of eight granules a batch goes, and then there is debt.
  Outcome outcome = moved.carry_out(moves);
  for (uint32_t tries = 0; outcome.done == 0 && tries < 1000; ++tries) {
    ::usleep(10'000);
    outcome = moved.carry_out(moves);
  }
  CHECK(outcome.done == 4);
  CHECK(outcome.failed == 4);
  CHECK(moved.mover.costs().copy_bytes_per_s != speed);
}

TEST_CASE("RangeMover: move_now goes as far as DDR has room, beyond the budget, and says what stopped it") {
  Moved moved(8, 2, 8, 1);
  if (!moved.can_move) return;
  moved.range.set_ddr_granules_max(5);
  CHECK(moved.mover.move_now(moved.range, 0, 8, Residency::ddr) == MoveResult::no_memory);
  CHECK(moved.files.memory.ddr_granules() == 5);
  CHECK(moved.mover.move_now(moved.range, 0, 8, Residency::cxl) == MoveResult::done);
  CHECK(moved.files.memory.ddr_granules() == 0);
  moved.range.give_up(TierState::stopped, "a test");
  CHECK(moved.mover.move_now(moved.range, 0, 1, Residency::ddr) == MoveResult::refused);
  CHECK(moved.files.memory.ddr_granules() == 0);
}

TEST_CASE("RangeMover: an owner who says why not is asked before each batch, and its range is given up") {
  Moved moved(16, 8, 16);
  if (!moved.can_move) return;
  struct Owner {
    uint32_t asked = 0;
  } owner;
  moved.range.options.hooks.owner = &owner;
  moved.range.options.hooks.why_stop = [](void* who) -> const char* {
    return ++static_cast<Owner*>(who)->asked > 1 ? "its lease is being taken back" : nullptr;
  };
  std::vector<Move> moves;
  for (uint32_t i = 0; i < 8; ++i) moves.push_back({i, Residency::cxl});
  const Outcome outcome = moved.carry_out(moves);
  CHECK(outcome.done == 4);
  CHECK(outcome.failed == 4);
  CHECK(moved.range.state() == TierState::stopped);
  CHECK(strcmp(moved.range.page.reason, "its lease is being taken back") == 0);
}

TEST_CASE("RangeState: what a fork suspends comes back paused if it was, or was asked to be") {
  tiering::RangeState range;
  range.set_state(TierState::running);
  range.suspend("a child is on its way");
  range.set_paused(true);
  range.resume();
  CHECK(range.state() == TierState::paused);
  range.suspend("again");
  range.suspend("twice");
  range.set_paused(false);
  range.resume();
  CHECK(range.state() == TierState::running);
  range.give_up(TierState::stopped, "lost");
  range.resume();
  range.set_paused(true);
  CHECK(range.state() == TierState::stopped);
}
