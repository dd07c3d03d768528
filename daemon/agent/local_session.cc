// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/local_session.h"

#include <kj/debug.h>

#include <algorithm>
#include <set>

#include "core/base/limits.h"
#include "daemon/agent/local_lease.h"
#include "daemon/log/log.h"
#include "daemon/memory/path_access.h"
#include "daemon/rpc/tenant/userfaultfd_device.h"
#include "daemon/traces/trace_context.h"

namespace terrace::daemon {
namespace {

[[noreturn]] void disconnected(const std::string& why) {
  kj::throwFatalException(
      kj::Exception(kj::Exception::Type::DISCONNECTED, __FILE__, __LINE__, kj::str(why.c_str())));
}

// What the manager has to say to the program, on its way through. The session may have ended: then nobody
// listens.
class Forwarder final : public rpc::LeaseListener::Server {
 public:
  explicit Forwarder(LocalSession& session) : session_(kj::addRef(session)) {}

  kj::Promise<void> revoking(RevokingContext context) override {
    const auto params = context.getParams();
    return session_->forward_revoking(params.getLease(), params.getGraceNs(), params.getReason());
  }
  kj::Promise<void> fenced(FencedContext context) override {
    const auto params = context.getParams();
    return session_->forward_fenced(params.getLease(), read_text(params.getReason()), params.getCause());
  }
  kj::Promise<void> moveRequested(MoveRequestedContext context) override {
    return session_->forward_move_requested(context.getParams().getLease(), context.getParams().getReason());
  }

 private:
  kj::Own<LocalSession> session_;
};

class LocalSessionServer final : public rpc::TenantSession::Server {
 public:
  explicit LocalSessionServer(kj::Own<LocalSession> session) : session_(kj::mv(session)) {}
  ~LocalSessionServer() noexcept(false) { session_->end(); }

  kj::Promise<void> grant(GrantContext context) override {
    KJ_IF_MAYBE (slot, admit(session_->connection(), context)) {
      if (Status status = session_->may_take_one_more(); !status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      const bool waits = context.getParams().getRequest().getWaitNs() != 0;
      const HoldTerms terms = terms_of(context.getParams().getRequest());
      if (Status status = session_->may_agree(terms); !status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      const uint64_t sent_ns = now_ns();
      auto call = session_->upstream().then(
          [this, context, terms, sent_ns](rpc::TenantSession::Client manager) mutable {
            auto request = manager.grantRequest();
            request.setRequest(context.getParams().getRequest());
            request.getRequest().setProcess(0);  // this agent sees to it that its programs agree
            return request.send().then([this, context, terms, sent_ns](auto&& reply) mutable {
              hand_over(context, reply, ObjectAccess::read_write, terms, sent_ns);
            });
          });
      if (waits) context.allowCancellation();
      auto answered = refuse_when_disconnected(kj::mv(call), *session_, context, "grant");
      if (waits && session_->connection().waiting < limits::waiting_per_tenant_max)
        return answered.attach(WaitingSlot(session_->connection()));
      return answered.attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> attach(AttachContext context) override {
    KJ_IF_MAYBE (slot, admit(session_->connection(), context)) {
      if (Status status = session_->may_take_one_more(); !status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      const uint64_t sent_ns = now_ns();
      auto call =
          session_->upstream().then([this, context, sent_ns](rpc::TenantSession::Client manager) mutable {
            const auto params = context.getParams();
            auto request = manager.attachRequest();
            request.setLease(params.getLease());
            request.setLabel(params.getLabel());
            request.setAccess(params.getAccess());
            request.setOnFence(params.getOnFence());
            const HoldTerms terms = terms_of(params);
            const auto access = params.getAccess() == rpc::Access::READ_WRITE ? ObjectAccess::read_write
                                                                              : ObjectAccess::read_only;
            return request.send().then([this, context, access, terms, sent_ns](auto&& reply) mutable {
              hand_over(context, reply, access, terms, sent_ns);
            });
          });
      return refuse_when_disconnected(kj::mv(call), *session_, context, "attach").attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> list(ListContext context) override {
    return pass(
        context, "list",
        [](rpc::TenantSession::Client& manager, ListContext& c) {
          auto request = manager.listRequest();
          request.setAfter(c.getParams().getAfter());
          request.setLimit(c.getParams().getLimit());
          return request;
        },
        [](ListContext& c, auto& reply) { c.getResults().setLeases(reply.getLeases()); });
  }

  kj::Promise<void> pools(PoolsContext context) override {
    return pass(
        context, "pools",
        [](rpc::TenantSession::Client& manager, PoolsContext&) { return manager.poolsRequest(); },
        [](PoolsContext& c, auto& reply) { c.getResults().setPools(reply.getPools()); });
  }

  kj::Promise<void> offers(OffersContext context) override {
    return pass(
        context, "offers",
        [](rpc::TenantSession::Client& manager, OffersContext& c) {
          auto request = manager.offersRequest();
          request.setAfter(c.getParams().getAfter());
          request.setLimit(c.getParams().getLimit());
          return request;
        },
        [](OffersContext& c, auto& reply) { c.getResults().setLeases(reply.getLeases()); });
  }

  kj::Promise<void> reportRun(ReportRunContext context) override {
    return pass(
        context, "reportRun",
        [](rpc::TenantSession::Client& manager, ReportRunContext& c) {
          auto request = manager.reportRunRequest();
          request.setFigures(c.getParams().getFigures());
          return request;
        },
        [this](ReportRunContext&, auto&) { session_->service().run_passed_on(); });
  }

  kj::Promise<void> acceptOffer(AcceptOfferContext context) override {
    return pass(
        context, "acceptOffer",
        [](rpc::TenantSession::Client& manager, AcceptOfferContext& c) {
          auto request = manager.acceptOfferRequest();
          request.setLease(c.getParams().getLease());
          return request;
        },
        [](AcceptOfferContext& c, auto& reply) { c.getResults().setInfo(reply.getInfo()); });
  }

  kj::Promise<void> renewMany(RenewManyContext context) override {
    KJ_IF_MAYBE (slot, admit(session_->connection(), context)) {
      if (context.getParams().getLeases().size() > limits::leases_per_page_max) {
        refuse(context,
               Error{.code = ErrorCode::limit_exceeded,
                     .where = "renewMany",
                     .detail = "at most " + std::to_string(limits::leases_per_page_max) + " leases a call"});
        return kj::READY_NOW;
      }
      const uint64_t sent_ns = now_ns();
      return session_->upstream()
          .then([this, context, sent_ns](rpc::TenantSession::Client manager) mutable {
            auto request = manager.renewManyRequest();
            request.setLeases(context.getParams().getLeases());
            request.setTtlNs(context.getParams().getTtlNs());
            return request.send().then(
                [this, context, sent_ns](auto&& reply) mutable { renewed(context, reply, sent_ns); });
          })
          .catch_([this, context](kj::Exception&& exception) mutable {
            if (exception.getType() != kj::Exception::Type::DISCONNECTED)
              kj::throwRecoverableException(kj::mv(exception));
            renew_from_promises(context);
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  // This host's device; the manager, away or not, has nothing to do with it.
  kj::Promise<void> userfaultfd(UserfaultfdContext context) override {
    KJ_IF_MAYBE (slot, admit(session_->connection(), context)) {
      const CallSlot held = kj::mv(*slot);
      userfaultfd_.write(session_->connection(), context);
    }
    return kj::READY_NOW;
  }

 private:
  uint64_t now_ns() { return session_->service().now_ns(); }

  template <typename Context, typename Reply>
  void hand_over(Context& context, Reply& reply, ObjectAccess access, const HoldTerms& terms,
                 uint64_t sent_ns) {
    if (reply.getError().getCode() != 0) {
      context.getResults().setError(reply.getError());
      return;
    }
    if (Status agreed = session_->agree(reply.getInfo(), terms); !agreed.ok())
      return refuse(context, agreed.error());
    auto handed = session_->adopt(reply.getInfo(), reply.getLease(), access, sent_ns);
    if (!handed.ok()) return refuse(context, handed.error());
    context.getResults().setInfo(reply.getInfo());
    context.getResults().setLease(kj::mv(*handed));
  }

  template <typename Context, typename Ask, typename Answer>
  kj::Promise<void> pass(Context context, const char* where, Ask ask, Answer answer) {
    KJ_IF_MAYBE (slot, admit(session_->connection(), context)) {
      auto call = session_->upstream().then([context, ask, answer](rpc::TenantSession::Client manager) mutable {
        return ask(manager, context).send().then([context, answer](auto&& reply) mutable {
          if (reply.getError().getCode() != 0) {
            context.getResults().setError(reply.getError());
          } else {
            answer(context, reply);
          }
        });
      });
      return refuse_when_disconnected(kj::mv(call), *session_, context, where).attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  template <typename Reply>
  void renewed(RenewManyContext& context, Reply& reply, uint64_t sent_ns) {
    if (reply.getError().getCode() != 0) {
      context.getResults().setError(reply.getError());
      return;
    }
    context.getResults().setFailed(reply.getFailed());
    std::set<uint64_t> failed;
    for (const auto one : reply.getFailed()) failed.insert(one.getLease());
    const auto params = context.getParams();
    for (const uint64_t id : params.getLeases())
      if (!failed.contains(id)) session_->promised(id, params.getTtlNs(), sent_ns);
  }

  void renew_from_promises(RenewManyContext& context) {
    std::vector<uint64_t> failed;
    for (const uint64_t id : context.getParams().getLeases())
      if (session_->promised_until_ns(id) <= now_ns()) failed.push_back(id);
    auto out = context.getResults().initFailed(static_cast<uint32_t>(failed.size()));
    for (uint32_t i = 0; i < failed.size(); ++i) {
      out[i].setLease(failed[i]);
      write_error(out[i].initError(), session_->away("renewMany"));
    }
  }

  kj::Own<LocalSession> session_;
  UserfaultfdAnswer userfaultfd_;
};

}  // namespace

rpc::TenantSession::Client make_local_session(kj::Own<LocalConnection> connection, std::string tenant,
                                              rpc::LeaseListener::Client listener) {
  return kj::heap<LocalSessionServer>(
      kj::refcounted<LocalSession>(kj::mv(connection), std::move(tenant), kj::mv(listener)));
}

LocalSession::LocalSession(kj::Own<LocalConnection> connection, std::string tenant,
                           rpc::LeaseListener::Client listener)
    : connection_(kj::mv(connection)), tenant_(std::move(tenant)), listener_(kj::mv(listener)) {
  connection_->parts.insert(this);
  service().session_began(*this);
}

LocalSession::~LocalSession() noexcept(false) {
  end();
}

void LocalSession::end() {
  if (std::exchange(ended_, true)) return;
  service().session_ended(*this);
  connection_->parts.erase(this);
  listener_ = nullptr;
  upstream_ = nullptr;
}

namespace {

Result<Consent> consent_of(LocalConnection& connection, const HoldTerms& terms) {
  const std::string name = connection.client_name.empty() ? "process " : connection.client_name;
  return consent_of_peer(connection.socket, connection.peer.pid, connection.peer.uid, terms.process,
                         name + "[" + std::to_string(connection.peer.pid) + "]");
}

}  // namespace

Status LocalSession::may_agree(const HoldTerms& terms) {
  if (!terms.kill) return {};
  const Result<Consent> agreed = consent_of(*connection_, terms);
  return agreed.ok() ? Status() : Status(agreed.error());
}

Status LocalSession::agree(rpc::LeaseInfo::Reader info, const HoldTerms& terms) {
  if (info.getOnFence() != rpc::OnFence::KILL) return {};
  TERRACE_ASSIGN_OR_RETURN(Consent agreed, consent_of(*connection_, terms));
  process_ = agreed.process;
  return service().orders().consents().agreed(std::string(object_on_host(read_text(info.getObject()))),
                                              std::move(agreed));
}

void LocalSession::spare(const LocalLease& lease, bool spared) {
  if (lease.on_fence() != OnFence::kill || process_.pid == 0) return;
  service().orders().consents().spare(std::string(object_on_host(lease.object())), process_, spared);
}

Status LocalSession::may_take_one_more() {
  const uint32_t most = service().peer_options().leases_max;
  if (ended_) return Error{.code = ErrorCode::cancelled, .where = "attach", .detail = "this session has ended"};
  if (connection_->leases < most) return connection_->peers.may_open_memory(connection_->peer);
  return Error{
      .code = ErrorCode::limit_exceeded,
      .where = "attach",
      .detail = "this connection holds " + std::to_string(most) + " lease capabilities; drop some first"};
}

// --- the manager's side ---------------------------------------------------------------------------------

kj::Promise<rpc::TenantSession::Client> LocalSession::upstream() {
  return kj::evalNow([this] { return open_upstream(); });
}

// Whoever waits for it keeps this session: a call of it, or LocalService::run().
kj::Promise<rpc::TenantSession::Client> LocalSession::open_upstream() {
  KJ_IF_MAYBE (known, upstream_) return *known;
  if (ended_) disconnected("the session has ended");
  KJ_IF_MAYBE (manager, service().uplink().service()) {
    auto request = manager->openSessionRequest();
    request.setTenant(tenant_);
    request.setUid(connection_->peer.uid);
    request.setClient(client_text());
    if (connection_->trace.has_value()) request.setTraceparent(traceparent(*connection_->trace));
    request.setListener(kj::heap<Forwarder>(*this));
    return request.send().then([this, link = link_](auto&& reply) mutable -> rpc::TenantSession::Client {
      refused_.reset();
      if (Status refused = read_error(reply.getError(), "openSession"); !refused.ok()) {
        refused_ = refused.error();
        disconnected("the manager refused this session: " + refused.error().detail);
      }
      if (link != link_ || ended_) disconnected("the manager went away");
      KJ_IF_MAYBE (known, upstream_) return *known;  // opened twice at once: the other one counts
      upstream_ = reply.getSession();
      return reply.getSession();
    });
  }
  disconnected("the manager is away");
}

// As the manager's logs have it; with the pid it must still be a label.
std::string LocalSession::client_text() const {
  const std::string& name = connection_->client_name;
  constexpr size_t pid_bytes_max = 16;
  const bool fits = !name.empty() && name.size() + pid_bytes_max <= limits::label_bytes_max;
  return (fits ? name : "program") + "[" + std::to_string(connection_->peer.pid) + "]";
}

Error LocalSession::away(const char* where) const {
  return refused_.has_value() ? *refused_ : connection_->service.away(where);
}

void LocalSession::suspend() {
  ++link_;
  upstream_ = nullptr;
  refused_.reset();
  for (const auto& [number, lease] : leases_) lease->suspend();
}

void LocalSession::all_fenced(const std::string& reason) {
  std::set<uint64_t> ids;
  for (const auto& [number, lease] : leases_)
    if (!lease->ended()) ids.insert(lease->id());
  for (const uint64_t id : ids) service().run(*this, forward_fenced(id, reason, rpc::LeaseCause::OBJECT_LOST));
}

// --- notices --------------------------------------------------------------------------------------------

// For programs that have the memory by a path it is shown on the file, as long as a session of this host has the lease.
void LocalSession::show_grace(uint64_t lease, uint64_t grace_ns) {
  for (const auto& [number, held] : leases_) {
    if (held->id() != lease || held->ended()) continue;
    const Result<LocalFd> memory = open(held->object().c_str(), ObjectAccess::read_only);
    const Status shown = memory.ok() ? show_end_of_grace((*memory)->get(), grace_ns) : Status(memory.error());
    if (!shown.ok())
      log::warn("programs that have lease {} by a path do not see that it is taken back: {}", lease,
                shown.error().to_string());
    return;
  }
}

kj::Promise<void> LocalSession::forward_revoking(uint64_t lease, uint64_t grace_ns,
                                                 capnp::Text::Reader reason) {
  show_grace(lease, grace_ns);
  KJ_IF_MAYBE (listener, listener_) {
    auto request = listener->revokingRequest();
    request.setLease(lease);
    request.setGraceNs(grace_ns);
    request.setReason(reason);
    return request.send().ignoreResult();
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalSession::forward_fenced(uint64_t lease, const std::string& reason,
                                               rpc::LeaseCause cause) {
  for (const auto& [number, held] : leases_)
    if (held->id() == lease) held->end(reason);
  KJ_IF_MAYBE (listener, listener_) {
    auto request = listener->fencedRequest();
    request.setLease(lease);
    request.setReason(reason);
    request.setCause(cause);
    return request.send().ignoreResult();
  }
  return kj::READY_NOW;
}

kj::Promise<void> LocalSession::forward_move_requested(uint64_t lease, capnp::Text::Reader reason) {
  KJ_IF_MAYBE (listener, listener_) {
    auto request = listener->moveRequestedRequest();
    request.setLease(lease);
    request.setReason(reason);
    return request.send().ignoreResult();
  }
  return kj::READY_NOW;
}

// --- leases -----------------------------------------------------------------------------------------------

uint64_t LocalSession::lease_began(LocalLease& lease) {
  leases_.emplace(++last_number_, &lease);
  return last_number_;
}

uint64_t LocalSession::promised_until_ns(uint64_t id) const {
  uint64_t until_ns = 0;
  for (const auto& [number, lease] : leases_)
    if (lease->id() == id && !lease->ended()) until_ns = std::max(until_ns, lease->expiry_ns());
  return std::min(until_ns, connection_->service.uplink().promised_until_ns());
}

void LocalSession::promised(uint64_t id, uint64_t ttl_ns, uint64_t sent_ns) {
  for (const auto& [number, lease] : leases_)
    if (lease->id() == id && !lease->ended()) lease->promised(ttl_ns, sent_ns);
}

// The manager names its object with the host: `lease-7@hostb`.
Result<LocalFd> LocalSession::open(capnp::Text::Reader object, ObjectAccess access) {
  const std::string name(object_on_host(read_text(object)));
  TERRACE_ASSIGN_OR_RETURN(UniqueFd opened, service().orders().open(name, access));
  return LocalFd(std::make_shared<const UniqueFd>(std::move(opened)));
}

std::shared_ptr<HandedMemory> LocalSession::handed(LocalFd memory) {
  return connection_->peers.hand(connection_->peer, std::move(memory));
}

Result<rpc::Lease::Client> LocalSession::adopt(rpc::LeaseInfo::Reader info, rpc::Lease::Client upstream,
                                               ObjectAccess access, uint64_t sent_ns) {
  TERRACE_RETURN_IF_ERROR(may_take_one_more());
  TERRACE_RETURN_IF_ERROR(
      service().orders().hand_out(std::string(object_on_host(read_text(info.getObject())))));
  TERRACE_ASSIGN_OR_RETURN(LocalFd memory, open(info.getObject(), access));
  return rpc::Lease::Client(
      kj::heap<LocalLease>(kj::addRef(*this), info, kj::mv(upstream), access, std::move(memory), sent_ns));
}

}  // namespace terrace::daemon
