// SPDX-License-Identifier: Apache-2.0
// Shared by the store's tests: a private folder, rows to store, and comparing what came back.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "core/base/limits.h"
#include "daemon/store/store_options.h"

namespace terrace::daemon::test {

class TemporaryFolder {
 public:
  // In memory by default: thousands of opens would otherwise wait for a disk. `under` elsewhere when the
  // disk is the point.
  explicit TemporaryFolder(const std::string& under = "/dev/shm") {
    std::string name = under + "/terrace-store-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      name = "/tmp/terrace-store-test-XXXXXX";
      if (::mkdtemp(name.data()) == nullptr) std::abort();
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline DeviceRow make_device(uint64_t id) {
  return {.id = DeviceId{id},
          .serial = "emu:cxl" + std::to_string(id),
          .backend = "emulated",
          .capacity_bytes = 4 * gib,
          .granule_bytes = limits::granule_bytes,
          .pool = PoolId{1}};
}

inline LeaseRow make_lease(uint64_t id, size_t extents = 2) {
  LeaseRow row;
  row.id = LeaseId{id};
  row.pool = PoolId{1};
  row.tenant = "alice";
  row.host = "host-1";
  row.label = "weights of model " + std::to_string(id);
  row.object = "lease-" + std::to_string(id);
  for (size_t i = 0; i < extents; ++i) row.extents.push_back({DeviceId{1 + i % 2}, id * 64 + i, 1});
  row.epoch = LeaseEpoch{id};
  row.mode = LeaseMode::shared_coherent;
  row.phase = LeasePhase::active;
  row.bytes = extents * limits::granule_bytes;
  row.ttl_ns = 60 * ns_per_s;
  row.expiry_ns = 123456789 + id;
  row.request_high = ~uint64_t{0} - id;  // beyond the range of a signed integer on purpose
  row.request_low = id << 63 | id;
  return row;
}

// The delta of one grant: a lease and the counters.
inline Delta make_grant(uint64_t id, size_t extents = 2) {
  Delta delta;
  delta.leases[LeaseId{id}] = make_lease(id, extents);
  delta.meta =
      MetaRow{.next_device = 3, .next_pool = 2, .next_lease = id + 1, .next_epoch = id + 1, .boot_id = "boot"};
  return delta;
}

inline Delta make_pool() {
  Delta delta;
  for (const uint64_t id : {1, 2}) delta.devices[DeviceId{id}] = make_device(id);
  delta.pools[PoolId{1}] = PoolRow{.id = PoolId{1}, .name = "pool-1"};
  delta.meta = MetaRow{.next_device = 3, .next_pool = 2, .boot_id = "boot"};
  return delta;
}

inline bool same(const Image& a, const Image& b) {
  return a.meta == b.meta && a.devices == b.devices && a.pools == b.pools && a.leases == b.leases &&
         a.quotas == b.quotas && a.reservations == b.reservations && a.owners == b.owners && a.views == b.views;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::streamsize(bytes.size()));
}

// The bytes of the store's files, to be put back before each attack.
class Snapshot {
 public:
  explicit Snapshot(std::string store) : store_(std::move(store)) {
    for (const char* suffix : suffixes)
      if (std::filesystem::exists(store_ + suffix)) files_[suffix] = read_bytes(store_ + suffix);
  }
  void restore() const {
    for (const char* suffix : suffixes) {
      std::filesystem::remove(store_ + suffix);
      if (const auto file = files_.find(suffix); file != files_.end())
        write_bytes(store_ + suffix, file->second);
    }
  }
  const std::string& bytes(const std::string& suffix) const { return files_.at(suffix); }
  bool has(const std::string& suffix) const { return files_.count(suffix) != 0; }

 private:
  static constexpr const char* suffixes[] = {"",           "-wal",     "-mark", "-journal-a",
                                             "-journal-b", "-journal", "-shm"};
  std::string store_;
  std::map<std::string, std::string> files_;
};

// A store with a small journal, folded only when full: tests copy its files thousands of times.
inline Result<std::unique_ptr<Store>> open_small_store(const std::string& path, StoreOptions options = {}) {
  if (options.segment_bytes == StoreOptions{}.segment_bytes) options.segment_bytes = 64 * kib;
  if (options.idle_fold_ns == StoreOptions{}.idle_fold_ns) options.idle_fold_ns = 3600 * ns_per_s;
  return open_store(path, options);
}

// Runs `work` in a child; returns its wait status.
template <typename Work>
int run_in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// A store with two devices, a pool and `leases` leases, left behind by a process that was killed.
inline void make_crashed_store(const std::string& path, uint64_t leases) {
  run_in_child([&] {
    auto store = open_small_store(path);
    if (!store.ok() || !(*store)->commit(make_pool()).ok()) ::_exit(1);
    for (uint64_t id = 1; id <= leases; ++id)
      if (!(*store)->commit(make_grant(id)).ok()) ::_exit(1);
    ::kill(::getpid(), SIGKILL);  // here, so that nothing is closed
  });
}

inline void make_closed_store(const std::string& path, uint64_t leases) {
  auto store = open_small_store(path);
  if (!store.ok() || !(*store)->commit(make_pool()).ok()) std::abort();
  for (uint64_t id = 1; id <= leases; ++id)
    if (!(*store)->commit(make_grant(id)).ok()) std::abort();
}

// Opens and loads in one go.
inline Result<Image> load_store(const std::string& path) {
  auto store = open_small_store(path);
  if (!store.ok()) return store.error();
  return (*store)->load();
}

}  // namespace terrace::daemon::test
