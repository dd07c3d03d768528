// Lease as callers hold it: the facts of the grant, the descriptor, and a state that the Session's thread
// changes. Calls travel through the Mailbox; nothing here touches kj.
//
// Place     libclient/session.
// Threads   Any, as Lease promises; change() only on the Session's thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

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
};

class LeaseHandle final : public Lease {
 public:
  // `handle` is the Loop's number for this object: two attaches of one lease are two handles.
  LeaseHandle(const LeaseFacts& facts, uint64_t handle, UniqueFd fd, std::shared_ptr<Mailbox> mailbox);
  ~LeaseHandle() override;

  LeaseId id() const override { return facts_.id; }
  LeaseEpoch epoch() const override { return facts_.epoch; }
  uint64_t bytes() const override { return facts_.bytes; }
  LeaseAccess access() const override { return facts_.access; }
  LeaseState state() const override { return state_.load(std::memory_order_acquire); }
  int fd() const override { return fd_.get(); }
  Result<LeaseInfo> info() override;
  Status renew(uint64_t ttl_ns) override;
  Status release() override;
  Status report_usage(const UsageReport& usage) override;

  const LeaseFacts& facts() const { return facts_; }
  // Moves live -> revoking -> lost, never back; `why` is what calls answer once it is
  // lost.
  // Returns   false when the state was that already, or further on.
  bool change(LeaseState state, Error why);

 private:
  Status check_not_lost(const char* where) const;

  const LeaseFacts facts_;
  const uint64_t handle_;
  const UniqueFd fd_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::atomic<LeaseState> state_{LeaseState::live};
  mutable std::mutex mutex_;
  Error why_;  // of the last change, under mutex_
};

}  // namespace terrace::client
