// SPDX-License-Identifier: Apache-2.0
// Replicas of host tensors: found by version, evicted by least recent use, never against a pin or a copy.
#include "terrace/device_replicas.h"

#include <atomic>

#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

struct HostTensor {
  HostTensor(uint64_t number, size_t bytes_count)
      : id(number), name("layer." + std::to_string(number)), bytes(random_bytes(bytes_count, number)) {}
  ReplicaSource source() const { return {.id = id, .name = name, .bytes = bytes, .version_now = {}}; }
  uint64_t id;
  std::string name;
  Bytes bytes;
};

std::unique_ptr<DeviceReplicas> cache(std::shared_ptr<DeviceMemory> device, uint64_t budget_bytes) {
  return must(DeviceReplicas::make(std::move(device), {.budget_bytes = budget_bytes}));
}

Replica ready(Result<Replica> fetched) {
  Replica replica = must(std::move(fetched));
  must(replica.ready().wait());
  return replica;
}

Bytes device_bytes(DeviceMemory& device, const Replica& replica) {
  const auto stream = must(device.make_stream());
  Bytes bytes(replica.bytes());
  must(must(stream->download(bytes, replica.buffer(), 0)).wait());
  return bytes;
}

// As a kernel would.
void change_on_device(DeviceMemory& device, const Replica& replica, const Bytes& bytes) {
  const auto stream = must(device.make_stream());
  must(must(stream->upload(replica.buffer(), 0, bytes)).wait());
}

constexpr uint64_t slow_bytes_per_s = 4 * mib;

}  // namespace

TEST_CASE("DeviceReplicas: the first fetch copies, the next ones find it, at the same address") {
  const auto device = emulated();
  const auto replicas = cache(device, 8 * mib);
  const HostTensor tensor(1, 1 * mib);
  uint64_t address = 0;
  {
    const Replica first = ready(replicas->fetch(tensor.source(), 2));
    address = first.address();
    CHECK(device_bytes(*device, first) == tensor.bytes);
  }
  const Replica again = ready(replicas->fetch(tensor.source(), 2));
  CHECK(again.address() == address);
  CHECK(again.version() == 2);
  CHECK(again.id() == 1);
  const ReplicaStats stats = replicas->stats();
  CHECK(stats.hits == 1);
  CHECK(stats.misses == 1);
  CHECK(stats.uploaded_bytes == 1 * mib);
  CHECK(stats.resident_bytes == 1 * mib);
  CHECK(stats.pinned_bytes == 1 * mib);
  CHECK(replicas->state(1, 2) == ReplicaState::shared);
  CHECK(replicas->state(1, 4) == ReplicaState::invalid);
  CHECK(replicas->state(9, 2) == ReplicaState::invalid);
}

TEST_CASE("DeviceReplicas: a fetch returns before the copy is done; another one joins it") {
  const auto device = emulated({.capacity_bytes = 16 * mib, .upload_bytes_per_s = slow_bytes_per_s});
  const auto replicas = cache(device, 8 * mib);
  const HostTensor tensor(1, 1 * mib);
  const Replica first = must(replicas->fetch(tensor.source(), 2));
  const Replica second = must(replicas->fetch(tensor.source(), 2));
  CHECK_FALSE(first.ready().done());
  CHECK(replicas->state(1, 2) == ReplicaState::invalid);
  must(second.ready().wait());
  CHECK(first.ready().done());
  CHECK(replicas->stats().misses == 1);
  CHECK(replicas->stats().uploaded_bytes == 1 * mib);
}

TEST_CASE("DeviceReplicas: what was not used for longest makes room") {
  const auto device = emulated();
  const auto replicas = cache(device, 3 * mib);
  const HostTensor a(1, 1 * mib), b(2, 1 * mib), c(3, 1 * mib), d(4, 1 * mib);
  for (const HostTensor* tensor : {&a, &b, &c, &a}) ready(replicas->fetch(tensor->source(), 2));  // b is oldest
  const Replica last = ready(replicas->fetch(d.source(), 2));
  CHECK(device_bytes(*device, last) == d.bytes);
  CHECK(replicas->state(2, 2) == ReplicaState::invalid);
  CHECK(replicas->state(1, 2) == ReplicaState::shared);
  CHECK(replicas->state(3, 2) == ReplicaState::shared);
  const ReplicaStats stats = replicas->stats();
  CHECK(stats.evicted == 1);
  CHECK(stats.evicted_bytes == 1 * mib);
  CHECK(stats.resident_bytes == 3 * mib);
  CHECK(must(device->use()).allocated_bytes == 3 * mib);
}

TEST_CASE("DeviceReplicas: a large one evicts several, and the budget is never passed") {
  const auto device = emulated();
  const auto replicas = cache(device, 4 * mib);
  for (uint64_t id = 1; id <= 4; ++id) ready(replicas->fetch(HostTensor(id, 1 * mib).source(), 2));
  const HostTensor large(9, 3 * mib - 100);
  const Replica replica = ready(replicas->fetch(large.source(), 2));
  CHECK(device_bytes(*device, replica) == large.bytes);
  CHECK(replicas->stats().evicted == 3);
  CHECK(replicas->state(4, 2) == ReplicaState::shared);
  CHECK(must(device->use()).allocated_bytes <= 4 * mib);
}

TEST_CASE(
    "DeviceReplicas: pinned ones stay; what does not fit is refused in bytes, and nothing is evicted for it") {
  const auto device = emulated();
  const auto replicas = cache(device, 4 * mib);
  const HostTensor a(1, 2 * mib), b(2, 1 * mib), c(3, 3 * mib), huge(4, 5 * mib);
  Replica pinned = ready(replicas->fetch(a.source(), 2));
  ready(replicas->fetch(b.source(), 2));
  const auto refused = replicas->fetch(c.source(), 2);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  CHECK(says(refused.error(), "tensor 3 'layer.3' needs 3145728 bytes in tier hbm, 1048576 short"));
  CHECK(says(refused.error(), "pinned 2097152"));
  CHECK(replicas->state(2, 2) == ReplicaState::shared);
  CHECK(replicas->stats().evicted == 0);
  CHECK(says(replicas->fetch(huge.source(), 2).error(), "1048576 short"));
  pinned.release();
  ready(replicas->fetch(c.source(), 2));
}

TEST_CASE("DeviceReplicas: what is on its way is not evicted") {
  const auto device = emulated({.capacity_bytes = 16 * mib, .upload_bytes_per_s = slow_bytes_per_s});
  const auto replicas = cache(device, 1 * mib);
  const HostTensor a(1, 1 * mib), b(2, 1 * mib);
  must(replicas->fetch(a.source(), 2)).release();  // not pinned, still copied
  const auto refused = replicas->fetch(b.source(), 2);
  REQUIRE_FALSE(refused.ok());
  CHECK(says(refused.error(), "being copied 1048576"));
  ready(replicas->fetch(a.source(), 2));
  ready(replicas->fetch(b.source(), 2));
}

TEST_CASE("DeviceReplicas: a newer version is copied again; who pinned the old one keeps its bytes") {
  const auto device = emulated();
  const auto replicas = cache(device, 8 * mib);
  HostTensor tensor(1, 1 * mib);
  const Bytes before = tensor.bytes;
  Replica old = ready(replicas->fetch(tensor.source(), 2));
  tensor.bytes = random_bytes(1 * mib, 77);
  const Replica now = ready(replicas->fetch(tensor.source(), 4));
  CHECK(device_bytes(*device, old) == before);
  CHECK(device_bytes(*device, now) == tensor.bytes);
  CHECK(old.address() != now.address());
  CHECK(replicas->stats().stale == 1);
  CHECK(replicas->stats().resident_bytes == 2 * mib);
  old.release();
  CHECK(replicas->stats().resident_bytes == 1 * mib);
  CHECK(must(device->use()).allocated_bytes == 1 * mib);
  const auto backwards = replicas->fetch(tensor.source(), 2);
  CHECK(backwards.error().code == ErrorCode::invalid_argument);
}

TEST_CASE("DeviceReplicas: invalidate drops what is older, and nothing else") {
  const auto device = emulated();
  const auto replicas = cache(device, 8 * mib);
  const HostTensor tensor(1, 1 * mib);
  ready(replicas->fetch(tensor.source(), 4));
  must(replicas->invalidate(1, 4));
  must(replicas->invalidate(1, 2));
  must(replicas->invalidate(7, 2));
  CHECK(replicas->state(1, 4) == ReplicaState::shared);
  must(replicas->invalidate(1, 6));
  CHECK(replicas->state(1, 4) == ReplicaState::invalid);
  CHECK(replicas->stats().resident_bytes == 0);
  CHECK(must(device->use()).allocated_bytes == 0);
}

TEST_CASE("DeviceReplicas: a copy that a writer was faster than is refused") {
  const auto device = emulated({.capacity_bytes = 16 * mib, .upload_bytes_per_s = slow_bytes_per_s});
  const auto replicas = cache(device, 8 * mib);
  const HostTensor tensor(1, 256 * kib);
  std::atomic<uint64_t> version = 2;
  ReplicaSource source = tensor.source();
  source.version_now = [&version] { return version.load(); };
  const Replica torn = must(replicas->fetch(source, 2));
  version = 3;  // a writer begins
  const Status status = torn.ready().wait();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::busy);
  CHECK(says(status.error(), "'layer.1'"));
  CHECK(replicas->stats().refused == 1);
  CHECK(replicas->state(1, 2) == ReplicaState::invalid);
  CHECK(replicas->mark_modified(torn).error().code == ErrorCode::cancelled);
  version = 4;
  ready(replicas->fetch(source, 4));
}

TEST_CASE("DeviceReplicas: a modified replica is written back under a new version and is Shared again") {
  const auto device = emulated();
  const auto replicas = cache(device, 8 * mib);
  HostTensor tensor(1, 1 * mib);
  const Replica replica = ready(replicas->fetch(tensor.source(), 2));
  CHECK(replicas->write_back(replica, tensor.bytes, 4).error().code == ErrorCode::invalid_argument);
  must(replicas->mark_modified(replica));
  const Bytes result = random_bytes(1 * mib, 99);
  change_on_device(*device, replica, result);
  CHECK(replicas->state(1, 2) == ReplicaState::modified);
  CHECK(replicas->stats().modified_bytes == 1 * mib);
  CHECK(must(replicas->fetch(tensor.source(), 2)).address() == replica.address());  // its owner sees its own
  CHECK(replicas->write_back(replica, tensor.bytes, 2).error().code == ErrorCode::invalid_argument);
  CHECK(replicas->write_back(replica, std::span(tensor.bytes).first(5), 4).error().code ==
        ErrorCode::invalid_argument);
  must(must(replicas->write_back(replica, tensor.bytes, 4)).wait());
  CHECK(tensor.bytes == result);
  CHECK(replica.version() == 4);
  CHECK(replicas->state(1, 4) == ReplicaState::shared);
  CHECK(replicas->stats().modified_bytes == 0);
  CHECK(replicas->stats().written_back_bytes == 1 * mib);
  ready(replicas->fetch(tensor.source(), 4));
  CHECK(replicas->stats().misses == 1);
}

TEST_CASE("DeviceReplicas: a modified replica is never evicted, nor replaced by what the host has") {
  const auto device = emulated();
  const auto replicas = cache(device, 2 * mib);
  const HostTensor tensor(1, 1 * mib), other(2, 2 * mib);
  {
    const Replica replica = ready(replicas->fetch(tensor.source(), 2));
    must(replicas->mark_modified(replica));
  }
  const auto refused = replicas->fetch(other.source(), 2);
  REQUIRE_FALSE(refused.ok());
  CHECK(says(refused.error(), "modified 1048576"));
  const auto conflict = replicas->fetch(tensor.source(), 4);
  REQUIRE_FALSE(conflict.ok());
  CHECK(conflict.error().code == ErrorCode::busy);
  CHECK(says(conflict.error(), "write it back or discard"));
  CHECK(replicas->invalidate(1, 4).error().code == ErrorCode::busy);
  CHECK(replicas->state(1, 2) == ReplicaState::modified);
  replicas->discard(1);
  CHECK(replicas->state(1, 2) == ReplicaState::invalid);
  CHECK(replicas->stats().modified_bytes == 0);
  ready(replicas->fetch(other.source(), 2));
}

TEST_CASE("DeviceReplicas: during a copy, up or back, modifying is refused") {
  const auto device = emulated({.capacity_bytes = 16 * mib,
                                .upload_bytes_per_s = slow_bytes_per_s,
                                .download_bytes_per_s = slow_bytes_per_s});
  const auto replicas = cache(device, 8 * mib);
  HostTensor tensor(1, 512 * kib);
  const Replica replica = must(replicas->fetch(tensor.source(), 2));
  CHECK(replicas->mark_modified(replica).error().code == ErrorCode::busy);
  must(replica.ready().wait());
  must(replicas->mark_modified(replica));
  const DeviceEvent back = must(replicas->write_back(replica, tensor.bytes, 4));
  CHECK(replicas->mark_modified(replica).error().code == ErrorCode::busy);
  CHECK(replicas->write_back(replica, tensor.bytes, 4).error().code == ErrorCode::busy);
  must(back.wait());
  must(replicas->mark_modified(replica));
}

TEST_CASE("DeviceReplicas: two tensors under one id are refused, and so is one without bytes") {
  const auto replicas = cache(emulated(), 8 * mib);
  ready(replicas->fetch(HostTensor(1, 4096).source(), 2));
  CHECK(says(replicas->fetch(HostTensor(1, 8192).source(), 2).error(), "two tensors under one id"));
  CHECK(replicas->fetch({.id = 5, .name = "empty", .bytes = {}, .version_now = {}}, 2).error().code ==
        ErrorCode::invalid_argument);
}

TEST_CASE("DeviceReplicas: where others fill the device, it evicts although its budget is not reached") {
  const auto device = emulated({.capacity_bytes = 4 * mib});
  const auto replicas = cache(device, 4 * mib);
  ready(replicas->fetch(HostTensor(1, 1 * mib).source(), 2));
  const auto others = must(device->allocate(2 * mib, "a framework's"));
  const HostTensor large(2, 2 * mib);
  const Replica replica = ready(replicas->fetch(large.source(), 2));
  CHECK(replicas->state(1, 2) == ReplicaState::invalid);
  const auto refused = replicas->fetch(HostTensor(3, 1 * mib).source(), 2);
  REQUIRE_FALSE(refused.ok());
  CHECK(says(refused.error(), "'layer.3' needs 1048576 bytes in tier hbm"));
}

TEST_CASE("DeviceReplicas: a smaller budget evicts at once, and what is pinned when it is let go") {
  const auto device = emulated();
  const auto replicas = cache(device, 4 * mib);
  Replica pinned = ready(replicas->fetch(HostTensor(1, 2 * mib).source(), 2));
  ready(replicas->fetch(HostTensor(2, 2 * mib).source(), 2));
  replicas->set_budget(1 * mib);
  CHECK(replicas->stats().resident_bytes == 2 * mib);
  pinned.release();
  CHECK(replicas->stats().resident_bytes == 0);
  CHECK(must(device->use()).allocated_bytes == 0);
}

TEST_CASE("DeviceReplicas: a replica outlives the cache, and the cache waits for its copies") {
  const auto device = emulated({.capacity_bytes = 16 * mib, .upload_bytes_per_s = slow_bytes_per_s});
  auto replicas = cache(device, 8 * mib);
  const HostTensor tensor(1, 512 * kib), other(2, 64 * kib);
  Replica replica = must(replicas->fetch(tensor.source(), 2));
  must(replicas->fetch(other.source(), 2)).release();
  replicas.reset();
  CHECK(replica.ready().done());
  CHECK(device_bytes(*device, replica) == tensor.bytes);
  CHECK(must(device->use()).allocated_bytes == 512 * kib);
  replica.release();
  CHECK(must(device->use()).allocated_bytes == 0);
}

TEST_CASE(
    "DeviceReplicas: on a device that is lost copies fail, nothing stale is left, and it can be destroyed") {
  FakeDriver driver;
  const auto device = driver.open();
  {
    const auto replicas = cache(device, 8 * mib);
    const HostTensor tensor(1, 1 * mib), other(2, 1 * mib);
    const Replica kept = ready(replicas->fetch(tensor.source(), 2));
    must(replicas->mark_modified(kept));
    driver->lose_at_copy = 1;
    const Replica failed = must(replicas->fetch(other.source(), 2));
    CHECK(failed.ready().wait().error().code == ErrorCode::io_error);
    CHECK(replicas->stats().failed == 1);
    CHECK(replicas->state(2, 2) == ReplicaState::invalid);
    CHECK(replicas->fetch(other.source(), 2).error().code == ErrorCode::unavailable);
    Bytes to(1 * mib);
    CHECK(replicas->write_back(kept, to, 4).error().code == ErrorCode::unavailable);
    CHECK(replicas->state(1, 2) == ReplicaState::modified);
  }
}
