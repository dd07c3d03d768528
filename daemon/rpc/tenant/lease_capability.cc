// SPDX-License-Identifier: Apache-2.0
// One lease as a capability. Its descriptor travels with it; the lease itself lives by its expiry.
#include "core/base/limits.h"
#include "daemon/event_loop/processes.h"
#include "daemon/rpc/ended_holders.h"
#include "daemon/rpc/tenant/client_session.h"
#include "daemon/rpc/tenant/part_calls.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

class LeaseServer final : public rpc::Lease::Server {
 public:
  LeaseServer(kj::Own<ClientSession> session, LeaseId lease, ObjectAccess access,
              std::shared_ptr<HandedMemory> memory)
      : session_(kj::mv(session)), lease_(lease), access_(access), memory_(std::move(memory)) {
    ++connection().leases;
  }
  ~LeaseServer() noexcept(false) { --connection().leases; }

  kj::Maybe<int> getFd() override { return connection().carried.carry(memory_); }

  kj::Promise<void> info(InfoContext context) override {
    return answer_query(connection(), context, [this](InfoContext& c) {
      const LeaseRow* lease = session_->find(lease_);
      if (lease != nullptr) {
        session_->write_info(c.getResults().initInfo(), *lease, true);
      } else {
        refuse(
            c,
            Error{.code = ErrorCode::not_found, .where = "info", .detail = "lease " + name() + " has ended"});
      }
    });
  }

  kj::Promise<void> renew(RenewContext context) override {
    const Renew request{lease_, session_->tenant(), context.getParams().getTtlNs(), now_ns()};
    return answer_command(connection(), context, request, [this](RenewContext& c, LeaseReply& reply) {
      const uint64_t expiry_ns = reply.lease.expiry_ns;
      const uint64_t now = now_ns();
      c.getResults().setExpiresInNs(expiry_ns > now ? expiry_ns - now : 0);
    });
  }

  kj::Promise<void> release(ReleaseContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      // Who gives it back need not be told that it is gone: that would be one more call for each release.
      const auto access = service().holders().leave(lease_, *session_);
      // Only who had it gives it back without being ended; it may have let go of everything before.
      if (access.has_value()) session_->spare(lease_, true);
      return connection()
          .submit(Release{lease_, session_->tenant(), now_ns()})
          .then([this, context, access](Result<Done> reply) mutable {
            if (reply.ok()) return;
            const LeaseRow* lease = session_->find(lease_);
            if (access.has_value()) session_->spare(lease_, false);
            if (access.has_value() && !session_->ended() && lease != nullptr &&
                lease->phase <= LeasePhase::revoking)
              service().holders().add(*lease, *access, *session_);
            refuse(context, reply.error());
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> reportUsage(ReportUsageContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      const CallSlot held = kj::mv(*slot);
      const auto usage = context.getParams().getUsage();
      const std::string holder = read_text(usage.getHolder());
      const LeaseRow* lease = session_->find(lease_);
      const bool ended = lease == nullptr || lease->phase > LeasePhase::revoking;
      if (ended || !valid_text(holder, limits::label_bytes_max)) {
        refuse(context, Error{.code = ended ? ErrorCode::not_found : ErrorCode::invalid_argument,
                              .where = "reportUsage",
                              .detail = ended ? "the lease has ended" : "the holder's name is not printable"});
        return kj::READY_NOW;
      }
      service().report_usage(lease_, ReportedUsage{.ddr_bytes = usage.getDdrBytes(),
                                                   .cxl_bytes = usage.getCxlBytes(),
                                                   .live_bytes = usage.getLiveBytes(),
                                                   .reported_ns = 0,
                                                   .holder = holder});
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> resize(ResizeContext context) override {
    if (Status status = may_change("resize"); !status.ok()) {
      refuse(context, status.error());
      return kj::READY_NOW;
    }
    const Resize request{lease_, session_->tenant(), context.getParams().getBytes(), now_ns()};
    return answer_command(connection(), context, request, [this](ResizeContext& c, LeaseReply&) {
      session_->hand_over(c, lease_, ObjectAccess::read_write);
    });
  }

  // To another tenant or host: its own lease only, as the state machine checks by the asking tenant.
  kj::Promise<void> transfer(TransferContext context) override {
    if (Status status = may_change("transfer"); !status.ok()) {
      refuse(context, status.error());
      return kj::READY_NOW;
    }
    Transfer request{lease_, session_->tenant(), read_text(context.getParams().getTenant()),
                     read_text(context.getParams().getHost()), now_ns()};
    if (request.to_tenant.empty() && !request.to_host.empty()) request.to_tenant = session_->tenant();
    if (request.to_tenant != session_->tenant() && !connection().is_administrator())
      return offer(context, std::move(request));
    if (Status placed = service().place_transfer(request); !placed.ok()) {
      refuse(context, placed.error());
      return kj::READY_NOW;
    }
    return answer_command(connection(), context, std::move(request),
                          [this](TransferContext& c, LeaseReply& reply) {
                            service().handed_over(reply.lease);
                            write_lease(c.getResults().initInfo(), reply.lease, service(), false);
                          });
  }

  kj::Promise<void> withdrawOffer(WithdrawOfferContext context) override {
    OfferLease request{.lease = lease_, .tenant = session_->tenant(), .to_tenant = {}, .to_host = {}};
    return answer_command(connection(), context, std::move(request), [](WithdrawOfferContext&, LeaseReply&) {});
  }

  kj::Promise<void> openPath(OpenPathContext context) override {
    return answer_query(connection(), context, [this](OpenPathContext& c) {
      const auto params = c.getParams();
      const uint32_t user = params.getAnotherUser() ? params.getUser() : connection().peer.uid;
      if (Result<std::string> path = session_->open_path(lease_, access_, user); path.ok())
        c.getResults().setPath(*path);
      else
        refuse(c, path.error());
    });
  }

  kj::Promise<void> beginMove(BeginMoveContext context) override {
    Status status = may_change("beginMove");
    if (status.ok()) status = may_move();
    if (!status.ok()) {
      refuse(context, status.error());
      return kj::READY_NOW;
    }
    const auto mark = std::make_shared<MoveMark>(kj::addRef(*session_), lease_);
    return answer_command(
        connection(), context, BeginMove{lease_, session_->tenant(), now_ns()},
        [this, mark](BeginMoveContext& c, MoveReady& move) { begin_move(c, move, std::move(*mark)); });
  }

  // Admitted first: who calls is found out by system calls.
  kj::Promise<void> claimPart(ClaimPartContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      return claim_of(*session_, lease_, access_, context.getParams())
          .then([this, context,
                 asking = connection().caller()](Result<ClaimPart> claim) mutable -> kj::Promise<void> {
            if (!claim.ok()) {
              refuse(context, claim.error());
              return kj::READY_NOW;
            }
            return service()
                .engine()
                .submit(std::move(*claim), asking)
                .then([context](Result<OwnerReply> reply) mutable {
                  if (reply.ok())
                    context.getResults().setEpoch(reply->owner.epoch);
                  else
                    refuse(context, reply.error());
                });
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> releasePart(ReleasePartContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      const auto params = context.getParams();
      auto release = release_of(*session_, lease_, params.getPart(), params.getEpoch(), params.getProcess());
      if (!release.ok()) {
        refuse(context, release.error());
        return kj::READY_NOW;
      }
      return connection()
          .submit(std::move(*release))
          .then([context](Result<Done> reply) mutable {
            if (!reply.ok()) refuse(context, reply.error());
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> partIsDead(PartIsDeadContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      const auto params = context.getParams();
      if (session_->find(lease_) == nullptr) {
        refuse(context, Error{.code = ErrorCode::not_found,
                              .where = "partIsDead",
                              .detail = "lease " + name() + " has ended"});
        return kj::READY_NOW;
      }
      return owner_is_dead(*session_, lease_, params.getPart(), params.getEpoch())
          .then([this, context](bool dead) mutable {
            context.getResults().setDead(dead);
            return service().engine().settled();
          })
          .then([context](Status settled) mutable {
            if (!settled.ok()) refuse(context, settled.error());
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

 private:
  Connection& connection() { return session_->connection(); }
  Service& service() { return session_->service(); }
  uint64_t now_ns() { return service().engine().now_ns(); }
  std::string name() const { return std::to_string(lease_.value); }

  // Whose lease it will be has to agree: a lease takes room of a quota, and brings bytes under a label.
  kj::Promise<void> offer(TransferContext context, Transfer request) {
    if (!request.to_tenant.empty() && valid_name(request.to_tenant) &&
        !service().knows_tenant(request.to_tenant)) {
      refuse(context, Error{.code = ErrorCode::not_found,
                            .where = "transfer",
                            .detail = "there is no tenant " + request.to_tenant +
                                      " here: no user or host acts for it, and it has no lease and no quota"});
      return kj::READY_NOW;
    }
    if (request.to_tenant.empty()) request.to_tenant = "-";  // nobody: the state machine says what a name is
    return answer_command(
        connection(), context,
        OfferLease{request.lease, request.tenant, request.to_tenant, request.to_host, now_ns()},
        [this](TransferContext& c, LeaseReply& reply) {
          c.getResults().setOffered(true);
          write_lease(c.getResults().initInfo(), reply.lease, service(), false);
        });
  }

  Status may_change(const char* where) {
    if (access_ == ObjectAccess::read_write) return session_->may_take_one_more();
    return Error{.code = ErrorCode::permission_denied,
                 .where = where,
                 .detail = "lease " + name() + " is attached read-only here; attach it writable first"};
  }

  // Bytes that another session writes meanwhile would be lost.
  Status may_move() {
    if (connection().peer.remote != nullptr) return memory_is_elsewhere("beginMove");
    const size_t holders = service().holders(lease_);
    const bool moving = service().move_under_way(lease_);
    if (holders <= 1 && !moving) return may_move_owned();
    return Error{.code = ErrorCode::busy,
                 .where = "beginMove",
                 .detail = "lease " + name() +
                           (moving ? " is being moved already"
                                   : " is held by " + std::to_string(holders) +
                                         " sessions; all but the one that moves it have to end first")};
  }

  // An owner whose connection is gone may live, and store.
  Status may_move_owned() {
    if (session_->state().owners_of(lease_).empty()) return {};
    const Result<ProcessId> caller = caller_of(*session_);
    const auto owner = living_owner(session_->state(), lease_, caller.ok() ? *caller : ProcessId{});
    if (!owner.has_value()) return {};
    return Error{.code = ErrorCode::busy,
                 .where = "beginMove",
                 .detail = "part " + std::to_string(part_of(owner->id)) + " of lease " + name() +
                           " is owned by another process, " + owner->holder +
                           ", which lives; it has to give the part back or to end first"};
  }

  void begin_move(BeginMoveContext& context, const MoveReady& move, MoveMark mark) {
    Result<SharedFd> memory = SharedFd();
    Status status = session_->may_take_one_more();
    if (status.ok() && connection().agent.empty())
      memory = service().open_object(move.object, ObjectAccess::read_write);
    if (status.ok() && !memory.ok()) status = memory.error();
    if (!status.ok()) {
      refuse(context, status.error());
      service().submit_unasked(FinishMove{lease_, move.target, session_->tenant(), false, now_ns()},
                               connection().actor());
      return;
    }
    context.getResults().setBytes(move.bytes);
    context.getResults().setObject(move.object);
    context.getResults().setMove(
        make_lease_move(kj::addRef(*session_), move, std::move(mark), std::move(*memory)));
  }

  kj::Own<ClientSession> session_;
  const LeaseId lease_;
  const ObjectAccess access_;
  const std::shared_ptr<HandedMemory> memory_;
};

}  // namespace

rpc::Lease::Client make_lease(kj::Own<ClientSession> session, LeaseId lease, ObjectAccess access,
                              SharedFd memory) {
  Connection& connection = session->connection();
  auto handed = connection.peers.hand(connection.peer, std::move(memory));
  return kj::heap<LeaseServer>(kj::mv(session), lease, access, std::move(handed));
}

}  // namespace terrace::daemon
