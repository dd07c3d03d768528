// SPDX-License-Identifier: Apache-2.0
// Local replicas of a space whose lease ends.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "core/os/lossy_access.h"
#include "tests/support/ending_lease.h"
#include "tests/unit/replicas/replicas_fixture.h"

#if !defined(TERRACE_LOSSY_PLAIN)

namespace terrace {
namespace {

// One holder that owns a part, and its replicas.
struct Scene {
  explicit Scene(SpaceCoherence coherence = SpaceCoherence::coherent) {
    REQUIRE(
        TensorSpace::format(lease.memory, {.parts = 2, .records_per_part = 64, .coherence = coherence}).ok());
    space = TensorSpace::attach(lease.memory, {.ownership = *ownership_by_locks(lease.fd)}).value();
    replicas =
        LocalReplicas::make(*space, {.budget_bytes = 8 * block_bytes, .wait_ns = 60'000'000'000}).value();
    for (uint8_t index = 0; index < 4; ++index) {
      tensors.push_back(*space->create(u8_tensor("t" + std::to_string(index), block_bytes)));
      REQUIRE(space->publish(tensors.back(), bytes_of(index, block_bytes)).ok());
    }
  }

  test::EndingLease lease;
  std::unique_ptr<TensorSpace> space;
  std::unique_ptr<LocalReplicas> replicas;
  std::vector<SharedTensor> tensors;
};

bool holds(const Result<LocalReplica>& replica, uint8_t value) {
  return replica.ok() &&
         std::equal(replica->bytes().begin(), replica->bytes().end(), bytes_of(value, block_bytes).begin());
}

}  // namespace

TEST_CASE("LocalReplicas: after the lease ended what is in DDR is given, what is not is lease_expired") {
  for (const SpaceCoherence coherence : {SpaceCoherence::coherent, SpaceCoherence::noncoherent}) {
    Scene scene(coherence);
    LocalReplicas& replicas = *scene.replicas;
    const auto held = replicas.fetch(scene.tensors[0]);
    REQUIRE(replicas.fetch(scene.tensors[1]).ok());
    const auto modified = replicas.overwrite(scene.tensors[3]);
    REQUIRE(modified.ok());
    scene.lease.fence();
    CHECK(holds(replicas.fetch(scene.tensors[1]), 1));
    CHECK(code_of(replicas.fetch(scene.tensors[2])) == ErrorCode::lease_expired);
    CHECK(code_of(replicas.fetch(scene.tensors[2])) == ErrorCode::lease_expired);
    CHECK(holds(replicas.fetch(scene.tensors[0]), 0));
    CHECK(holds(held, 0));
    CHECK(code_of(replicas.write_back(*modified)) == ErrorCode::lease_expired);
    CHECK(replicas.state(scene.tensors[1]) == ReplicaState::shared);
    CHECK(replicas.state(scene.tensors[2]) == ReplicaState::invalid);
    replicas.prefetch(scene.tensors);
    replicas.discard(scene.tensors[1]);
    CHECK(code_of(replicas.fetch(scene.tensors[1])) == ErrorCode::lease_expired);
    replicas.set_budget(block_bytes);
    CHECK(replicas.stats().failed >= 3);
    scene.replicas.reset();
    scene.space.reset();
    CHECK(holds(held, 0));
  }
}

TEST_CASE(
    "LocalReplicas: a lease that ends while replicas are copied, ahead and on demand, ends nothing else") {
  Scene scene;
  std::atomic<uint64_t> fetched = 0;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread)
    threads.emplace_back([&] {
      for (;; ++fetched) {
        scene.replicas->discard(scene.tensors[fetched % 4]);
        scene.replicas->prefetch(scene.tensors);
        const ErrorCode code = code_of(scene.replicas->fetch(scene.tensors[fetched % 4]));
        if (code == ErrorCode::ok) continue;
        wrong += code == ErrorCode::lease_expired ? 0 : 1;
        return;
      }
    });
  while (fetched < 300) std::this_thread::yield();
  scene.lease.fence();
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace terrace

#endif
