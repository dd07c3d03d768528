// SPDX-License-Identifier: Apache-2.0
// Lease as callers hold it: the facts of the grant, the descriptor, and a state that the Session's thread
// changes. Calls travel through the Mailbox; nothing here touches kj.
//
// Place     libclient/session.
// Threads   Any, as Lease promises; change() and adopt() only on the Session's thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "libclient/session/mailbox.h"
#include "terrace/session.h"

namespace terrace::client {

struct LeaseFacts {
  LeaseId id;
  LeaseEpoch epoch;
  uint64_t bytes = 0;
  uint64_t ttl_ns = 0;
  LeaseAccess access = LeaseAccess::read_write;
  OnFence on_fence = OnFence::keep;
};

class LeaseHandle final : public Lease, public std::enable_shared_from_this<LeaseHandle> {
 public:
  // `handle` is the Loop's number for this object: two attaches of one lease are two handles.
  LeaseHandle(const LeaseFacts& facts, uint64_t handle, UniqueFd fd, std::shared_ptr<Mailbox> mailbox);
  ~LeaseHandle() override;

  LeaseId id() const override { return id_; }
  // acquire: these two pair with adopt(), state() with change()
  LeaseEpoch epoch() const override { return LeaseEpoch{epoch_.load(std::memory_order_acquire)}; }
  uint64_t bytes() const override { return bytes_.load(std::memory_order_acquire); }
  LeaseAccess access() const override { return access_; }
  OnFence on_fence() const override { return on_fence_; }
  // acquire: pairs with change()
  LeaseState state() const override { return state_.load(std::memory_order_acquire); }
  int fd() const override { return fd_.get(); }
  Result<LeaseInfo> info() override;
  Status renew(uint64_t ttl_ns) override;
  Status release() override;
  Status report_usage(const UsageReport& usage) override;
  Result<LeaseInfo> resize(uint64_t bytes) override;
  Status transfer(const std::string& tenant, const std::string& host) override;
  Status withdraw_offer() override;
  Result<std::string> open_path(std::optional<uint32_t> user) override;
  Result<std::unique_ptr<LeaseMove>> begin_move() override;
  Result<uint64_t> claim_part(uint32_t part, uint64_t last_epoch, uint64_t key) override;
  Status release_part(uint32_t part, uint64_t epoch) override;
  Result<bool> part_is_dead(uint32_t part, uint64_t epoch) override;

  // Moves live -> revoking -> lost, never back; `why` is what calls answer once it is lost.
  // Returns   false when the state was that already, or further on.
  bool change(LeaseState state, Error why);
  // Puts the memory behind `fd` where the old one was, under the same number, and then the facts.
  // Errors    what dup3 says; nothing changed then
  Status adopt(int fd, LeaseEpoch epoch, uint64_t bytes);

 private:
  Status check_not_lost(const char* where) const;
  Status check_writable(const char* where) const;

  const LeaseId id_;
  const LeaseAccess access_;
  const OnFence on_fence_;
  const uint64_t handle_;
  const UniqueFd fd_;  // the number; what it leads to changes by dup3
  const std::shared_ptr<Mailbox> mailbox_;
  std::atomic<uint64_t> epoch_;
  std::atomic<uint64_t> bytes_;
  std::atomic<LeaseState> state_{LeaseState::live};
  mutable Mutex mutex_;
  Error why_ TERRACE_GUARDED_BY(mutex_);  // of the last change
};

}  // namespace terrace::client
