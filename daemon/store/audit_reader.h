// SPDX-License-Identifier: Apache-2.0
// Reads the audit log of an open store.
#pragma once

#include "core/base/result.h"
#include "daemon/store/sqlite_handle.h"
#include "daemon/store/store.h"

namespace terrace::daemon {

// Errors    corrupt   a line of the log is not what was written
Result<AuditPage> read_audit(Connection& connection, const AuditQuery& query);

}  // namespace terrace::daemon
