// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/local_lease.h"

#include "core/base/limits.h"
#include "daemon/event_loop/processes.h"
#include "daemon/memory/path_access.h"

namespace terrace::daemon {
namespace {

// A move by the lease's holder: the target is an object of this host too.
class LocalMove final : public rpc::LeaseMove::Server {
 public:
  LocalMove(kj::Own<LocalSession> session, rpc::LeaseMove::Client upstream, LocalFd memory)
      : session_(kj::mv(session)), upstream_(kj::mv(upstream)), memory_(session_->handed(std::move(memory))) {
    ++session_->connection().leases;
  }
  ~LocalMove() noexcept(false) { --session_->connection().leases; }

  kj::Maybe<int> getFd() override { return session_->connection().carried.carry(memory_); }

  kj::Promise<void> commit(CommitContext context) override {
    KJ_IF_MAYBE (slot, admit(session_->connection(), context)) {
      const uint64_t sent_ns = session_->service().now_ns();
      auto call = upstream_.commitRequest().send().then(
          [this, context, sent_ns](auto&& reply) mutable { hand_over(context, reply, sent_ns); });
      return refuse_when_disconnected(kj::mv(call), *session_, context, "commit").attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> abandon(AbandonContext context) override {
    KJ_IF_MAYBE (slot, admit(session_->connection(), context)) {
      auto call = upstream_.abandonRequest().send().then([context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) context.getResults().setError(reply.getError());
      });
      return refuse_when_disconnected(kj::mv(call), *session_, context, "abandon").attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

 private:
  template <typename Reply>
  void hand_over(CommitContext& context, Reply& reply, uint64_t sent_ns) {
    if (reply.getError().getCode() != 0) {
      context.getResults().setError(reply.getError());
      return;
    }
    auto handed = session_->adopt(reply.getInfo(), reply.getLease(), ObjectAccess::read_write, sent_ns);
    if (!handed.ok()) return refuse(context, handed.error());
    context.getResults().setInfo(reply.getInfo());
    context.getResults().setLease(kj::mv(*handed));
  }

  kj::Own<LocalSession> session_;
  rpc::LeaseMove::Client upstream_;
  const std::shared_ptr<HandedMemory> memory_;
};

}  // namespace

LocalLease::LocalLease(kj::Own<LocalSession> session_in, rpc::LeaseInfo::Reader info,
                       rpc::Lease::Client upstream, ObjectAccess access, LocalFd memory, uint64_t sent_ns)
    : session_(kj::mv(session_in)),
      id_(info.getId()),
      access_(access),
      memory_(session_->handed(std::move(memory))),
      upstream_(kj::mv(upstream)) {
  take(info, sent_ns);
  number_ = session().lease_began(*this);
  ++session().connection().leases;
}

LocalLease::~LocalLease() noexcept(false) {
  session().lease_gone(number_);
  --session().connection().leases;
}

// `expiresInNs` counted from when the manager answered: from when it was asked is safe.
void LocalLease::take(rpc::LeaseInfo::Reader info, uint64_t sent_ns) {
  info_ = std::make_unique<capnp::MallocMessageBuilder>();
  info_->setRoot(info);
  object_ = read_text(info.getObject());
  epoch_ = info.getEpoch();
  ttl_ns_ = info.getTtlNs();
  expiry_ns_ = ttl_ns_ == 0 ? UINT64_MAX : sent_ns + info.getExpiresInNs();
}

void LocalLease::promised(uint64_t ttl_ns, uint64_t sent_ns) {
  if (ttl_ns != 0) ttl_ns_ = ttl_ns;
  if (ttl_ns_ != 0) expiry_ns_ = sent_ns + ttl_ns_;
}

void LocalLease::resume(rpc::Lease::Client upstream, rpc::LeaseInfo::Reader info, uint64_t sent_ns) {
  upstream_ = kj::mv(upstream);
  take(info, sent_ns);
}

void LocalLease::end(std::string reason) {
  if (ended_) return;
  ended_ = true;
  why_ended_ = std::move(reason);
  upstream_ = nullptr;
}

Error LocalLease::ended_error(const char* where) const {
  return Error{.code = ErrorCode::lease_revoked,
               .where = where,
               .detail = "lease " + std::to_string(id_) + " has ended: " + why_ended_};
}

template <typename Context>
kj::Maybe<rpc::Lease::Client> LocalLease::begin(Context& context, const char* where) {
  if (ended_) {
    refuse(context, ended_error(where));
    return nullptr;
  }
  KJ_IF_MAYBE (upstream, upstream_) return *upstream;
  refuse(context, service().away(where));
  return nullptr;
}

kj::Promise<void> LocalLease::info(InfoContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, upstream_) {
      auto call = upstream->infoRequest().send().then([context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) {
          context.getResults().setError(reply.getError());
        } else {
          context.getResults().setInfo(reply.getInfo());
        }
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "info").attach(kj::mv(*slot));
    }
    if (ended_) {
      refuse(context, ended_error("info"));
      return kj::READY_NOW;
    }
    context.getResults().setInfo(info_->getRoot<rpc::LeaseInfo>().asReader());
    const uint64_t until_ns = session().promised_until_ns(id_);
    const uint64_t now_ns = service().now_ns();
    if (ttl_ns_ != 0) context.getResults().getInfo().setExpiresInNs(until_ns > now_ns ? until_ns - now_ns : 0);
  }
  return kj::READY_NOW;
}

// L2: the nearer of what the manager promised for the lease and for the host.
void LocalLease::answer_promised(RenewContext& context) {
  if (ended_) return refuse(context, ended_error("renew"));
  const uint64_t now_ns = service().now_ns();
  const uint64_t until_ns = session().promised_until_ns(id_);
  if (until_ns <= now_ns) {
    refuse(context, Error{.code = ErrorCode::lease_expired,
                          .where = "renew",
                          .detail = "lease " + std::to_string(id_) +
                                    " could not be renewed in time: " + session().away("renew").detail});
    return;
  }
  context.getResults().setExpiresInNs(ttl_ns_ == 0 ? 0 : until_ns - now_ns);
}

kj::Promise<void> LocalLease::renew(RenewContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, upstream_) {
      auto request = upstream->renewRequest();
      const uint64_t ttl_ns = context.getParams().getTtlNs();
      request.setTtlNs(ttl_ns);
      const uint64_t sent_ns = service().now_ns();
      return request.send()
          .then([this, context, ttl_ns, sent_ns](auto&& reply) mutable {
            if (reply.getError().getCode() != 0) {
              context.getResults().setError(reply.getError());
              return;
            }
            promised(ttl_ns, sent_ns);
            context.getResults().setExpiresInNs(reply.getExpiresInNs());
          })
          .catch_([this, context](kj::Exception&& exception) mutable {
            if (exception.getType() != kj::Exception::Type::DISCONNECTED)
              kj::throwRecoverableException(kj::mv(exception));
            answer_promised(context);
          })
          .attach(kj::mv(*slot));
    }
    answer_promised(context);
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalLease::release(ReleaseContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, begin(context, "release")) {
      session().spare(*this, true);
      auto call = upstream->releaseRequest().send().then([this, context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) {
          session().spare(*this, false);
          context.getResults().setError(reply.getError());
        } else {
          end("released");
        }
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "release").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

// A report, not a promise: one that the manager does not hear is repeated soon.
kj::Promise<void> LocalLease::reportUsage(ReportUsageContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, upstream_) {
      auto request = upstream->reportUsageRequest();
      request.setUsage(context.getParams().getUsage());
      auto call = request.send().then([context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) context.getResults().setError(reply.getError());
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "reportUsage").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalLease::resize(ResizeContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, begin(context, "resize")) {
      auto request = upstream->resizeRequest();
      request.setBytes(context.getParams().getBytes());
      const uint64_t sent_ns = service().now_ns();
      auto call = request.send().then([this, context, sent_ns](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) {
          context.getResults().setError(reply.getError());
          return;
        }
        auto handed = session().adopt(reply.getInfo(), reply.getLease(), ObjectAccess::read_write, sent_ns);
        if (!handed.ok()) return refuse(context, handed.error());
        context.getResults().setInfo(reply.getInfo());
        context.getResults().setLease(kj::mv(*handed));
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "resize").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalLease::transfer(TransferContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, begin(context, "transfer")) {
      auto request = upstream->transferRequest();
      request.setTenant(context.getParams().getTenant());
      request.setHost(context.getParams().getHost());
      auto call = request.send().then([context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) {
          context.getResults().setError(reply.getError());
        } else {
          context.getResults().setInfo(reply.getInfo());
          context.getResults().setOffered(reply.getOffered());
        }
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "transfer").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalLease::withdrawOffer(WithdrawOfferContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, begin(context, "withdrawOffer")) {
      auto call = upstream->withdrawOfferRequest().send().then([context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) context.getResults().setError(reply.getError());
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "withdrawOffer").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

// The manager is not asked: it gave this host the lease, and the path is the host's own.
kj::Promise<void> LocalLease::openPath(OpenPathContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    const CallSlot held = kj::mv(*slot);
    constexpr const char* where = "openPath";
    const uint32_t caller = session().connection().peer.uid;
    const auto params = context.getParams();
    const uint32_t user = params.getAnotherUser() ? params.getUser() : caller;
    Status may = ended_ ? Status(ended_error(where)) : path_stays(id_, movable(), on_fence());
    if (may.ok() && user != caller && caller != 0) may = other_user_refused(where);
    Result<LocalFd> memory = LocalFd();
    if (may.ok()) memory = session().open(object_.c_str(), access_);
    Result<std::string> path = may.ok() ? (memory.ok() ? allow_by_path((*memory)->get(), user, access_)
                                                       : Result<std::string>(memory.error()))
                                        : Result<std::string>(may.error());
    if (path.ok())
      context.getResults().setPath(*path);
    else
      refuse(context, path.error());
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalLease::beginMove(BeginMoveContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, begin(context, "beginMove")) {
      auto call = upstream->beginMoveRequest().send().then([this, context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) {
          context.getResults().setError(reply.getError());
          return;
        }
        // Refused here, the manager's capability is dropped with the reply: the move is given up.
        if (Status status = session().may_take_one_more(); !status.ok()) return refuse(context, status.error());
        auto memory = session().open(reply.getObject(), ObjectAccess::read_write);
        if (!memory.ok()) return refuse(context, memory.error());
        context.getResults().setBytes(reply.getBytes());
        context.getResults().setMove(
            kj::heap<LocalMove>(kj::addRef(session()), reply.getMove(), std::move(*memory)));
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "beginMove").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

// Which of this host's processes asks, as the manager will ask about it.
Status LocalLease::write_caller(rpc::HostProcess::Builder out) {
  const auto& connection = session().connection();
  TERRACE_ASSIGN_OR_RETURN(const ProcessId seen, peer_process(connection.socket, connection.peer.pid));
  TERRACE_ASSIGN_OR_RETURN(const ProcessId told, told_elsewhere(seen));
  out.setPid(told.pid);
  out.setStarted(told.started);
  out.setSpace(told.space);
  return {};
}

kj::Promise<void> LocalLease::claimPart(ClaimPartContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, begin(context, "claimPart")) {
      auto request = upstream->claimPartRequest();
      request.setPart(context.getParams().getPart());
      request.setLastEpoch(context.getParams().getLastEpoch());
      request.setKey(context.getParams().getKey());
      if (Status status = write_caller(request.initProcess()); !status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      auto call = request.send().then([context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0)
          context.getResults().setError(reply.getError());
        else
          context.getResults().setEpoch(reply.getEpoch());
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "claimPart").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalLease::releasePart(ReleasePartContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, begin(context, "releasePart")) {
      auto request = upstream->releasePartRequest();
      request.setPart(context.getParams().getPart());
      request.setEpoch(context.getParams().getEpoch());
      if (Status status = write_caller(request.initProcess()); !status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      auto call = request.send().then([context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0) context.getResults().setError(reply.getError());
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "releasePart").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalLease::partIsDead(PartIsDeadContext context) {
  KJ_IF_MAYBE (slot, admit(session().connection(), context)) {
    KJ_IF_MAYBE (upstream, begin(context, "partIsDead")) {
      auto request = upstream->partIsDeadRequest();
      request.setPart(context.getParams().getPart());
      request.setEpoch(context.getParams().getEpoch());
      auto call = request.send().then([context](auto&& reply) mutable {
        if (reply.getError().getCode() != 0)
          context.getResults().setError(reply.getError());
        else
          context.getResults().setDead(reply.getDead());
      });
      return refuse_when_disconnected(kj::mv(call), session(), context, "partIsDead").attach(kj::mv(*slot));
    }
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
