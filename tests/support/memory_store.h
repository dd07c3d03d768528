// SPDX-License-Identifier: Apache-2.0
// A Store in memory, with faults on demand, for tests of the layers above it.
//
// Threads   As Store; the fault switch is atomic.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <mutex>

#include "core/base/limits.h"
#include "daemon/store/store.h"

namespace terrace::test {

class MemoryStore final : public daemon::Store {
 public:
  Result<daemon::Image> load() override {
    const std::lock_guard lock(mutex_);
    return image_of(rows_);
  }
  Status commit(const daemon::Delta& delta) override {
    if (during_commit) during_commit(delta);
    if (fail_commit) return os_error(ENOSPC, "commit", "planted: disk full");
    const std::lock_guard lock(mutex_);
    daemon::Delta copy = delta;
    for (daemon::AuditRow& row : copy.audit) row.sequence = ++audit_newest_;
    rows_.merge(std::move(copy));
    if (rows_.audit.size() > limits::audit_rows_max) {
      const auto surplus = static_cast<std::ptrdiff_t>(rows_.audit.size() - limits::audit_rows_max);
      rows_.audit.erase(rows_.audit.begin(), rows_.audit.begin() + surplus);
    }
    ++commits;
    return {};
  }

  Result<daemon::AuditPage> audit(const daemon::AuditQuery& query) override {
    const std::lock_guard lock(mutex_);
    daemon::AuditPage page;
    if (!rows_.audit.empty()) {
      page.oldest = rows_.audit.front().sequence;
      page.newest = rows_.audit.back().sequence;
    }
    const uint32_t most = limits::audit_rows_per_page_max;
    const uint32_t limit = query.limit == 0 ? most : std::min(query.limit, most);
    for (size_t i = 0; i < rows_.audit.size() && page.rows.size() < limit; ++i) {
      const size_t at = query.newest_first ? rows_.audit.size() - 1 - i : i;
      if (matches(rows_.audit[at], query)) page.rows.push_back(rows_.audit[at]);
    }
    return page;
  }
  bool quick() const override { return is_quick; }
  daemon::StoreId id() const override { return store_id; }
  Result<daemon::StoreBackup> backup() override {
    return backup_of == nullptr ? daemon::Store::backup() : backup_of->backup();
  }

  daemon::Store* backup_of = nullptr;  // a real one, to hand out a real file

  daemon::StoreId store_id = {};  // none: nothing is claimed for it

  std::atomic<bool> is_quick{false};  // whether the event loop commits by itself
  std::atomic<bool> fail_commit{false};
  std::function<void(const daemon::Delta&)>
      during_commit;  // on the committing thread; set before any lease is granted
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
    for (const auto& [tenant, row] : rows.quotas)
      if (row.has_value()) image.quotas.push_back(*row);
    for (const auto& [id, row] : rows.reservations)
      if (row.has_value()) image.reservations.push_back(*row);
    for (const auto& [id, row] : rows.owners)
      if (row.has_value()) image.owners.push_back(*row);
    for (const auto& [id, row] : rows.views)
      if (row.has_value()) image.views.push_back(*row);
    return image;
  }
  static bool matches(const daemon::AuditRow& row, const daemon::AuditQuery& query) {
    return row.sequence > query.after && row.wall_ns >= query.since_ns &&
           (query.tenant.empty() || row.tenant == query.tenant) &&
           (query.subject.empty() || row.subject == query.subject) &&
           row.verb.compare(0, query.verb.size(), query.verb) == 0;
  }

  std::mutex mutex_;
  daemon::Delta rows_;
  uint64_t audit_newest_ = 0;
};

}  // namespace terrace::test
