// SPDX-License-Identifier: Apache-2.0
// A program's report of what its memory does (TenantSession.reportRun), from the wire into the table of runs.
//
// Threads   The event loop's thread only.
#pragma once

#include "daemon/rpc/tenant/client_session.h"

namespace terrace::daemon {

// Errors    invalid_argument   its program has no printable name, or as RunTable::report
//           cancelled          the session has ended
Status take_run_report(ClientSession& session, rpc::RunFigures::Reader report);

}  // namespace terrace::daemon
