// Migration 2: composition, quotas, reservations and the audit log.
#pragma once

#include "core/base/result.h"
#include "daemon/store/sqlite_handle.h"

namespace terrace::daemon {

// Replaces the tables of version 1. Their rows are verified against their checksums and their seal first, and
// then written and sealed anew: damage must not be sealed in.
// Errors    corrupt   a row of version 1 is not what was written
Status migrate_to_version_2(Connection& connection);

}  // namespace terrace::daemon
