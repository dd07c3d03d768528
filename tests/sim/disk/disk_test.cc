// SPDX-License-Identifier: Apache-2.0
// The store on the simulated disk, with a death at each call that changes something, and power lost or not: the next start
// finds what was acknowledged, all of it, and goes on.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "core/base/units.h"
#include "daemon/store/store_options.h"
#include "tests/sim/disk/sim_disk.h"

using namespace terrace;
using namespace terrace::sim;

namespace {

constexpr uint64_t calls_max = 400;

SimDisk::Faults no_faults() {
  return {[] { return 0; }, [] { return 0; }, [] { return false; }, [] { return false; }};
}

daemon::Delta quota(uint64_t number) {
  daemon::Delta delta;
  delta.quotas["tenant"] = daemon::QuotaRow{"tenant", number * mib, number};
  return delta;
}

Result<std::unique_ptr<daemon::Store>> open(const SimDisk& disk,
                                            std::function<void(std::function<void()>)> later) {
  daemon::StoreOptions options;
  options.segment_bytes = 16 * kib;  // three commits
  options.checkpoint_frames = 4;
  options.fold_later = std::move(later);
  return daemon::open_store(disk.folder() + "/state", options);
}

// Commits until something fails; the number of the last one that was acknowledged.
uint64_t commit_some(SimDisk& disk, uint64_t first, uint64_t count) {
  std::vector<std::function<void()>> folds;
  uint64_t acknowledged = first - 1;
  auto opened = open(disk, [&folds](std::function<void()> fold) { folds.push_back(std::move(fold)); });
  if (!opened.ok()) return acknowledged;
  daemon::Store& store = **opened;
  if (!store.load().ok()) return acknowledged;
  for (uint64_t number = first; number < first + count; ++number) {
    if (!store.commit(quota(number)).ok()) break;
    acknowledged = number;
    if (number % 4 != 0) continue;
    const auto due = std::exchange(folds, {});
    for (const auto& fold : due) fold();
  }
  return acknowledged;
}

// What a start finds: the number of the last commit, or nothing where it refuses.
std::optional<uint64_t> found(SimDisk& disk) {
  auto opened = open(disk, [](const std::function<void()>&) {});
  if (!opened.ok()) MESSAGE(opened.error().to_string());
  if (!opened.ok()) return std::nullopt;
  const auto image = (*opened)->load();
  if (!image.ok()) return std::nullopt;
  return image->quotas.empty() ? 0 : image->quotas.front().leases_max;
}

}  // namespace

TEST_CASE("disk: a first start that dies at any call is gone on with") {
  for (const bool power_lost : {false, true}) {
    bool survived = false;
    for (uint64_t calls = 0; !survived && calls < calls_max; ++calls) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        Prng prng(calls * 4 + seed + 1);
        SimDisk disk(prng, no_faults());
        disk.die_after(calls);
        {
          auto opened = open(disk, [](const std::function<void()>&) {});
        }
        survived = !disk.dead();
        disk.die_after(0);
        disk.restart(power_lost);
        CAPTURE(calls);
        CAPTURE(power_lost);
        CHECK(found(disk) == 0);
      }
    }
    CHECK(survived);
  }
}

TEST_CASE("disk: what was acknowledged is there whichever call the process dies at") {
  for (const bool power_lost : {false, true}) {
    bool survived = false;
    for (uint64_t calls = 0; !survived && calls < calls_max; ++calls) {
      Prng prng(calls + 1);
      SimDisk disk(prng, no_faults());
      REQUIRE(commit_some(disk, 1, 5) == 5);
      disk.restart(power_lost);  // what was closed in order is as durable
      disk.die_after(calls);
      const uint64_t acknowledged = commit_some(disk, 6, 14);
      survived = !disk.dead();
      disk.die_after(0);
      disk.restart(power_lost);
      CAPTURE(calls);
      CAPTURE(power_lost);
      const std::optional<uint64_t> last = found(disk);
      REQUIRE(last.has_value());
      CHECK(*last >= acknowledged);
      CHECK(*last <= acknowledged + 1);
      disk.restart(true);  // and what a start found is durable
      CHECK(found(disk) == last);
    }
    CHECK(survived);
  }
}

TEST_CASE("disk: after a write or sync that fails nothing is acknowledged that is not there") {
  for (const bool of_sync : {false, true}) {
    for (uint64_t failing = 0; failing < 120; ++failing) {
      uint64_t calls = 0;
      SimDisk::Faults faults = no_faults();
      (of_sync ? faults.of_sync : faults.of_write) = [&] { return calls++ == failing ? EIO : 0; };
      Prng prng(failing + 1);
      SimDisk disk(prng, faults);
      uint64_t acknowledged = commit_some(disk, 1, 6);
      disk.restart(prng.chance(1, 2));
      const std::optional<uint64_t> before = found(disk);
      disk.restart(false);
      CAPTURE(failing);
      CAPTURE(of_sync);
      if (before.has_value()) {
        CHECK(*before >= acknowledged);
        acknowledged = commit_some(disk, *before + 1, 8);
        disk.restart(true);
      }
      calls = failing + 1;  // no start from here on meets it
      const std::optional<uint64_t> last = found(disk);
      REQUIRE(last.has_value());
      CHECK(*last >= acknowledged);
    }
  }
}

TEST_CASE("disk: what is not synced may be lost, and what is synced is not") {
  Prng prng(7);
  SimDisk disk(prng, no_faults());
  const std::string path = disk.folder() + "/file";
  uint64_t lost = 0, names_lost = 0;
  const std::string old(2048, 'a'), young(2048, 'b');
  for (int i = 0; i < 50; ++i) {
    ::unlink(path.c_str());
    const int folder = ::open(disk.folder().c_str(), O_RDONLY | O_DIRECTORY);
    int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    REQUIRE(::pwrite(file, old.data(), old.size(), 0) == 2048);
    REQUIRE(::fsync(file) == 0);
    if (i % 2 == 0) REQUIRE(::fsync(folder) == 0);
    REQUIRE(::pwrite(file, young.data(), young.size(), 0) == 2048);
    if (i % 4 == 0) REQUIRE(::fdatasync(file) == 0);
    ::close(file);
    ::close(folder);
    disk.restart(true);
    file = ::open(path.c_str(), O_RDONLY);
    if (i % 2 == 0) REQUIRE(file >= 0);
    names_lost += file < 0 ? 1 : 0;
    if (file < 0) continue;
    std::string now(2048, '\0');
    REQUIRE(::pread(file, now.data(), now.size(), 0) == 2048);
    ::close(file);
    if (i % 4 == 0) CHECK(now == young);
    for (size_t at = 0; at < now.size(); at += 512) {
      CHECK((now.substr(at, 512) == old.substr(0, 512) || now.substr(at, 512) == young.substr(0, 512)));
      lost += now[at] == 'a' ? 1 : 0;
    }
  }
  CHECK(lost > 10);
  CHECK(names_lost > 3);
}
