// SPDX-License-Identifier: Apache-2.0
// What the calls of a lease's parts ask the state machine, once it was looked who calls and whether the owner
// lives.
//
// Threads   The event loop's thread only.
#pragma once

#include "daemon/rpc/tenant/client_session.h"

namespace terrace::daemon {

// The process at the other end of the session's connection. Errors as of claim_of().
Result<ProcessId> caller_of(ClientSession& session);

// For that process.
// Errors    permission_denied   the lease is attached read-only
//           unsupported         a process of another host, or one that cannot be seen
//           unavailable         it is gone
Result<ClaimPart> claim_of(ClientSession& session, LeaseId lease, ObjectAccess access, uint64_t part);
Result<ReleasePart> release_of(ClientSession& session, LeaseId lease, uint64_t part, uint64_t epoch);

// Whether the owner under `epoch` gave the part back, or its process has ended. false when in doubt.
bool owner_is_dead(const StateMachine& state, LeaseId lease, uint64_t part, uint64_t epoch);

}  // namespace terrace::daemon
