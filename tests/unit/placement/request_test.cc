// SPDX-License-Identifier: Apache-2.0
// Moves and pins that were asked for, beside others that are stuck, and beside a step's order.
#include <atomic>
#include <thread>

#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

// Twelve layers over twice the DDR that there is, whose order is known, and tensors outside the order.
struct Followed {
  Followed() : pools(24 * mib, 80 * mib, {.copy_bytes_per_s_max = 0}) {
    if (!pools.moves()) return;
    for (int i = 0; i < 2; ++i) others.push_back(pools.tensor("other." + std::to_string(i), 4 * mib));
    for (uint32_t i = 0; i < 2; ++i) fill(others[i]->bytes(), 100 + i);
    layers = std::make_unique<Layers>(pools, 12, 4 * mib);
    for (int i = 0; i < 2; ++i) layers->pass(*pools.pool);
    REQUIRE(follows(*pools.pool));
    REQUIRE(eventually([&] { return pools.pool->range().status().state == TieringState::paused; }));
    for (const auto& other : others) {
      CHECK(take(other->move_to(Tier::cxl))->wait(patience_ns).ok());
      REQUIRE(other->residency().ddr_bytes == 0);
    }
    moves = true;
  }
  // Guards, of what the order knows, that do not wait.
  void touch() { (void)take(layers->layers[0]->read({.wait = GuardWait::never})); }

  void step() {
    auto& all = layers->layers;
    for (size_t i = 0; i < all.size(); ++i) (void)take(all[i]->read({.wait = GuardWait::never}));
    for (size_t i = all.size(); i-- > 0;) (void)take(all[i]->read({.wait = GuardWait::never}));
    pools.pool->step();
  }

  Pools pools;
  bool moves = false;
  std::vector<std::shared_ptr<Tensor>> others;
  std::unique_ptr<Layers> layers;
};

}  // namespace

TEST_CASE("requests: one that is stuck ends by itself and keeps none behind it, while an order is followed") {
  Followed pool;
  if (!pool.moves) return;
  ReadGuard held = take(pool.others[0]->read({.hold = true}));
  pool.pools.pool->set_copy_budget(256 * mib);  // so that there always is something to copy for the order
  std::atomic<bool> over{false};
  std::thread steps([&] {
    while (!over) pool.step();
  });
  const auto stuck = take(pool.others[0]->prefetch());
  const auto behind = take(pool.others[1]->prefetch());
  const Status moved = behind->wait(patience_ns / 4), refused = stuck->wait(patience_ns / 4);
  CHECK(moved.ok());
  REQUIRE(stuck->done());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::busy);
  CHECK(refused.error().detail.find("'other.0'") != std::string::npos);
  over = true;
  steps.join();
  CHECK(whole(pool.others[0]->bytes(), 100));
  CHECK(whole(pool.others[1]->bytes(), 101));
}

TEST_CASE("requests: guards that open and close meanwhile do not use a request's patience up") {
  Followed pool;
  if (!pool.moves) return;
  for (int attempt = 0; attempt < 5; ++attempt) {
    ReadGuard held = take(pool.others[0]->read({.hold = true}));
    const auto begin = std::chrono::steady_clock::now();
    const auto since = [&] { return std::chrono::steady_clock::now() - begin; };
    const auto move = take(pool.others[0]->move_to(Tier::ddr));
    while (!move->done() && since() < std::chrono::milliseconds(100)) pool.touch();
    const bool ended = move->done();
    held.close();
    const bool in_time = since() < std::chrono::milliseconds(400);
    const Status moved = move->wait(patience_ns);
    if (!in_time && (ended || !moved.ok())) continue;  // a busy machine: its half second may have been over
    CHECK_FALSE(ended);
    CHECK_MESSAGE(moved.ok(), (moved.ok() ? std::string() : moved.error().to_string()));
    return;
  }
}

TEST_CASE(
    "guards: none waits for what is pinned or held in CXL; of what is held in part the rest still comes") {
  Followed pool;
  if (!pool.moves) return;
  Tensor &pinned = *pool.others[0], &held = *pool.others[1];
  CHECK(take(pinned.pin(Tier::cxl))->wait(patience_ns).ok());
  for (int i = 0; i < 3; ++i) CHECK(whole(take(pinned.read({.wait = GuardWait::always})).bytes(), 100));
  CHECK(pinned.statistics().guard_waits == 0);
  {
    ReadGuard hold = take(held.read({.hold = true, .wait = GuardWait::never}));
    for (int i = 0; i < 3; ++i) CHECK(whole(take(held.read({.wait = GuardWait::always})).bytes(), 101));
    CHECK(held.statistics().guard_waits == 0);
  }
  ReadGuard hold = take(take(held.slice(0, 0, 2 * mib))->read({.hold = true, .wait = GuardWait::never}));
  CHECK(eventually([&] {
    (void)take(held.read({.wait = GuardWait::always}));
    return held.residency().ddr_bytes == 2 * mib;
  }));
}

TEST_CASE("pins: what is there already is held once pin() has returned, and one that failed is none") {
  Pools pools(8 * mib, 16 * mib);
  auto tensor = pools.tensor("t", 4 * mib);
  const auto tier_of = [](Tensor& one) { return one.residency().cxl_bytes == 0 ? Tier::ddr : Tier::cxl; };
  const auto other_than = [](Tier tier) { return tier == Tier::ddr ? Tier::cxl : Tier::ddr; };
  const auto stays = [&](Tensor& one) {
    const Tier tier = tier_of(one);
    (void)pools.pool->range().move_to(one.bytes(), other_than(tier));
    return tier_of(one) == tier &&
           (tier == Tier::ddr ? one.residency().ddr_bytes : one.residency().cxl_bytes) == 4 * mib;
  };
  const Tier here = tier_of(*tensor);
  CHECK(take(tensor->pin(here))->done());  // also where nothing moves
  CHECK(stays(*tensor));
  CHECK(tensor->unpin().ok());
  auto placed =
      take(pools.pool->create({.dtype = DType::u8, .shape = {4 * mib}, .flags = TensorFlags::pinned}));
  CHECK(stays(*placed));
  placed.reset();
  if (!pools.moves()) return;
  CHECK_FALSE(stays(*tensor));
  CHECK(take(tensor->move_to(here))->wait(patience_ns).ok());
  {
    ReadGuard held = take(tensor->read({.hold = true}));
    auto refused = take(tensor->pin(other_than(here)));
    CHECK_FALSE(refused->wait(patience_ns).ok());
  }
  CHECK(tensor->statistics().pins == 0);
  CHECK(pools.pool->statistics().pinned_bytes == 0);
  CHECK(tensor->unpin().error().code == ErrorCode::invalid_argument);
  CHECK(take(tensor->pin(other_than(here)))->wait(patience_ns).ok());
}
