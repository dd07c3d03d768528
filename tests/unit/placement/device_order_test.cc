// SPDX-License-Identifier: Apache-2.0
// Tier hbm by the order of a step: the plan with known answers, and whole steps on an emulated device; threads
// that use everything at once, with every byte checked.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "core/base/prng.h"
#include "libclient/placement/device_schedule.h"
#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;
using placement::DeviceSchedule;
using placement::SlotUse;

namespace {

constexpr uint64_t size = mib;

std::vector<SlotUse> pass(uint32_t tensors, uint64_t bytes) {
  std::vector<SlotUse> cycle;
  for (uint32_t i = 0; i < tensors; ++i) cycle.push_back({.slot = i, .bytes = bytes});
  return cycle;
}

std::shared_ptr<DeviceMemory> emulated(uint64_t capacity) {
  return take(DeviceMemory::make_emulated({.capacity_bytes = capacity}));
}

std::span<std::byte> on_device(const DeviceGuard& guard) {
  return {reinterpret_cast<std::byte*>(guard.address()), guard.bytes()};
}

}  // namespace

TEST_CASE("DeviceSchedule: what fits is kept, and nothing is copied") {
  const DeviceSchedule plan(pass(4, 10), 40);
  CHECK(plan.fetch_bytes() == 0);
  for (uint32_t at = 0; at < 4; ++at) CHECK(plan.kept_before(at));
}

TEST_CASE("DeviceSchedule: of a pass that does not fit, room beside the use and one fetch is kept") {
  const DeviceSchedule plan(pass(6, 10), 40);  // one in use, one coming: two stay
  CHECK(plan.fetch_bytes() == 40);
  const auto next = plan.next_uses(2, 8);
  CHECK(next[2].distance == 0);
  CHECK(next[1].distance == 5);
  CHECK(next[7].distance == placement::NextUse::never);
}

TEST_CASE("DeviceSchedule: random cycles of tensors of any size never keep more than there is room for") {
  Prng prng(7);
  for (int round = 0; round < 200; ++round) {
    const uint32_t slots = 2 + static_cast<uint32_t>(prng.next() % 8);
    std::vector<uint64_t> bytes(slots);
    for (auto& one : bytes) one = 1 + prng.next() % 50;
    std::vector<SlotUse> cycle(2 + prng.next() % 20);
    for (auto& use : cycle) {
      use.slot = static_cast<uint32_t>(prng.next() % slots);
      use.bytes = bytes[use.slot];
    }
    const uint64_t room = 60 + prng.next() % 200;
    const DeviceSchedule plan(cycle, room);
    const auto count = static_cast<uint32_t>(cycle.size());
    for (uint32_t at = 0; at < count; ++at) {  // during the use at `at`: it, and what is kept over it
      uint64_t held = cycle[at].bytes;
      for (uint32_t slot = 0; slot < slots; ++slot) {
        if (slot == cycle[at].slot) continue;
        const auto next = plan.next_uses(at, slots)[slot];
        if (next.distance != placement::NextUse::never && next.kept) held += bytes[slot];
      }
      REQUIRE(held <= std::max(room, cycle[at].bytes));
    }
  }
  CHECK(DeviceSchedule(pass(3, 10), 9).empty());
}

TEST_CASE("Tier hbm: once the order is known tensors are there before they are asked for") {
  Pools pools(16 * mib, 24 * mib, {.device = emulated(64 * mib), .hbm_bytes = 4 * size});
  std::vector<std::shared_ptr<Tensor>> layers;
  for (uint32_t i = 0; i < 8; ++i) {
    layers.push_back(pools.tensor("layer." + std::to_string(i), size));
    fill(take(layers[i]->write()).bytes(), i);
  }
  const auto step = [&](bool let_it_copy) {
    uint32_t there = 0;
    for (uint32_t i = 0; i < layers.size(); ++i) {
      // The next one is copied while this one is used.
      const auto next = [&] { return layers[(i + 1) % layers.size()]->residency().hbm_bytes == size; };
      there += layers[i]->residency().hbm_bytes == size ? 1 : 0;
      auto guard = take(layers[i]->device_read());
      CHECK(whole(on_device(guard), i));
      if (let_it_copy) CHECK(eventually(next));
    }
    pools.pool->step();
    return there;
  };
  step(false);
  step(false);
  REQUIRE(eventually([&] { return pools.pool->statistics().hbm.following; }));
  step(true);
  const HbmStatistics before = pools.pool->statistics().hbm;
  CHECK(step(true) == 8);
  CHECK(step(true) == 8);
  const HbmStatistics after = pools.pool->statistics().hbm;
  CHECK(after.guard_waits == before.guard_waits);
  CHECK(after.uploads_ahead > before.uploads_ahead);
  CHECK(after.uses_per_step == 8);
  // Two of eight stay (the plan's 6 MiB a step); what is copied ahead beyond the plan is little.
  CHECK(after.planned_bytes_per_step == 6 * size);
  CHECK(after.uploaded_bytes - before.uploaded_bytes <= 2 * after.planned_bytes_per_step + 2 * size);
  CHECK(after.used_bytes <= 4 * size);
}

TEST_CASE("Tier hbm: in a known order what is needed last makes room") {
  Pools pools(16 * mib, 24 * mib, {.device = emulated(64 * mib), .hbm_bytes = 3 * size});
  auto a = pools.tensor("a", size), b = pools.tensor("b", size), c = pools.tensor("c", size);
  const auto use = [](Tensor& tensor) { take(tensor.device_read()).close(); };
  for (int i = 0; i < 3; ++i) {
    for (Tensor* tensor : {a.get(), b.get(), c.get(), b.get()}) use(*tensor);
    pools.pool->step();
  }
  REQUIRE(eventually([&] { return pools.pool->statistics().hbm.following; }));
  REQUIRE(eventually([&] { return pools.pool->statistics().hbm.replicas == 3; }));
  use(*a);  // next: b, c, b, a. By recency c would go, or b; by the order a
  auto other = pools.tensor("other", size);
  auto guard = take(other->device_read());
  CHECK(a->residency().hbm_bytes == 0);
  CHECK(b->residency().hbm_bytes == size);
  CHECK(c->residency().hbm_bytes == size);
}

// Two users and a pin have room at any time, so that nobody may ever be refused.
TEST_CASE("Tier hbm: threads that use, move, pin and write on both sides lose no byte and are never refused") {
  const char* told = std::getenv("TERRACE_PLACEMENT_ROUNDS");
  const int rounds = told == nullptr ? 150 : std::atoi(told);
  constexpr uint32_t count = 8, threads = 3;
  Pools pools(4 * mib, 24 * mib,
              {.copy_bytes_per_s_max = 0, .device = emulated(64 * mib), .hbm_bytes = (threads + 1) * size});
  struct One {
    std::shared_ptr<Tensor> tensor;
    std::mutex mutex;  // who has it says what it holds
    uint64_t seed = 0;
  };
  std::vector<One> all(count);
  for (uint32_t i = 0; i < count; ++i) {
    all[i].tensor = pools.tensor("t" + std::to_string(i), size - 4096 * i);
    fill(take(all[i].tensor->write()).bytes(), 0);
  }
  std::atomic<uint32_t> wrong{0}, failed{0};
  std::atomic<bool> over{false};
  const auto well = [&](const auto& result) {
    if (!result.ok() && failed++ == 0) MESSAGE(result.error().to_string());
    return result.ok();
  };
  const auto user = [&](uint64_t number) {
    Prng prng(number);
    for (int round = 0; round < rounds; ++round) {
      One& one = all[prng.next() % count];
      const std::lock_guard lock(one.mutex);
      switch (prng.next() % 5) {
        case 0:
          if (auto guard = one.tensor->write(); well(guard)) {
            if (!whole(guard->bytes(), one.seed)) ++wrong;
            fill(guard->bytes(), one.seed = prng.next());
          }
          break;
        case 1:
          if (auto guard = one.tensor->read(); well(guard) && !whole(guard->bytes(), one.seed)) ++wrong;
          break;
        case 2:
          if (auto guard = one.tensor->device_write(); well(guard)) {
            if (!whole(on_device(*guard), one.seed)) ++wrong;
            fill(on_device(*guard), one.seed = prng.next());
          }
          break;
        case 3:
          if (auto guard = one.tensor->device_write({.overwrite = true}); well(guard))
            fill(on_device(*guard), one.seed = prng.next());
          break;
        default:
          if (auto guard = one.tensor->device_read(); well(guard) && !whole(on_device(*guard), one.seed))
            ++wrong;
      }
      if (prng.next() % 16 == 0) pools.pool->step();
    }
  };
  std::thread mover([&] {
    Prng prng(99);
    while (!over) {
      Tensor& tensor = *all[prng.next() % count].tensor;
      const uint64_t what = prng.next() % 6;
      if (what == 0) {
        auto pin = tensor.pin(Tier::hbm);
        if (pin.ok()) (void)(*pin)->wait(patience_ns);
        if (pin.ok()) (void)tensor.unpin();
      } else {
        auto move = tensor.move_to(what < 3 ? Tier::hbm : what == 3 ? Tier::ddr : Tier::cxl);
        if (move.ok() && what % 2 == 0) (void)(*move)->wait(patience_ns);
      }
      const HbmStatistics now = pools.pool->statistics().hbm;
      if (now.used_bytes > now.budget_bytes) ++wrong;
    }
  });
  std::vector<std::thread> users;
  for (uint32_t i = 0; i < threads; ++i) users.emplace_back(user, i + 1);
  for (auto& one : users) one.join();
  over = true;
  mover.join();
  CHECK(wrong == 0);
  CHECK(failed == 0);
  for (One& one : all) CHECK(whole(take(one.tensor->read()).bytes(), one.seed));
  MESSAGE("refused moves: " << pools.pool->statistics().hbm.refused);
}

TEST_CASE("Tier hbm: a child of fork lets go of guards and tensors without harm") {
  Pools pools(8 * mib, 0, {.device = emulated(16 * mib), .hbm_bytes = 4 * size});
  auto tensor = pools.tensor("a", size);
  fill(take(tensor->write()).bytes(), 3);
  auto guard = take(tensor->device_read());
  const pid_t child = ::fork();
  if (child == 0) {
    guard.close();
    tensor.reset();
    pools.pool.reset();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(whole(on_device(guard), 3));
}
