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

// For the process at the other end, or of an agent's session for `told`, which its program is.
// Errors    permission_denied   the lease is attached read-only
//           unsupported         a process that cannot be seen, or that an agent does not tell of
//           unavailable         it is gone
kj::Promise<Result<ClaimPart>> claim_of(ClientSession& session, LeaseId lease, ObjectAccess access,
                                        rpc::Lease::ClaimPartParams::Reader asked);
Result<ReleasePart> release_of(ClientSession& session, LeaseId lease, uint64_t part, uint64_t epoch,
                               rpc::HostProcess::Reader told);

// Whether the owner under `epoch` gave the part back, or its process has ended, and no cache that the session's host does not
// read through has what it stored. false when in doubt. Of a process of another host its agent is asked.
kj::Promise<bool> owner_is_dead(ClientSession& session, LeaseId lease, uint64_t part, uint64_t epoch);

}  // namespace terrace::daemon
