// SPDX-License-Identifier: Apache-2.0
// The plan of a learned order: known answers, and whole steps in virtual time against the bound.
#include "libclient/placement/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace terrace::placement;

namespace {

std::vector<Use> forward_and_backward(uint32_t layers, uint32_t granules) {
  std::vector<Use> cycle;
  for (uint32_t i = 0; i < layers; ++i) cycle.push_back({.first = i * granules, .count = granules});
  for (uint32_t i = layers; i-- > 0;) cycle.push_back({.first = i * granules, .count = granules});
  return cycle;
}

// Four tensors a layer, all of a layer in use at once.
std::vector<Use> optimizer(uint32_t layers, uint32_t granules) {
  std::vector<Use> cycle;
  for (uint32_t layer = 0; layer < layers; ++layer)
    for (uint32_t tensor = 0; tensor < 4; ++tensor)
      cycle.push_back({.first = (layer * 4 + tensor) * granules, .count = granules, .positions = 4 - tensor});
  return cycle;
}

struct Ran {
  double elapsed = 0;  // of one step, in copies of a granule
  uint64_t copies = 0;
};

// One thread that uses, and one that copies a granule in a unit of time; a use waits until it is in DDR.
struct Machine {
  Machine(const std::vector<Use>& order, uint32_t granules, uint32_t ddr, double compute)
      : cycle(order),
        schedule(cycle, granules, ddr),
        state(granules, 0),
        open(granules, 0),
        room(ddr),
        compute_a_granule(compute) {}

  Ran step() {
    const double begin = now;
    const uint64_t copied = copies;
    for (uint32_t at = 0; at < cycle.size(); ++at) use(at);
    return {now - begin, copies - copied};
  }

  void use(uint32_t at) {
    const Use& use = cycle[at];
    for (uint32_t i = 0; i < use.count; ++i) ++open[use.first + i];
    opened.push_back(at);
    position = (at + 1) % static_cast<uint32_t>(cycle.size());
    demanded = {{use.first, use.count}};
    planned.clear();
    while (!there(use)) copy_until(now + 1);
    demanded.clear();
    copy_until(now + compute_a_granule * use.count);
    // What is open for this use's last time closes now.
    for (size_t i = 0; i < opened.size();) {
      if (opened[i] + cycle[opened[i]].positions > at + 1) {
        ++i;
        continue;
      }
      for (uint32_t k = 0; k < cycle[opened[i]].count; ++k) --open[cycle[opened[i]].first + k];
      opened.erase(opened.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  bool there(const Use& use) const {
    for (uint32_t i = 0; i < use.count; ++i)
      if ((state[use.first + i] & GranuleState::in_ddr) == 0) return false;
    return true;
  }

  void copy_until(double until) {
    while (copier_free < until) {
      if (planned.empty()) plan();
      if (planned.empty()) {
        copier_free = until;
        break;
      }
      const PlannedMove move = planned.front();
      planned.erase(planned.begin());
      copier_free += 1;
      ++copies;
      REQUIRE(((state[move.granule] & GranuleState::in_ddr) != 0) != move.to_ddr);
      if (!move.to_ddr) REQUIRE(open[move.granule] == 0);
      state[move.granule] ^= GranuleState::in_ddr;
      move.to_ddr ? --room : ++room;
      REQUIRE(room < 1u << 31);
    }
    now = until;
  }

  void plan() {
    for (size_t i = 0; i < state.size(); ++i)
      state[i] =
          static_cast<uint8_t>((state[i] & GranuleState::in_ddr) | (open[i] > 0 ? GranuleState::fixed : 0));
    planned = next_moves(
        schedule,
        {.position = position, .granules = state, .room = room, .demanded = demanded, .moves_max = 8});
  }

  std::vector<Use> cycle;
  Schedule schedule;
  std::vector<uint8_t> state;
  std::vector<uint32_t> open;
  std::vector<uint32_t> opened;
  std::vector<Run> demanded;
  std::vector<PlannedMove> planned;
  uint32_t room, position = 0;
  double compute_a_granule, now = 0, copier_free = 0;
  uint64_t copies = 0;
};

double over_bound(const std::vector<Use>& cycle, uint32_t ddr, double compute) {
  uint32_t granules = 0;
  double computing = 0;
  for (const Use& use : cycle) {
    granules = std::max(granules, use.first + use.count);
    computing += compute * use.count;
  }
  Machine machine(cycle, granules, ddr, compute);
  for (int i = 0; i < 4; ++i) machine.step();
  const Ran ran = machine.step();
  const double copying = 2.0 * static_cast<double>(belady_fetches(cycle, granules, ddr));
  MESSAGE("compute " << computing << ", copies " << ran.copies << " of at least " << copying << ", took "
                     << ran.elapsed);
  return ran.elapsed / std::max(computing, copying);
}

}  // namespace

TEST_CASE("Belady: known counts") {
  std::vector<Use> order;
  for (uint32_t i = 0; i < 4; ++i) order.push_back({.first = i, .count = 1});
  CHECK(belady_fetches(order, 4, 4) == 0);
  // Four in a circle, room for three: one of three uses misses.
  uint64_t sum = belady_fetches(order, 4, 3);
  CHECK(sum >= 1);
  CHECK(sum <= 2);
  CHECK(belady_fetches(order, 4, 1) == 4);
  // Forward and backward over eight with room for four: four each way.
  CHECK(belady_fetches(forward_and_backward(8, 1), 8, 4) == 8);
}

TEST_CASE("Schedule: what fits is kept, all of it") {
  const Schedule schedule(forward_and_backward(8, 2), 16, 16);
  CHECK(schedule.fetches() == 0);
  CHECK(schedule.reserve_granules() == 0);
}

TEST_CASE("Schedule: of a pass forward and backward the ends are kept") {
  const std::vector<Use> cycle = forward_and_backward(16, 1);
  const Schedule schedule(cycle, 16, 8);
  CHECK(schedule.fetches() >= belady_fetches(cycle, 16, 8));
  CHECK(schedule.fetches() <= belady_fetches(cycle, 16, 8) + 4);
  CHECK(schedule.kept_before(16, 0));        // the last layer, right behind itself
  CHECK(schedule.kept_before(0, 0));         // the first one
  CHECK_FALSE(schedule.kept_before(31, 0));  // used long ago
}

TEST_CASE("Schedule: of a pass in one direction a part of each tensor is kept, the first granules") {
  const std::vector<Use> cycle = optimizer(16, 4);  // 256 granules
  const Schedule schedule(cycle, 256, 128);
  for (uint32_t at = 0; at < cycle.size(); ++at) {
    CHECK(schedule.kept_before(at, 0));
    CHECK_FALSE(schedule.kept_before(at, 3));
  }
}

TEST_CASE("Schedule: what is pinned is neither planned nor takes room, however often it is used") {
  // 16 granules in a circle, and twelve pinned ones that are used between them.
  std::vector<Use> others, all;
  for (uint32_t i = 0; i < 16; ++i) {
    others.push_back({.first = i, .count = 1});
    all.push_back({.first = i, .count = 1});
    all.push_back({.first = 16, .count = 12});
  }
  std::vector<uint8_t> pinned(28, 0);
  std::fill(pinned.begin() + 16, pinned.end(), uint8_t{1});
  const Schedule without(others, 28, 12), with(all, 28, 12, pinned);
  CHECK(without.fetches() > 0);
  CHECK(with.fetches() == without.fetches());
  CHECK(with.reserve_granules() == without.reserve_granules());
  const Schedule nothing_else(std::vector<Use>{{.first = 16, .count = 12}}, 28, 0, pinned);
  CHECK(nothing_else.fetches() == 0);
  CHECK(nothing_else.reserve_granules() == 0);
}

TEST_CASE("Schedule: nonsense is not planned") {
  CHECK(Schedule({}, 8, 4).empty());
  const std::vector<Use> outside = {{.first = 6, .count = 4}};
  CHECK(Schedule(outside, 8, 4).empty());
  const std::vector<Use> none = {{.first = 6, .count = 0}};
  CHECK(Schedule(none, 8, 4).empty());
}

TEST_CASE("Schedule: more in use at once than fits is planned all the same") {
  const std::vector<Use> cycle = {{.first = 0, .count = 8}, {.first = 8, .count = 8}};
  const Schedule schedule(cycle, 16, 4);
  CHECK(schedule.fetches() == 16);
}

TEST_CASE("next_moves: the nearest use comes in, the farthest goes out, and what is fixed stays") {
  const std::vector<Use> cycle = {
      {.first = 0, .count = 1}, {.first = 1, .count = 1}, {.first = 2, .count = 1}, {.first = 3, .count = 1}};
  const Schedule schedule(cycle, 6, 2);
  std::vector<uint8_t> state = {GranuleState::in_ddr, 0, 0, 0, GranuleState::in_ddr, 0};
  auto moves = next_moves(schedule, {.position = 1, .granules = state, .room = 0});
  REQUIRE(moves.size() >= 2);
  CHECK(moves[0].granule == 4);  // never used
  CHECK_FALSE(moves[0].to_ddr);
  CHECK(moves[1].granule == 1);
  CHECK(moves[1].to_ddr);
  state[4] |= GranuleState::fixed;
  moves = next_moves(schedule, {.position = 1, .granules = state, .room = 0});
  for (const PlannedMove& move : moves) CHECK(move.granule != 4);
}

TEST_CASE("next_moves: nothing that is needed sooner goes out for what is needed later") {
  const std::vector<Use> cycle = {{.first = 0, .count = 1}, {.first = 1, .count = 1}, {.first = 2, .count = 1}};
  const Schedule schedule(cycle, 3, 1);
  const std::vector<uint8_t> state = {0, GranuleState::in_ddr, 0};
  CHECK(next_moves(schedule, {.position = 1, .granules = state, .room = 0}).empty());
}

TEST_CASE("next_moves: what is kept goes out only for what somebody waits for") {
  const std::vector<Use> cycle = {{.first = 0, .count = 1}, {.first = 0, .count = 1}, {.first = 1, .count = 1}};
  const Schedule schedule(cycle, 2, 1);
  const std::vector<uint8_t> state = {GranuleState::in_ddr, 0};
  const std::vector<Run> waiting = {{.first = 1, .count = 1}};
  const auto moves = next_moves(schedule, {.position = 0, .granules = state, .room = 0, .demanded = waiting});
  REQUIRE(moves.size() == 2);
  CHECK(moves[0].granule == 0);
  CHECK(moves[1].granule == 1);
}

TEST_CASE(
    "next_moves: nothing goes out for what cannot come, and what somebody waits for keeps nothing else up") {
  const std::vector<Use> cycle = {{.first = 0, .count = 1}, {.first = 0, .count = 1}, {.first = 1, .count = 1}};
  const Schedule schedule(cycle, 4, 1);
  constexpr uint8_t stays = GranuleState::fixed | GranuleState::immovable;
  const std::vector<Run> waiting = {{.first = 2, .count = 2}};
  const std::vector<uint8_t> state = {GranuleState::in_ddr, 0, stays, stays};
  CHECK(next_moves(schedule, {.position = 0, .granules = state, .room = 0, .demanded = waiting}).empty());
  const auto moves =
      next_moves(schedule, {.position = 2, .granules = state, .room = 1, .demanded = waiting, .moves_max = 2});
  REQUIRE(moves.size() == 1);
  CHECK(moves[0].granule == 1);
  CHECK(moves[0].to_ddr);
}

// The project's aim is 1.15 of max(compute, bytes that Belady's schedule copies over the bandwidth).
TEST_CASE(
    "Schedule: a step takes at most 1.15 of the bound in virtual time, copies or compute being the longer") {
  for (const double compute : {0.25, 1.0, 2.0, 4.0, 8.0}) {
    CAPTURE(compute);
    CHECK(over_bound(forward_and_backward(48, 8), 192, compute) <= 1.15);
    CHECK(over_bound(optimizer(48, 4), 384, compute) <= 1.15);
    CHECK(over_bound(optimizer(48, 2), 96, compute) <= 1.15);
  }
}
