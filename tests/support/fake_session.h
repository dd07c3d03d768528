// SPDX-License-Identifier: Apache-2.0
// A Session without a manager: leases are tmpfs files (memfds) up to a capacity. For tests of what sits on
// Session, with switches for the answers that a real manager gives rarely.
//
// Threads   Any, as the real one.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/limits.h"
#include "core/base/unique_fd.h"
#include "terrace/session.h"

namespace terrace::test {

class FakeSession final : public Session {
 public:
  explicit FakeSession(uint64_t capacity_bytes) : state_(std::make_shared<State>()) {
    state_->free_bytes = capacity_bytes;
    state_->capacity_bytes = capacity_bytes;
  }

  Result<std::shared_ptr<Lease>> grant(const LeaseRequest& request) override {
    std::lock_guard lock(state_->mutex);
    if (state_->away) return Error{.code = ErrorCode::unavailable, .where = "FakeSession", .detail = "away"};
    uint64_t bytes = round_up(request.bytes, limits::granule_bytes);
    if (bytes > state_->free_bytes)
      return Error{.code = ErrorCode::capacity_exhausted, .where = "FakeSession", .detail = "full"};
    if (!request.label.empty() && !state_->labels.insert(request.label).second)
      return Error{.code = ErrorCode::already_exists, .where = "FakeSession", .detail = request.label};
    UniqueFd fd =
        make_file_ != nullptr ? make_file_(bytes) : UniqueFd(::memfd_create("fake-lease", MFD_CLOEXEC));
    if (!fd.valid() || (make_file_ == nullptr && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0))
      return os_error(errno, "FakeSession::grant", "memfd");
    state_->free_bytes -= bytes;
    ++state_->granted;
    state_->grants.push_back(bytes);
    return std::shared_ptr<Lease>(
        std::make_shared<FakeLease>(state_, LeaseId{++state_->last_id}, bytes, request.label, std::move(fd)));
  }
  using Session::attach;
  Result<std::shared_ptr<Lease>> attach(LeaseId, const std::string&, LeaseAccess) override {
    return Error{.code = ErrorCode::unsupported, .where = "FakeSession", .detail = "attach"};
  }
  Result<std::vector<LeaseInfo>> leases() override { return std::vector<LeaseInfo>{}; }
  Result<std::vector<PoolInfo>> pools() override {
    std::vector<PoolInfo> pools(1);
    pools[0].name = "fake";
    return pools;
  }
  // What this process can open itself.
  Result<UniqueFd> userfaultfd_device() override {
    UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device.valid()) return device;
    return os_error(errno, "FakeSession::userfaultfd_device", "cannot open /dev/userfaultfd");
  }
  std::string tenant() const override { return "fake"; }
  bool connected() const override {
    std::lock_guard lock(state_->mutex);
    return !state_->away;
  }
  void on_notice(LeaseNoticeHandler handler) override {
    std::lock_guard lock(state_->mutex);
    state_->handler = std::move(handler);
  }

  // Before the first grant: leases are files that this makes, as long as it is told.
  void make_leases_by(UniqueFd (*make_file)(uint64_t bytes)) { make_file_ = make_file; }
  void go_away(bool away) {
    std::lock_guard lock(state_->mutex);
    state_->away = away;
  }
  void notify(const LeaseNotice& notice) {
    LeaseNoticeHandler handler;
    {
      std::lock_guard lock(state_->mutex);
      handler = state_->handler;
    }
    if (handler) handler(notice);
  }
  uint64_t free_bytes() const {
    std::lock_guard lock(state_->mutex);
    return state_->free_bytes;
  }
  std::vector<uint64_t> grants() const {  // sizes, in order
    std::lock_guard lock(state_->mutex);
    return state_->grants;
  }
  std::map<uint64_t, UsageReport> usage() const {  // the last report of each lease, by id
    std::lock_guard lock(state_->mutex);
    return state_->usage;
  }

 private:
  struct State {
    mutable std::mutex mutex;
    uint64_t capacity_bytes = 0, free_bytes = 0, last_id = 0, granted = 0;
    std::set<std::string> labels;
    std::vector<uint64_t> grants;
    std::map<uint64_t, UsageReport> usage;
    LeaseNoticeHandler handler;
    bool away = false;
  };

  class FakeLease final : public Lease {
   public:
    FakeLease(std::shared_ptr<State> state, LeaseId id, uint64_t bytes, std::string label, UniqueFd fd)
        : manager_(std::move(state)), id_(id), bytes_(bytes), label_(std::move(label)), fd_(std::move(fd)) {}
    LeaseId id() const override { return id_; }
    LeaseEpoch epoch() const override { return LeaseEpoch{id_.value}; }
    uint64_t bytes() const override { return bytes_; }
    LeaseAccess access() const override { return LeaseAccess::read_write; }
    LeaseState state() const override { return released_ ? LeaseState::lost : LeaseState::live; }
    int fd() const override { return fd_.get(); }
    Result<LeaseInfo> info() override {
      LeaseInfo info;
      info.id = id_;
      info.bytes = bytes_;
      return info;
    }
    Status renew(uint64_t) override { return {}; }
    Status release() override {
      std::lock_guard lock(manager_->mutex);
      if (released_.exchange(true)) return {};
      // As a manager does: whoever still maps it gets SIGBUS.
      if (::ftruncate(fd_.get(), 0) != 0) return os_error(errno, "FakeLease::release", "truncate");
      manager_->free_bytes += bytes_;
      manager_->labels.erase(label_);
      manager_->usage.erase(id_.value);
      return {};
    }
    Status report_usage(const UsageReport& usage) override {
      std::lock_guard lock(manager_->mutex);
      manager_->usage[id_.value] = usage;
      return {};
    }
    Result<LeaseInfo> resize(uint64_t) override { return unsupported(); }
    Status transfer(const std::string&, const std::string&) override { return unsupported(); }
    Result<std::unique_ptr<LeaseMove>> begin_move() override { return unsupported(); }

   private:
    static Error unsupported() {
      return {.code = ErrorCode::unsupported, .where = "FakeLease", .detail = "fakes do not change leases"};
    }

    std::shared_ptr<State> manager_;
    LeaseId id_;
    uint64_t bytes_;
    std::string label_;
    UniqueFd fd_;
    std::atomic<bool> released_{false};
  };

  UniqueFd (*make_file_)(uint64_t) = nullptr;
  std::shared_ptr<State> state_;
};

}  // namespace terrace::test
