// A Store in memory, with faults on demand, for tests of the layers above it.
//
// Threads   As Store; the fault switch is atomic.
#pragma once

#include <atomic>
#include <cerrno>
#include <mutex>

#include "daemon/store/store.h"

namespace terrace::test {

class MemoryStore final : public daemon::Store {
 public:
  Result<daemon::Image> load() override {
    const std::lock_guard lock(mutex_);
    return image_of(rows_);
  }
  Status commit(const daemon::Delta& delta) override {
    if (fail_commit) return os_error(ENOSPC, "commit", "planted: disk full");
    const std::lock_guard lock(mutex_);
    daemon::Delta copy = delta;
    rows_.merge(std::move(copy));
    ++commits;
    return {};
  }

  std::atomic<bool> fail_commit{false};
  std::atomic<uint64_t> commits{0};

 private:
  static daemon::Image image_of(const daemon::Delta& rows) {
    daemon::Image image;
    if (rows.meta.has_value()) image.meta = *rows.meta;
    for (const auto& [id, row] : rows.devices)
      if (row.has_value()) image.devices.push_back(*row);
    for (const auto& [id, row] : rows.pools)
      if (row.has_value()) image.pools.push_back(*row);
    for (const auto& [id, row] : rows.leases)
      if (row.has_value()) image.leases.push_back(*row);
    return image;
  }

  std::mutex mutex_;
  daemon::Delta rows_;
};

}  // namespace terrace::test
