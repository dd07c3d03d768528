// SPDX-License-Identifier: Apache-2.0
// Tensors of a pool in and out of safetensors files.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "terrace/transfer.h"
#include "tests/support/skip.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/placement/pools.h"
#include "tests/unit/pool_files/small_disk.h"

using namespace terrace;
using namespace terrace::test;

namespace {

using Tensors = std::vector<std::shared_ptr<Tensor>>;

void scatter(const Tensor& tensor, uint64_t seed) {
  uint64_t at = 0;
  for (std::byte& byte : tensor.bytes())
    byte = static_cast<std::byte>(((++at + seed) * 0x9e3779b97f4a7c15u) >> 56);
}

Tensors various(TensorPool& pool) {
  Tensors tensors;
  const auto add = [&](std::string name, DType dtype, const Shape& shape) {
    tensors.push_back(take(pool.create({.name = std::move(name), .dtype = dtype, .shape = shape})));
    scatter(*tensors.back(), tensors.size());
  };
  add("odd", DType::u8, {2'000'003});
  add("wide", DType::f64, {7, 1001});
  add("page", DType::bf16, {2048, 1024});
  add("scalar", DType::f32, {});
  add("none", DType::i64, {0, 5});
  add("half", DType::f16, {333, 17});
  add("six", DType::f6_e2m3, {64, 4});
  add("big", DType::f32, {3, 1024, 1024});
  return tensors;
}

bool equal(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.bytes().size() == b.bytes().size() &&
         (a.bytes().empty() || std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0);
}

}  // namespace

TEST_CASE(
    "pool files: what was exported is imported with the same bytes, in every way of reading and writing") {
  const TemporaryDirectory directory("/var/tmp");
  Pools source(8 * mib, 32 * mib);
  const Tensors tensors = various(*source.pool);
  const std::string path = directory.file("m.safetensors");
  for (const bool io_uring : {true, false}) {
    for (const bool direct : {true, false}) {
      PoolExportOptions write;
      write.io_uring = io_uring;
      write.direct = direct;
      write.metadata = {{"step", "7"}};
      const TransferReport written = take(export_safetensors(*source.pool, tensors, path, write));
      CHECK(written.tensors == tensors.size());
      CHECK(written.io_uring == (io_uring && written.note.find("io_uring") == std::string::npos));
      CHECK(take(read_safetensors_index(path)).file_bytes == written.total_bytes);
      Pools target(0, 40 * mib);
      PoolImportOptions read;
      read.io_uring = io_uring;
      read.direct = direct;
      const PoolImport back = take(import_safetensors(*target.pool, path, read));
      CHECK(back.metadata == TensorMetadata{{"step", "7"}});
      CHECK(back.tensors.size() == tensors.size());
      for (const auto& tensor : tensors) CHECK(equal(*tensor, *take(target.pool->find(tensor->name()))));
    }
  }
  CHECK(directory.entries() == 1);
}

TEST_CASE("pool files: tensors of whole pages go straight between device and memory") {
  const TemporaryDirectory directory("/var/tmp");
  Pools source(0, 32 * mib);
  Tensors tensors = {source.tensor("a", 6 * mib), source.tensor("b", 4 * mib + 4096), source.tensor("c", 5)};
  for (const auto& tensor : tensors) scatter(*tensor, tensor->bytes().size());
  const std::string path = directory.file("m.safetensors");
  const TransferReport written = take(export_safetensors(*source.pool, tensors, path));
  if (!written.note.empty()) {
    TERRACE_SKIP(direct_io, written.note);
    return;
  }
  CHECK(written.straight_bytes >= 10 * mib + 4096);
  Pools target(0, 32 * mib);
  CHECK(take(import_safetensors(*target.pool, path)).report.straight_bytes == 10 * mib + 4096);
}

TEST_CASE("pool files: the same tensors give the same file, in whatever order they are given") {
  const TemporaryDirectory directory;
  Pools source(8 * mib, 32 * mib);
  Tensors tensors = various(*source.pool);
  take(export_safetensors(*source.pool, tensors, directory.file("a")));
  std::reverse(tensors.begin(), tensors.end());
  take(export_safetensors(*source.pool, tensors, directory.file("b")));
  CHECK(read_file(directory.file("a")) == read_file(directory.file("b")));
}

TEST_CASE("pool files: what cannot be exported is refused by name, and the older file stands") {
  const TemporaryDirectory directory;
  Pools source(8 * mib, 8 * mib), other(4 * mib, 0);
  const auto good = source.tensor("good", 1 * mib);
  const std::string path = directory.write("m.safetensors", "older");
  const auto refusal = [&](const Tensors& tensors, PoolExportOptions options = {}) {
    const auto report = export_safetensors(*source.pool, tensors, path, options);
    REQUIRE(!report.ok());
    CHECK(read_file(path) == "older");
    CHECK(directory.entries() == 1);
    return report.error();
  };
  CHECK(refusal({good, nullptr}).code == ErrorCode::invalid_argument);
  CHECK(refusal({good, source.tensor("", 8)}).detail.find("no name") != std::string::npos);
  CHECK(refusal({good, good}).detail.find("'good'") != std::string::npos);
  CHECK(refusal({other.tensor("stranger", 8)}).detail.find("another pool") != std::string::npos);
  CHECK(refusal({take(good->slice(0, 0, 100, 2))}).code == ErrorCode::unsupported);
  PoolExportOptions keep;
  keep.replace = false;
  CHECK(refusal({good}, keep).code == ErrorCode::already_exists);
  PoolExportOptions given_up;
  given_up.cancelled = [] { return true; };
  CHECK(refusal({good}, given_up).code == ErrorCode::cancelled);
}

TEST_CASE("pool files: an import that fails leaves no tensor behind") {
  const TemporaryDirectory directory;
  Pools source(0, 32 * mib);
  const Tensors tensors = {source.tensor("a", 3 * mib), source.tensor("b", 5 * mib)};
  const std::string path = directory.file("m.safetensors");
  take(export_safetensors(*source.pool, tensors, path));
  const auto refusal = [&](Pools& target, const std::string& file, PoolImportOptions options = {}) {
    const uint64_t before = target.pool->statistics().tensors;
    const auto result = import_safetensors(*target.pool, file, options);
    REQUIRE(!result.ok());
    CHECK(target.pool->statistics().tensors == before);
    return result.error();
  };
  Pools small(0, 4 * mib);
  const Error full = refusal(small, path);
  CHECK(full.code == ErrorCode::capacity_exhausted);
  CHECK(full.detail.find("short") != std::string::npos);
  Pools taken(0, 32 * mib);
  const auto there = taken.tensor("b", 8);
  CHECK(refusal(taken, path).code == ErrorCode::already_exists);
  PoolImportOptions into;
  into.into_existing = true;
  CHECK(refusal(taken, path, into).detail.find("in the pool") != std::string::npos);
  PoolImportOptions some;
  some.tensors = {"a", "x"};
  CHECK(refusal(taken, path, some).detail.find("'x'") != std::string::npos);
  const std::string cut = read_file(path);
  CHECK(refusal(taken, directory.write("cut", cut.substr(0, cut.size() - 1))).code == ErrorCode::corrupt);
  CHECK(refusal(taken, directory.file("absent")).code == ErrorCode::not_found);
}

TEST_CASE("pool files: some of a file's tensors, and tensors that exist already") {
  const TemporaryDirectory directory;
  Pools source(8 * mib, 32 * mib);
  const Tensors tensors = various(*source.pool);
  const std::string path = directory.file("m.safetensors");
  take(export_safetensors(*source.pool, tensors, path));
  PoolImportOptions some;
  some.tensors = {"odd", "big"};
  Pools target(0, 40 * mib);
  const PoolImport two = take(import_safetensors(*target.pool, path, some));
  CHECK(two.tensors.size() == 2);
  CHECK(equal(*tensors[0], *take(target.pool->find("odd"))));
  std::memset(take(target.pool->find("big"))->data(), 0, 100);
  PoolImportOptions into;
  into.into_existing = true;
  const PoolImport all = take(import_safetensors(*target.pool, path, into));
  for (const auto& tensor : tensors) CHECK(equal(*tensor, *take(target.pool->find(tensor->name()))));
  CHECK(all.tensors.size() == tensors.size());
}

TEST_CASE("pool files: bytes come and go whole while the pool moves them") {
  const TemporaryDirectory directory("/var/tmp");
  Pools source(16 * mib, 48 * mib);
  if (!source.moves()) return;
  Tensors tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(source.tensor("t" + std::to_string(i), 6 * mib));
    fill(tensors.back()->bytes(), static_cast<uint64_t>(i));
  }
  std::atomic<bool> done{false};
  std::jthread mover([&] {
    for (uint64_t round = 0; !done; ++round) {
      const auto move = tensors[round % 4]->move_to(round / 4 % 2 == 0 ? Tier::ddr : Tier::cxl);
      if (move.ok()) (void)(*move)->wait(patience_ns);
    }
  });
  PoolImportOptions into;
  into.into_existing = true;
  const std::string path = directory.file("m.safetensors");
  for (int round = 0; round < 6; ++round) {
    take(export_safetensors(*source.pool, tensors, path));
    for (const auto& tensor : tensors) fill(tensor->bytes(), 1000);
    take(import_safetensors(*source.pool, path, into));
    for (size_t i = 0; i < tensors.size(); ++i) CHECK(whole(tensors[i]->bytes(), i));
  }
  done = true;
}

TEST_CASE("pool files: a full disk is said, and the older file stands") {
  const SmallDisk disk("4M");
  if (!disk.mounted()) return;
  Pools source(0, 16 * mib);
  const Tensors tensors = {source.tensor("a", 8 * mib)};
  const Tensors few = {source.tensor("b", 4096)};
  const std::string path = disk.file("m.safetensors");
  take(export_safetensors(*source.pool, few, path));
  const std::string before = read_file(path);
  const auto report = export_safetensors(*source.pool, tensors, path);
  REQUIRE(!report.ok());
  CHECK(report.error().code == ErrorCode::capacity_exhausted);
  CHECK(report.error().detail.find("do not fit") != std::string::npos);
  CHECK(read_file(path) == before);
  CHECK(disk.entries() == 1);
}

TEST_CASE("pool files: of a pool whose lease is lost nothing is exported or imported over, and that is said") {
  const TemporaryDirectory directory;
  Pools source(8 * mib, 32 * mib);
  const Tensors tensors = {source.tensor("a", 8 * mib), source.tensor("b", 8 * mib),
                           source.tensor("c", 2'000'003)};
  const std::string path = directory.file("m.safetensors");
  take(export_safetensors(*source.pool, tensors, path));
  const std::string before = read_file(path);
  REQUIRE(source.lease->release().ok());
  const auto report = export_safetensors(*source.pool, tensors, path);
  REQUIRE(!report.ok());
  CHECK(report.error().code == ErrorCode::lease_expired);
  CHECK(report.error().detail.find("lease") != std::string::npos);
  CHECK(read_file(path) == before);
  CHECK(directory.entries() == 1);
  PoolImportOptions into;
  into.into_existing = true;
  CHECK(import_safetensors(*source.pool, path, into).error().code == ErrorCode::lease_expired);
}

TEST_CASE("pool files: what a device wrote is exported, and it sees what was imported over it") {
  const TemporaryDirectory directory("/var/tmp");
  const auto device = take(DeviceMemory::make_emulated({.capacity_bytes = 16 * mib}));
  Pools pools(8 * mib, 8 * mib, {.device = device});
  auto tensor = pools.tensor("t", mib);
  const auto on_device = [](const DeviceGuard& guard) {
    return std::span<std::byte>(reinterpret_cast<std::byte*>(guard.address()), guard.bytes());
  };
  fill(on_device(take(tensor->device_write())), 1);
  const std::string path = directory.file("m.safetensors");
  const Tensors all = {tensor};
  REQUIRE(export_safetensors(*pools.pool, all, path).ok());
  fill(on_device(take(tensor->device_write())), 2);
  PoolImportOptions over;
  over.into_existing = true;
  REQUIRE(import_safetensors(*pools.pool, path, over).ok());
  CHECK(whole(on_device(take(tensor->device_read())), 1));
  auto busy = take(tensor->device_read());
  CHECK(import_safetensors(*pools.pool, path, over).error().code == ErrorCode::busy);
}
