// SPDX-License-Identifier: Apache-2.0
// Checkpoints where something is not to be had: protection, or as much free memory as the tensors have.
#include <doctest/doctest.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "terrace/checkpoint.h"
#include "tests/support/skip.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

using Tensors = std::vector<std::shared_ptr<Tensor>>;
constexpr uint64_t granule = 2 * mib;

Tensors layers(Pools& pools, uint32_t count, uint64_t bytes) {
  Tensors tensors;
  for (uint32_t i = 0; i < count; ++i) {
    tensors.push_back(pools.tensor("layer." + std::to_string(i), bytes));
    fill(tensors.back()->bytes(), i);
  }
  return tensors;
}

// Stops a checkpoint when something is written, until it may go on.
struct Stopped {
  Stopped() {
    options.progress = [this](uint64_t, uint64_t) {
      if (at_first.exchange(true)) return;
      (void)eventually([this] { return go_on.load(); }, std::chrono::seconds(60));
    };
  }
  bool reached() const {
    return eventually([this] { return at_first.load(); }, std::chrono::seconds(60));
  }
  CheckpointOptions options;
  std::atomic<bool> at_first{false}, go_on{false};
};

// As somebody without the right to handle the kernel's faults. 0: all is well; 77: nothing to see here.
int copied_at_once(const std::string& path) {
  Pools source(8 * mib, 64 * mib);
  if (source.pool->statistics().reason.empty()) return 77;
  const Tensors tensors = layers(source, 3, 8 * mib);  // more than half of what is free then
  const auto checkpoints = take(CheckpointDirectory::open(path));
  CheckpointOptions little;
  little.room_bytes_max = 4 * mib;
  const auto refused = checkpoints->checkpoint("little", *source.pool, tensors, little);
  if (refused.ok() || refused.error().code != ErrorCode::capacity_exhausted) return 1;
  const auto write = take(checkpoints->checkpoint("one", *source.pool, tensors));
  for (const auto& tensor : tensors) fill(tensor->bytes(), 99);
  if (!write->wait(patience_ns).ok()) return 2;
  const CheckpointProgress progress = write->progress();
  if (progress.copied_at_once_bytes != 24 * mib || progress.copied_bytes != 0) return 3;
  if (progress.reason.find("userfaultfd") == std::string::npos) return 4;
  Pools target(0, 64 * mib);
  const PoolImport back = take(checkpoints->restore("one", *target.pool));
  for (uint32_t i = 0; i < 3; ++i)
    if (!whole(take(target.pool->find("layer." + std::to_string(i)))->bytes(), i)) return 5;
  return source.pool->statistics().tensors == 3 ? 0 : 6;
}

}  // namespace

TEST_CASE("checkpoint: what cannot be protected is copied at once, with all the free memory that it takes") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(root, "needs root to become somebody else");
    return;
  }
  const TemporaryDirectory directory("/var/tmp");
  const std::string path = directory.file("checkpoints");
  REQUIRE(::mkdir(path.c_str(), 0700) == 0);
  REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
  REQUIRE(::chmod(directory.file("").c_str(), 0755) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(10);
    ::prctl(PR_SET_DUMPABLE, 1);  // or /proc/self stays root's
    int answer = 11;
    try {
      answer = copied_at_once(path);
    } catch (...) {  // of a REQUIRE
    }
    ::_exit(answer);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    TERRACE_SKIP(refused_users, "everybody may handle the kernel's faults here");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("checkpoint: the default leaves half of the free memory to others") {
  const TemporaryDirectory directory("/var/tmp");
  const auto checkpoints = take(CheckpointDirectory::open(directory.file("checkpoints")));
  Pools source(8 * mib, 88 * mib);
  if (!source.moves()) return;
  const Tensors tensors = layers(source, 6, 8 * mib);
  const uint64_t free_bytes = source.pool->statistics().free_bytes;
  Stopped stopped;
  const auto write = take(checkpoints->checkpoint("one", *source.pool, tensors, stopped.options));
  REQUIRE(stopped.reached());
  CHECK(write->progress().room_bytes > 0);
  CHECK(write->progress().room_bytes <= free_bytes / 2 + granule);
  CHECK(source.pool->statistics().free_bytes + granule >= free_bytes / 2);
  stopped.go_on = true;
  CHECK(write->wait(patience_ns).ok());
}
