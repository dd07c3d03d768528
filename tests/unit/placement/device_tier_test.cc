// SPDX-License-Identifier: Apache-2.0
// Tier hbm of a pool: which of both copies is newer, who waits, and who makes room. Copies wait for the test's
// word where their order matters.
#include <thread>

#include "tests/unit/placement/device_pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr uint64_t size = replica_bytes;

}  // namespace

TEST_CASE("Tier hbm: a tensor is brought, used and told of, and its host bytes stay") {
  DevicePools pools(4 * size);
  auto a = pools.filled("a", 1);
  CHECK(a->residency().hbm_bytes == 0);
  auto guard = take(a->device_read());
  CHECK(guard.bytes() == size);
  CHECK(whole(on_device(guard), 1));
  CHECK(a->residency().hbm_bytes == size);
  CHECK(a->residency().hbm_dirty_bytes == 0);
  CHECK(a->residency().ddr_bytes + a->residency().cxl_bytes == size);
  CHECK(pools.hbm().in_use_bytes == size);
  auto again = take(a->device_read());
  CHECK(again.address() == guard.address());
  CHECK(pools.hbm().uploads == 1);
  auto view = take(take(a->slice(0, 4096, 100))->device_read());
  CHECK(view.address() == guard.address() + 4096);
  CHECK(view.bytes() == 100);
  CHECK(a->statistics().device_reads == 3);
  CHECK(whole(take(a->read()).bytes(), 1));  // host readers and device readers go together
}

TEST_CASE("Tier hbm: a host write makes the replica stale, and the device sees what was written") {
  DevicePools pools(4 * size);
  auto a = pools.filled("a", 1);
  bring(*a);
  CHECK(take(a->device_read()).bytes() == size);
  fill(take(a->write()).bytes(), 2);
  CHECK(a->residency().hbm_bytes == 0);
  CHECK(pools.hbm().stale_bytes == size);
  CHECK(whole(on_device(take(a->device_read())), 2));
  CHECK(pools.hbm().used_bytes == size);
}

TEST_CASE("Tier hbm: what the device wrote is written back before the host reads or writes") {
  DevicePools pools(4 * size);
  auto a = pools.filled("a", 1);
  fill(on_device(take(a->device_write())), 2);
  CHECK(a->residency().hbm_dirty_bytes == size);
  CHECK(whole(take(a->read()).bytes(), 2));
  CHECK(a->residency().hbm_dirty_bytes == 0);
  CHECK(a->residency().hbm_bytes == size);
  CHECK(pools.hbm().write_backs == 1);
  fill(on_device(take(a->device_write())), 3);
  {
    auto guard = take(a->write());
    CHECK(whole(guard.bytes(), 3));
    fill(guard.bytes(), 4);
  }
  CHECK(whole(on_device(take(a->device_read())), 4));
  fill(on_device(take(a->device_write())), 5);
  CHECK(a->write_back().ok());
  CHECK(whole(a->bytes(), 5));
}

TEST_CASE("Tier hbm: during a write-back the device reads on, and writes once it is over") {
  DevicePools pools(2 * size);
  auto a = pools.filled("a", 1);
  fill(on_device(take(a->device_write())), 2);
  pools.device->shut(GatedDevice::down, true);
  Result<ReadGuard> host = Error{};
  std::thread reads([&] { host = a->read(); });
  REQUIRE(eventually([&] { return pools.device->waiting(GatedDevice::down) == 1; }));
  CHECK(whole(on_device(take(a->device_read())), 2));
  CHECK(a->device_write({.timeout_ns = ns_per_ms}).error().code == ErrorCode::busy);
  pools.device->shut(GatedDevice::down, false);
  reads.join();
  REQUIRE(host.ok());
  CHECK(whole(host->bytes(), 2));
  CHECK(pools.hbm().host_waits == 1);
  CHECK(a->device_write().ok());
}

TEST_CASE("Tier hbm: guards of host and device that would tear each other's bytes are refused") {
  DevicePools pools(4 * size);
  auto a = pools.filled("a", 1);
  {
    auto reader = take(a->device_read());
    CHECK(a->write().error().code == ErrorCode::busy);
    CHECK(says(a->write().error(), "'a'"));
    CHECK(a->read().ok());
  }
  {
    auto writer = take(a->device_write());
    CHECK(a->read().error().code == ErrorCode::busy);
    CHECK(a->write().error().code == ErrorCode::busy);
    CHECK(a->discard_hbm().error().code == ErrorCode::busy);
  }
  auto host = take(a->write());
  CHECK(a->device_read().error().code == ErrorCode::busy);
  CHECK(a->device_write({.overwrite = true}).error().code == ErrorCode::busy);
  auto move = take(a->move_to(Tier::hbm));  // waits for the guard
  CHECK_FALSE(move->done());
  fill(host.bytes(), 7);
  host.close();
  CHECK(move->wait(patience_ns).ok());
  CHECK(whole(on_device(take(a->device_read())), 7));
}

TEST_CASE("Tier hbm: an upload that a host writer was faster than is not taken for the tensor") {
  DevicePools pools(4 * size);
  auto a = pools.filled("a", 1);
  pools.device->shut(GatedDevice::up, true);
  auto move = take(a->move_to(Tier::hbm));
  REQUIRE(eventually([&] { return pools.device->waiting(GatedDevice::up) == 1; }));
  {
    auto guard = take(a->write());
    pools.device->shut(GatedDevice::up, false);
    REQUIRE(eventually([&] { return pools.hbm().uploads == 1; }));
    fill(guard.bytes(), 2);
  }
  CHECK(move->wait(patience_ns).ok());
  CHECK(whole(on_device(take(a->device_read())), 2));
  CHECK(pools.hbm().uploads == 2);
}

TEST_CASE("Tier hbm: what all of is written is not copied up") {
  DevicePools pools(4 * size);
  auto a = pools.filled("a", 1);
  fill(on_device(take(a->device_write({.overwrite = true}))), 2);
  CHECK(pools.hbm().uploads == 0);
  CHECK(whole(take(a->read()).bytes(), 2));
}

TEST_CASE("Tier hbm: of a view that is overwritten the rest of its base stays") {
  DevicePools pools(4 * size);
  auto a = pools.filled("a", 1);
  auto part = take(a->slice(0, 4096, 4096));
  fill(on_device(take(part->device_write({.overwrite = true}))), 9);
  auto host = take(a->read());
  CHECK(whole(host.bytes().first(4096), 1));
  CHECK(whole(host.bytes().subspan(4096, 4096), 9));
  CHECK(whole(host.bytes().subspan(8192), 1 + 8192 / 8));
}

TEST_CASE("Tier hbm: a pin ends a move to another tier that waits") {
  DevicePools pools(2 * size);
  auto a = pools.filled("a", 1);
  auto guard = take(a->device_read());
  auto move = take(a->move_to(a->residency().ddr_bytes > 0 ? Tier::ddr : Tier::cxl));
  CHECK_FALSE(move->done());
  REQUIRE(take(a->pin(Tier::hbm))->wait(patience_ns).ok());
  REQUIRE(move->done());
  CHECK(move->wait(0).error().code == ErrorCode::cancelled);
  guard.close();
  CHECK(a->residency().hbm_bytes == size);
}

TEST_CASE("Tier hbm: without an order what was used least recently makes room, written back first") {
  DevicePools pools(2 * size);
  auto a = pools.filled("a", 1), b = pools.filled("b", 2), c = pools.filled("c", 3);
  fill(on_device(take(a->device_write())), 11);
  bring(*b);
  bring(*c);
  CHECK(a->residency().hbm_bytes == 0);
  CHECK(b->residency().hbm_bytes == size);
  CHECK(pools.hbm().write_backs == 1);
  CHECK(pools.hbm().evictions == 1);
  CHECK(whole(take(a->read()).bytes(), 11));
  CHECK(take(b->device_read()).bytes() == size);
  bring(*a);
  CHECK(c->residency().hbm_bytes == 0);
  CHECK(pools.hbm().used_bytes == 2 * size);
  CHECK(pools.device->allocated() == 2 * size);
}

TEST_CASE("Tier hbm: what guards and pins keep is refused in bytes, at once, and nothing is evicted") {
  DevicePools pools(3 * size);
  auto a = pools.filled("a", 1), b = pools.filled("b", 2), c = pools.filled("c", 3), d = pools.filled("d", 4);
  auto guard = take(a->device_read());
  REQUIRE(take(b->pin(Tier::hbm))->wait(patience_ns).ok());
  bring(*c);
  auto big = pools.filled("big", 5, 2 * size);
  auto refused = big->device_read();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  CHECK(says(refused.error(), "'big'"));
  CHECK(says(refused.error(), "hbm"));
  CHECK(says(refused.error(), "1048576 bytes short of a budget of 3145728 (in use 1048576, pinned 1048576)"));
  CHECK(c->residency().hbm_bytes == size);
  auto handle = take(big->move_to(Tier::hbm))->wait(patience_ns);
  CHECK(handle.error().code == ErrorCode::capacity_exhausted);
  CHECK(big->residency().hbm_bytes == 0);
  auto pin = big->pin(Tier::hbm);  // 1 + 2 of 3 are pinned then: allowed, but there is no room for it now
  REQUIRE(pin.ok());
  CHECK((*pin)->wait(patience_ns).error().code == ErrorCode::capacity_exhausted);
  CHECK(big->unpin().error().code == ErrorCode::invalid_argument);
  auto huge = pools.filled("huge", 6, 3 * size)->pin(Tier::hbm);
  REQUIRE_FALSE(huge.ok());
  CHECK(says(huge.error(), "1048576 bytes short"));
  CHECK(pools.hbm().pinned_bytes == size);
  guard.close();
  bring(*d);
  CHECK(pools.hbm().refused == 4);
}

TEST_CASE("Tier hbm: room that is only being copied to is waited for, not refused") {
  DevicePools pools(size);
  auto a = pools.filled("a", 1), b = pools.filled("b", 2);
  pools.device->shut(GatedDevice::up, true);
  auto move = take(a->move_to(Tier::hbm));
  REQUIRE(eventually([&] { return pools.device->waiting(GatedDevice::up) == 1; }));
  Result<DeviceGuard> guard = Error{};
  std::thread waits([&] { guard = b->device_read(); });
  CHECK(eventually([&] { return pools.hbm().guards == 1; }));
  auto late = b->device_read({.timeout_ns = ns_per_ms});
  CHECK(late.error().code == ErrorCode::busy);
  pools.device->shut(GatedDevice::up, false);
  waits.join();
  CHECK(move->wait(patience_ns).ok());
  REQUIRE_MESSAGE(guard.ok(), guard.error().to_string());
  CHECK(whole(on_device(*guard), 2));
  CHECK(pools.hbm().refused == 0);
}

TEST_CASE("Tier hbm: room that is being written back is waited for, not refused") {
  DevicePools pools(size);
  auto a = pools.filled("a", 1), b = pools.filled("b", 2), c = pools.filled("c", 3);
  fill(on_device(take(a->device_write())), 11);
  pools.device->shut(GatedDevice::down, true);
  auto move = take(b->move_to(Tier::hbm)), other = take(c->move_to(Tier::hbm));
  REQUIRE(eventually([&] { return pools.device->waiting(GatedDevice::down) == 1; }));
  CHECK_FALSE(move->done());
  CHECK_FALSE(other->done());
  pools.device->shut(GatedDevice::down, false);
  CHECK(move->wait(patience_ns).ok());
  CHECK(other->wait(patience_ns).ok());
  CHECK(whole(take(a->read()).bytes(), 11));
  CHECK(pools.hbm().refused == 0);
}

TEST_CASE("Tier hbm: a pinned replica keeps its address and follows the host") {
  DevicePools pools(2 * size);
  auto a = pools.filled("a", 1), b = pools.filled("b", 2), c = pools.filled("c", 3);
  REQUIRE(take(a->pin(Tier::hbm))->wait(patience_ns).ok());
  REQUIRE(take(a->pin(Tier::hbm))->wait(patience_ns).ok());
  CHECK(a->statistics().pins == 2);
  CHECK(a->pin(Tier::ddr).error().code == ErrorCode::busy);
  CHECK(a->move_to(Tier::ddr).error().code == ErrorCode::busy);
  CHECK(a->discard_hbm().error().code == ErrorCode::busy);
  const uint64_t address = take(a->device_read()).address();
  bring(*b);
  bring(*c);
  CHECK(b->residency().hbm_bytes == 0);
  fill(take(a->write()).bytes(), 9);
  CHECK(eventually([&] { return a->residency().hbm_bytes == size; }));  // nobody asked
  auto guard = take(a->device_read());
  CHECK(guard.address() == address);
  CHECK(whole(on_device(guard), 9));
  CHECK(a->unpin().ok());
  CHECK(a->unpin().ok());
  CHECK(a->unpin().error().code == ErrorCode::invalid_argument);
  REQUIRE(take(b->pin(Tier::ddr))->wait(patience_ns).ok());
  CHECK(b->pin(Tier::hbm).error().code == ErrorCode::busy);
}

TEST_CASE("Tier hbm: moved to another tier, a tensor gives its replica up, written back") {
  DevicePools pools(2 * size);
  auto a = pools.filled("a", 1);
  fill(on_device(take(a->device_write())), 2);
  const Tier here = a->residency().ddr_bytes > 0 ? Tier::ddr : Tier::cxl;
  CHECK(take(a->move_to(here))->wait(patience_ns).ok());
  CHECK(a->residency().hbm_bytes == 0);
  CHECK(whole(a->bytes(), 2));
  CHECK(pools.device->allocated() == 0);
  bring(*a);
  CHECK(a->discard_hbm().ok());
  CHECK(pools.device->allocated() == 0);
}
