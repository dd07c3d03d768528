// SPDX-License-Identifier: Apache-2.0
// Some tensors of a checkpoint: restored and exported by name, with no more of the file read than they need.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "terrace/checkpoint.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/placement/device_pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

constexpr uint64_t chunk = 16 * mib;

// In the file: a header of 4 KiB, "0" to "3" of 20 MiB each, and two small ones.
struct Fixture {
  Fixture() : checkpoints(take(CheckpointDirectory::open(directory.file("c")))), pools(0, 192 * mib) {
    for (uint64_t i = 0; i < 4; ++i) tensors.push_back(pools.tensor(std::to_string(i), 20 * mib));
    tensors.push_back(pools.tensor("small", 1000));
    tensors.push_back(pools.tensor("tiny", 24));
    for (uint64_t i = 0; i < tensors.size(); ++i) fill(tensors[i]->bytes(), i);
    CheckpointOptions options;
    options.metadata = {{"step", "7"}};
    const auto write = take(checkpoints->checkpoint("one", *pools.pool, tensors, options));
    REQUIRE(write->wait(patience_ns).ok());
    index = take(read_safetensors_index(file()));
  }
  std::string file() const { return directory.file("c/one/tensors.safetensors"); }
  void change_byte(uint64_t at) const {
    std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(bytes.get() ^ 0x40);
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(byte);
  }
  uint64_t offset_of(const std::string& name) const {
    for (const SafetensorsEntry& entry : index.tensors)
      if (entry.name == name) return entry.file_offset;
    FAIL("no tensor " << name);
    return 0;
  }
  // The chunks of the header and of a tensor.
  uint64_t chunk_bytes_of(const std::string& name, uint64_t bytes) const {
    const uint64_t first = offset_of(name) / chunk, last = (offset_of(name) + bytes - 1) / chunk;
    uint64_t sum = first == 0 ? 0 : chunk;
    for (uint64_t number = first; number <= last; ++number)
      sum += std::min(chunk, index.file_bytes - number * chunk);
    return sum;
  }

  const TemporaryDirectory directory{"/var/tmp"};
  std::unique_ptr<CheckpointDirectory> checkpoints;
  Pools pools;
  std::vector<std::shared_ptr<Tensor>> tensors;
  SafetensorsIndex index;
};

PoolImportOptions only(std::vector<std::string> names, bool into_existing = false) {
  PoolImportOptions options;
  options.tensors = std::move(names);
  options.into_existing = into_existing;
  return options;
}

}  // namespace

TEST_CASE("checkpoint: some tensors are restored, and only their part of the file is read") {
  const Fixture f;
  Pools target(0, 64 * mib);
  PoolImportOptions options = only({"2"});
  uint64_t done = 0, total = 0;
  options.progress = [&](uint64_t now, uint64_t all) { done = now, total = all; };
  const PoolImport back = take(f.checkpoints->restore("one", *target.pool, options));
  REQUIRE(back.tensors.size() == 1);
  CHECK(whole(back.tensors[0]->bytes(), 2));
  CHECK(back.metadata == TensorMetadata{{"step", "7"}});
  CHECK(target.pool->statistics().tensors == 1);
  CHECK(total == f.chunk_bytes_of("2", 20 * mib));
  CHECK(total < f.index.file_bytes);
  CHECK(done == total);
  CHECK(back.report.total_bytes == 20 * mib);
  CHECK(back.report.staged_bytes + back.report.buffered_bytes == total);
}

TEST_CASE("checkpoint: small tensors and several at once, in the file's order and each once") {
  const Fixture f;
  Pools target(0, 64 * mib);
  const PoolImport back = take(f.checkpoints->restore("one", *target.pool, only({"tiny", "0", "small", "0"})));
  REQUIRE(back.tensors.size() == 3);
  CHECK(back.tensors[0]->name() == "0");
  CHECK(whole(take(target.pool->find("0"))->bytes(), 0));
  CHECK(whole(take(target.pool->find("small"))->bytes(), 4));
  CHECK(whole(take(target.pool->find("tiny"))->bytes(), 5));
}

TEST_CASE("checkpoint: every name that is not in it is said, and nothing is made") {
  const Fixture f;
  Pools target(0, 64 * mib);
  const auto refused = f.checkpoints->restore("one", *target.pool, only({"lost.1", "1", "lost.2", "lost.1"}));
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::not_found);
  CHECK(refused.error().detail.find("has no tensor 'lost.1', 'lost.2'") != std::string::npos);
  CHECK(refused.error().detail.find("'1'") == std::string::npos);
  std::vector<std::string> many;
  for (int i = 0; i < 20; ++i) many.push_back("x" + std::to_string(i));
  CHECK(f.checkpoints->restore("one", *target.pool, only(many)).error().detail.find("'x15' and 4 more") !=
        std::string::npos);
  CHECK(target.pool->statistics().tensors == 0);
  CheckpointExportOptions options;
  options.tensors = {"0", "lost.3"};
  const std::string out = f.directory.file("out");
  CHECK(f.checkpoints->export_file("one", out, false, options).error().code == ErrorCode::not_found);
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("checkpoint: damage elsewhere is no harm to some tensors, damage beside them is") {
  const Fixture f;
  f.change_byte(f.index.file_bytes - 2000);  // the last chunk
  Pools target(0, 128 * mib);
  CHECK(f.checkpoints->restore("one", *target.pool).error().code == ErrorCode::corrupt);
  CHECK(whole(take(f.checkpoints->restore("one", *target.pool, only({"1"}))).tensors[0]->bytes(), 1));
  const auto wrong = f.checkpoints->restore("one", *target.pool, only({"0", "small"}));
  REQUIRE(!wrong.ok());
  CHECK(wrong.error().code == ErrorCode::corrupt);
  CHECK(wrong.error().detail.find("bytes 83886080 to") != std::string::npos);
  CHECK(target.pool->statistics().tensors == 0);
  f.change_byte(f.offset_of("0") - 1);  // a space behind the header's end: its chunk is checked, too
  CHECK(f.checkpoints->restore("one", *target.pool, only({"2"})).error().code == ErrorCode::corrupt);
}

TEST_CASE("checkpoint: some tensors become a file of their own") {
  const Fixture f;
  const std::string out = f.directory.file("out.safetensors");
  CheckpointExportOptions options;
  options.tensors = {"small", "3", "1"};
  const CheckpointInfo info = take(f.checkpoints->export_file("one", out, false, options));
  CHECK(info.tensors == 3);
  CHECK(info.tensor_bytes == 40 * mib + 1000);
  CHECK(info.file_bytes == std::filesystem::file_size(out));
  CHECK(take(read_safetensors_index(out)).metadata == TensorMetadata{{"step", "7"}});
  Pools target(0, 64 * mib);
  const PoolImport back = take(import_safetensors(*target.pool, out));
  CHECK(back.tensors.size() == 3);
  CHECK(whole(take(target.pool->find("1"))->bytes(), 1));
  CHECK(whole(take(target.pool->find("3"))->bytes(), 3));
  CHECK(whole(take(target.pool->find("small"))->bytes(), 4));
  CHECK(f.checkpoints->export_file("one", out, false, options).error().code == ErrorCode::already_exists);
  f.change_byte(f.offset_of("3") + 5);
  const std::string before = read_file(out);
  CHECK(f.checkpoints->export_file("one", out, true, options).error().code == ErrorCode::corrupt);
  CHECK(read_file(out) == before);
  CHECK(f.directory.entries() == 2);  // no temporary file is left
}

TEST_CASE("checkpoint: some tensors are restored over those that the pool has, and given up in the middle") {
  const Fixture f;
  for (const auto& tensor : f.tensors) fill(tensor->bytes(), 99);
  CHECK(f.checkpoints->restore("one", *f.pools.pool, only({"1"})).error().code == ErrorCode::already_exists);
  take(f.checkpoints->restore("one", *f.pools.pool, only({"1", "tiny"}, true)));
  CHECK(whole(f.tensors[0]->bytes(), 99));
  CHECK(whole(f.tensors[1]->bytes(), 1));
  CHECK(whole(f.tensors[2]->bytes(), 99));
  CHECK(whole(f.tensors[5]->bytes(), 5));
  Pools target(0, 64 * mib);
  PoolImportOptions options = only({"0", "2"});
  bool enough = false;
  options.progress = [&](uint64_t, uint64_t) { enough = true; };
  options.cancelled = [&] { return enough; };
  CHECK(f.checkpoints->restore("one", *target.pool, options).error().code == ErrorCode::cancelled);
  CHECK(target.pool->statistics().tensors == 0);
}

TEST_CASE("checkpoint: what is restored is newer than the device's bytes, clean or not") {
  const Fixture f;
  DevicePools target(2 * mib);
  auto small = target.filled("small", 40, 1000);
  const auto restore = [&] { return f.checkpoints->restore("one", *target.pool, only({"small"}, true)); };
  bring(*small);
  REQUIRE(restore().ok());
  CHECK(whole(on_device(take(small->device_read())), 4));
  {
    auto guard = take(small->device_write());
    fill(on_device(guard), 50);
    auto refused = restore();
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::busy);
  }
  CHECK(small->residency().hbm_dirty_bytes == 1000);
  REQUIRE(restore().ok());
  CHECK(whole(take(small->read()).bytes(), 4));
  CHECK(whole(on_device(take(small->device_read())), 4));
}
