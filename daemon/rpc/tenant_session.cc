// A tenant's session: grants and attaches leases, hears of revocations.
#include <spdlog/spdlog.h>

#include "core/base/limits.h"
#include "daemon/rpc/connection.h"

namespace terrace::daemon {
namespace {

class TenantSessionServer final : public rpc::TenantSession::Server,
                                  private HolderListener,
                                  private EndsWithConnection,
                                  private kj::TaskSet::ErrorHandler {
 public:
  TenantSessionServer(kj::Own<Connection> connection, std::string tenant, std::string host,
                      rpc::LeaseListener::Client listener)
      : connection_(kj::mv(connection)),
        tenant_(std::move(tenant)),
        host_(std::move(host)),
        listener_(kj::mv(listener)),
        tasks_(kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this))) {
    connection_->parts.insert(this);
  }
  ~TenantSessionServer() noexcept(false) {
    service().remove_listener(*this);
    connection_->parts.erase(this);
  }

  kj::Promise<void> grant(GrantContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const auto request = context.getParams().getRequest();
      Grant command;
      command.pool = read_text(request.getPool());
      if (command.pool.empty()) command.pool = only_pool();
      command.tenant = tenant_;
      command.host = host_;
      command.label = read_text(request.getLabel());
      command.bytes = request.getBytes();
      command.mode = read_mode(request.getMode());
      command.persistent = request.getPersistent();
      command.ttl_ns = request.getTtlNs();
      command.request_high = request.getRequestHigh();
      command.request_low = request.getRequestLow();
      command.now_ns = service().engine().now_ns();
      if (Status status = check_ttl(command.ttl_ns); !status.ok()) {
        write_error(context.getResults().initError(), status.error());
        return kj::READY_NOW;
      }
      context.releaseParams();
      return service()
          .engine()
          .submit(std::move(command))
          .then([this, context](Result<Reply> reply) mutable {
            if (!reply.ok()) {
              write_error(context.getResults().initError(), reply.error());
              return;
            }
            answer(context, std::get<LeaseReply>(*reply).lease.id, ObjectAccess::read_write);
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> attach(AttachContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const auto params = context.getParams();
      const StateMachine& state = service().engine().state();
      const std::string label = read_text(params.getLabel());
      const LeaseRow* lease = params.getLease() != 0 ? state.find_lease(LeaseId{params.getLease()})
                                                     : state.find_lease_by_label(tenant_, label);
      if (lease == nullptr || lease->tenant != tenant_ || lease->phase == LeasePhase::pending) {
        const std::string what =
            params.getLease() != 0 ? std::to_string(params.getLease()) : "labelled '" + label + "'";
        write_error(context.getResults().initError(),
                    Error{.code = ErrorCode::not_found,
                          .where = "attach",
                          .detail = "tenant " + tenant_ + " has no lease " + what});
        return kj::READY_NOW;
      }
      const auto access =
          params.getAccess() == rpc::Access::READ_WRITE ? ObjectAccess::read_write : ObjectAccess::read_only;
      // The lease that was found is durable after this; only then is its descriptor handed over.
      return service()
          .engine()
          .settled()
          .then([this, context, id = lease->id, access](Status status) mutable {
            if (status.ok()) {
              answer(context, id, access);
            } else {
              write_error(context.getResults().initError(), status.error());
            }
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> list(ListContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const auto params = context.getParams();
      const uint32_t most = std::min(params.getLimit() == 0 ? limits::leases_per_page_max : params.getLimit(),
                                     limits::leases_per_page_max);
      std::vector<const LeaseRow*> found;
      const auto& leases = service().engine().state().leases();
      for (auto at = leases.upper_bound(LeaseId{params.getAfter()}); at != leases.end() && found.size() < most;
           ++at)
        if (at->second.tenant == tenant_ && at->second.phase != LeasePhase::pending)
          found.push_back(&at->second);
      auto out = context.getResults().initLeases(static_cast<uint32_t>(found.size()));
      for (uint32_t i = 0; i < found.size(); ++i) write_lease(out[i], *found[i], service(), false);
      return send_when_durable(context).attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> pools(PoolsContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const StateMachine& state = service().engine().state();
      auto out = context.getResults().initPools(static_cast<uint32_t>(state.pools().size()));
      uint32_t i = 0;
      for (const auto& [id, pool] : state.pools()) write_pool(out[i++], pool, state);
      return send_when_durable(context).attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  // All renewals are applied at once, so that they share one commit.
  kj::Promise<void> renewMany(RenewManyContext context) override {
    KJ_IF_MAYBE (slot, admit(*connection_, context)) {
      const auto ids = context.getParams().getLeases();
      if (ids.size() > limits::leases_per_page_max) {
        write_error(
            context.getResults().initError(),
            Error{.code = ErrorCode::limit_exceeded,
                  .where = "renewMany",
                  .detail = "at most " + std::to_string(limits::leases_per_page_max) + " leases a call"});
        return kj::READY_NOW;
      }
      const uint64_t now_ns = service().engine().now_ns();
      const uint64_t ttl_ns = context.getParams().getTtlNs();
      auto failed = std::make_shared<std::vector<std::pair<uint64_t, Error>>>();
      kj::Vector<kj::Promise<void>> renewals;
      for (const uint64_t id : ids) {
        renewals.add(service()
                         .engine()
                         .submit(Renew{LeaseId{id}, tenant_, ttl_ns, now_ns})
                         .then([failed, id](Result<Reply> reply) {
                           if (!reply.ok()) failed->emplace_back(id, reply.error());
                         }));
      }
      return kj::joinPromises(renewals.releaseAsArray())
          .then([context, failed]() mutable {
            auto out = context.getResults().initFailed(static_cast<uint32_t>(failed->size()));
            for (uint32_t i = 0; i < failed->size(); ++i) {
              out[i].setLease((*failed)[i].first);
              write_error(out[i].initError(), (*failed)[i].second);
            }
          })
          .attach(kj::mv(*slot), kj::defer([this] { renewing_ = false; }));
    }
    return kj::READY_NOW;
  }

 private:
  Service& service() { return connection_->service; }

  std::string only_pool() {
    const auto& pools = service().engine().state().pools();
    return pools.size() == 1 ? pools.begin()->second.name : "";
  }

  Status check_ttl(uint64_t ttl_ns) {
    if (ttl_ns <= service().options().ttl_ns_max) return {};
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "grant",
                 .detail = "a TTL of " + format_duration(ttl_ns) + " is beyond this daemon's " +
                           format_duration(service().options().ttl_ns_max)};
  }

  template <typename Context>
  kj::Promise<void> send_when_durable(Context context) {
    return service().engine().settled().then([context](Status settled) mutable {
      if (!settled.ok()) write_error(context.getResults().initError(), settled.error());
    });
  }

  // Hands the lease over: descriptor, capability, and this session as one to be told.
  template <typename Context>
  void answer(Context& context, LeaseId id, ObjectAccess access) {
    const LeaseRow* lease = service().engine().state().find_lease(id);
    Status status;
    if (lease == nullptr || (lease->phase != LeasePhase::active && lease->phase != LeasePhase::revoking)) {
      const std::string reason = lease == nullptr ? "it was fenced and scrubbed" : lease->reason;
      status = Error{.code = reason == "expired" ? ErrorCode::lease_expired : ErrorCode::lease_revoked,
                     .where = "attach",
                     .detail = "lease " + std::to_string(id.value) + " has ended: " + reason};
    } else if (connection_->leases >= limits::rpc_leases_max) {
      status = Error{.code = ErrorCode::limit_exceeded,
                     .where = "attach",
                     .detail = "this connection holds " + std::to_string(limits::rpc_leases_max) +
                               " lease capabilities; drop some first"};
    } else {
      status = service().may_hold(*lease, access, *this);
    }
    if (!status.ok()) {
      write_error(context.getResults().initError(), status.error());
      return;
    }
    auto memory = service().open_memory(*lease, access);
    if (!memory.ok()) {
      write_error(context.getResults().initError(), memory.error());
      return;
    }
    service().add_holder(id, access, *this);
    write_lease(context.getResults().initInfo(), *lease, service(), false);
    context.getResults().setLease(make_lease(kj::addRef(*connection_), id, tenant_, std::move(*memory)));
    if (lease->phase == LeasePhase::revoking) {  // told again, also after a restart of the daemon
      const uint64_t now_ns = service().engine().now_ns();
      revoking(id, lease->deadline_ns > now_ns ? lease->deadline_ns - now_ns : 0, lease->reason);
    }
  }

  // The peer is gone: nobody can be told any more, and a listener that is our own capability must not keep us.
  void connection_ended() override {
    service().remove_listener(*this);
    listener_ = nullptr;
    tasks_ = kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this));
  }

  int32_t pid() const override { return connection_->peer.pid; }

  void revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) override {
    auto request = listener_.revokingRequest();
    request.setLease(lease.value);
    request.setGraceNs(grace_ns);
    request.setReason(reason);
    tasks_->add(request.send().ignoreResult());
  }

  void fenced(LeaseId lease, const std::string& reason) override {
    auto request = listener_.fencedRequest();
    request.setLease(lease.value);
    request.setReason(reason);
    tasks_->add(request.send().ignoreResult());
  }

  // A holder that cannot be told is fenced all the same when its grace ends.
  void taskFailed(kj::Exception&& exception) override {
    spdlog::info("a notice to process {} was not taken: {}", connection_->peer.pid,
                 exception.getDescription().cStr());
  }

  kj::Own<Connection> connection_;
  std::string tenant_;
  std::string host_;
  bool renewing_ = false;
  rpc::LeaseListener::Client listener_;
  kj::Own<kj::TaskSet> tasks_;  // notices under way
};

}  // namespace

rpc::TenantSession::Client make_tenant_session(kj::Own<Connection> connection, std::string tenant,
                                               std::string host, rpc::LeaseListener::Client listener) {
  return kj::heap<TenantSessionServer>(kj::mv(connection), std::move(tenant), std::move(host),
                                       kj::mv(listener));
}

}  // namespace terrace::daemon
