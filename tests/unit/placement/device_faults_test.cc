// SPDX-License-Identifier: Apache-2.0
// Tier hbm of a pool: what is told when copies and devices fail, and tensors that go at any moment.
#include <thread>

#include "tests/unit/placement/device_pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr uint64_t size = replica_bytes;

}  // namespace

TEST_CASE("Tier hbm: a copy up that fails says of which tensor, and the next one is tried") {
  DevicePools pools(2 * size);
  auto a = pools.filled("a", 1);
  pools.device->fail(GatedDevice::up, 2);
  auto refused = a->device_read();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::io_error);
  CHECK(says(refused.error(), "'a'"));
  CHECK(take(a->prefetch(Tier::hbm))->wait(patience_ns).error().code == ErrorCode::io_error);
  CHECK(a->residency().hbm_bytes == 0);
  CHECK(whole(take(a->read()).bytes(), 1));
  CHECK(whole(on_device(take(a->device_read())), 1));
  CHECK(pools.hbm().failed_copies == 2);
}

TEST_CASE("Tier hbm: a write-back that fails leaves the device's bytes, and its room is not taken") {
  DevicePools pools(size);
  auto a = pools.filled("a", 1), b = pools.filled("b", 2);
  fill(on_device(take(a->device_write())), 11);
  pools.device->fail(GatedDevice::down, 2);
  CHECK(a->read().error().code == ErrorCode::io_error);
  CHECK(a->residency().hbm_dirty_bytes == size);
  auto refused = b->device_read();  // no second try by itself
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  CHECK(says(refused.error(), "cannot be written back 1048576"));
  CHECK(
      take(a->move_to(a->residency().ddr_bytes > 0 ? Tier::ddr : Tier::cxl))->wait(patience_ns).error().code ==
      ErrorCode::io_error);
  CHECK(whole(take(a->read()).bytes(), 11));
  bring(*b);
}

TEST_CASE("Tier hbm: what was written back in part and discarded is nobody's, until it is written") {
  DevicePools pools(size);
  auto a = pools.filled("a", 1);
  const auto tear = [&] {
    fill(on_device(take(a->device_write({.overwrite = true}))), 11);
    pools.device->fail(GatedDevice::down, 1);
    CHECK(a->read().error().code == ErrorCode::io_error);
    REQUIRE(a->discard_hbm().ok());
  };
  tear();
  CHECK(a->read().error().code == ErrorCode::corrupt);
  CHECK(says(a->write_back().error(), "'a'"));
  CHECK(a->device_read().error().code == ErrorCode::corrupt);
  CHECK(a->device_write().error().code == ErrorCode::corrupt);
  CHECK(take(a->move_to(Tier::hbm))->wait(patience_ns).error().code == ErrorCode::corrupt);
  CHECK(take(a->pin(Tier::hbm))->wait(patience_ns).error().code == ErrorCode::corrupt);
  CHECK(pools.hbm().pinned_bytes == 0);
  fill(on_device(take(a->device_write({.overwrite = true}))), 5);
  CHECK(whole(take(a->read()).bytes(), 5));
  tear();
  fill(take(a->write()).bytes(), 6);
  CHECK(whole(take(a->read()).bytes(), 6));
  CHECK(whole(on_device(take(a->device_read())), 6));
}

TEST_CASE("Tier hbm: a lost device is told, and what it had is given up by word only") {
  DevicePools pools(2 * size);
  auto a = pools.filled("a", 1), b = pools.filled("b", 2);
  fill(on_device(take(a->device_write())), 11);
  pools.device->lose();
  CHECK(a->read().error().code == ErrorCode::unavailable);
  CHECK(b->device_read().error().code == ErrorCode::unavailable);
  CHECK(whole(take(b->read()).bytes(), 2));
  CHECK(a->discard_hbm().ok());
  CHECK(whole(take(a->read()).bytes(), 1));
  FakeSession session(gib);
  auto made = TensorPool::make({.session = &session, .ddr_bytes = 4 * mib, .device = pools.device}, {});
  CHECK(made.error().code == ErrorCode::unavailable);
}

TEST_CASE("Tier hbm: a device that others fill gives what it has, by evictions, then says so") {
  DevicePools pools(4 * size, 4 * size);
  auto a = pools.filled("a", 1), b = pools.filled("b", 2);
  bring(*a);
  pools.device->take_away(3 * size);
  bring(*b);  // in a's place, although the budget has room
  CHECK(a->residency().hbm_bytes == 0);
  auto guard = take(b->device_read());
  auto refused = a->device_read();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  CHECK(says(refused.error(), "'a'"));
  CHECK(pools.hbm().used_bytes == size);
}

TEST_CASE("Tier hbm: a tensor goes while memory for it is asked for, and not given") {
  DevicePools pools(2 * size);
  auto a = pools.filled("a", 1);
  pools.device->take_away(pools.device->info().capacity_bytes);
  pools.device->hold_allocations(true);
  auto move = take(a->move_to(Tier::hbm));
  REQUIRE(eventually([&] { return pools.device->allocating() == 1; }));
  std::thread gives([&] {
    CHECK(eventually([&] { return move->done(); }));  // it is waited for by then
    pools.device->hold_allocations(false);
  });
  a.reset();
  gives.join();
  CHECK(move->wait(0).error().code == ErrorCode::cancelled);
  CHECK(pools.hbm().used_bytes == 0);
}

TEST_CASE("Tier hbm: of a device with less than the budget nothing is evicted for copies ahead") {
  constexpr uint32_t count = 6;
  DevicePools pools(4 * size, 4 * size);
  pools.device->take_away(size);
  std::vector<std::shared_ptr<Tensor>> layers;
  for (uint32_t i = 0; i < count; ++i) layers.push_back(pools.filled("layer." + std::to_string(i), i));
  const auto step = [&] {
    for (uint32_t i = 0; i < count; ++i) CHECK(whole(on_device(take(layers[i]->device_read())), i));
    pools.pool->step();
  };
  for (int i = 0; i < 3; ++i) step();
  REQUIRE(eventually([&] { return pools.hbm().following; }));
  const uint64_t before = pools.hbm().uploads;
  // Without an end these are thousands.
  CHECK_FALSE(eventually([&] { return pools.hbm().uploads > before + count; }, std::chrono::milliseconds(500)));
  step();
  // What is asked for, and not given, counts meanwhile.
  CHECK(eventually([&] { return pools.hbm().used_bytes <= 3 * size; }));
}

TEST_CASE("Tier hbm: wrong options and pools without a device are told in words") {
  Pools pools(8 * mib, 0);
  auto a = pools.tensor("a", size);
  CHECK(a->move_to(Tier::hbm).error().code == ErrorCode::unsupported);
  CHECK(a->pin(Tier::hbm).error().code == ErrorCode::unsupported);
  CHECK(says(a->device_read().error(), "'a'"));
  CHECK(a->write_back().ok());
  CHECK(a->discard_hbm().ok());
  CHECK(pools.pool->statistics().hbm.capacity_bytes == 0);
  CHECK(pools.pool->range().move_to(a->bytes(), Tier::hbm).error().code == ErrorCode::invalid_argument);
  FakeSession session(gib);
  auto device = std::make_shared<GatedDevice>(size);
  auto made = TensorPool::make(
      {.session = &session, .ddr_bytes = 4 * mib, .device = device, .hbm_bytes = 2 * size}, {});
  CHECK(made.error().code == ErrorCode::invalid_argument);
  DevicePools with(2 * size);
  auto none = take(with.pool->create({.name = "none", .dtype = DType::f32, .shape = {0}}));
  CHECK(take(none->device_read()).address() == 0);
  CHECK(take(none->move_to(Tier::hbm))->done());
}

TEST_CASE("Tier hbm: a DLPack tensor keeps guard, tensor and device, and says how it may be used") {
  auto device = std::make_shared<GatedDevice>(8 * mib);
  dlpack::Memory memory;
  {
    DevicePools pools(2 * size, device);
    auto a = pools.filled("a", 1);
    auto part = take(a->slice(0, 10, 5));
    memory = take(take(part->device_read()).dlpack_memory());
    CHECK(a->write().error().code == ErrorCode::busy);
    CHECK(take(take(a->device_write()).dlpack_memory()).read_only == false);
  }
  CHECK(memory.read_only);
  CHECK(memory.device.type == dlpack::DeviceType::cpu);  // emulated
  CHECK(memory.shape == Shape{5});
  CHECK(device->allocated() == size);
  memory = {};
  CHECK(device->allocated() == 0);
}

TEST_CASE("Tier hbm: tensors and pools may go while copies are under way") {
  auto device = std::make_shared<GatedDevice>(8 * mib);
  std::shared_ptr<Tensor> left;
  {
    DevicePools pools(4 * size, device);
    auto a = pools.filled("a", 1), b = pools.filled("b", 2);
    left = pools.filled("left", 3);
    fill(on_device(take(left->device_write())), 13);
    device->shut(GatedDevice::up, true);
    auto move = take(a->move_to(Tier::hbm));
    auto of_pool = take(b->move_to(Tier::hbm));
    REQUIRE(eventually([&] { return device->waiting(GatedDevice::up) == 2; }));
    std::thread opens([&] {
      CHECK(eventually([&] { return move->done(); }));
      device->shut(GatedDevice::up, false);
    });
    a.reset();  // waits for the copy, which reads its bytes
    opens.join();
    CHECK(move->wait(0).error().code == ErrorCode::cancelled);
    pools.pool.reset();
    CHECK((of_pool->wait(patience_ns).ok() || of_pool->wait(0).error().code == ErrorCode::cancelled));
  }
  CHECK(whole(take(left->read()).bytes(), 13));  // what was dirty can still be read
  CHECK(left->device_read().ok());
  CHECK(left->discard_hbm().ok());
  CHECK(left->device_read().error().code == ErrorCode::cancelled);
  left.reset();
  CHECK(device->allocated() == 0);
}
