// SPDX-License-Identifier: Apache-2.0
// The caller's LeaseMove. The Session's thread decides the outcome of the move and shares it here, so that it
// can be read when the Session is gone.
//
// Place     libclient/session.
// Threads   Any, as LeaseMove promises; MoveOutcome::settle() only on the Session's thread.
#pragma once

#include <atomic>
#include <memory>

#include "core/base/sync/mutex.h"
#include "core/base/unique_fd.h"
#include "libclient/session/lease_handle.h"
#include "libclient/session/mailbox.h"
#include "terrace/session.h"

namespace terrace::client {

class MoveOutcome {
 public:
  // acquire: pairs with settle()
  LeaseMoveState state() const { return state_.load(std::memory_order_acquire); }
  // open -> unknown -> committed or ended; open -> ended.
  void settle(LeaseMoveState state, Status status);
  Status status() const;  // what commit() answers once it is committed or ended

 private:
  std::atomic<LeaseMoveState> state_{LeaseMoveState::open};
  mutable Mutex mutex_;
  Status status_ TERRACE_GUARDED_BY(mutex_);
};

class MoveHandle final : public LeaseMove {
 public:
  // `number` is the Loop's for this move. Keeps the lease held.
  MoveHandle(uint64_t number, std::shared_ptr<LeaseHandle> lease, std::shared_ptr<MoveOutcome> outcome,
             UniqueFd fd, uint64_t bytes, std::shared_ptr<Mailbox> mailbox);
  ~MoveHandle() override;

  int fd() const override { return fd_.get(); }
  uint64_t bytes() const override { return bytes_; }
  LeaseMoveState state() const override { return outcome_->state(); }
  Status commit() override;
  Status abandon() override;

 private:
  const uint64_t number_;
  const std::shared_ptr<LeaseHandle> lease_;
  const std::shared_ptr<MoveOutcome> outcome_;
  const UniqueFd fd_;
  const uint64_t bytes_;
  const std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace terrace::client
