// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/tenant/client_session.h"

#include "daemon/consent/consented_holders.h"
#include "daemon/event_loop/processes.h"
#include "daemon/memory/path_access.h"
#include "daemon/rpc/ended_holders.h"

namespace terrace::daemon {

ClientSession::ClientSession(kj::Own<Connection> connection, std::string tenant, std::string host,
                             rpc::LeaseListener::Client listener)
    : connection_(kj::mv(connection)),
      tenant_(std::move(tenant)),
      host_(std::move(host)),
      notices_(*connection_, kj::mv(listener)) {
  TERRACE_CHECK(!tenant_.empty(), "a session acts for a tenant: to the state machine none is an administrator");
  connection_->parts.insert(this);
}

ClientSession::~ClientSession() noexcept(false) {
  end();
}

// The peer is gone, or gave the session up: nobody can be told any more, and a listener that is our own
// capability must not keep us.
void ClientSession::end() {
  if (std::exchange(ended_, true)) return;
  service().ended_holders().let_go(service().holders().remove(*this));
  notices_.stop();
  service().runs().end(connection_.get(), this);
  connection_->parts.erase(this);
}

const LeaseRow* ClientSession::find(LeaseId id) {
  const LeaseRow* lease = state().find_lease(id);
  if (lease == nullptr || lease->tenant != tenant_) return nullptr;
  return lease->phase == LeasePhase::pending || lease->phase == LeasePhase::waiting ? nullptr : lease;
}

Status ClientSession::may_take_one_more() {
  const uint32_t most = service().options().leases_max;
  if (ended_) {
    return Error{.code = ErrorCode::cancelled,
                 .where = "attach",
                 .detail = "the session of this lease has ended; attach it in another one"};
  }
  if (connection_->leases < most) return connection_->peers.may_open_memory(connection_->peer);
  return Error{
      .code = ErrorCode::limit_exceeded,
      .where = "attach",
      .detail = "this connection holds " + std::to_string(most) + " lease capabilities; drop some first"};
}

namespace {

ErrorCode code_of_end(const LeaseRow* lease) {
  return lease != nullptr && lease->cause == LeaseCause::expired ? ErrorCode::lease_expired
                                                                 : ErrorCode::lease_revoked;
}

}  // namespace

Error memory_is_elsewhere(const char* where) {
  return Error{.code = ErrorCode::unsupported,
               .where = where,
               .detail =
                   "memory is mapped on the manager's own host, or on another through its agent: a connection "
                   "over TLS passes none. Run this there, at the socket of terraced"};
}

Status ClientSession::on_this_host(const LeaseRow& lease) const {
  const std::string agent = StateMachine::agent_of(lease);
  if (connection_->service.engine().state().object_on(lease, connection_->agent).has_value()) return {};
  return Error{.code = ErrorCode::unsupported,
               .where = "attach",
               .detail = "the memory of lease " + std::to_string(lease.id.value) + " is " +
                         (agent.empty() ? "on the manager's own host" : "on host " + agent) +
                         "; attach it there"};
}

std::string ClientSession::object_here(const LeaseRow& lease) {
  return state().object_on(lease, connection_->agent).value_or(lease.object);
}

void ClientSession::write_info(rpc::LeaseInfo::Builder out, const LeaseRow& lease, bool with_object) {
  write_lease(out, lease, service(), with_object);
  out.setObject(object_here(lease));
}

bool ClientSession::needs_view(const LeaseRow& lease) {
  return connection_->peer.remote == nullptr && lease.mode != LeaseMode::exclusive && !lease.movable &&
         (lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking) &&
         !state().object_on(lease, connection_->agent).has_value() &&
         lies_on_shared(engine().backend(), lease.object);
}

const ProcessId& ClientSession::process() {
  if (!process_.has_value()) {
    auto seen = connection_->agent.empty() ? peer_process(connection_->socket, connection_->peer.pid)
                                           : Result<ProcessId>(ProcessId{});
    process_ = seen.ok() ? *seen : ProcessId{};
  }
  return *process_;
}

Result<Consent> ClientSession::consent(const HoldTerms& terms) {
  if (service().consents() == nullptr)
    return Error{
        .code = ErrorCode::unsupported,
        .where = "attach",
        .detail = "this manager ends no holders: it gives no lease whose holders are ended at a fence"};
  return consent_of_peer(connection_->socket, connection_->peer.pid, connection_->peer.uid, terms.process,
                         describe());
}

// Of a program on another host its agent asks; over TLS nobody gets memory.
Status ClientSession::may_agree(const HoldTerms& terms) {
  if (!terms.kill || connection_->peer.remote != nullptr) return {};
  if (!connection_->agent.empty()) {
    // An agent of an earlier version passes on what it does not know, and would end nobody.
    if (terms.process == 0) return {};
    return Error{.code = ErrorCode::unsupported,
                 .where = "grant",
                 .detail = "the agent of host " + connection_->agent +
                           " is of an earlier version, which ends no holders at a fence (on_fence kill)"};
  }
  const Result<Consent> agreed = consent(terms);
  return agreed.ok() ? Status() : Status(agreed.error());
}

Status ClientSession::agree(const LeaseRow& lease, const HoldTerms& terms) {
  if (lease.on_fence != OnFence::kill) return {};
  const bool local = connection_->agent.empty();
  if (local && service().consents() != nullptr && process().pid != 0 &&
      service().consents()->has_agreed(object_here(lease), process()))
    return {};  // before: it takes what it has anew
  if (!terms.kill)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "attach",
                 .detail = "whoever holds lease " + std::to_string(lease.id.value) +
                           " is ended before its memory is taken (on_fence kill): attach it with on_fence=kill "
                           "(--on-fence kill), by which this process agrees to that"};
  if (!local) return {};
  TERRACE_ASSIGN_OR_RETURN(Consent agreed, consent(terms));
  return service().consents()->agreed(object_here(lease), std::move(agreed));
}

void ClientSession::spare(LeaseId id, bool spared) {
  const LeaseRow* lease = find(id);
  if (lease == nullptr || lease->on_fence != OnFence::kill || !connection_->agent.empty()) return;
  if (service().consents() != nullptr && process().pid != 0)
    service().consents()->spare(object_here(*lease), process(), spared);
}

Result<rpc::Lease::Client> ClientSession::hand_over(LeaseId id, ObjectAccess access, const HoldTerms& terms) {
  TERRACE_RETURN_IF_ERROR(may_take_one_more());
  const LeaseRow* lease = find(id);
  if (lease != nullptr && lease->phase == LeasePhase::transferring) {
    return Error{
        .code = ErrorCode::busy,
        .where = "attach",
        .detail = "lease " + std::to_string(id.value) + " is being handed over; try again in a moment"};
  }
  if (lease == nullptr || (lease->phase != LeasePhase::active && lease->phase != LeasePhase::revoking)) {
    const std::string reason = lease == nullptr ? "it was fenced and scrubbed" : lease->reason;
    return Error{.code = reason == "expired" ? ErrorCode::lease_expired : code_of_end(lease),
                 .where = "attach",
                 .detail = "lease " + std::to_string(id.value) + " has ended: " + reason};
  }
  if (connection_->peer.remote != nullptr) return make_lease(kj::addRef(*this), id, access, nullptr);
  TERRACE_RETURN_IF_ERROR(on_this_host(*lease));
  TERRACE_RETURN_IF_ERROR(service().may_hold(*lease, access, *this));
  if (engine().state().awaited(id)) {
    return Error{.code = ErrorCode::unavailable,
                 .where = "attach",
                 .detail = "the memory of lease " + std::to_string(id.value) +
                           " is not there yet: its device is late; the lease waits for it"};
  }
  SharedFd memory;  // none for a session of another host: its agent opens the object
  if (connection_->agent.empty()) {
    TERRACE_ASSIGN_OR_RETURN(memory, service().open_memory(object_here(*lease), access));
  }
  TERRACE_RETURN_IF_ERROR(agree(*lease, terms));
  service().holders().add(*lease, access, *this);
  engine().was_taken(id);
  if (lease->ttl_ns != 0)
    service().ended_holders().handed_over(id, process(), describe(), terms.ends_with_holders);
  if (lease->phase == LeasePhase::revoking) {  // told again, also after a restart of the daemon
    const uint64_t now_ns = engine().now_ns();
    revoking(id, lease->deadline_ns > now_ns ? lease->deadline_ns - now_ns : 0, lease->reason);
  }
  return make_lease(kj::addRef(*this), id, access, std::move(memory));
}

Result<std::string> ClientSession::open_path(LeaseId id, ObjectAccess access, uint32_t user) {
  constexpr const char* where = "openPath";
  const LeaseRow* lease = find(id);
  if (lease == nullptr || (lease->phase != LeasePhase::active && lease->phase != LeasePhase::revoking))
    return Error{.code = code_of_end(lease),
                 .where = where,
                 .detail = "lease " + std::to_string(id.value) + " has ended or is being handed over"};
  if (connection_->peer.remote != nullptr || !connection_->agent.empty()) return memory_is_elsewhere(where);
  TERRACE_RETURN_IF_ERROR(on_this_host(*lease));
  TERRACE_RETURN_IF_ERROR(path_stays(id.value, lease->movable, lease->on_fence));
  if (user != connection_->peer.uid && !connection_->is_administrator()) return other_user_refused(where);
  TERRACE_RETURN_IF_ERROR(service().may_hold(*lease, access, *this));
  TERRACE_ASSIGN_OR_RETURN(const SharedFd memory, service().open_memory(object_here(*lease), access));
  return allow_by_path(memory->get(), user, access);
}

void ClientSession::revoking(LeaseId lease, uint64_t grace_ns, const std::string& reason) {
  notices_.revoking(lease, grace_ns, reason);
}

void ClientSession::fenced(LeaseId lease, const std::string& reason, LeaseCause cause) {
  notices_.fenced(lease, reason, cause);
}

void ClientSession::move_requested(LeaseId lease, const std::string& reason) {
  notices_.move_requested(lease, reason);
}

std::string ClientSession::describe() const {
  return (connection_->client_name.empty() ? "process " : connection_->client_name) + "[" +
         std::to_string(connection_->peer.pid) + "]";
}

}  // namespace terrace::daemon
