// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/tenant/part_calls.h"

#include "daemon/event_loop/processes.h"
#include "daemon/model/owner_limits.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

struct Caller {
  ProcessId process;
  std::string host;  // an agent's name; empty: the manager's own
};

Result<Caller> caller_of(ClientSession& session, rpc::HostProcess::Reader told) {
  const std::string& agent = session.connection().agent;
  if (agent.empty()) {
    TERRACE_ASSIGN_OR_RETURN(const ProcessId process, caller_of(session));
    return Caller{process, ""};
  }
  const ProcessId process{told.getPid(), told.getStarted(), told.getSpace()};
  if (process.pid != 0) return Caller{process, agent};
  return Error{.code = ErrorCode::unsupported,
               .where = "claimPart",
               .detail = "the agent of host " + agent +
                         " does not say which of its processes asks: it is of an earlier version. Upgrade it"};
}

kj::Promise<bool> has_ended(Service& service, const OwnerRow& owner) {
  if (owner.host.empty()) return process_has_ended(owner.process);
  if (service.hosts() == nullptr) return false;
  return service.hosts()->has_ended(owner.host, owner.process);
}

}  // namespace

Result<ProcessId> caller_of(ClientSession& session) {
  const Connection& connection = session.connection();
  if (connection.peer.remote != nullptr) return memory_is_elsewhere("claimPart");
  if (!connection.agent.empty()) {
    return Error{.code = ErrorCode::unsupported,
                 .where = "claimPart",
                 .detail = "the manager does not see the processes of host " + connection.agent};
  }
  return peer_process(connection.socket, connection.peer.pid);
}

kj::Promise<Result<ClaimPart>> claim_of(ClientSession& session, LeaseId id, ObjectAccess access,
                                        rpc::Lease::ClaimPartParams::Reader asked) {
  if (access != ObjectAccess::read_write) {
    return Result<ClaimPart>(
        Error{.code = ErrorCode::permission_denied,
              .where = "claimPart",
              .detail = "lease " + std::to_string(id.value) +
                        " is attached read-only here; who owns a part of it stores to it"});
  }
  const Result<Caller> caller = caller_of(session, asked.getProcess());
  if (!caller.ok()) return Result<ClaimPart>(caller.error());
  ClaimPart claim{.lease = id, .tenant = session.tenant(), .part = asked.getPart()};
  claim.last_epoch = asked.getLastEpoch();
  claim.request = asked.getKey();
  claim.process = caller->process;
  claim.host = caller->host;
  claim.holder = session.describe();
  if (!valid_text(claim.holder, owner_limits::holder_bytes_max))
    claim.holder = "process[" + std::to_string(claim.process.pid) + "]";
  claim.now_ns = session.engine().now_ns();
  const OwnerRow* owner = session.state().find_owner(id, claim.part);
  const LeaseRow* lease = session.state().find_lease(id);
  // Nobody's, its own by an earlier call, or refused whoever lives: there is nothing to ask.
  if (owner == nullptr || lease == nullptr || owner->process.pid == 0 ||
      (owner->process == claim.process && owner->request == claim.request) ||
      !session.state().same_caches(*lease, *owner, claim.host))
    return Result<ClaimPart>(std::move(claim));
  const uint64_t epoch = owner->epoch;
  return has_ended(session.service(), *owner)
      .then([claim = std::move(claim), epoch,
             &engine = session.engine()](bool ended) mutable -> Result<ClaimPart> {
        if (ended) claim.dead_epoch = epoch;
        claim.now_ns = engine.now_ns();
        return std::move(claim);
      });
}

Result<ReleasePart> release_of(ClientSession& session, LeaseId lease, uint64_t part, uint64_t epoch,
                               rpc::HostProcess::Reader told) {
  TERRACE_ASSIGN_OR_RETURN(const Caller caller, caller_of(session, told));
  return ReleasePart{lease, session.tenant(), part, epoch, caller.process, caller.host};
}

kj::Promise<bool> owner_is_dead(ClientSession& session, LeaseId id, uint64_t part, uint64_t epoch) {
  const StateMachine& state = session.state();
  const OwnerRow* owner = state.find_owner(id, part);
  const LeaseRow* lease = state.find_lease(id);
  if (owner == nullptr || lease == nullptr || epoch == 0 || epoch > owner->epoch) return false;
  if (!state.same_caches(*lease, *owner, session.connection().agent)) return false;
  // One before the last: it gave the part back, or was seen to have ended.
  if (epoch < owner->epoch || owner->process.pid == 0) return true;
  return has_ended(session.service(), *owner);
}

}  // namespace terrace::daemon
