// SPDX-License-Identifier: Apache-2.0
// A move by the lease's holder: it copies into the target's memory, then commits. Dropped without that, the
// move is given up.
#include <kj/debug.h>

#include "daemon/rpc/tenant/client_session.h"

namespace terrace::daemon {
namespace {

class LeaseMoveServer final : public rpc::LeaseMove::Server {
 public:
  LeaseMoveServer(kj::Own<ClientSession> session, MoveReady move, MoveMark mark,
                  std::shared_ptr<HandedMemory> memory)
      : session_(kj::mv(session)), move_(std::move(move)), mark_(kj::mv(mark)), memory_(std::move(memory)) {
    ++connection().leases;
  }
  ~LeaseMoveServer() noexcept(false) {
    --connection().leases;
    const auto alive = connection().service_handle.lock();
    if (alive && stage_ == Stage::copying) service().submit_unasked(finish(false), connection().actor());
  }

  kj::Maybe<int> getFd() override { return connection().carried.carry(memory_); }

  kj::Promise<void> commit(CommitContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      Status status = session_->may_take_one_more();
      if (status.ok() && stage_ == Stage::abandoned)
        status = Error{.code = ErrorCode::cancelled, .where = "commit", .detail = "the move was given up"};
      if (!status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      return committed()
          .then([this, context](Status done) mutable {
            if (done.ok()) {
              session_->hand_over(context, move_.lease, ObjectAccess::read_write);
            } else {
              refuse(context, done.error());
            }
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> abandon(AbandonContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      if (stage_ == Stage::committing || stage_ == Stage::committed) {
        refuse(context, Error{.code = ErrorCode::invalid_argument,
                              .where = "abandon",
                              .detail = "the move was committed; it cannot be given up any more"});
        return kj::READY_NOW;
      }
      if (stage_ == Stage::abandoned) return kj::READY_NOW;
      stage_ = Stage::abandoned;
      release_mark();
      return connection()
          .submit(finish(false))
          .then([context](Result<LeaseReply> reply) mutable {
            if (!reply.ok()) refuse(context, reply.error());
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

 private:
  enum class Stage { copying, committing, committed, abandoned };

  Connection& connection() { return session_->connection(); }
  Service& service() { return session_->service(); }
  FinishMove finish(bool commit) {
    return FinishMove{move_.lease, move_.target, session_->tenant(), commit, service().engine().now_ns()};
  }
  void release_mark() { mark_ = nullptr; }

  // Commits once, whoever asks how often; a commit that failed may be tried again.
  kj::Promise<Status> committed() {
    if (stage_ == Stage::committed) return Status();
    if (stage_ == Stage::copying) {
      stage_ = Stage::committing;
      under_way_ =
          connection()
              .submit(finish(true))
              .then([this](Result<LeaseReply> moved) {
                stage_ = moved.ok() ? Stage::committed : Stage::copying;
                if (!moved.ok()) return Status(moved.error());
                // Readers of the old memory have to attach it again.
                service().epoch_stepped(moved->lease, "moved by its holder", LeaseCause::moved, session_.get());
                release_mark();
                return Status();
              })
              .fork();
    }
    KJ_IF_MAYBE (commit, under_way_) return commit->addBranch();
    return Status(
        Error{.code = ErrorCode::internal, .where = "commit", .detail = "a move was committed by nobody"});
  }

  kj::Own<ClientSession> session_;
  const MoveReady move_;
  kj::Maybe<MoveMark> mark_;
  const std::shared_ptr<HandedMemory> memory_;  // null: it is on the host of the agent that asks
  Stage stage_ = Stage::copying;
  kj::Maybe<kj::ForkedPromise<Status>> under_way_;
};

}  // namespace

rpc::LeaseMove::Client make_lease_move(kj::Own<ClientSession> session, MoveReady move, MoveMark mark,
                                       SharedFd memory) {
  Connection& connection = session->connection();
  auto handed = connection.peers.hand(connection.peer, std::move(memory));
  return kj::heap<LeaseMoveServer>(kj::mv(session), std::move(move), kj::mv(mark), std::move(handed));
}

}  // namespace terrace::daemon
