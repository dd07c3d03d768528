// SPDX-License-Identifier: Apache-2.0
// What a program is told when a replica cannot be had, and that nobody's bytes are taken for one.
#include "terrace/device_replicas.h"
#include "tests/unit/device/device_fixture.h"

using namespace terrace;
using namespace terrace::test;

namespace {

ReplicaSource source(uint64_t id, std::string_view name, const Bytes& bytes) {
  return {.id = id, .name = name, .bytes = bytes, .version_now = {}};
}

}  // namespace

TEST_CASE("DeviceReplicas: a device that is short says which tensor by id, and what is in use") {
  const auto device = emulated({.capacity_bytes = 4 * mib});
  const auto replicas = must(DeviceReplicas::make(device, {.budget_bytes = 4 * mib}));
  const Bytes pinned(1 * mib), large(2 * mib);
  const Replica kept = must(replicas->fetch(source(1, "kept", pinned), 2));
  must(kept.ready().wait());
  const auto others = must(device->allocate(2 * mib, "a framework's"));
  const auto refused = replicas->fetch(source(77, {}, large), 2);  // no name
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  CHECK(says(refused.error(), "tensor 77 "));
  CHECK(says(refused.error(), "1048576 short"));
  CHECK(says(refused.error(), "pinned 1048576, modified 0, being copied 0"));
}

TEST_CASE("DeviceReplicas: a copy that fails says of which tensor, up and back") {
  FakeDriver driver;
  const auto device = driver.open();
  const auto replicas = must(DeviceReplicas::make(device, {.budget_bytes = 4 * mib}));
  Bytes bytes(64 * kib);
  driver->host_allocate_code = 2;  // nothing to stage through
  const Replica failed = must(replicas->fetch(source(5, "h.3.attn", bytes), 2));
  const Status up = failed.ready().wait();
  REQUIRE_FALSE(up.ok());
  CHECK(up.error().code == ErrorCode::out_of_memory);
  CHECK(says(up.error(), "tensor 5 'h.3.attn'"));
  driver->host_allocate_code = 0;
  const Replica changed = must(replicas->fetch(source(5, "h.3.attn", bytes), 2));
  must(changed.ready().wait());
  must(replicas->mark_modified(changed));
  driver->host_allocate_code = 2;
  const Status back =
      must(replicas->write_back(changed, bytes, 4)).wait();  // the stream back has staged nothing yet
  REQUIRE_FALSE(back.ok());
  CHECK(says(back.error(), "tensor 5 'h.3.attn'"));
  CHECK(replicas->state(5, 2) == ReplicaState::modified);
}

// Found by reading: a download that outlived its Replica got the bytes of the tensor that came after it.
TEST_CASE("DeviceReplicas: a buffer that somebody still has is not used for another tensor") {
  const auto device = emulated();
  const auto replicas = must(DeviceReplicas::make(device, {.budget_bytes = 64 * kib}));
  const Bytes first = random_bytes(64 * kib, 1), second = random_bytes(64 * kib, 2);
  std::shared_ptr<DeviceBuffer> kept;
  {
    const Replica replica = must(replicas->fetch(source(1, "first", first), 2));
    must(replica.ready().wait());
    kept = replica.buffer();
  }
  const Replica other = must(replicas->fetch(source(2, "second", second), 2));  // takes the first one's place
  must(other.ready().wait());
  CHECK(other.address() != kept->address());
  Bytes back(64 * kib);
  must(must(must(device->make_stream())->download(back, kept, 0)).wait());
  CHECK(back == first);
}
