// SPDX-License-Identifier: Apache-2.0
#include "libclient/session/move_handle.h"

#include <utility>

#include "libclient/session/loop.h"

namespace terrace::client {

void MoveOutcome::settle(LeaseMoveState state, Status status) {
  const MutexLock lock(mutex_);
  status_ = std::move(status);
  state_.store(state, std::memory_order_release);  // release: pairs with state()
}

Status MoveOutcome::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

MoveHandle::MoveHandle(uint64_t number, std::shared_ptr<LeaseHandle> lease,
                       std::shared_ptr<MoveOutcome> outcome, UniqueFd fd, uint64_t bytes,
                       std::shared_ptr<Mailbox> mailbox)
    : number_(number),
      lease_(std::move(lease)),
      outcome_(std::move(outcome)),
      fd_(std::move(fd)),
      bytes_(bytes),
      mailbox_(std::move(mailbox)) {}

MoveHandle::~MoveHandle() {
  mailbox_->post([number = number_](Loop& loop) { loop.forget_move(number); });
}

Status MoveHandle::commit() {
  constexpr const char* where = "LeaseMove::commit";
  if (const auto now = state(); now == LeaseMoveState::committed || now == LeaseMoveState::ended)
    return outcome_->status();
  Status status = ask<void>(*mailbox_, where, [number = number_](Loop& loop, auto answer) {
    loop.commit_move(number, std::move(answer));
  });
  const bool gone = !mailbox_->own_process() || mailbox_->closed();
  if (status.ok() || !gone || status.error().code == ErrorCode::invalid_argument) return status;
  switch (state()) {
    case LeaseMoveState::committed:
    case LeaseMoveState::ended: return outcome_->status();
    case LeaseMoveState::open:  // never sent; it dies with the connection
      return Error{ErrorCode::cancelled, 0, where, "the session was closed, and the move was given up with it"};
    case LeaseMoveState::unknown: break;
  }
  return Error{ErrorCode::cancelled, 0, where,
               "the session was closed before the manager said whether the move took place"};
}

Status MoveHandle::abandon() {
  constexpr const char* where = "LeaseMove::abandon";
  switch (state()) {
    case LeaseMoveState::ended: return {};
    case LeaseMoveState::committed:
      return Error{ErrorCode::invalid_argument, 0, where, "the move was committed"};
    case LeaseMoveState::unknown:
      return Error{ErrorCode::invalid_argument, 0, where,
                   "the commit of this move was sent; ask commit() what became of it"};
    case LeaseMoveState::open: break;
  }
  return ask<void>(*mailbox_, where, [number = number_](Loop& loop, auto answer) {
    loop.abandon_move(number, std::move(answer));
  });
}

}  // namespace terrace::client
