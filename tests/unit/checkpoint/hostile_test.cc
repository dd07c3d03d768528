// SPDX-License-Identifier: Apache-2.0
// What happens to a checkpoint and to who uses it: a disk that fills up in the middle, damage in each part of
// each file, people without the right, memory that goes away.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "core/base/unique_fd.h"
#include "terrace/checkpoint.h"
#include "tests/support/skip.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/placement/pools.h"
#include "tests/unit/pool_files/small_disk.h"

using namespace terrace;
using namespace terrace::test;

namespace {

using Tensors = std::vector<std::shared_ptr<Tensor>>;

Tensors layers(Pools& pools, uint64_t count, uint64_t bytes) {
  Tensors tensors;
  for (uint64_t i = 0; i < count; ++i) {
    tensors.push_back(pools.tensor("layer." + std::to_string(i), bytes));
    fill(tensors.back()->bytes(), i);
  }
  return tensors;
}

void fill_up(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file.valid());
  const std::string page(4096, 'x');
  while (::write(file.get(), page.data(), page.size()) > 0) {
  }
}

void change_byte(const std::string& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 0x01);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

// Runs in a child that is nobody; its answer is the child's exit status.
template <typename Checks>
int as_nobody(Checks checks) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool became = ::setgroups(0, nullptr) == 0 && ::setgid(65534) == 0 && ::setuid(65534) == 0;
    ::_exit(became ? checks() : 99);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

}  // namespace

TEST_CASE(
    "checkpoint: a disk that is full in the middle of the data leaves nothing, and the program its tensors") {
  const SmallDisk disk("112m");
  if (!disk.mounted()) return;
  const auto checkpoints = take(CheckpointDirectory::open(disk.file("c")));
  Pools source(0, 192 * mib);
  const Tensors tensors = layers(source, 3, 32 * mib);
  CheckpointOptions options;
  bool once = false;
  options.progress = [&](uint64_t done, uint64_t total) {
    if (std::exchange(once, true)) return;
    // The rest of the space that was taken for the file is somebody else's now.
    const UniqueFd data(::open(disk.file("c/.x.tmp/tensors.safetensors").c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(::fallocate(data.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(done),
                        static_cast<off_t>(total - done)) == 0);
    fill_up(disk.file("other"));
  };
  const auto write = take(checkpoints->checkpoint("x", *source.pool, tensors, options));
  const Status done = write->wait(patience_ns);
  REQUIRE(!done.ok());
  CHECK(once);
  CHECK(done.error().code == ErrorCode::capacity_exhausted);
  CHECK(done.error().detail.find(".x.tmp/tensors.safetensors") != std::string::npos);
  for (uint64_t i = 0; i < 3; ++i) {
    CHECK(whole(tensors[i]->bytes(), i));
    fill(tensors[i]->bytes(), 7);  // no store is held back any more
  }
  const CheckpointList list = take(checkpoints->list());
  CHECK(list.checkpoints.empty());
  CHECK(list.half_written == 0);
  CHECK(!std::filesystem::exists(disk.file("c/.x.tmp")));
  CHECK(source.pool->statistics().tensors == 3);
  std::filesystem::remove(disk.file("other"));
  const auto again = take(checkpoints->checkpoint("x", *source.pool, tensors));
  CHECK(again->wait(patience_ns).ok());
}

TEST_CASE("checkpoint: a disk without room for the manifest is said, and nothing is left") {
  const SmallDisk disk("32m");
  if (!disk.mounted()) return;
  const auto checkpoints = take(CheckpointDirectory::open(disk.file("c")));
  Pools source(0, 64 * mib);
  const Tensors tensors = layers(source, 2, 4 * mib);
  CheckpointOptions options;
  options.progress = [&](uint64_t, uint64_t) { fill_up(disk.file("other")); };
  const Status done = take(checkpoints->checkpoint("x", *source.pool, tensors, options))->wait(patience_ns);
  REQUIRE(!done.ok());
  CHECK(done.error().code == ErrorCode::capacity_exhausted);
  CHECK(done.error().detail.find("manifest") != std::string::npos);
  CHECK(take(checkpoints->list()).checkpoints.empty());
  CHECK(!std::filesystem::exists(disk.file("c/.x.tmp")));
}

TEST_CASE("checkpoint: a changed byte in any part of its files is an error for everybody who reads them") {
  const TemporaryDirectory directory("/dev/shm");
  const auto checkpoints = take(CheckpointDirectory::open(directory.file("c")));
  Pools source(0, 64 * mib);
  Tensors tensors = layers(source, 2, 5 * mib);
  tensors.push_back(source.tensor("small", 1000));
  REQUIRE(take(checkpoints->checkpoint("x", *source.pool, tensors))->wait(patience_ns).ok());
  const std::string data = directory.file("c/x/tensors.safetensors"),
                    manifest = directory.file("c/x/manifest.json"), out = directory.file("out");
  const SafetensorsIndex index = take(read_safetensors_index(data));
  const std::string header = read_file(data).substr(0, index.buffer_offset);
  struct Place {
    std::string file;
    uint64_t at;
  };
  std::vector<Place> places;
  for (const uint64_t at : {uint64_t{0}, uint64_t{1}, uint64_t{8}, header.find("layer.0") + 6,
                            header.find("U8"), header.find("[5242880]") + 1, index.buffer_offset - 1,
                            index.buffer_offset, index.file_bytes / 2, index.file_bytes - 1})
    places.push_back({data, at});
  const uint64_t manifest_bytes = std::filesystem::file_size(manifest);
  for (uint64_t at = 0; at < manifest_bytes; at += 13) places.push_back({manifest, at});
  places.push_back({manifest, manifest_bytes - 1});
  PoolImportOptions one;
  one.tensors = {"layer.0"};
  CheckpointExportOptions file_of_one;
  file_of_one.tensors = one.tensors;
  for (const Place& place : places) {
    CAPTURE(place.file);
    CAPTURE(place.at);
    change_byte(place.file, place.at);
    Pools target(32 * mib, 0);
    for (const PoolImportOptions& options : {PoolImportOptions{}, one}) {
      const auto back = checkpoints->restore("x", *target.pool, options);
      REQUIRE(!back.ok());
      // What a changed header claims may be unknown, or too much for the pool, before it is known to be wrong.
      if (place.file == manifest || place.at >= index.buffer_offset)
        CHECK(back.error().code == ErrorCode::corrupt);
      CHECK(back.error().detail.find(place.file == manifest ? directory.file("c/x") : data) !=
            std::string::npos);
    }
    CHECK(target.pool->statistics().tensors == 0);
    CHECK(!checkpoints->export_file("x", out, false).ok());
    CHECK(!checkpoints->export_file("x", out, false, file_of_one).ok());
    CHECK(!std::filesystem::exists(out));
    const auto verified = checkpoints->verify("x");
    const bool noticed = !verified.ok() || !verified->damaged.empty();
    CHECK(noticed);
    CHECK(take(checkpoints->list()).damaged.size() == (place.file == manifest ? 1 : 0));
    change_byte(place.file, place.at);
  }
  CHECK(take(checkpoints->verify("x")).damaged.empty());
  std::filesystem::resize_file(data, index.file_bytes + 1);
  CHECK(checkpoints->find("x").error().detail.find("bytes, not") != std::string::npos);
}

TEST_CASE("checkpoint: who may only read restores, and is refused the rest with the place named") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(root, "needs root to become somebody else");
    return;
  }
  const TemporaryDirectory directory("/var/tmp");
  REQUIRE(::chmod(directory.file("").c_str(), 0755) == 0);
  const auto checkpoints = take(CheckpointDirectory::open(directory.file("c")));
  REQUIRE(::chmod(directory.file("c").c_str(), 0755) == 0);
  Pools source(0, 64 * mib);
  const Tensors tensors = layers(source, 2, 5 * mib);
  for (const char* name : {"open", "closed"})
    REQUIRE(take(checkpoints->checkpoint(name, *source.pool, tensors))->wait(patience_ns).ok());
  REQUIRE(::chmod(directory.file("c/open").c_str(), 0755) == 0);
  REQUIRE(::chmod(directory.file("c/open/manifest.json").c_str(), 0644) == 0);
  REQUIRE(::chmod(directory.file("c/open/tensors.safetensors").c_str(), 0644) == 0);
  REQUIRE(::chmod(directory.file("c/closed").c_str(), 0700) == 0);
  const std::string path = directory.file("c");
  const int answer = as_nobody([&] {
    const auto mine = CheckpointDirectory::open(path);
    if (!mine.ok()) return 1;
    const auto list = (*mine)->list();
    if (!list.ok() || list->checkpoints.size() != 1 || list->damaged.size() != 1) return 2;
    if (list->damaged[0].name != "closed" || list->damaged[0].error.code != ErrorCode::permission_denied)
      return 3;
    Pools target(32 * mib, 0);
    const auto back = (*mine)->restore("open", *target.pool);
    if (!back.ok() || !whole(back->tensors[1]->bytes(), 1)) return 4;
    const auto closed = (*mine)->restore("closed", *target.pool);
    if (closed.ok() || closed.error().code != ErrorCode::permission_denied) return 5;
    if (closed.error().detail.find(path + "/closed") == std::string::npos) return 6;
    const auto write = (*mine)->checkpoint("new", *target.pool, back->tensors);
    if (write.ok() || write.error().code != ErrorCode::permission_denied) return 7;
    if (write.error().detail.find(path) == std::string::npos) return 8;
    const Status removed = (*mine)->remove("open");
    if (removed.ok() || removed.error().code != ErrorCode::permission_denied) return 9;
    const auto made = CheckpointDirectory::open(path + "/below");
    if (made.ok() || made.error().code != ErrorCode::permission_denied) return 10;
    return 0;
  });
  CHECK(answer == 0);
  CHECK(take(checkpoints->list()).checkpoints.size() == 2);
}

TEST_CASE("checkpoint: memory that goes away while it is restored is an error and not the end") {
  const TemporaryDirectory directory("/var/tmp");
  const auto checkpoints = take(CheckpointDirectory::open(directory.file("c")));
  Pools source(0, 96 * mib);
  const Tensors tensors = layers(source, 2, 40 * mib);
  REQUIRE(take(checkpoints->checkpoint("x", *source.pool, tensors))->wait(patience_ns).ok());
  for (const bool some : {false, true}) {
    Pools target(0, 96 * mib);
    PoolImportOptions options;
    if (some) options.tensors = {"layer.1", "layer.0"};
    bool once = false;
    options.progress = [&](uint64_t, uint64_t) {
      if (!std::exchange(once, true)) CHECK(target.lease->release().ok());
    };
    const auto back = checkpoints->restore("x", *target.pool, options);
    REQUIRE(!back.ok());
    CHECK_MESSAGE(back.error().code == ErrorCode::lease_expired, back.error().to_string());
  }
}
