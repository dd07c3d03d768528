// SPDX-License-Identifier: Apache-2.0
// A tenant's session on the wire: grants and attaches leases, lists and renews them.
#include <sys/random.h>

#include "core/base/limits.h"
#include "daemon/events/commands/command_events.h"
#include "daemon/rpc/ended_holders.h"
#include "daemon/rpc/tenant/client_session.h"
#include "daemon/rpc/tenant/run_reports.h"
#include "daemon/rpc/tenant/userfaultfd_device.h"

namespace terrace::daemon {
namespace {

class TenantSessionServer final : public rpc::TenantSession::Server {
 public:
  explicit TenantSessionServer(kj::Own<ClientSession> session) : session_(kj::mv(session)) {}
  // Its lease capabilities may live on; they are told nothing more.
  ~TenantSessionServer() noexcept(false) { session_->end(); }

  kj::Promise<void> grant(GrantContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      Grant command = read_grant(context.getParams().getRequest());
      if (Status status = check_host(command); !status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      const HoldTerms terms = terms_of(context.getParams().getRequest());
      if (Status status = session_->may_agree(terms); !status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      context.releaseParams();
      const LeaseRow* namesake = find_by_label(command.label);
      if (namesake == nullptr) return submit(context, std::move(command), terms, kj::mv(*slot));
      // The last run's, perhaps, which has ended a moment ago.
      return service()
          .ended_holders()
          .settle(namesake->id)
          .then([this, context, command = std::move(command), terms, slot = kj::mv(*slot)]() mutable {
            return submit(context, std::move(command), terms, kj::mv(slot));
          });
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> attach(AttachContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      const auto params = context.getParams();
      if (connection().peer.remote != nullptr && !params.getWithoutMemory()) {
        refuse(context, memory_is_elsewhere("attach"));
        return kj::READY_NOW;
      }
      const LeaseId id{params.getLease()};
      const std::string label = read_text(params.getLabel());
      const LeaseRow* lease = id.valid() ? session_->find(id) : find_by_label(label);
      if (lease == nullptr) {
        refuse(context,
               Error{.code = ErrorCode::not_found,
                     .where = "attach",
                     .detail = "tenant " + session_->tenant() + " has no lease " +
                               (id.valid() ? std::to_string(id.value) : "labelled '" + shown(label) + "'")});
        return kj::READY_NOW;
      }
      const auto access =
          params.getAccess() == rpc::Access::READ_WRITE ? ObjectAccess::read_write : ObjectAccess::read_only;
      return attach_durable(context, *lease, access).attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> list(ListContext context) override {
    return answer_page(connection(), context, [this](ListContext& c) {
      const auto params = c.getParams();
      if (Status status = service().may_look(connection().peer); !status.ok()) {
        refuse(c, status.error());
        return;
      }
      const uint32_t most = page_size(params.getLimit());
      uint64_t looked_at = 0;
      std::vector<const LeaseRow*> found;
      const auto& leases = session_->state().leases();
      for (auto at = leases.upper_bound(LeaseId{params.getAfter()}); at != leases.end() && found.size() < most;
           ++at, ++looked_at)
        if (session_->find(at->first) != nullptr) found.push_back(&at->second);
      service().looked_at(connection().peer, looked_at);
      write_leases(c.getResults().initLeases(static_cast<uint32_t>(found.size())), found, service());
    });
  }

  kj::Promise<void> pools(PoolsContext context) override {
    return answer_query(connection(), context, [this](PoolsContext& c) {
      write_pools(c.getResults().initPools(static_cast<uint32_t>(session_->state().pools().size())), service());
    });
  }

  static void write_failed(rpc::TenantSession::RenewManyResults::Builder results,
                           const std::vector<std::pair<LeaseId, Error>>& failed) {
    auto out = results.initFailed(static_cast<uint32_t>(failed.size()));
    for (uint32_t i = 0; i < failed.size(); ++i) {
      out[i].setLease(failed[i].first.value);
      write_error(out[i].initError(), failed[i].second);
    }
  }

  kj::Promise<void> renewMany(RenewManyContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      const auto ids = context.getParams().getLeases();
      if (Status status = service().may_look(connection().peer); !status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      if (ids.size() > limits::leases_per_page_max) {
        refuse(context,
               Error{.code = ErrorCode::limit_exceeded,
                     .where = "renewMany",
                     .detail = "at most " + std::to_string(limits::leases_per_page_max) + " leases a call"});
        return kj::READY_NOW;
      }
      service().looked_at(connection().peer, ids.size());
      RenewMany command{{}, session_->tenant(), context.getParams().getTtlNs(), service().engine().now_ns()};
      command.leases.reserve(ids.size());
      for (const uint64_t id : ids) command.leases.push_back(LeaseId{id});
      return service()
          .engine()
          .submit(std::move(command), connection().caller())
          .then([context](Result<RenewalsReply> reply) mutable {
            if (reply.ok()) {
              write_failed(context.getResults(), reply->failed);
            } else {
              refuse(context, reply.error());
            }
          })
          .attach(kj::mv(*slot));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> reportRun(ReportRunContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      const CallSlot held = kj::mv(*slot);
      if (Status status = take_run_report(*session_, context.getParams().getFigures()); !status.ok())
        refuse(context, status.error());
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> offers(OffersContext context) override {
    return answer_page(connection(), context, [this](OffersContext& c) {
      const auto params = c.getParams();
      if (Status status = service().may_look(connection().peer); !status.ok()) {
        refuse(c, status.error());
        return;
      }
      const uint32_t most = page_size(params.getLimit());
      uint64_t looked_at = 0;
      std::vector<const LeaseRow*> found;
      const auto& offers = session_->state().offers();
      for (auto at = offers.upper_bound(LeaseId{params.getAfter()}); at != offers.end() && found.size() < most;
           ++at, ++looked_at)
        if (at->second.to_tenant == session_->tenant())
          found.push_back(session_->state().find_lease(at->first));
      service().looked_at(connection().peer, looked_at);
      write_leases(c.getResults().initLeases(static_cast<uint32_t>(found.size())), found, service());
    });
  }

  kj::Promise<void> acceptOffer(AcceptOfferContext context) override {
    AcceptOffer request{.lease = LeaseId{context.getParams().getLease()},
                        .tenant = session_->tenant(),
                        .now_ns = service().engine().now_ns()};
    if (Status placed = service().place_accepted(request); !placed.ok()) {
      refuse(context, placed.error());
      return kj::READY_NOW;
    }
    return answer_command(connection(), context, std::move(request),
                          [this](AcceptOfferContext& c, LeaseReply& reply) {
                            service().handed_over(reply.lease);
                            write_lease(c.getResults().initInfo(), reply.lease, service(), false);
                          });
  }

  kj::Promise<void> userfaultfd(UserfaultfdContext context) override {
    KJ_IF_MAYBE (slot, admit(connection(), context)) {
      const CallSlot held = kj::mv(*slot);
      if (connection().peer.remote != nullptr) {
        refuse(context, memory_is_elsewhere("userfaultfd"));
      } else if (connection().agent.empty()) {
        userfaultfd_.write(connection(), context);
      } else {  // its programs are on another machine, whose device their agent opens
        refuse(context,
               Error{.code = ErrorCode::unsupported,
                     .where = "userfaultfd",
                     .detail = "a manager's /dev/userfaultfd is of no use on host " + connection().agent});
      }
    }
    return kj::READY_NOW;
  }

 private:
  // Hands over the descriptor of what is durable: a lease that moved or grew meanwhile is waited for again.
  kj::Promise<void> attach_durable(AttachContext context, const LeaseRow& lease, ObjectAccess access) {
    return service().engine().settled().then([this, context, id = lease.id, object = lease.object,
                                              bytes = lease.bytes,
                                              access](Status status) mutable -> kj::Promise<void> {
      if (!status.ok()) {
        refuse(context, status.error());
        return kj::READY_NOW;
      }
      const LeaseRow* now = session_->find(id);
      if (now != nullptr && (now->object != object || now->bytes != bytes))
        return attach_durable(context, *now, access);
      if (now != nullptr && connection().peer.remote != nullptr) {
        // No holder, but what another holds alone, or moves, is as untouchable as for one.
        if (Status free = service().may_hold(*now, access, *session_); !free.ok()) {
          refuse(context, free.error());
        } else {
          session_->hand_over(context, id, access);
        }
        return kj::READY_NOW;
      }
      if (now != nullptr && session_->needs_view(*now)) return attach_on_further_host(context, *now, access);
      if (session_->hand_over(context, id, access, terms_of(context.getParams()))) {
        Event attached = lease_event(EventKind::lease_attached, *session_->find(id), session_->state(),
                                     "lease " + std::to_string(id.value) + " is attached");
        attached.cause = connection().name();
        service().engine().events().tell(std::move(attached));
      }
      return kj::READY_NOW;
    });
  }

  static kj::Promise<void> refused(AttachContext& context, const Error& error) {
    refuse(context, error);
    return kj::READY_NOW;
  }

  // Its memory object is on another host, and this one sees the same memory: it gets an object of its own first.
  kj::Promise<void> attach_on_further_host(AttachContext context, const LeaseRow& lease, ObjectAccess access) {
    const std::string& agent = connection().agent;
    if (Status free = service().may_hold(lease, access, *session_); !free.ok())
      return refused(context, free.error());
    if (HostDirectory* hosts = service().hosts(); hosts != nullptr && !agent.empty()) {
      if (Status may = hosts->may_grant(agent, lease.pool); !may.ok()) return refused(context, may.error());
      if (const std::vector<std::string> unproved = hosts->unproved(agent, lease); !unproved.empty())
        return prove(lease, unproved.front()).then([this, context, lease, access](Status proved) mutable {
          return proved.ok() ? attach_durable(context, lease, access) : refused(context, proved.error());
        });
    }
    return connection()
        .submit(OpenView{lease.id, session_->tenant(), agent, service().now_ns()})
        .then([this, context, lease, access](Result<ViewReply> reply) mutable -> kj::Promise<void> {
          if (!reply.ok()) return refused(context, reply.error());
          return service()
              .engine()
              .view_opened(reply->view)
              .then([this, context, lease, access](Status opened) mutable {
                return opened.ok() ? attach_durable(context, lease, access) : refused(context, opened.error());
              });
        });
  }

  // That the host sees the same memory under the device's name is proved with the first lease that it has there, in memory
  // that nobody has: so it gets one, of a granule, which ends at once.
  kj::Promise<Status> prove(const LeaseRow& lease, const std::string& serial) {
    Grant proof;
    const PoolRow* pool = session_->state().find_pool(lease.pool);
    proof.pool = pool == nullptr ? "" : pool->name;
    proof.tenant = session_->tenant();
    proof.host = session_->host();
    proof.agent = connection().agent;
    proof.bytes = session_->state().pool_granule_bytes(lease.pool);
    proof.device = serial;
    proof.ttl_ns = limits::ttl_ns_min;
    proof.now_ns = service().now_ns();
    return connection()
        .submit(std::move(proof))
        .then([this, serial](Result<LeaseReply> granted) -> kj::Promise<Status> {
          if (!granted.ok()) {
            Error error = granted.error();
            error.detail =
                "whether this host sees the memory of " + serial +
                " as the manager does is found out with a lease of one granule there, and that failed: " +
                error.detail;
            return Status(error);
          }
          return connection()
              .submit(Release{granted->lease.id, session_->tenant(), service().now_ns()})
              .then([](Result<Done>) { return Status(); });
        });
  }

  static kj::Promise<void> refused(GrantContext& context, const Error& error) {
    refuse(context, error);
    return kj::READY_NOW;
  }

  // A drain may have moved it between its commit and this answer: then what is durable is waited for.
  kj::Promise<void> hand_over_granted(GrantContext context, const LeaseRow& granted, HoldTerms terms) {
    const LeaseRow* now = session_->find(granted.id);
    if (now == nullptr || now->object == granted.object) {
      session_->hand_over(context, granted.id, ObjectAccess::read_write, terms);
      return kj::READY_NOW;
    }
    return service().engine().settled().then([this, context, now = *now, terms](Status status) mutable {
      return status.ok() ? hand_over_granted(context, now, terms) : refused(context, status.error());
    });
  }

  kj::Promise<void> submit(GrantContext context, Grant command, HoldTerms terms, CallSlot slot) {
    const bool may_wait = command.wait_ns != 0;
    Actor asking = connection().actor();
    asking.trace = slot.trace();  // another call may have come since this one was admitted
    auto submitted = service().waiting_grants().submit(std::move(command), asking);
    auto answered = submitted.answer.then([this, context, terms](Result<LeaseReply> granted) mutable {
      return granted.ok() ? hand_over_granted(context, granted->lease, terms)
                          : refused(context, granted.error());
    });
    // A client that gives up, or goes away, must not leave its request in the queue.
    if (may_wait) context.allowCancellation();
    if (submitted.waits && connection().waiting < limits::waiting_per_tenant_max)
      return answered.attach(WaitingSlot(connection()));  // for an hour, perhaps: not one of the calls
    return answered.attach(kj::mv(slot));
  }

  Connection& connection() { return session_->connection(); }
  Service& service() { return session_->service(); }

  Grant read_grant(rpc::GrantRequest::Reader request) {
    Grant command;
    command.pool = read_text(request.getPool());
    if (command.pool.empty()) command.pool = only_pool();
    command.tenant = session_->tenant();
    command.host = session_->host();
    command.agent = connection().agent;
    command.label = read_text(request.getLabel());
    command.bytes = request.getBytes();
    command.mode = static_cast<LeaseMode>(request.getMode());
    command.persistent = request.getPersistent();
    command.ttl_ns = request.getTtlNs();
    command.request_high = request.getRequestHigh();
    command.request_low = request.getRequestLow();
    command.movable = request.getMovable();
    command.on_fence = static_cast<OnFence>(request.getOnFence());
    command.wait_ns = request.getWaitNs();
    command.pins_outlast = service().pins_outlast(session_->state().find_pool(command.pool));
    command.now_ns = service().engine().now_ns();
    // One that waits is found by its key when its client goes away.
    const bool keyed = command.request_high != 0 || command.request_low != 0;
    if (command.wait_ns != 0 && !keyed) draw_key(command);
    return command;
  }

  static void draw_key(Grant& command) {
    uint64_t key[2] = {0, 0};
    while (key[0] == 0 && ::getrandom(key, sizeof(key), 0) != static_cast<ssize_t>(sizeof(key))) {
    }
    command.request_high = key[0];
    command.request_low = key[1];
  }

  std::string only_pool() {
    const auto& pools = session_->state().pools();
    return pools.size() == 1 ? pools.begin()->second.name : "";
  }

  const LeaseRow* find_by_label(const std::string& label) {
    const LeaseRow* lease = session_->state().find_lease_by_label(session_->tenant(), label);
    return lease == nullptr ? nullptr : session_->find(lease->id);
  }

  // A pool that does not exist is the state machine's to refuse.
  Status check_host(const Grant& command) {
    const PoolRow* pool = session_->state().find_pool(command.pool);
    if (command.agent.empty() || pool == nullptr || service().hosts() == nullptr) return {};
    return service().hosts()->may_grant(command.agent, pool->id);
  }

  kj::Own<ClientSession> session_;
  UserfaultfdAnswer userfaultfd_;
};

}  // namespace

rpc::TenantSession::Client make_tenant_session(kj::Own<Connection> connection, std::string tenant,
                                               std::string host, rpc::LeaseListener::Client listener) {
  return kj::heap<TenantSessionServer>(
      kj::refcounted<ClientSession>(kj::mv(connection), std::move(tenant), std::move(host), kj::mv(listener)));
}

}  // namespace terrace::daemon
