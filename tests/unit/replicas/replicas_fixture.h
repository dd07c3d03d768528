// SPDX-License-Identifier: Apache-2.0
// A space, a holder that writes, one that reads through local replicas.
#pragma once

#include "terrace/local_replicas.h"
#include "tests/unit/coherence/space_fixture.h"

namespace terrace {

inline constexpr uint64_t block_bytes = 4096;

template <typename Value>
ErrorCode code_of(const Result<Value>& result) {
  return result.ok() ? ErrorCode::ok : result.error().code;
}

struct ReplicasFixture : SpaceFixture {
  explicit ReplicasFixture(uint64_t budget_blocks, LocalReplicasOptions options = {.wait_ns = 0})
      : ReplicasFixture(budget_blocks, options, {.parts = 3, .records_per_part = 32, .pins_per_part = 8}) {}
  ReplicasFixture(uint64_t budget_blocks, LocalReplicasOptions options, const SpaceOptions& space,
                  size_t space_bytes = 1 << 20)
      : SpaceFixture(space, space_bytes) {
    options.budget_bytes = budget_blocks * block_bytes;
    Result<std::unique_ptr<LocalReplicas>> made = LocalReplicas::make(*reader, options);
    REQUIRE(made.ok());
    replicas = std::move(*made);
  }

  // A tensor of the writer's with a first version of `value`, as the reader finds it.
  SharedTensor tensor(const std::string& name, uint8_t value, uint64_t bytes = block_bytes) {
    const auto created = writer->create(u8_tensor(name, bytes));
    REQUIRE_MESSAGE(created.ok(), created.error().to_string());
    REQUIRE(writer->publish(*created, bytes_of(value, bytes)).ok());
    return *reader->open(name);
  }
  void publish(const SharedTensor& tensor, uint8_t value) {
    REQUIRE(writer->publish(*writer->open(tensor.name()), bytes_of(value, tensor.bytes())).ok());
  }
  std::vector<std::byte> fetched(const SharedTensor& tensor) {
    const Result<LocalReplica> replica = replicas->fetch(tensor);
    REQUIRE_MESSAGE(replica.ok(), replica.error().to_string());
    return {replica->bytes().begin(), replica->bytes().end()};
  }

  std::unique_ptr<TensorSpace> writer = attach();
  std::unique_ptr<TensorSpace> reader = attach();
  std::unique_ptr<LocalReplicas> replicas;
};

}  // namespace terrace
