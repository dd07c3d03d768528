// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a pool's tensors: one moment's bytes, whatever the program does meanwhile.
#include "terrace/checkpoint.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/placement/pools.h"
#include "tests/unit/pool_files/small_disk.h"

using namespace terrace;
using namespace terrace::test;

namespace {

using Tensors = std::vector<std::shared_ptr<Tensor>>;

std::unique_ptr<CheckpointDirectory> open(const TemporaryDirectory& directory) {
  return take(CheckpointDirectory::open(directory.file("checkpoints")));
}

void must(const Status& status) {
  REQUIRE_MESSAGE(status.ok(), (status.ok() ? std::string() : status.error().to_string()));
}

Tensors layers(Pools& pools, uint32_t count, uint64_t bytes) {
  Tensors tensors;
  for (uint32_t i = 0; i < count; ++i) {
    tensors.push_back(pools.tensor("layer." + std::to_string(i), bytes + i * 64));
    fill(tensors.back()->bytes(), i);
  }
  return tensors;
}

// Every word says which step and which tensor it is of.
__attribute__((no_sanitize("thread"))) void stamp(const Tensor& tensor, uint64_t step, uint64_t number) {
  auto* words = reinterpret_cast<uint64_t*>(tensor.data());
  for (uint64_t i = 0; i < tensor.bytes().size() / 8; ++i)
    words[i] = step << 32 | number << 24 | (i & 0xffffff);
}

uint64_t step_of(const Tensor& tensor, uint64_t number) {
  const auto* words = reinterpret_cast<const uint64_t*>(tensor.data());
  const uint64_t step = words[0] >> 32;
  for (uint64_t i = 0; i < tensor.bytes().size() / 8; ++i)
    if (words[i] != (step << 32 | number << 24 | (i & 0xffffff))) return UINT64_MAX;
  return step;
}

}  // namespace

TEST_CASE("checkpoint: written, listed, verified, and restored with the same bytes") {
  const TemporaryDirectory directory("/var/tmp");
  const auto checkpoints = open(directory);
  Pools source(16 * mib, 64 * mib);
  Tensors tensors = layers(source, 4, 5 * mib);
  for (int i = 0; i < 20; ++i) {  // small ones share granules
    tensors.push_back(source.tensor("bias." + std::to_string(i), 1000 + static_cast<uint64_t>(i) * 24));
    fill(tensors.back()->bytes(), static_cast<uint64_t>(100 + i));
  }
  CheckpointOptions options;
  options.metadata = {{"step", "1"}};
  const auto write = take(checkpoints->checkpoint("one", *source.pool, tensors, options));
  must(write->wait(patience_ns));
  CHECK(write->progress().written_bytes == write->progress().file_bytes);
  const CheckpointList list = take(checkpoints->list());
  REQUIRE(list.checkpoints.size() == 1);
  CHECK(list.damaged.empty());
  CHECK(list.checkpoints[0].name == "one");
  CHECK(list.checkpoints[0].tensors == tensors.size());
  CHECK(take(checkpoints->verify("one")).damaged.empty());
  CHECK(take(read_safetensors_index(list.checkpoints[0].file)).tensors.size() == tensors.size());
  Pools target(0, 64 * mib);
  const PoolImport back = take(checkpoints->restore("one", *target.pool));
  CHECK(back.metadata == options.metadata);
  for (const auto& tensor : tensors) {
    const auto other = take(target.pool->find(tensor->name()));
    CHECK(std::memcmp(other->data(), tensor->data(), tensor->bytes().size()) == 0);
  }
  // The pool's free memory that was the snapshot's room is free again.
  CHECK(source.pool->statistics().tensors == tensors.size());
}

TEST_CASE("checkpoint: holds one step of all tensors while training goes on, and no store waits for the disk") {
  const TemporaryDirectory directory("/var/tmp");
  const auto checkpoints = open(directory);
  Pools source(24 * mib, 104 * mib);
  constexpr uint32_t count = 6;
  Tensors tensors;
  for (uint32_t i = 0; i < count; ++i) {
    tensors.push_back(source.tensor("t" + std::to_string(i), 7 * mib + i * 4096));
    stamp(*tensors.back(), 0, i);
  }
  std::atomic<uint64_t> step{0};
  for (int round = 0; round < 5; ++round) {
    const std::string name = "round-" + std::to_string(round);
    const uint64_t expected = step;
    CheckpointOptions options;
    options.room_bytes_max = 1 * gib;  // all that is free
    const auto write = take(checkpoints->checkpoint(name, *source.pool, tensors, options));
    // The training goes on at once, and until the checkpoint is done.
    do {
      ++step;
      for (uint32_t i = 0; i < count; ++i) stamp(*tensors[(i + step) % count], step, (i + step) % count);
      source.pool->step();
    } while (!write->done());
    must(write->wait(patience_ns));
    CHECK(write->progress().waits_for_room == 0);
    Pools target(0, 64 * mib);
    const PoolImport back = take(checkpoints->restore(name, *target.pool));
    for (uint32_t i = 0; i < count; ++i) {
      CHECK(step_of(*take(target.pool->find("t" + std::to_string(i))), i) == expected);
      CHECK(step_of(*tensors[i], i) == step);
    }
  }
}

TEST_CASE("checkpoint: with little free memory stores wait, and the checkpoint is right") {
  const TemporaryDirectory directory("/var/tmp");
  const auto checkpoints = open(directory);
  Pools source(8 * mib, 64 * mib);
  if (!source.moves()) return;
  Tensors tensors;
  for (uint32_t i = 0; i < 4; ++i) {
    tensors.push_back(source.tensor("t" + std::to_string(i), 8 * mib));
    stamp(*tensors[i], 1, i);
  }
  CheckpointOptions options;
  options.room_bytes_max = 4 * mib;
  const auto write = take(checkpoints->checkpoint("tight", *source.pool, tensors, options));
  CHECK(write->progress().room_bytes == 4 * mib);
  for (uint32_t i = 4; i-- > 0;) stamp(*tensors[i], 2, i);
  must(write->wait(patience_ns));
  Pools target(0, 64 * mib);
  const PoolImport back = take(checkpoints->restore("tight", *target.pool));
  for (uint32_t i = 0; i < 4; ++i) CHECK(step_of(*take(target.pool->find("t" + std::to_string(i))), i) == 1);
}

TEST_CASE("checkpoint: one that is dropped or given up leaves nothing") {
  const TemporaryDirectory directory("/var/tmp");
  const auto checkpoints = open(directory);
  Pools source(8 * mib, 64 * mib);
  const Tensors tensors = layers(source, 4, 6 * mib);
  CheckpointOptions options;
  std::atomic<bool> asked{false};
  options.cancelled = [&] { return asked.exchange(true); };  // at the second question
  const auto write = take(checkpoints->checkpoint("one", *source.pool, tensors, options));
  CHECK(write->wait(patience_ns).error().code == ErrorCode::cancelled);
  take(checkpoints->checkpoint("two", *source.pool, tensors)).reset();
  const CheckpointList list = take(checkpoints->list());
  CHECK(list.half_written == 0);
  // The second one may have been done before it was dropped.
  CHECK(list.checkpoints.size() <= 1);
  CHECK(!checkpoints->find("one").ok());
  for (uint32_t i = 0; i < 4; ++i) CHECK(whole(tensors[i]->bytes(), i));
  CHECK(source.pool->statistics().tensors == 4);
}

TEST_CASE("checkpoint: two of one name, two of one pool, names that exist") {
  const TemporaryDirectory directory("/var/tmp");
  const auto checkpoints = open(directory);
  Pools source(0, 64 * mib), other(0, 64 * mib);
  const Tensors tensors = layers(source, 2, 6 * mib), others = layers(other, 2, 6 * mib);
  std::atomic<bool> go_on{false};
  CheckpointOptions slow;
  slow.progress = [&](uint64_t, uint64_t) { (void)eventually([&] { return go_on.load(); }); };
  const auto write = take(checkpoints->checkpoint("one", *source.pool, tensors, slow));
  const auto same_name = checkpoints->checkpoint("one", *other.pool, others);
  REQUIRE(!same_name.ok());
  CHECK(same_name.error().code == ErrorCode::busy);
  CHECK(same_name.error().detail.find("being written") != std::string::npos);
  CHECK(take(checkpoints->list()).being_written == 1);
  const auto same_pool = checkpoints->checkpoint("two", *source.pool, tensors);
  REQUIRE(!same_pool.ok());
  CHECK(same_pool.error().code == ErrorCode::busy);
  CHECK(write->wait(0).error().code == ErrorCode::busy);
  go_on = true;
  must(write->wait(patience_ns));
  CHECK(checkpoints->checkpoint("one", *other.pool, others).error().code == ErrorCode::already_exists);
  must(take(checkpoints->checkpoint("two", *source.pool, tensors))->wait(patience_ns));
  CHECK(checkpoints->checkpoint("../x", *source.pool, tensors).error().code == ErrorCode::invalid_argument);
  CHECK(checkpoints->checkpoint("x", *source.pool, {}).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("checkpoint: a full disk is said, nothing is left and nothing is lost") {
  const SmallDisk disk("16M");
  if (!disk.mounted()) return;
  const auto checkpoints = take(CheckpointDirectory::open(disk.file("c")));
  Pools source(0, 96 * mib);
  const Tensors few = {source.tensor("few", 2 * mib)}, many = layers(source, 4, 8 * mib);
  must(take(checkpoints->checkpoint("fits", *source.pool, few))->wait(patience_ns));
  const auto write = checkpoints->checkpoint("large", *source.pool, many);
  const Error error = write.ok() ? (*write)->wait(patience_ns).error() : write.error();
  CHECK(error.code == ErrorCode::capacity_exhausted);
  CHECK(error.detail.find("do not fit") != std::string::npos);
  const CheckpointList list = take(checkpoints->list());
  CHECK(list.checkpoints.size() == 1);
  CHECK(list.half_written == 0);
  CHECK(take(checkpoints->verify("fits")).damaged.empty());
  for (uint32_t i = 0; i < 4; ++i) CHECK(whole(many[i]->bytes(), i));
}

TEST_CASE("checkpoint: restored over the tensors that the pool has") {
  const TemporaryDirectory directory("/var/tmp");
  const auto checkpoints = open(directory);
  Pools source(8 * mib, 64 * mib);
  const Tensors tensors = layers(source, 3, 4 * mib);
  must(take(checkpoints->checkpoint("one", *source.pool, tensors))->wait(patience_ns));
  for (const auto& tensor : tensors) fill(tensor->bytes(), 99);
  CHECK(checkpoints->restore("one", *source.pool).error().code == ErrorCode::already_exists);
  PoolImportOptions into;
  into.into_existing = true;
  take(checkpoints->restore("one", *source.pool, into));
  for (uint32_t i = 0; i < 3; ++i) CHECK(whole(tensors[i]->bytes(), i));
}
