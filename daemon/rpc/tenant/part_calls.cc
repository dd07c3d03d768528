// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/tenant/part_calls.h"

#include "daemon/event_loop/processes.h"
#include "daemon/model/owner_limits.h"
#include "daemon/state/names.h"

namespace terrace::daemon {

Result<ProcessId> caller_of(ClientSession& session) {
  const Connection& connection = session.connection();
  if (connection.peer.remote != nullptr) return memory_is_elsewhere("claimPart");
  if (!connection.agent.empty()) {
    return Error{
        .code = ErrorCode::unsupported,
        .where = "claimPart",
        .detail = "the manager cannot see whether a process of host " + connection.agent + " has ended"};
  }
  return peer_process(connection.socket, connection.peer.pid);
}

Result<ClaimPart> claim_of(ClientSession& session, LeaseId lease, ObjectAccess access, uint64_t part) {
  if (access != ObjectAccess::read_write) {
    return Error{.code = ErrorCode::permission_denied,
                 .where = "claimPart",
                 .detail = "lease " + std::to_string(lease.value) +
                           " is attached read-only here; who owns a part of it stores to it"};
  }
  TERRACE_ASSIGN_OR_RETURN(const ProcessId process, caller_of(session));
  ClaimPart claim{.lease = lease, .tenant = session.tenant(), .part = part};
  claim.process = process;
  claim.holder = session.describe();
  if (!valid_text(claim.holder, owner_limits::holder_bytes_max))
    claim.holder = "process[" + std::to_string(process.pid) + "]";
  const OwnerRow* owner = session.state().find_owner(lease, part);
  if (owner != nullptr && process_has_ended(owner->process)) claim.dead_epoch = owner->epoch;
  claim.now_ns = session.engine().now_ns();
  return claim;
}

Result<ReleasePart> release_of(ClientSession& session, LeaseId lease, uint64_t part, uint64_t epoch) {
  TERRACE_ASSIGN_OR_RETURN(const ProcessId process, caller_of(session));
  return ReleasePart{lease, session.tenant(), part, epoch, process};
}

bool owner_is_dead(const StateMachine& state, LeaseId lease, uint64_t part, uint64_t epoch) {
  const OwnerRow* owner = state.find_owner(lease, part);
  if (owner == nullptr || epoch == 0 || epoch > owner->epoch) return false;
  // One before the last: it gave the part back, or was seen to have ended.
  if (epoch < owner->epoch || owner->process.pid == 0) return true;
  return process_has_ended(owner->process);
}

}  // namespace terrace::daemon
