// SPDX-License-Identifier: Apache-2.0
// Guards: what they note, what they wait for, and that nothing is lost whatever moves meanwhile.
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("guards: uses are counted exactly, of views too") {
  Pools pools(8 * mib, 8 * mib);
  auto tensor = pools.tensor("t", mib);
  auto view = take(tensor->slice(0, 0, 100));
  for (int i = 0; i < 3; ++i) (void)take(tensor->read());
  {
    WriteGuard guard = take(view->write());
    CHECK(guard.bytes().size() == 100);
    CHECK(guard.as<uint32_t>().size() == 25);
    WriteGuard moved = std::move(guard);
    CHECK(guard.bytes().empty());
    moved.close();
    CHECK(moved.bytes().empty());
  }
  CHECK(tensor->statistics().reads == 3);
  CHECK(tensor->statistics().writes == 1);
  pools.pool->step();
  (void)take(tensor->read());
  CHECK(tensor->statistics().uses_per_step == doctest::Approx(4));
  CHECK(pools.pool->statistics().guards == 5);
}

TEST_CASE("guards: what was idle for long is known to be used again") {
  Pools pools(8 * mib, 8 * mib);
  auto tensor = pools.tensor("t", mib);
  const auto step = [&](int uses) {
    for (int i = 0; i < uses; ++i) (void)take(tensor->read());
    pools.pool->step();
  };
  for (int i = 0; i < 3; ++i) step(2);
  for (int i = 0; i < 40; ++i) step(0);
  CHECK(tensor->statistics().uses_per_step == doctest::Approx(0));
  for (int i = 0; i < 8; ++i) step(4);
  CHECK(tensor->statistics().uses_per_step == doctest::Approx(4).epsilon(0.02));
}

TEST_CASE("guards: the order of a step is followed after two, and what is needed is there in time") {
  Pools pools(24 * mib, 64 * mib, {.copy_bytes_per_s_max = 0, .guard_wait = GuardWait::always});
  if (!pools.moves()) return;
  Layers layers(pools, 12, 4 * mib);  // twice DDR
  layers.pass(*pools.pool);
  CHECK(pools.pool->statistics().step_state == StepState::observing);
  layers.pass(*pools.pool);
  REQUIRE(follows(*pools.pool));
  CHECK(pools.pool->statistics().uses_per_step == 23);  // the turn is one use
  CHECK(pools.pool->range().status().state == TieringState::paused);
  uint32_t in_ddr = 0;
  for (int i = 0; i < 3; ++i) in_ddr += layers.pass(*pools.pool);
  const TensorPoolStatistics statistics = pools.pool->statistics();
  // On a machine with other work a copy may take longer than a guard waits for it.
  CHECK(in_ddr >= 3 * 24 - statistics.guard_waits_given_up);
  CHECK(statistics.guard_waits_given_up <= 8);
  CHECK(statistics.copied_to_ddr_bytes > 0);
  CHECK(statistics.ddr_bytes <= 24 * mib);
}

TEST_CASE("guards: another order is let go of, does no harm, and is learned in turn") {
  Pools pools(24 * mib, 64 * mib, {.copy_bytes_per_s_max = 0, .guard_wait = GuardWait::always});
  if (!pools.moves()) return;
  Layers layers(pools, 12, 4 * mib);
  for (int i = 0; i < 2; ++i) layers.pass(*pools.pool);
  REQUIRE(follows(*pools.pool));
  std::reverse(layers.layers.begin() + 1, layers.layers.end());
  const auto other = [&] {
    for (const uint32_t i : {7u, 3u, 11u, 1u, 9u, 5u, 2u, 10u, 4u, 8u, 0u, 6u}) {
      ReadGuard guard = take(layers.layers[i]->read());
      CHECK(whole(guard.bytes(), i == 0 ? 0 : 12 - i));
    }
    pools.pool->step();
  };
  other();
  CHECK(pools.pool->statistics().orders_forgotten == 1);
  CHECK(eventually([&] { return pools.pool->range().status().state == TieringState::running; }));
  other();
  REQUIRE(follows(*pools.pool));
  CHECK(pools.pool->statistics().uses_per_step == 12);
  other();
}

TEST_CASE("guards: a skipped, a new and a destroyed tensor are no harm to an order") {
  Pools pools(24 * mib, 64 * mib, {.copy_bytes_per_s_max = 0, .guard_wait = GuardWait::always});
  if (!pools.moves()) return;
  Layers layers(pools, 12, 4 * mib);
  for (int i = 0; i < 2; ++i) layers.pass(*pools.pool);
  REQUIRE(follows(*pools.pool));
  auto extra = pools.tensor("extra", 4 * mib);
  fill(extra->bytes(), 77);
  for (uint32_t i = 0; i < 12; ++i) {
    if (i == 5) CHECK(whole(take(extra->read()).bytes(), 77));
    if (i != 7) CHECK(whole(take(layers.layers[i]->read()).bytes(), i));
  }
  for (uint32_t i = 12; i-- > 0;) CHECK(whole(take(layers.layers[i]->read()).bytes(), i));
  pools.pool->step();
  CHECK(pools.pool->statistics().step_state == StepState::following);
  CHECK(pools.pool->statistics().deviations == 2);
  extra.reset();
  layers.layers.erase(layers.layers.begin() + 11);
  layers.pass(*pools.pool);
  layers.pass(*pools.pool);
  CHECK(follows(*pools.pool));
}

TEST_CASE("guards: what is streamed is not copied ahead of use, unless guards wait for DDR whatever it costs") {
  for (const GuardWait wait : {GuardWait::by_cost, GuardWait::always}) {
    Pools pools(16 * mib, 48 * mib, {.copy_bytes_per_s_max = 0, .guard_wait = wait});
    if (!pools.moves()) return;
    auto weight = pools.tensor("w", 4 * mib);
    auto streamed =
        take(pools.pool->create({.dtype = DType::u8, .shape = {8 * mib}, .flags = TensorFlags::streaming}));
    for (int i = 0; i < 2; ++i) {
      (void)take(weight->read());
      (void)take(streamed->read());
      pools.pool->step();
    }
    REQUIRE(follows(*pools.pool));
    CHECK(pools.pool->statistics().uses_per_step == (wait == GuardWait::always ? 2 : 1));
  }
}

TEST_CASE("guards: one that holds keeps its bytes where they are, one that does not lets them move") {
  Pools pools(16 * mib, 32 * mib);
  if (!pools.moves()) return;
  auto tensor = pools.tensor("t", 8 * mib);
  fill(tensor->bytes(), 4);
  REQUIRE(take(tensor->move_to(Tier::ddr))->wait(patience_ns).ok());
  {
    WriteGuard guard = take(tensor->write({.hold = true}));
    auto refused = take(tensor->move_to(Tier::cxl))->wait(patience_ns);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::busy);
    CHECK(refused.error().detail.find("held") != std::string::npos);
    CHECK(tensor->residency().ddr_bytes == 8 * mib);
  }
  ReadGuard guard = take(tensor->read());
  CHECK(take(tensor->move_to(Tier::cxl))->wait(patience_ns).ok());
  CHECK(whole(guard.bytes(), 4));
}

TEST_CASE("guards: one that waits for more than DDR has goes on without") {
  Pools pools(8 * mib, 64 * mib, {.copy_bytes_per_s_max = 0, .guard_wait = GuardWait::always});
  if (!pools.moves()) return;
  auto big = pools.tensor("big", 20 * mib);
  fill(big->bytes(), 6);
  for (int i = 0; i < 5; ++i) {
    CHECK(whole(take(big->read()).bytes(), 6));
    pools.pool->step();
  }
  CHECK(pools.pool->statistics().ddr_bytes <= 8 * mib);
}

TEST_CASE("guards: with everything pinned or unmovable a step still runs") {
  Pools pools(8 * mib, 32 * mib, {.copy_bytes_per_s_max = 0, .guard_wait = GuardWait::always});
  if (!pools.moves()) return;
  Layers layers(pools, 6, 4 * mib);
  auto pinned = take(layers.layers[0]->pin(Tier::ddr)), other = take(layers.layers[1]->pin(Tier::ddr));
  CHECK(pinned->wait(patience_ns).ok());
  CHECK(other->wait(patience_ns).ok());
  for (int i = 0; i < 4; ++i) layers.pass(*pools.pool);
  CHECK(layers.layers[0]->residency().ddr_bytes == 4 * mib);
  CHECK(layers.layers[1]->residency().ddr_bytes == 4 * mib);
}

// Each thread has its own tensors, whose bytes nobody else changes; all of them are pushed about by everybody.
TEST_CASE("guards: threads that use, move, pin, make and drop tensors at once lose no store") {
  Pools pools(24 * mib, 72 * mib, {.copy_bytes_per_s_max = 0, .guard_wait = GuardWait::always});
  constexpr uint32_t threads = 4, own = 3;
  const char* longer = std::getenv("TERRACE_PLACEMENT_ROUNDS");
  const int rounds = longer == nullptr ? 60 : std::atoi(longer);
  std::vector<std::shared_ptr<Tensor>> tensors;
  for (uint32_t i = 0; i < threads * own; ++i) {
    tensors.push_back(pools.tensor("t" + std::to_string(i), 4 * mib));
    fill(tensors.back()->bytes(), 0);
  }
  std::atomic<bool> failed{false};
  const auto work = [&](uint32_t thread) {
    std::mt19937 random(thread);
    std::vector<uint64_t> seeds(own, 0);
    std::vector<std::shared_ptr<MoveHandle>> moves;
    for (int round = 0; round < rounds && !failed; ++round) {
      for (uint32_t i = 0; i < own; ++i) {
        Tensor& tensor = *tensors[thread * own + i];
        auto guard = tensor.write({.hold = random() % 4 == 0});
        if (!guard.ok() || !whole(guard->bytes(), seeds[i])) failed = true;
        if (guard.ok()) fill(guard->bytes(), ++seeds[i]);
      }
      Tensor& any = *tensors[random() % tensors.size()];
      switch (random() % 6) {
        case 0:
          if (auto move = any.move_to(Tier::cxl); move.ok()) moves.push_back(*move);
          break;
        case 1:
          if (auto move = any.prefetch(); move.ok()) moves.push_back(*move);
          break;
        case 2:
          // One that failed is none; another thread's may have taken this one with it.
          if (any.pin(random() % 2 == 0 ? Tier::ddr : Tier::cxl).ok()) (void)any.unpin();
          break;
        case 3: {
          auto fresh = pools.pool->create({.dtype = DType::u8, .shape = {random() % (3 * mib) + 1}});
          if (fresh.ok()) fill((*fresh)->bytes(), 1);
          if (fresh.ok() && random() % 2 == 0) (void)(*fresh)->prefetch();
          break;
        }
        case 4: any.advise({.passes = 1.0f + static_cast<float>(random() % 8)}); break;
        default: (void)any.residency();
      }
      if (thread == 0) pools.pool->step();
    }
    for (const auto& move : moves)
      if (const Status ended = move->wait(patience_ns); !ended.ok() && !move->done()) failed = true;
  };
  std::vector<std::thread> running;
  for (uint32_t thread = 0; thread < threads; ++thread) running.emplace_back(work, thread);
  for (std::thread& thread : running) thread.join();
  CHECK_FALSE(failed);
  for (const auto& tensor : tensors) CHECK(tensor->statistics().pins == 0);
}
